"""Port to the dead letters of an experiment: frames that will not be delivered as they are."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import Record
from ray_messaging.transports.cursors import decode_rows

PAGE, PAGE_BYTES = 1000, 16 * 2**20  # of dead letters that are read at once
# Twice a frame of ours: one that is sent back to the server holds its mailbox's reader up.
WHOLE_BYTES, HEAD_BYTES = 32 * 2**20, 1024
LETTER_BYTES = 256  # what a letter counts beside its frame: those without a frame are bounded, too


class DeadFrame(NamedTuple):
    """Frame that will not be delivered; the first `row` rows were handled, and those of `acked` (see `cursors`).

    `born` counts the mailboxes that there had been when its own went, and `exclusive` says that this one alone listened
    for its agents; born is None where the mailbox's reader could not decode the frame. `home` is the letter's shard.
    `to` is a mailbox of another shard to which it was forwarded, and `shard` that shard, until it is there or given up.
    """

    id: str
    mailbox: str
    entry: str
    row: int
    reason: str
    frame: bytes
    at: float  # unix s
    born: int | None
    exclusive: bool
    acked: str = ""
    home: int = 0
    to: str = ""
    shard: int | None = None


class DeadFacts(NamedTuple):
    """Number of letters and their bytes; `dropped` ones were lost to the limit, the oldest first."""

    letters: int
    nbytes: int
    dropped: int
    dropped_bytes: int


class Listeners(NamedTuple):
    """The directory as of a version: each mailbox's record, and when it came, for the letters of one shard.

    `born` has how many mailboxes there had been then, and the time (as the first part of an entry's id is).
    `elsewhere` has the shards of mailboxes on other ones: for these `born` has no number, and the earliest time that it
    may have been by the clock of the letters' shard, `home`.
    """

    version: int
    records: Sequence[Record]
    born: Mapping[str, tuple[int, int]]
    home: int = 0
    elsewhere: Mapping[str, int] = MappingProxyType({})


class Returned(NamedTuple):
    """A frame on its way back into a mailbox."""

    mailbox: str
    rows: int
    frame: bytes


class Forward(NamedTuple):
    """Messages of a letter for a mailbox of another shard, in one frame; `exclusive` is as in a mailbox's record."""

    mailbox: str
    shard: int
    exclusive: bool
    frame: bytes


class Requeued(IntEnum):
    """Outcome of one call of `requeue`, or of `Forwarding`."""

    MISSING = 0  # there is no such letter, or not any more
    DONE = 1
    STALE_DIRECTORY = 2
    FULL = 3
    TOO_LARGE = 4  # the mailbox would not hold it if it were empty
    LOG_FULL = 5
    GIVEN_UP = 6  # it is not in the mailbox, and never will be
    UNDER_WAY = 7  # an earlier letter is on its way to the mailbox


class Forwarding(Protocol):
    """Letters on their way to mailboxes of other shards. Any call may be repeated, also late, and has its effect once.

    `requeue` makes a letter of its own for each such mailbox, one at a time. `deliver` or `give_up` settles it on the
    mailbox's shard, and `end` on its own. Where a process ends between them, the next one that meets it goes on.
    """

    async def ask(self, home: int, version: int, frames: Sequence[Returned]) -> tuple[Requeued, str]:
        """Return DONE if mailboxes of other shards take these frames now, or why not, with the mailbox at fault."""

    async def addressed(self, home: int, mailbox: str) -> DeadFrame | None:
        """Return the letter of a shard that is on its way to a mailbox."""

    async def under_way(self, home: int) -> list[DeadFrame]:
        """Return the letters of a shard that are on their way, the oldest first."""

    async def deliver(self, letter: DeadFrame, version: int, frames: Sequence[Returned]) -> Requeued:
        """Write a letter's frames into its mailbox, all or none; MISSING: another process has settled it."""

    async def give_up(self, letter: DeadFrame) -> Requeued:
        """Return GIVEN_UP, so that it never will be written there; DONE if it is; MISSING as in `deliver`."""

    async def end(self, letter: DeadFrame, *, delivered: bool) -> str:
        """Take a delivered letter away, or let one that was given up be as others; return its new id, "": it is so."""


class DeadLetterStore(Protocol):
    """Dead letters of one experiment. Any call may be repeated, and has its effect once."""

    @property
    def forwarding(self) -> Forwarding | None:
        """Return how letters go to other shards; None: all mailboxes are on one server."""

    async def known(self) -> bool:
        """Return whether the server knows an experiment of this name."""

    async def facts(self) -> DeadFacts:
        """Count the letters, and those that were dropped."""

    async def page(self, after: str, count: int) -> list[DeadFrame]:
        """Return up to `count` letters behind an id ("": from the first), fewer where they are large; [] at the end."""

    async def spans(self) -> list[tuple[str, str]]:
        """Return for each server with letters an id before its first one, for `page`, and the id of its last one."""

    async def get(self, letter: str) -> DeadFrame | None:
        """Return one letter; None: there is none of this id."""

    async def listeners(self, home: int = 0) -> Listeners:
        """Return the mailboxes that listen now, for letters of a shard."""

    async def requeue(
        self, letter: str, version: int, frames: Sequence[Returned], rest: bytes, forwards: Sequence[Forward] = ()
    ) -> tuple[Requeued, str]:
        """Write frames into mailboxes and take the letter away, all of it or nothing; returns the mailbox at fault.

        Args: rest is the frame of messages that stay dead, in a letter in this one's place; b"": there are none. So do
            `forwards`, each in a letter of its own, until `forwarding` has brought it to its mailbox.
        """

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; return how many there were."""

    async def count_anew(self) -> None:
        """Forget how many letters were dropped so far."""


def is_behind(letter: str, last: str) -> bool:
    """Tell whether a letter is behind another one of its server, or is on another server."""
    (shard, _, number), (last_shard, _, last_number) = letter.rpartition("/"), last.rpartition("/")
    return shard != last_shard or order_of(number) > order_of(last_number)


def order_of(letter: str) -> tuple[int, ...]:
    """Return the place of a letter among those of its server."""
    return tuple(map(int, letter.split("-")))


def unhandled(row: int, acked: str, rows: int) -> NDArray[np.intp]:
    """Return the unhandled rows of a letter: not those before `row`, nor those of `acked`."""
    left = np.ones(rows, bool)
    for low, high in [(0, row), *decode_rows(acked)]:
        left[low : int(min(high, rows))] = False
    return np.flatnonzero(left)


def kept_of(frame: bytes, reason: str) -> tuple[bytes, str]:
    """Return the part of an undecodable frame that is kept (the start of a huge one), and the reason."""
    if len(frame) <= WHOLE_BYTES:
        return frame, reason
    return frame[:HEAD_BYTES], f"{reason} (of its {len(frame)} bytes the first {HEAD_BYTES} are kept)"
