"""How a loop in the background is doing."""

from typing import NamedTuple

STUCK_S = 15.0  # a loop that has work comes round within this; a read of a mailbox may take 5 s


class Loop(NamedTuple):
    """Say whether a loop still runs, has work, and how long ago (s) it came round.

    One that waits for work is well, however long it waits. `limit_s`: with work to do it comes round within this.
    """

    name: str
    alive: bool
    busy: bool
    age_s: float
    error: str = ""
    limit_s: float = STUCK_S

    @property
    def stuck(self) -> bool:
        """Tell whether it has work and does not get on with it."""
        return self.alive and self.busy and self.age_s > self.limit_s
