"""The fates of messages, such as "delivered" or "blocked". One table has the properties of each fate.

The log stores the names of fates. Receipts, log notes, and calls between processes have codes instead. The code of a
fate is its position in the table, so a new fate must be added at the end.
"""

from typing import Literal, NamedTuple

import numpy as np

FateName = Literal["delivered", "published", "undeliverable", "blocked"]


class Fate(NamedTuple):
    """The properties of a message's fate. Fates that are not in `_TABLE`, such as "unknown", have the defaults."""

    meaning: str = ""
    colour: str = "#8b93a1"
    terminal: str = ""  # the colour in a terminal
    sent: bool = False  # whether some receiver has the message; if so, the message's receipt is true
    stored: bool = False  # whether a mailbox has the message, so that it can be read and answered
    reason: str = ""  # why no receiver has the message; a reason from a rule or a receipt takes precedence


# The colours are those of Okabe and Ito, which colour-blind readers can tell apart.
_TABLE: dict[FateName, Fate] = {
    "delivered": Fate("in the mailbox of the receiver's group", "#0072B2", "blue", sent=True, stored=True),
    "published": Fate("received by a plain Redis client", "#56B4E9", "cyan", sent=True),
    "undeliverable": Fate(
        "no receiver",
        "#E69F00",
        "yellow",
        reason="no group or messager listens on this channel, and no plain Redis client does",
    ),
    "blocked": Fate("blocked by a rule", "#D55E00", "red"),
}
FATES: tuple[FateName, ...] = (*_TABLE,)
DELIVERED, PUBLISHED, UNDELIVERABLE, BLOCKED, UNKNOWN = range(len(FATES) + 1)  # UNKNOWN: the fate is not known
NAMES = (*FATES, "unknown")  # NAMES[code] is the name of a fate
SENT = tuple(name for name, fate in _TABLE.items() if fate.sent)
STORED = tuple(name for name, fate in _TABLE.items() if fate.stored)
# For the fate NAMES[code], IS_SENT[code] is the field `sent`, and IS_STORED[code] the field `stored`.
IS_SENT, IS_STORED = (np.array([name in those for name in NAMES]) for those in (SENT, STORED))


def facts_of(name: str) -> Fate:
    """Return the properties of a fate.

    A log that another version of this package wrote may have an unknown name. Such a name has the defaults.
    """
    return _TABLE.get(name, Fate())  # type: ignore[call-overload,no-any-return]  # other names have the defaults
