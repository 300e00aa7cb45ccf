"""Answers that were given, for batches that are asked about again, and how far messages have come that wait."""

import time
import zlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.errors import FrameError
from ray_messaging.interception.server.rule_pipeline import Waiting, of_row
from ray_messaging.interception.wire.verdicts import FOREIGN, BatchVerdict, decode_verdicts, encode_verdicts
from ray_messaging.model.batch import Batch

# How many senders' last answers are kept: a sender has one batch under way.
_REMEMBERED = 20_000
# What last answers, and what answers that counted, may hold each, here and on the server. Of 16,384 messages of which
# one in ten is blocked, each for a reason of its own, an answer takes 14 KB.
LIMIT_BYTES = 64 * 2**20
_ENTRY_BYTES = 400  # what an entry costs besides its bytes
_SMALL = 256  # what is not worth compressing


class Paused(msgspec.Struct, array_like=True, frozen=True):
    """Say which messages (their numbers, uint32) wait for a slow rule, and the names of the rules they have passed."""

    passed: tuple[str, ...]
    numbers: bytes


class Record(msgspec.Struct, array_like=True, frozen=True):
    """Hold an answer, and how far those messages had come by then that were deferred.

    `so_far` is a `Verdicts` of what rules made of them, whose row 0 is the first of `paused`.
    """

    answer: bytes
    paused: tuple[Paused, ...] = ()
    so_far: bytes = b""

    def pack(self) -> bytes:
        """Return it as it is kept."""
        data = _encode(self)
        return data if len(data) < _SMALL else zlib.compress(data, 1)

    @classmethod
    def unpack(cls, data: bytes) -> "Record":
        """Read what `pack` gave: an array in MessagePack, unless it begins as zlib's do. Raises FrameError."""
        try:
            return _decode(_inflated(data) if data[:1] == _ZLIB else data)
        except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"a kept answer of the interceptor is damaged: {error}") from error


def _inflated(data: bytes) -> bytes:
    """Decompress up to the size of a frame: a few bytes can stand for more than the machine has."""
    reader = zlib.decompressobj()
    text = reader.decompress(data, FRAME_LIMIT)
    if not reader.eof:
        raise zlib.error("it is cut off, or larger than a frame may be")
    return text


_ZLIB = zlib.compress(b"")[:1]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Progress(NamedTuple):
    """Say which rules a message has passed, and what they made of it."""

    passed: tuple[str, ...]
    so_far: BatchVerdict


def key_of(batch: Batch) -> str:
    """Name a batch."""
    return f"{_head(batch)} {len(batch)}"


def _head(batch: Batch) -> str:
    return f"{batch.sender} {batch.epoch} {batch.first}"


def record(answer: bytes, waiting: Iterable[Waiting]) -> bytes:
    """Return an answer as it is kept, with how far those have come that wait."""
    groups: defaultdict[tuple[str, ...], list[Waiting]] = defaultdict(list)
    for each in waiting:
        groups[each.passed].append(each)
    so_far = BatchVerdict()
    for place, each in enumerate(each for group in groups.values() for each in group):
        so_far.add(each.so_far.moved([place]))
    paused = tuple(
        Paused(passed, np.array([_number(each.message) for each in group], "<u4").tobytes())
        for passed, group in groups.items()
    )
    return Record(answer, paused, so_far.encode(FOREIGN, wants_payload=False) if groups else b"").pack()


def _number(message: Batch) -> int:
    return 0 if message.numbers is None else int(message.numbers[0])


class Answers:
    """Remember each sender's last answer, and for `keep_s` every answer that counted something.

    A batch that is asked about again, by a lost answer or after the interceptor's death, must not count twice. What
    counted is kept as long as one of its messages waits, `is_open`. Above LIMIT_BYTES the oldest go before their time:
    who asks again about one of those is judged, and counted, anew.
    """

    def __init__(self, keep_s: float, is_open: Callable[[str], bool]) -> None:
        self._keep_s = keep_s
        self._is_open = is_open
        self._epoch: int | None = None
        self._last: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._last_bytes = 0
        self._counted: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._counted_bytes = 0
        self._batches: dict[str, str] = {}  # a batch that counted, without its length -> its key
        self._read: tuple[bytes, dict[int, Progress]] = b"", {}  # what was read last: it is asked row by row

    @property
    def nbytes(self) -> int:
        """Return what is held."""
        return self._last_bytes + self._counted_bytes

    def get(self, batch: Batch) -> bytes | None:
        """Return the answer to a batch, if it is known."""
        key = key_of(batch)
        last = self._last.get(batch.sender)
        if last is not None and last[0] == key:
            return last[1]
        return self._answer(key)

    def _answer(self, key: str) -> bytes | None:
        """Return an answer that counted something, under our epoch: who gave it has counted it."""
        found = self._counted.get(key)
        if found is None:
            return None
        answer = Record.unpack(found[1]).answer
        if self._epoch is None:
            return answer
        return encode_verdicts(msgspec.structs.replace(decode_verdicts(answer), epoch=self._epoch))

    def counted(self) -> dict[str, bytes]:
        """Return all answers that counted, as `record` gave them."""
        return {key: data for key, (_, data) in self._counted.items()}

    def knows(self, key: str) -> bool:
        """Tell whether a batch, or a message, is known to have counted."""
        return key in self._counted

    def judged(self, key: str) -> BatchVerdict | None:
        """Return what became of a message that was judged alone."""
        answer = self._answer(key)
        found = None if answer is None else decode_verdicts(answer).judgement(1)
        return None if found is None or found.deferred else found

    def progress(self, message: Batch, row: int) -> Progress | None:
        """Return how far a message had come that was deferred; None: no rule has counted it."""
        number = row if message.numbers is None else int(message.numbers[row])
        alone = self._paused(message.message_id(row)).get(number)
        if alone is not None:  # later than what is known of its batch
            return alone
        return self._paused(self._batches.get(_head(message), "")).get(number)

    def _paused(self, key: str) -> dict[int, Progress]:
        _, data = self._counted.get(key, (0.0, b""))
        if not data:
            return {}
        if self._read[0] is not data:
            self._read = data, _progress(Record.unpack(data))
        return self._read[1]

    def put(self, batch: Batch, answer: bytes) -> None:
        """Remember a sender's last answer."""
        _, before = self._last.pop(batch.sender, ("", b""))
        self._last[batch.sender] = (key_of(batch), answer)
        self._last_bytes += len(answer) - len(before)
        while len(self._last) > _REMEMBERED or (self._last_bytes > LIMIT_BYTES and len(self._last) > 1):
            _, (_, gone) = self._last.popitem(last=False)
            self._last_bytes -= len(gone)

    def count(self, key: str, data: bytes) -> list[str]:
        """Remember what `record` gave; return the keys of those whose time is over, which are forgotten here."""
        now = time.monotonic()
        self._drop(key)
        self._add(key, data, now)
        over: list[str] = []
        while self._counted:
            oldest, (given_at, kept) = next(iter(self._counted.items()))
            full = self._counted_bytes > LIMIT_BYTES and oldest != key
            if not full and (given_at + self._keep_s > now or given_at == now):
                break
            self._drop(oldest)
            if not full and self._waits(oldest, kept):
                self._add(oldest, kept, now)
            else:
                over.append(oldest)
        return over

    def _add(self, key: str, data: bytes, now: float) -> None:
        self._counted[key] = (now, data)
        self._counted_bytes += len(data) + _ENTRY_BYTES
        if " " in key:  # a batch's, not a message's
            self._batches[key.rpartition(" ")[0]] = key

    def _drop(self, key: str) -> None:
        found = self._counted.pop(key, None)
        if found is not None:
            self._counted_bytes -= len(found[1]) + _ENTRY_BYTES
            self._batches.pop(key.rpartition(" ")[0], None)

    def _waits(self, key: str, data: bytes) -> bool:
        """Tell whether one of a batch's messages, or this one, still waits for a slow rule."""
        try:
            paused = Record.unpack(data).paused
        except FrameError:  # its time is over, and nobody has asked for it
            return False
        if not paused:
            return False
        if self._is_open(key):
            return True
        sender, epoch, first, _ = key.rsplit(" ", 3) if key.count(" ") > 2 else ("", "", "0", "")
        numbers = (number for group in paused for number in np.frombuffer(group.numbers, "<u4").tolist())
        return any(self._is_open(f"{sender}-{epoch}-{int(first) + number}") for number in numbers)

    def load(self, counted: Mapping[str, bytes], epoch: int) -> None:
        """Take over a predecessor's answers; they are given under our epoch."""
        self._epoch = epoch
        now = time.monotonic()
        for key, data in counted.items():
            self._add(key, data, now)


def _progress(kept: Record) -> dict[int, Progress]:
    """Return how far each message had come, by its number."""
    found = [(number, group.passed) for group in kept.paused for number in np.frombuffer(group.numbers, "<u4").tolist()]
    if not found:
        return {}
    so_far = decode_verdicts(kept.so_far).judgement(len(found))
    return {number: Progress(passed, of_row(so_far, place)) for place, (number, passed) in enumerate(found)}
