"""The dead letters of an experiment in memory: bounded, the oldest dropped and counted."""

from collections.abc import Iterator

from ray_messaging.transports.dead_letters import LETTER_BYTES, DeadFacts, DeadFrame


class DeadLetterBox:
    """Hold dead letters in the order of their ids, `number-0`."""

    def __init__(self) -> None:
        self.letters: dict[str, DeadFrame] = {}
        self._last = 0
        self._nbytes = self._dropped = self._dropped_bytes = 0

    def __iter__(self) -> Iterator[DeadFrame]:
        return iter(self.letters.values())

    def lay(self, letter: DeadFrame, limit: float) -> None:
        """Add a letter under a new id, and drop the oldest ones that are too many; a huge one leaves the others."""
        if _weight(letter) > limit:
            nbytes = len(letter.frame)
            lost = f"{letter.reason} (its frame of {nbytes} bytes is above the limit of dead letters, and lost)"
            letter = letter._replace(frame=b"", reason=lost)
            self._dropped += 1
            self._dropped_bytes += nbytes
        self._last += 1
        self.letters[f"{self._last}-0"] = letter._replace(id=f"{self._last}-0")
        self._nbytes += _weight(letter)
        while self._nbytes > limit:
            oldest = self.release(next(iter(self.letters)))
            self._dropped += 1
            self._dropped_bytes += _weight(oldest)

    def release(self, letter: str) -> DeadFrame:
        """Take a letter out."""
        found = self.letters.pop(letter)
        self._nbytes -= _weight(found)
        return found

    def facts(self) -> DeadFacts:
        """Count the letters, and those that were dropped."""
        return DeadFacts(len(self.letters), self._nbytes, self._dropped, self._dropped_bytes)

    def count_anew(self) -> None:
        """Forget how many letters were dropped so far."""
        self._dropped = self._dropped_bytes = 0


def _weight(letter: DeadFrame) -> int:
    return len(letter.frame) + LETTER_BYTES
