"""The calls of a group's handle and their answers: bytes on the group's lane, a socket, and objects in Ray calls.

The body of a request or answer begins with a table of sizes (u32): the number of parts, then the size of each part. The
first part is a MessagePack header, the other parts are frames. An empty answer means that there is no result. Then the
handle repeats the call as a Ray call, which raises the error, if there is one. Nothing on the lane is pickled.
"""

from collections.abc import Sequence
from itertools import repeat
from struct import Struct as Packer
from struct import pack
from typing import TypeVar

import msgspec
import numpy as np

from ray_messaging.errors import CommitFailed, FrameError
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.batch import Batch, Origin
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.fates import UNDELIVERABLE
from ray_messaging.receipt import Addresses, Outcome, Receipts
from ray_messaging.receiving.ack_ranges import Span
from ray_messaging.receiving.delivery_leases import FetchOptions, Token
from ray_messaging.wire.frames import decode, encode

_COUNT = Packer("<I")
Header = TypeVar("Header")


class RelayCall(msgspec.Struct, array_like=True, frozen=True, tag=0):
    """Call with which a handle asks its group's actor to send the frames that follow.

    `caller` is the handle's id, and `number` counts the handle's sends. `oldest` is the lowest number of a send for
    whose answer the handle still waits.
    """

    caller: str
    number: int
    oldest: int


class FetchCall(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Call with which a handle commits the messages that an earlier fetch leased under `token`, and fetches new ones.

    `caller` is the handle's id. The other fields are the arguments of `DeliveryLeases.fetch`.
    """

    caller: str
    token: Token | None
    limit: int | None
    timeout: float | None
    options: FetchOptions


class AckCall(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Call with which a handle commits messages that it has fetched.

    Each fetch leases its messages to the handle under a token. `loans` has the tokens of leases, each with the spans of
    the lease's messages that are committed (None: all messages).
    """

    loans: tuple[tuple[Token, tuple[Span, ...] | None], ...]


class AliveCall(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """A call without an effect, which is answered at once, as a sign of life."""


class FactsOfPairs(msgspec.Struct, array_like=True, frozen=True):
    """Facts about a handle's broadcasts that only the group's actor knows, for each pair of a broadcast and a hearer.

    `numbers` has the number of each pair's message (uint32), and `sent_at` its time (float64, or one time for all).
    `hearers` has the hearer of each pair, as the values (int64), kinds and strings of an `IdColumn`. It is None if all
    messages were delivered.
    """

    numbers: bytes
    sent_at: float | bytes
    hearers: tuple[bytes, bytes | None, tuple[str, ...]] | None


class BatchFates(msgspec.Struct, array_like=True, frozen=True):
    """The ids of the messages of one batch, and what became of each message, such as delivered or blocked.

    `first` is the number of the first message, and `codes` has a byte for each message's fate, as in `Outcome`.
    `blocks` has the row in the batch, the rule and the reason of each blocked message.

    If `pairs` is set, the batch has broadcasts, and each pair of a broadcast and a hearer counts as a message.
    """

    sender: str
    epoch: int
    first: int
    codes: bytes
    blocks: tuple[tuple[int, str, str], ...]
    done_at: float
    pairs: FactsOfPairs | None = None


class LentSlice(msgspec.Struct, array_like=True, frozen=True):
    """The messages of a frame that a fetch has got: the rows from `low` to before `high`.

    `mailbox` and `entry` say where the frame was read; `mailbox` is "" if a foreign client sent the frame. `pattern` is
    the channel pattern that the messages matched (None: none).

    `fetched` is the tracing span of the fetch, or b"" without one.
    """

    low: int
    high: int
    mailbox: str
    entry: str
    pattern: bytes | None
    fetched: bytes = b""  # the tracing span of the fetch, if the frame is traced


class Lent(msgspec.Struct, array_like=True, frozen=True):
    """Answer to a FetchCall: messages that are leased to the handle, as slices of frames.

    `token` names the lease, and is None without messages. `more` says whether the mailbox may have other messages.
    """

    token: Token | None
    slices: tuple[LentSlice, ...]
    more: bool


class Late(msgspec.Struct, array_like=True, frozen=True):
    """The text and the attributes of a CommitFailed error, as they travel from the group's actor to a handle."""

    text: str
    group: str
    messages: int
    held_s: float | None
    loan_s: float | None


class AckAnswer(msgspec.Struct, array_like=True, frozen=True):
    """Answer to an AckCall, with which a handle commits messages that it has fetched.

    Each fetch leases its messages to the handle under a token. `over` has the tokens of leases that have ended, which
    the handle forgets. `late` is the error if messages could not be committed, otherwise None.
    """

    over: tuple[Token, ...]
    late: Late | None


Call = RelayCall | FetchCall | AckCall | AliveCall
# The answers to these calls, as objects. A RelayCall is answered by receipts. A FetchCall is answered by the token of a
# lease (None: there are no messages) and the messages. An AckCall is answered by the tokens of leases that have ended,
# and an error if messages could not be committed. An AliveCall is answered by None.
Answer = Receipts | tuple[Token | None, Messages] | tuple[list[Token], CommitFailed | None] | None
Sent = tuple[BatchFates, ...]  # the answer to a RelayCall: the fates of each batch

_encode = msgspec.msgpack.Encoder().encode
_read_call = msgspec.msgpack.Decoder(Call).decode
_sent, _lent, _committed = (
    msgspec.msgpack.Decoder(Sent),
    msgspec.msgpack.Decoder(Lent),
    msgspec.msgpack.Decoder(AckAnswer),
)


def body_of(header: Call | Sent | Lent | AckAnswer, frames: Sequence[bytes] = ()) -> tuple[bytes, ...]:
    """Encode a call or an answer; return its body in pieces: the parts' sizes with the header, and then each frame."""
    first = _encode(header)
    sizes = [len(first), *map(len, frames)]
    return pack(f"<{1 + len(sizes)}I", len(sizes), *sizes) + first, *frames


def parse_call(body: memoryview) -> tuple[Call, list[bytes]]:
    """Decode a call that came over a socket to a group's actor; return the call and its frames.

    Raises: FrameError if the call cannot be read.
    """
    head, *frames = parts_of(body)
    try:
        return _read_call(head), frames
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(
            f"a call over the group's socket cannot be read ({error}): use one version of ray_messaging in all "
            "processes"
        ) from error


def parts_of(body: bytes | memoryview) -> list[bytes]:
    """Split the bytes of a call, or of an answer, into copies of its parts: the header, and then the frames.

    Raises: FrameError if the sizes of the parts do not add up.
    """
    if len(body) < _COUNT.size:
        raise FrameError(
            "a call or answer over the group's socket has no table of the sizes of its parts: use one version of "
            "ray_messaging in all processes"
        )
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size * (1 + count)
    if count < 1 or at > len(body):
        raise FrameError(
            "a call or answer over the group's socket was cut within the table of the sizes of its parts: use one "
            "version of ray_messaging in all processes"
        )
    sizes = memoryview(body)[_COUNT.size : at].cast("I")
    if at + sum(sizes) != len(body):
        raise FrameError(
            f"a call or answer over the group's socket has {len(body)} bytes, but its parts have {at + sum(sizes)}: "
            "use one version of ray_messaging in all processes"
        )
    parts: list[bytes] = []
    for size in sizes:
        parts.append(bytes(body[at : at + size]))
        at += size
    return parts


def answer_of(answer: Answer) -> tuple[bytes, ...]:
    """Encode an answer to a handle's call as the pieces of a body: the header, and then the frames.

    Fetched messages are sent in the frames that were read from the mailbox. Only messages without such a frame, which
    foreign clients published, are encoded here.
    """
    if answer is None:
        return (b"alive",)
    if isinstance(answer, Receipts):
        return body_of(tuple(_fates_of(outcome) for outcome, _, _ in answer.parts))
    if isinstance(answer[1], Messages):
        (token, messages), slices, frames = answer, [], []
        for batch, low, high, pattern in messages.slices:
            origin = batch.origin or Origin("", "")
            fetched = b"" if batch.trace is None else batch.trace.fetched
            slices.append(LentSlice(low, high, origin.mailbox, origin.entry, pattern, fetched))
            frames.append(batch.frame or encode(batch))
        return body_of(Lent(token, tuple(slices), messages.more), frames)
    over, late = answer
    why = None if late is None else Late(str(late), late.group, late.messages, late.held_s, late.loan_s)
    return body_of(AckAnswer(tuple(over), why))


def _read(decoder: msgspec.msgpack.Decoder[Header], header: bytes) -> Header:
    """Decode the header of an answer; raise FrameError if it cannot be read."""
    try:
        return decoder.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(
            f"the answer of a group's actor cannot be read ({error}): use one version of ray_messaging in all processes"
        ) from error


# -- receipts -----------------------------------------------------------------------------------------------------


def _fates_of(outcome: Outcome) -> BatchFates:
    """Return what became of each message of a batch, in the form in which the actor answers the handle.

    The times and addresses of messages are left out, because the handle knows them. For broadcasts they are included.
    """
    pairs, numbers, sent_at, addresses = None, outcome.numbers, outcome.sent_at, outcome.addresses
    if numbers is not None:
        hearers = None
        if addresses is not None:
            ids = addresses.to_ids
            hearers = bytes(ids.packed), None if ids.kinds is None else ids.kinds.tobytes(), ids.strings
        pairs = FactsOfPairs(numbers.tobytes(), sent_at if isinstance(sent_at, float) else sent_at.tobytes(), hearers)
    return BatchFates(
        outcome.sender,
        outcome.epoch,
        outcome.first,
        bytes(outcome.codes),
        tuple((row, rule, reason) for row, (rule, reason) in outcome.blocks.items()),
        outcome.done_at,
        pairs,
    )


def receipts_of(header: bytes, batches: Sequence[Batch]) -> Receipts:
    """Return the receipts of the batches that a handle has sent, from the header of the actor's answer.

    Raises: FrameError if the answer does not fit the batches.
    """
    sent = _read(_sent, header)
    # For broadcasts, the actor forms its own batches, so the answer may have another number of batches than were sent.
    broadcast = bool(batches) and (batches[0].unspread or any(fates.pairs is not None for fates in sent))
    if not broadcast and len(sent) != len(batches):
        raise FrameError(
            f"a group's actor was sent {len(batches)} batches, but gave receipts of {len(sent)} batches: please "
            "report this"
        )
    parts = []
    for fates, batch in zip(sent, repeat(batches[0]) if broadcast else batches, strict=False):
        outcome = Outcome(batch)
        outcome.sender, outcome.epoch, outcome.first = fates.sender, fates.epoch, fates.first
        outcome.codes, outcome.done_at = bytearray(fates.codes), fates.done_at
        outcome.blocks = {row: (rule, reason) for row, rule, reason in fates.blocks}
        if fates.pairs is not None:
            _add_pairs(outcome, fates.pairs, batch.topics)
        elif len(outcome) != batch.rows:
            raise FrameError(
                f"a group's actor was sent {batch.rows} messages, but gave receipts of {len(outcome)} messages: "
                "please report this"
            )
        elif UNDELIVERABLE in outcome.codes:
            outcome.keep_addresses(batch)
        parts.append((outcome, 0, len(outcome)))
    return Receipts(parts)


def _add_pairs(outcome: Outcome, facts: FactsOfPairs, topics: tuple[str, ...]) -> None:
    rows = len(outcome)
    try:
        outcome.numbers = np.frombuffer(facts.numbers, "<u4", rows)
        times = facts.sent_at
        outcome.sent_at = np.frombuffer(times, "<f8", rows) if isinstance(times, bytes) else times
        if facts.hearers is not None:
            values, kinds, strings = facts.hearers
            found = None if kinds is None else np.frombuffer(kinds, np.uint8, rows)
            ids = IdColumn(np.frombuffer(values, "<i8", rows), found, strings)
            outcome.addresses = Addresses(ids, topics, None)  # all broadcasts of a call have the same topic
    except ValueError as error:
        raise FrameError(
            f"a group's actor gave receipts of broadcasts that cannot be read ({error}): please report this"
        ) from error


# -- fetched and committed messages -------------------------------------------------------------------------------


def messages_of(exp_id: str, header: bytes, frames: Sequence[bytes]) -> tuple[Token | None, Messages]:
    """Decode the answer to a fetch; return the token under which the handle holds the messages, and the messages.

    Without messages the token is None.

    Raises: FrameError if the messages cannot be decoded.
    """
    lent = _read(_lent, header)
    slices: list[Slice] = []
    for part, frame in zip(lent.slices, frames, strict=True):
        batch = decode(frame, checked=True)  # the actor has checked the frame already
        batch.origin = Origin(part.mailbox, part.entry) if part.mailbox else None
        if batch.trace is not None:
            batch.trace = batch.trace._replace(fetched=part.fetched)
        slices.append(Slice(batch, part.low, part.high, part.pattern))
    return lent.token, Messages(exp_id, slices, lent.more)


def committed_of(header: bytes) -> tuple[list[Token], CommitFailed | None]:
    """Decode the header of an AckAnswer; return the tokens of leases that have ended, and the error or None.

    Each fetch leases its messages to a handle under a token. There is an error if messages were not committed.

    Raises: FrameError if the header is not valid.
    """
    committed = _read(_committed, header)
    late = committed.late
    if late is None:
        return list(committed.over), None
    facts = msgspec.structs.asdict(late)
    return list(committed.over), CommitFailed(facts.pop("text"), **facts)
