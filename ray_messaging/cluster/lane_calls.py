"""Calls of a group's handle over the group's lane, and their answers, as bytes.

The body of a request or answer is a table of sizes (u32: how many parts, then the size of each), a MessagePack header
as the first part, and frames as the others. An empty answer means that there is no result: the handle repeats the call
by Ray, which also raises the error, if there is one. Nothing here is pickled.
"""

from collections.abc import Callable, Sequence
from struct import Struct as Packer
from struct import pack
from typing import NamedTuple, TypeVar

import msgspec

from ray_messaging.errors import FrameError
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.batch import Batch, Origin
from ray_messaging.model.fates import UNDELIVERABLE
from ray_messaging.receipt import Outcome, Receipts
from ray_messaging.receiving.delivery_leases import FetchOptions, Token
from ray_messaging.wire.frames import decode, encode

_COUNT = Packer("<I")


class RelayCall(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """A send of a handle's frames; `oldest` is the lowest number for which the handle still waits."""

    caller: str
    number: int
    oldest: int


class FetchCall(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A fetch of a handle, which commits the lease of `token`."""

    caller: str
    token: Token | None
    limit: int | None
    timeout: float
    options: FetchOptions


class AckCall(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Leases whose messages are all to be committed."""

    tokens: tuple[Token, ...]


class AliveCall(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A question for a sign of life, which is answered with `ALIVE` at once."""


class BatchFates(msgspec.Struct, array_like=True, frozen=True):
    """The ids of one frame's messages, their fates as in `Outcome.codes`, and the blocked rows with rule and reason."""

    sender: str
    epoch: int
    first: int
    codes: bytes
    blocks: tuple[tuple[int, str, str], ...]
    done_at: float


class LentSlice(msgspec.Struct, array_like=True, frozen=True):
    """Rows `low` to `high`, exclusive, of a frame. An empty `mailbox` means that a foreign client sent the messages."""

    low: int
    high: int
    mailbox: str
    entry: str
    pattern: bytes | None
    fetched: bytes = b""  # the span of the fetch, of a traced frame


class Lent(msgspec.Struct, array_like=True, frozen=True):
    """The answer to a FetchCall: the token of a lease (None: no messages), and the slice of each frame."""

    token: Token | None
    slices: tuple[LentSlice, ...]
    more: bool


Call = RelayCall | FetchCall | AckCall | AliveCall
Sent = tuple[BatchFates, ...]  # the answer to a RelayCall: the fates of each frame
Committed = tuple[Token, ...]  # the answer to an AckCall: the leases that have ended
Answer = TypeVar("Answer", Sent, Lent, Committed)

_encode = msgspec.msgpack.Encoder().encode
_read_call = msgspec.msgpack.Decoder(Call).decode


class Parts(NamedTuple):
    """A body without its frames, `head`, and the frames that follow it."""

    head: bytes
    frames: Sequence[bytes]


ALIVE = Parts(b"alive", ())


def body_of(header: Call | Sent | Lent | Committed, frames: Sequence[bytes] = ()) -> Parts:
    """Encode a call or an answer."""
    first = _encode(header)
    sizes = [len(first), *map(len, frames)]
    return Parts(pack(f"<{1 + len(sizes)}I", len(sizes), *sizes) + first, frames)


def parse_call(body: memoryview) -> tuple[Call, list[bytes]]:
    """Decode a call; return it and its frames. Raise FrameError if it cannot be read."""
    head, *frames = parts_of(body)
    try:
        return _read_call(head), frames
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a call over the group's lane cannot be read: {error}") from error


def parts_of(body: bytes | memoryview) -> list[bytes]:
    """Split a call or an answer into copies of its header and its frames; raise FrameError if the sizes do not fit."""
    if len(body) < _COUNT.size:
        raise FrameError("a call over the group's lane has no table of sizes")
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size * (1 + count)
    if count < 1 or at > len(body):
        raise FrameError("a call over the group's lane ends within its table of sizes")
    sizes = memoryview(body)[_COUNT.size : at].cast("I")
    if at + sum(sizes) != len(body):
        raise FrameError("a call over the group's lane has another size than its parts")
    parts: list[bytes] = []
    for size in sizes:
        parts.append(bytes(body[at : at + size]))
        at += size
    return parts


def _parser(kind: type[Answer]) -> Callable[[bytes], Answer]:
    read = msgspec.msgpack.Decoder(kind).decode

    def parse(header: bytes) -> Answer:
        """Decode the header of an answer; raise FrameError."""
        try:
            return read(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"the answer of a group's actor cannot be read: {error}") from error

    return parse


parse_sent, parse_lent, parse_committed = _parser(Sent), _parser(Lent), _parser(Committed)


# -- receipts -----------------------------------------------------------------------------------------------------


def fates_of(receipts: Receipts) -> Sent:
    """Return the fates of a send, without the times and addresses, which the handle knows itself."""
    return tuple(
        BatchFates(
            outcome.sender,
            outcome.epoch,
            outcome.first,
            bytes(outcome.codes),
            tuple((row, rule, reason) for row, (rule, reason) in outcome.blocks.items()),
            outcome.done_at,
        )
        for outcome, _, _ in receipts.parts
    )


def receipts_of(sent: Sent, batches: Sequence[Batch]) -> Receipts:
    """Return the receipts of batches that a handle has sent; raise FrameError if the fates do not fit the batches."""
    if len(sent) != len(batches):
        raise FrameError(f"a group's actor gave fates of {len(sent)} batches for {len(batches)} batches")
    parts = []
    for fates, batch in zip(sent, batches, strict=True):
        if len(fates.codes) != batch.rows:
            raise FrameError(f"a group's actor gave {len(fates.codes)} fates for {batch.rows} messages")
        outcome = Outcome(batch)
        outcome.sender, outcome.epoch, outcome.first = fates.sender, fates.epoch, fates.first
        outcome.codes, outcome.done_at = bytearray(fates.codes), fates.done_at
        outcome.blocks = {row: (rule, reason) for row, rule, reason in fates.blocks}
        if UNDELIVERABLE in outcome.codes:
            outcome.keep_addresses(batch)
        parts.append((outcome, 0, batch.rows))
    return Receipts(parts)


# -- fetched messages ---------------------------------------------------------------------------------------------


def lent_of(token: Token | None, messages: Messages) -> Parts:
    """Encode leased messages as the frames that were read from the mailbox."""
    slices, frames = [], []
    for batch, low, high, pattern in messages.slices:
        origin = batch.origin or Origin("", "")
        fetched = b"" if batch.trace is None else batch.trace.fetched
        slices.append(LentSlice(low, high, origin.mailbox, origin.entry, pattern, fetched))
        frames.append(batch.frame or encode(batch))
    return body_of(Lent(token, tuple(slices), messages.more), frames)


def messages_of(exp_id: str, lent: Lent, frames: Sequence[bytes]) -> Messages:
    """Return leased messages; raise FrameError if a frame cannot be decoded."""
    slices: list[Slice] = []
    for part, frame in zip(lent.slices, frames, strict=True):
        batch = decode(frame, checked=True)  # the actor has checked it when it read the mailbox
        batch.origin = Origin(part.mailbox, part.entry) if part.mailbox else None
        if batch.trace is not None:
            batch.trace = batch.trace._replace(fetched=part.fetched)
        slices.append(Slice(batch, part.low, part.high, part.pattern))
    return Messages(exp_id, slices, lent.more)
