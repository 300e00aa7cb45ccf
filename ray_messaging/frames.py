"""Turn a batch of messages into bytes and back.

A frame is: b"RM", version u8, spare u8, crc32 u32 of all that follows, header length u32, the header (msgpack array),
the columns that the header's flags name, one JSON text per line. Little endian throughout. The header only ever grows
at its end. Whatever is wrong with the bytes, `decode` raises FrameError, before it allocates anything of their size.
"""

from dataclasses import dataclass
from struct import Struct as Packer
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.checksum import crc32
from ray_messaging.errors import FrameError
from ray_messaging.ids import NONE, STR, Ids
from ray_messaging.lines import Lines

FOREIGN_SENDER = "foreign-"  # before a mailbox's name: the sender of what foreign clients published
MAGIC, VERSION, FRAME_LIMIT = b"RM", 1, 256 * 2**20
_PREFIX = Packer("<2sBxII")

_NUMBERS, _FROM_KINDS, _TO_KINDS, _TOPIC, _STEPS, _TIMES, _INDEX, _LENGTHS = (1 << bit for bit in range(8))
_I8, _F8, _U4, _U2, _U1 = map(np.dtype, ("<i8", "<f8", "<u4", "<u2", "u1"))


class Header(msgspec.Struct, array_like=True, frozen=True):
    """Say what a frame holds; append-only."""

    sender: str
    epoch: int
    first: int
    rows: int
    flags: int
    lines: int  # -1: no payloads (a request for verdicts by ids alone)
    topics: tuple[str, ...]
    from_strings: tuple[str, ...]
    to_strings: tuple[str, ...]
    step: int | None
    sent_at: float
    labels: tuple[tuple[str, bytes], ...] = ()  # a label and its rows, uint32
    noted: bytes = b""  # rows, uint32


class Batch:
    """Hold n messages of one sender as columns.

    Message i has the number `first + numbers[i]` (uint32; None: i itself), the topic `topics[topic[i]]` (uint16; None:
    the only one), a step (int64 column, or one for all), a time (float64 column, or one for all; unix s) and, unless
    the batch is there for its ids alone, the payload `lines[i]`. `labels` maps a label to the rows that bear it
    (uint32, ascending); `noted` are the rows of which the event log is told by a note instead (see `notes`).
    """

    __slots__ = (
        "epoch", "first", "frame", "from_ids", "labels", "lines", "noted", "numbers", "sender", "sent_at", "step",
        "to_ids", "topic", "topics",
    )  # fmt: skip

    def __init__(
        self,
        *,
        sender: str,
        epoch: int,
        first: int,
        from_ids: Ids,
        to_ids: Ids,
        topics: tuple[str, ...],
        topic: NDArray[np.uint16] | None = None,
        numbers: NDArray[np.uint32] | None = None,
        step: NDArray[np.int64] | int | None = None,
        sent_at: NDArray[np.float64] | float = 0.0,
        lines: Lines | None = None,
        labels: "dict[str, NDArray[np.uint32]] | None" = None,
        noted: NDArray[np.uint32] | None = None,
    ) -> None:
        self.sender = sender
        self.epoch = epoch
        self.first = first
        self.from_ids = from_ids
        self.to_ids = to_ids
        self.topics = topics
        self.topic = topic
        self.numbers = numbers
        self.step = step
        self.sent_at = sent_at
        self.lines = lines
        self.labels = labels or {}
        self.noted = noted
        self.frame: bytes | None = None  # the bytes it was decoded from, as long as nothing was changed

    def __len__(self) -> int:
        return len(self.from_ids.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return decode, (encode(self) if self.frame is None else self.frame,)

    def message_id(self, row: int) -> str:
        """Return the id of one message: sender, the sender's epoch, the message's number."""
        number = row if self.numbers is None else int(self.numbers[row])
        return f"{self.sender}-{self.epoch}-{self.first + number}"

    def topic_of(self, row: int) -> str:
        """Return the topic of one message."""
        return self.topics[0 if self.topic is None else self.topic[row]]

    def labels_of(self, row: int) -> tuple[str, ...]:
        """Return the labels that one message bears."""
        return tuple(name for name, rows in self.labels.items() if row in rows) if self.labels else ()

    def with_payloads(self, changed: dict[int, bytes]) -> "Batch":
        """Return the same batch, the payloads of some rows replaced."""
        made = Batch.__new__(Batch)
        for slot in Batch.__slots__:
            setattr(made, slot, getattr(self, slot))
        made.frame = None
        if changed and self.lines is not None:
            made.lines = self.lines.replaced(changed, len(self))
        return made

    def take(self, rows: NDArray[np.intp]) -> "Batch":
        """Return the batch of some rows, in the order given; the messages keep their numbers."""
        return Batch(
            sender=self.sender,
            epoch=self.epoch,
            first=self.first,
            from_ids=self.from_ids.take(rows),
            to_ids=self.to_ids.take(rows),
            topics=self.topics,
            topic=None if self.topic is None else self.topic[rows],
            numbers=rows.astype(np.uint32) if self.numbers is None else self.numbers[rows],
            step=self.step[rows] if isinstance(self.step, np.ndarray) else self.step,
            sent_at=self.sent_at[rows] if isinstance(self.sent_at, np.ndarray) else self.sent_at,
            lines=None if self.lines is None else self.lines.take(rows),
            labels={name: kept for name, found in self.labels.items() if len(kept := _places(rows, found))},
            noted=None if self.noted is None else _places(rows, self.noted),
        )


def _places(rows: NDArray[np.intp], wanted: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return where among `rows` those wanted stand."""
    return np.flatnonzero(np.isin(rows, wanted)).astype(np.uint32)


def encode(batch: Batch, *, with_payload: bool = True) -> bytes:
    """Encode a batch; the same batch always gives the same bytes."""
    lines = batch.lines if with_payload else None
    columns: list[Any] = [batch.from_ids.values, batch.to_ids.values]
    optional = (
        (_NUMBERS, batch.numbers),
        (_FROM_KINDS, batch.from_ids.kinds),
        (_TO_KINDS, batch.to_ids.kinds),
        (_TOPIC, batch.topic),
        (_STEPS, batch.step if isinstance(batch.step, np.ndarray) else None),
        (_TIMES, batch.sent_at if isinstance(batch.sent_at, np.ndarray) else None),
        (_INDEX, None if lines is None else lines.index),
        (_LENGTHS, np.array([*map(len, lines.list)], "<u4") if lines is not None and lines.raw else None),
    )
    flags = 0
    for flag, column in optional:
        if column is not None:
            flags |= flag
            columns.append(column)
    header = _encode_header(_header(batch, flags, lines))
    parts: list[bytes | memoryview] = [header, *(np.ascontiguousarray(column).data for column in columns)]
    if lines is not None:
        parts.append(lines.blob)
    checksum = 0
    for part in parts:
        checksum = crc32(part, checksum)
    return b"".join((_PREFIX.pack(MAGIC, VERSION, checksum, len(header)), *parts))


_encode_header = msgspec.msgpack.Encoder().encode
_read_header = msgspec.msgpack.Decoder(Header).decode


def _header(batch: Batch, flags: int, lines: Lines | None) -> Header:
    return Header(
        batch.sender,
        batch.epoch,
        batch.first,
        len(batch),
        flags,
        -1 if lines is None else lines.count,
        batch.topics,
        batch.from_ids.strings,
        batch.to_ids.strings,
        None if isinstance(batch.step, np.ndarray) else batch.step,
        0.0 if isinstance(batch.sent_at, np.ndarray) else batch.sent_at,
        tuple((name, rows.astype("<u4").tobytes()) for name, rows in batch.labels.items()) if batch.labels else (),
        b"" if batch.noted is None else batch.noted.astype("<u4").tobytes(),
    )


def _check(ok: object, what: str) -> None:
    if not ok:
        raise FrameError(f"this is no valid frame: {what}; drop it, and look at who writes into this mailbox")


@dataclass(slots=True)
class _Reader:
    """Cut columns off a frame from a place on, never past its end."""

    frame: bytes
    at: int
    rows: int
    flags: int

    def column(self, dtype: Any, rows: int | None = None) -> Any:  # noqa: ANN401 - numpy's dtype and array
        count, at = self.rows if rows is None else rows, self.at
        self.at = at + count * dtype.itemsize
        _check(self.at <= len(self.frame), "it ends within a column")
        return np.frombuffer(self.frame, dtype, count, at)

    def optional(self, flag: int, dtype: Any) -> Any:  # noqa: ANN401 - numpy's dtype and array
        return self.column(dtype) if self.flags & flag else None


def decode(frame: bytes) -> Batch:
    """Decode a frame; columns and payloads are views of its bytes. Raises FrameError."""
    size = len(frame)
    _check(_PREFIX.size <= size <= FRAME_LIMIT, f"{size} bytes is no size of a frame")
    magic, version, checksum, header_length = _PREFIX.unpack_from(frame)
    _check(magic == MAGIC, "it does not begin with RM")
    _check(version == VERSION, f"it has version {version}, this library reads {VERSION}")
    view = memoryview(frame)
    _check(crc32(view[_PREFIX.size :]) == checksum, "its checksum does not match")
    at = _PREFIX.size + header_length
    _check(at <= size, "its header is longer than itself")
    try:
        header = _read_header(view[_PREFIX.size : at])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"this is no valid frame: its header cannot be read ({error})") from error
    _check(0 <= header.rows <= size, "its count of rows is impossible")
    _check(header.topics and all(header.topics), "it names no topic")
    _check(0 <= header.first < 2**62 and 0 <= header.epoch < 2**62, "its numbers are impossible")
    _check(0 <= header.flags < 2 * _LENGTHS, "it has columns that this library does not know")
    _check(header.step is None or -(2**63) <= header.step < 2**63, f"its step {header.step} does not fit 64 bits")
    batch = _decode_columns(header, _Reader(frame, at, header.rows, header.flags))
    batch.frame = frame
    return batch


def _decode_columns(header: Header, reader: _Reader) -> Batch:
    from_values, to_values = reader.column(_I8), reader.column(_I8)
    numbers = reader.optional(_NUMBERS, _U4)
    from_ids = _ids(from_values, reader.optional(_FROM_KINDS, _U1), header.from_strings)
    to_ids = _ids(to_values, reader.optional(_TO_KINDS, _U1), header.to_strings)
    topic = reader.optional(_TOPIC, _U2)
    _check(topic is None or not len(topic) or int(topic.max()) < len(header.topics), "it uses a topic it does not name")
    steps, times = reader.optional(_STEPS, _I8), reader.optional(_TIMES, _F8)
    lines = _lines(header, reader, reader.optional(_INDEX, _U4))
    return Batch(
        sender=header.sender,
        epoch=header.epoch,
        first=header.first,
        from_ids=from_ids,
        to_ids=to_ids,
        topics=header.topics,
        topic=topic,
        numbers=numbers,
        step=header.step if steps is None else steps,
        sent_at=header.sent_at if times is None else times,
        lines=lines,
        labels={name: _rows(rows, header.rows) for name, rows in header.labels} if header.labels else None,
        noted=_rows(header.noted, header.rows) if header.noted else None,
    )


def _rows(data: bytes, count: int) -> NDArray[np.uint32]:
    _check(len(data) % 4 == 0, "it ends within a row's number")
    rows = np.frombuffer(data, "<u4")
    _check(not len(rows) or int(rows.max()) < count, "it speaks of rows it does not have")
    return rows


def _lines(header: Header, reader: _Reader, index: NDArray[np.uint32] | None) -> Lines | None:
    if header.lines < 0:
        _check(index is None and reader.at == len(reader.frame), "it holds payloads it does not announce")
        return None
    if header.flags & _LENGTHS:
        lengths = reader.column(_U4, header.lines)
        _check(int(lengths.sum(dtype=np.int64)) == len(reader.frame) - reader.at, "its payloads have another length")
        lines = Lines.cut(bytes(reader.frame[reader.at :]), lengths.tolist(), index)
    else:
        lines = Lines(reader.frame, header.lines, index, reader.at)
    _check(lines.whole(header.rows), "its payloads do not match its rows")
    return lines


def _ids(values: NDArray[np.int64], kinds: NDArray[np.uint8] | None, strings: tuple[str, ...]) -> Ids:
    if kinds is not None and len(kinds):
        _check(int(kinds.max()) <= NONE, "it uses an unknown kind of id")
        indices = values[kinds == STR]
        if len(indices):
            _check(int(indices.min()) >= 0 and int(indices.max()) < len(strings), "it uses an id it does not name")
    return Ids(values, kinds, strings)
