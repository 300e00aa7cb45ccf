"""Dead letters in a MemoryServer."""

from collections.abc import Sequence
from itertools import islice
from math import inf

from ray_messaging.transports.dead_letter_store import (
    PAGE_BYTES,
    DeadFacts,
    DeadFrame,
    Listeners,
    Requeued,
    Returned,
)
from ray_messaging.transports.memory.server import Mailbox, number
from ray_messaging.transports.memory.transport import MemoryTransport
from ray_messaging.transports.transport import FrameFate

_REQUEUED = {
    FrameFate.WRITTEN: Requeued.DONE,
    FrameFate.TOO_LARGE: Requeued.TOO_LARGE,
    FrameFate.FULL: Requeued.FULL,
    FrameFate.LOG_FULL: Requeued.LOG_FULL,
    FrameFate.GONE: Requeued.STALE_DIRECTORY,
}


class MemoryDeadLetters:
    """Dead letters of one experiment, beside its MemoryTransport."""

    def __init__(self, transport: MemoryTransport) -> None:
        self._transport, self._exp = transport, transport.exp

    async def known(self) -> bool:
        """Return whether the server knows an experiment of this name."""
        return self._exp.directory > 0 or bool(self._exp.dead.letters)

    async def facts(self) -> DeadFacts:
        """Count the letters, and those that were dropped."""
        return self._exp.dead.facts()

    async def page(self, after: str, count: int) -> list[DeadFrame]:
        """Return up to `count` letters behind an id, fewer where they are large; [] at the end."""
        found: list[DeadFrame] = []
        nbytes = 0
        for letter in islice((one for one in self._exp.dead if number(one.id) > number(after or "0-0")), count):
            found.append(letter)
            nbytes += len(letter.frame)
            if nbytes >= PAGE_BYTES:
                break
        return found

    async def last(self) -> str:
        """Return the id of the last letter; "": there is none."""
        return next(reversed(self._exp.dead.letters), "")

    async def get(self, letter: str) -> DeadFrame | None:
        """Return one letter; None: there is none of this id."""
        return self._exp.dead.letters.get(letter)

    async def listeners(self) -> Listeners:
        """Return the mailboxes that listen now."""
        delta = await self._transport.load_directory(-1)
        boxes = self._exp.mailboxes
        return Listeners(delta.version, delta.changed, {name: (box.born, box.since) for name, box in boxes.items()})

    async def requeue(self, letter: str, version: int, frames: Sequence[Returned], rest: bytes) -> tuple[Requeued, str]:
        """Write frames into mailboxes and take the letter away, all of it or nothing; returns the mailbox at fault."""
        exp = self._exp
        if letter not in exp.dead.letters:
            return Requeued.MISSING, ""
        if exp.directory != version:
            return Requeued.STALE_DIRECTORY, ""
        for name in {mailbox for mailbox, _, _ in frames}:
            fate = _fits(exp.mailboxes.get(name), [found for found in frames if found.mailbox == name])
            if fate is not Requeued.DONE:
                return fate, name
        for mailbox, rows, frame in frames:
            exp.entry += 1
            exp.mailboxes[mailbox].append(exp.entry, rows, frame)
        taken = exp.dead.release(letter)
        if rest:
            exp.dead.lay(taken._replace(frame=rest, row=0, acked=""), inf)
        exp.wake()
        return Requeued.DONE, ""

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; return how many there were."""
        there = [letter for letter in dict.fromkeys(letters) if letter in self._exp.dead.letters]
        for letter in there:
            self._exp.dead.release(letter)
        return len(there)

    async def count_anew(self) -> None:
        """Forget how many letters were dropped so far."""
        self._exp.dead.count_anew()


def _fits(box: Mailbox | None, frames: Sequence[Returned]) -> Requeued:
    if box is None:
        return Requeued.STALE_DIRECTORY
    sizes = [len(found.frame) for found in frames]
    return _REQUEUED[box.fate(max(sizes), sum(found.rows for found in frames), sum(sizes))]
