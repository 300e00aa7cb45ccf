"""Dead letters: frames of an experiment that will not be delivered.

They are in a stream, and their counts are in a hash.
"""

import secrets
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.transports.cursors import decode_rows

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

PAGE, PAGE_BYTES = 1000, 16 * 2**20  # how many dead letters a page has at most, and about how many bytes
# An undecodable frame of up to WHOLE_BYTES is kept whole. Of a larger one only HEAD_BYTES are kept, because sending
# it whole back to the server would hold up the mailbox's reader. WHOLE_BYTES is twice the default of
# `MessagingConfig.frame_bytes`.
WHOLE_BYTES, HEAD_BYTES = 32 * 2**20, 1024


class DeadFrame(NamedTuple):
    """A frame that will not be delivered. Its first `row` rows, and the rows in `acked`, were handled before.

    `acked` has the form that `decode_rows` reads. `born` is the number of the mailbox that was created last before the
    frame became a dead letter (see `Listeners`). It is None if the mailbox's reader could not decode the frame.
    `exclusive` is True if no other mailbox could claim the agents of the frame's mailbox.
    """

    id: str
    mailbox: str
    entry: str
    row: int
    reason: str
    frame: bytes
    at: float  # the time at which the frame became a dead letter, in unix seconds
    born: int | None
    exclusive: bool
    acked: str = ""


class DeadFacts(NamedTuple):
    """The number and bytes of the dead letters, and of those that were dropped because the limit was exceeded."""

    letters: int
    nbytes: int
    dropped: int
    dropped_bytes: int


class Listeners(NamedTuple):
    """All mailboxes at one version of the directory, and when each mailbox was created.

    `born` has two values for each mailbox, by the mailbox's name. The first is the mailbox's number, which is higher
    than the numbers of all mailboxes that were created before. The second is the time at which the mailbox was created,
    in ms as in an entry id.
    """

    version: int
    records: Sequence[MailboxRecord]
    born: Mapping[str, tuple[int, int]]


class Returned(NamedTuple):
    """A frame that is written back into a mailbox."""

    mailbox: str
    rows: int
    frame: bytes


class Requeued(IntEnum):
    """Outcome of one call of the Lua script `requeue`."""

    MISSING = 0  # no dead letter has this id any more
    DONE = 1
    STALE_DIRECTORY = 2
    FULL = 3
    TOO_LARGE = 4  # the messages are too large even for the empty mailbox
    LOG_FULL = 5


def unhandled(row: int, acked: str, rows: int) -> NDArray[np.intp]:
    """Return the rows of a dead letter that were not handled: neither before `row` nor in `acked`."""
    left = np.ones(rows, bool)
    for low, high in [(0, row), *decode_rows(acked)]:
        left[low : int(min(high, rows))] = False
    return np.flatnonzero(left)


def kept_of(frame: bytes, reason: str) -> tuple[bytes, str]:
    """Return the bytes of an undecodable frame that are kept, and the reason why it is undecodable.

    Of a huge frame, only the beginning is kept.
    """
    if len(frame) <= WHOLE_BYTES:
        return frame, reason
    return frame[:HEAD_BYTES], f"{reason} (of its {len(frame)} bytes the first {HEAD_BYTES} are kept)"


_DROPPED_AT_ONCE = 500
_DIGITS = 20  # a number of 64 bits has at most this many digits
_STATE = ":dead"  # names the key with the counts of dead letters; no mailbox has this name, because of the colon


class RedisDeadLetters:
    """Dead letters of one experiment. The calls use the connections of the experiment's RedisTransport.

    Any call may be repeated; its effect happens once.
    """

    def __init__(self, transport: "RedisTransport") -> None:
        self._transport = transport
        self._link, self._keys = transport.link, transport.keys

    async def known(self) -> bool:
        """Return whether the server has data, or dead letters, of the experiment."""
        return bool(await self._link.command("EXISTS", self._keys.meta, self._keys.dead))

    async def facts(self) -> DeadFacts:
        """Return the number and bytes of the dead letters, and of those that were dropped because of the limit."""
        letters, (known, *counts) = await self._counts()
        if known != letters:  # Another client has changed the stream, so the script of `drop` counts the letters again.
            await self.drop([])
            letters, (_, *counts) = await self._counts()
        return DeadFacts(letters, *counts)

    async def _counts(self) -> tuple[int, list[int]]:
        """Return the number of dead letters in the stream, and the four counts in the hash of dead letters.

        The counts are of letters, their bytes, dropped letters and their bytes. An invalid count is returned as 0.
        """
        letters = await self._link.command("XLEN", self._keys.dead)
        names = ("letters", "bytes", "dropped", "dropped_bytes")
        counts = await self._link.command("HMGET", self._keys.state(_STATE), *names)
        return int(letters), [_natural(count or b"") or 0 for count in counts]

    async def page(self, after: str, count: int) -> list[DeadFrame]:
        """Return up to `count` letters after the letter `after` ("": from the first letter on).

        If letters are large, fewer are returned. An empty list means that there are no more letters.
        """
        reply = await self._link.script("read_letters", [self._keys.dead], [after or "0-0", count, PAGE_BYTES])
        return [_dead_frame(letter.decode(), fields) for letter, fields in reply]

    async def last(self) -> str:
        """Return the id of the last letter, or "" if there is none."""
        found = await self._link.command("XREVRANGE", self._keys.dead, "+", "-", "COUNT", 1)
        return found[0][0].decode() if found else ""

    async def get(self, letter: str) -> DeadFrame | None:
        """Return one letter, or None if there is no letter with this id."""
        reply = await self._link.command("XRANGE", self._keys.dead, letter, letter)
        return _dead_frame(letter, reply[0][1]) if reply else None

    async def listeners(self) -> Listeners:
        """Return all mailboxes that exist now, with the agents and channels to which they listen."""
        delta = await self._transport.load_directory(-1)
        born = {}
        for record in delta.changed:
            counted, since = await self._link.command("HMGET", self._keys.state(record.mailbox), "born", "since")
            born[record.mailbox] = int(counted or 0), int(since or 0)
        return Listeners(delta.version, delta.changed, born)

    async def requeue(self, letter: str, version: int, frames: Sequence[Returned], rest: bytes) -> tuple[Requeued, str]:
        """Write frames into mailboxes and delete the letter; do all of this or nothing.

        Return the outcome, and the name of the mailbox that caused a failure (otherwise "").

        Args: `rest` is a frame of the letter's messages that stay dead, for which a new letter is written. It is b"" if
        there are none.
        """
        keys = [self._keys.meta, self._keys.dead, self._keys.state(_STATE)]
        args: list[Any] = [letter, secrets.token_hex(8), version, self._keys.prefix, rest]
        for mailbox, rows, frame in frames:
            keys += [self._keys.state(mailbox), self._keys.lease(mailbox)]
            args += [mailbox, rows, frame]
        fate, mailbox = await self._link.script("requeue", keys, args)
        return Requeued(fate), mailbox.decode()

    async def drop(self, letters: Sequence[str]) -> int:
        """Delete letters; return how many of these letters existed."""
        keys = [self._keys.dead, self._keys.state(_STATE)]
        dropped = 0
        for low in range(0, max(1, len(letters)), _DROPPED_AT_ONCE):
            ids = letters[low : low + _DROPPED_AT_ONCE]
            dropped += int(await self._link.script("drop_letters", keys, [secrets.token_hex(8), *ids]))
        return dropped

    async def count_anew(self) -> None:
        """Set to 0 the counts of the letters, and of their bytes, that were dropped because of the limit."""
        await self._link.command("HDEL", self._keys.state(_STATE), "dropped", "dropped_bytes")


def _natural(text: bytes) -> int | None:
    """Return the number in a text, or None if the text is not a natural number."""
    return int(text) if text.isdigit() and len(text) <= _DIGITS else None


def _dead_frame(letter: str, fields: list[bytes]) -> DeadFrame:
    """Decode an entry of the stream. Other clients may have written it, so any field may be missing."""
    found = dict(zip(fields[::2], fields[1::2], strict=False))

    def text(name: bytes) -> str:
        return found.get(name, b"").decode(errors="replace")

    def number(name: bytes) -> int | None:
        return _natural(found.get(name, b""))

    at = number(b"at")
    return DeadFrame(
        id=letter,
        mailbox=text(b"mailbox"),
        entry=text(b"entry"),
        row=number(b"row") or 0,
        reason=text(b"reason") or "no reason is given",
        frame=found.get(b"f", b""),
        at=(int(letter.partition("-")[0]) if at is None else at) / 1000,
        born=number(b"born"),
        exclusive=found.get(b"exclusive") == b"1",
        acked=text(b"acked"),
    )
