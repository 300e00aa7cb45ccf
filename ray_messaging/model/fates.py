"""The fates of messages, such as "delivered" or "blocked". One table has the properties of each fate.

The log stores the names of fates. Receipts, notes for the log, and calls between processes have codes, which are the
numbers of the table's rows, so a new fate must be the table's last row.
"""

from typing import Literal, NamedTuple

import numpy as np

FateName = Literal["delivered", "published", "undeliverable", "blocked"]


class Fate(NamedTuple):
    """The properties of a fate. The defaults are for a name that is not a fate's, such as "unknown"."""

    meaning: str = ""
    colour: str = "#8b93a1"
    terminal: str = ""  # the colour in a terminal
    sent: bool = False  # whether some receiver has the message; then its receipt is true as a bool
    stored: bool = False  # whether a mailbox has the message: it counts as delivered, and can be read and answered
    reason: str = ""  # why no receiver has the message, unless a rule or the receipt gives a reason


# The colours are Okabe and Ito's, which colour-blind readers can tell apart.
_TABLE: dict[FateName, Fate] = {
    "delivered": Fate("in the mailbox of the receiver's group", "#0072B2", "blue", sent=True, stored=True),
    "published": Fate("received by a foreign subscriber", "#56B4E9", "cyan", sent=True),
    "undeliverable": Fate(
        "no receiver",
        "#E69F00",
        "yellow",
        reason="no mailbox listens on this channel, and no foreign subscriber took it",
    ),
    "blocked": Fate("blocked by a rule", "#D55E00", "red"),
}
FATES: tuple[FateName, ...] = (*_TABLE,)
DELIVERED, PUBLISHED, UNDELIVERABLE, BLOCKED, UNKNOWN = range(len(FATES) + 1)  # UNKNOWN: no fate, or no fate yet
NAMES = (*FATES, "unknown")  # NAMES[code] is the name of a fate.
SENT = tuple(name for name, fate in _TABLE.items() if fate.sent)
STORED = tuple(name for name, fate in _TABLE.items() if fate.stored)
# Each is indexed by a fate's code.
IS_SENT, IS_STORED = (np.array([name in those for name in NAMES]) for those in (SENT, STORED))


def facts_of(name: str) -> Fate:
    """Return the properties of a fate.

    A log of another version may have a name that is unknown here. Such a name gets the defaults.
    """
    return _TABLE.get(name, Fate())  # type: ignore[call-overload,no-any-return]  # other names have the defaults
