"""The steps from which changes of the agents of mailboxes count."""

from bisect import bisect_right

ALWAYS = -1  # a change that counts in all steps from now on, as all do without steps


class HostDates:
    """The first step of each change of hosts, by the version of the directory that the change made.

    Args: `text` is as the server keeps it: `step:version` by commas, ascending. Changes from that version up to the
    next one count from that step on.
    """

    def __init__(self, text: str = "") -> None:
        self.text = text
        pairs = [pair.split(":") for pair in text.split(",") if pair]
        self._steps = [int(step) for step, _ in pairs]
        self._versions = [int(version) for _, version in pairs]

    def since(self, version: int) -> int:
        """Return the step from which the changes of a version count; ALWAYS: that was long ago."""
        place = bisect_right(self._versions, version)
        return self._steps[place - 1] if place else ALWAYS


NO_DATES = HostDates()
