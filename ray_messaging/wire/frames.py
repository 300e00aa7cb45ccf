"""Encoding of a batch (messages as columns) as a frame (bytes), and decoding.

A frame, in order; all numbers are little endian:

    "RM", version u8, spare u8     there is one version: a frame of another one is refused
    crc32 u32                      of all bytes that follow
    header length u32
    header                         msgpack array: `Header`
    from_ids, to_ids               i8 for each row (i4 if a flag is set): an int id, or the index of a str id in the
                                   header's table; no to_ids if each row is a broadcast to several hearers
                                   (a fold)
    optional columns               deliver i8, ordinal u4, numbers i8 and places u4 of `in_reply_to`, expects_answer u1,
                                   numbers i8 and places u4 of `caused_by`;
                                   numbers u4, kinds of from_ids and to_ids u1, topic u2 (u4 if a flag is set), step
                                   i8, sent_at f8, index u4 (each row's line), lengths u4 (of each line, if the lines
                                   have no newlines)
    payloads                       one JSON text per line

An absent column takes no bytes. A frame with payloads in typed columns has the flag `_TYPED`. Its header describes
each column by a name, a type and a width, and instead of the lines it has the columns' buffers, each at a multiple of 8
bytes from the frame's start, so that numpy and Arrow can read them in place. A column of numbers has one buffer, the
values, little endian. A column of strings has two: offsets, int32, one more than there are rows, and the UTF-8 text.

For invalid bytes `decode` raises FrameError before it allocates memory of a size that the bytes claim.
"""

import copyreg
from collections.abc import Callable, Iterator
from operator import is_
from struct import Struct as Packer
from time import time
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.texts import short_repr
from ray_messaging.default_limits_and_leases import FRAME_LIMIT
from ray_messaging.errors import FrameError
from ray_messaging.model.batch import CONTEXT_BYTES, Batch, Origin, TracePoint
from ray_messaging.model.columns import NONE, STR, IdColumn, PayloadColumn, nobody
from ray_messaging.model.extension import AudiencePairs, Extension, Fold, InHand, OutsideQuestion
from ray_messaging.model.message_ids import NO_NUMBER, MessageIdColumn
from ray_messaging.model.typed.column import NUMBERS, STRING, NumberColumn, TextColumn, TypedColumn
from ray_messaging.model.typed.typed_table import Payloads, TypedColumns

try:  # isal computes CRC-32 by special instructions of the processor, in a tenth of zlib's time.
    from isal.isal_zlib import crc32
except ImportError:  # If isal does not exist for this machine, the standard library computes the same checksum.
    from zlib import crc32

FOREIGN_SENDER = "foreign-"  # foreign clients' messages get as their sender this prefix and a mailbox's name
MAGIC, VERSION = b"RM", 4
_PREFIX = Packer("<2sBxII")
_ALIGNMENT = 8  # typed columns begin at a multiple of this many bytes from the start of the frame

_NUMBERS, _FROM_KINDS, _TO_KINDS, _TOPIC, _STEPS, _TIMES, _INDEX, _LENGTHS = (1 << bit for bit in range(8))
_I8, _I4, _F8, _U4, _U2, _U1 = map(np.dtype, ("<i8", "<i4", "<f8", "<u4", "<u2", "u1"))

# Optional columns in their order, which come after the fixed columns. The column of lengths is not among them. It comes
# last, because it has a value for each different payload, and not for each row.
_OPTIONAL = (
    (_NUMBERS, _U4), (_FROM_KINDS, _U1), (_TO_KINDS, _U1), (_TOPIC, _U2), (_STEPS, _I8), (_TIMES, _F8), (_INDEX, _U4)
)  # fmt: skip
_WIDE_OPTIONAL = tuple((flag, _U4 if flag == _TOPIC else dtype) for flag, dtype in _OPTIONAL)
_FLAGS = (*(flag for flag, _ in _OPTIONAL), _LENGTHS)
_ABSENT = (None,) * len(_FLAGS)
_NO_COLUMNS = [None] * len(_OPTIONAL)
_NO_EXTENSION = Extension()

# Flags of the header. _EXTENSION: the frame has an extension. _DELIVER to _EXPECTS, _CAUSE_NUMBERS, _CAUSE_PLACES: the
# frame has this column of an extension. _TYPED: the payloads are typed columns. _SMALL_IDS: the ids are int32, which is
# used only in frames with typed columns and in frames of steps. _FOLD: each row stands for pairs of sender and hearer.
# _WIDE_TOPICS: the frame has more topics than uint16 can number.
(
    _EXTENSION, _DELIVER, _ORDINAL, _REPLY_NUMBERS, _REPLY_PLACES, _EXPECTS, _TYPED, _SMALL_IDS, _FOLD,
    _CAUSE_NUMBERS, _CAUSE_PLACES, _WIDE_TOPICS
) = (1 << bit for bit in range(8, 20))  # fmt: skip
_EXTENSION_COLUMNS = (
    (_DELIVER, _I8), (_ORDINAL, _U4), (_REPLY_NUMBERS, _I8), (_REPLY_PLACES, _U4), (_EXPECTS, _U1),
    (_CAUSE_NUMBERS, _I8), (_CAUSE_PLACES, _U4)
)  # fmt: skip

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Step = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Topic = Annotated[str, msgspec.Meta(min_length=1)]
_InHand = tuple[str, str, _Step | str | None, _Number]


def checksum_of(frame: bytes) -> int:
    """Return the checksum that is stored in a frame's prefix, without checking it."""
    checksum: int = _PREFIX.unpack_from(frame)[2]
    return checksum


class ColumnField(NamedTuple):
    """Description of a typed column. `width` is the length of the vectors in it, or 0 if each row is a single value."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    type: str
    width: Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Header(msgspec.Struct, array_like=True, frozen=True):
    """The header of a frame: its batch's sender, values that apply to all rows, and tables for its columns.

    `first` is the number of the first row. `flags` say which columns the frame has. The fields from `attempt` on,
    except for `trace` and `payload_columns`, are those of an `Extension`.
    """

    sender: str
    epoch: _Number
    first: _Number
    rows: _Number
    flags: _Number
    lines: int  # the number of different payloads, or -1 if the frame has no payloads
    topics: Annotated[tuple[_Topic, ...], msgspec.Meta(min_length=1)]
    from_strings: tuple[str, ...]
    to_strings: tuple[str, ...]
    step: _Step | None
    sent_at: float
    labels: tuple[tuple[str, bytes], ...] = ()  # each label, and the rows that have it (uint32)
    noted: bytes = b""  # the rows (uint32) that the event log takes from a log note instead of this frame
    attempt: _Number = 0
    deliver: _Step | None = None
    reply_mailbox: str = ""
    reply_texts: tuple[str, ...] = ()
    audience: tuple[str, _Number] | None = None
    payload_columns: tuple[ColumnField, ...] = ()
    asked_outside: tuple[tuple[_Number, str, str], ...] = ()  # questions from outside of steps: row, mailbox, id
    fold: tuple[bytes, _Number, bytes] | None = None
    # OpenTelemetry's context of the span in which the batch was sent; b"" if the batch is not traced.
    trace: bytes = b""
    # For each question: the number of its row, and the handlers that wait for its answer.
    behind: tuple[tuple[_Number, tuple[_InHand, ...]], ...] = ()
    failed: bool = False
    cause_texts: tuple[str, ...] = ()


def encode(batch: Batch, *, with_payload: bool = True) -> bytes:
    """Encode a batch. The same batch always gives the same bytes."""
    from_ids, to_ids, lines = batch.from_ids, batch.to_ids, batch.lines if with_payload else None
    step, steps = (None, batch.step) if isinstance(batch.step, np.ndarray) else (batch.step, None)
    sent_at, times = (0.0, batch.sent_at) if isinstance(batch.sent_at, np.ndarray) else (batch.sent_at, None)
    typed, extension = lines if isinstance(lines, TypedColumns) else None, batch.extension
    flags, folded = 0 if typed is None else _TYPED, extension is not None and extension.fold is not None
    columns: list[memoryview] = []
    optional = (
        batch.numbers,
        from_ids.kinds,
        None if folded else to_ids.kinds,
        batch.topic,
        steps,
        times,
        None if lines is None else lines.index,
        np.array([*map(len, lines.list)], "<u4") if lines is not None and lines.raw else None,
    )
    # A single message whose ids are ints has none of these columns, and for a single message time matters most.
    if not all(map(is_, optional, _ABSENT)):
        for flag, column in zip(_FLAGS, optional, strict=True):
            if column is not None:
                flags |= flag
                columns.append(np.ascontiguousarray(column).data)
        if batch.topic is not None and batch.topic.itemsize > _U2.itemsize:
            flags |= _WIDE_TOPICS
    given = (from_ids,) if folded else (from_ids, to_ids)
    ids: list[bytes | memoryview] = [each.packed for each in given]
    of_step = extension is not None and extension.ordinal is not None
    if (of_step or typed is not None) and all(map(_is_small, given)):
        flags, ids = flags | _SMALL_IDS, [each.values.astype(_I4).data for each in given]
    if extension is not None:
        extension_flags, columns[:0] = _extension_columns(extension)
        flags |= extension_flags
    header = _encode_header(_header(batch, flags, lines, step, sent_at))
    parts: list[bytes | memoryview] = [header, *ids, *columns]
    if typed is not None:
        parts += _buffers_of(typed, _PREFIX.size + sum([memoryview(part).nbytes for part in parts]))
    elif isinstance(lines, PayloadColumn):
        parts.append(lines.view)
    checksum = 0
    for part in parts:
        checksum = crc32(part, checksum)
    return b"".join((_PREFIX.pack(MAGIC, VERSION, checksum, len(header)), *parts))


def _is_small(ids: IdColumn) -> bool:
    """Return whether all values of an id column fit into int32."""
    values = ids.values
    return int(values.min(initial=0)) >= -(2**31) and int(values.max(initial=0)) < 2**31


# A batch is pickled as its frame, also when Ray sends the batch to another process.
def _reduced(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    frame = encode(batch) if batch.frame is None else batch.frame
    if batch.origin is None:
        return decode, (frame,)
    return _decode_read, (frame, batch.origin, *(() if batch.trace is None else (batch.trace.fetched,)))


def _decode_read(frame: bytes, origin: Origin, fetched: bytes = b"") -> Batch:
    batch = decode(frame)
    batch.origin = origin
    if batch.trace is not None:
        batch.trace = batch.trace._replace(fetched=fetched)
    return batch


copyreg.pickle(Batch, _reduced)

_encode_header = msgspec.msgpack.Encoder().encode
_read_header = msgspec.msgpack.Decoder(Header).decode


def _header(batch: Batch, flags: int, lines: Payloads | None, step: int | None, sent_at: float) -> Header:
    fields: list[Any] = [
        batch.sender,
        batch.epoch,
        batch.first,
        batch.rows,
        flags,
        -1 if lines is None else lines.count,
        batch.topics,
        batch.from_ids.strings,
        batch.to_ids.strings,
        step,
        sent_at,
        tuple((name, rows.astype("<u4").tobytes()) for name, rows in batch.labels.items()) if batch.labels else (),
        b"" if batch.noted is None else batch.noted.astype("<u4").tobytes(),
    ]
    if flags >= _EXTENSION or batch.trace is not None:
        extension = batch.extension or _NO_EXTENSION
        deliver, replies, asked = extension.deliver, extension.in_reply_to, extension.asked_outside
        fields += [
            extension.attempt,
            None if isinstance(deliver, np.ndarray) else deliver,
            extension.reply_mailbox,
            () if replies is None else replies.texts,
            extension.audience,
            _fields_of(lines) if isinstance(lines, TypedColumns) else (),
            tuple((row, *question) for row, question in asked.items()) if asked else (),
            extension.fold,
            b"" if batch.trace is None else batch.trace.sent,
            tuple(extension.behind.items()),
            extension.failed,
            () if extension.caused_by is None else extension.caused_by.texts,
        ]
    return Header(*fields)


def _extension_columns(extension: Extension) -> tuple[int, list[memoryview]]:
    """Return the columns that an extension has, and the header's flags for them (see `_EXTENSION`)."""
    deliver, replies, causes = extension.deliver, extension.in_reply_to, extension.caused_by
    optional = (
        deliver if isinstance(deliver, np.ndarray) else None,
        extension.ordinal,
        None if replies is None else replies.numbers,
        None if replies is None else replies.places,
        extension.expects_answer,
        None if causes is None else causes.numbers,
        None if causes is None else causes.places,
    )
    flags, columns = _EXTENSION if extension.fold is None else _EXTENSION | _FOLD, list[memoryview]()
    for (flag, _), column in zip(_EXTENSION_COLUMNS, optional, strict=True):
        if column is not None:
            flags |= flag
            columns.append(np.ascontiguousarray(column).data)
    return flags, columns


class _FrameReader(msgspec.Struct):
    """Reader that returns a frame's columns one after the other, and never reads beyond the frame's end.

    With `checked`, another process has decoded the frame already, so the frame's values need no check.
    """

    frame: bytes
    view: memoryview
    at: int
    rows: int
    checked: bool

    def column(self, dtype: Any, rows: int | None = None) -> Any:  # noqa: ANN401 - numpy's dtype and array
        """Return the next column. It has `rows` values, or one for each row of the frame if `rows` is None."""
        count = self.rows if rows is None else rows
        return np.frombuffer(self.cut(count * dtype.itemsize), dtype)

    def aligned_column(self, dtype: Any, rows: int) -> Any:  # noqa: ANN401 - numpy's dtype and array
        """Skip the bytes up to the next multiple of 8 in the frame, and return the column that begins there."""
        self.at += -self.at % _ALIGNMENT
        return self.column(dtype, rows)

    def cut(self, nbytes: int) -> memoryview:
        """Return the next `nbytes` bytes."""
        at, end = self.at, self.at + nbytes
        if end > len(self.view):
            raise _invalid("the frame ends within a column")
        self.at = end
        return self.view[at:end]


def _invalid(reason: str) -> FrameError:
    """Build the error for an invalid frame."""
    return FrameError(
        f"a frame (a batch of messages, as bytes) is invalid: {reason}. Find the program that wrote the frame"
    )


def _check(ok: object, reason: str) -> None:
    if not ok:
        raise _invalid(reason)


def decode(frame: bytes, *, checked: bool = False) -> Batch:
    """Decode a frame. Columns and payloads are views of its bytes. Raises FrameError if the frame is invalid.

    Args: with `checked`, the checksum and the payloads are not checked, because another process has checked them.
    """
    size = len(frame)
    if not _PREFIX.size <= size <= FRAME_LIMIT:
        raise _invalid(f"the frame has {size} bytes, but must have {_PREFIX.size} to {FRAME_LIMIT} bytes")
    magic, version, checksum, header_length = _PREFIX.unpack_from(frame)
    at = _PREFIX.size + header_length
    view = memoryview(frame)
    if magic != MAGIC:
        raise _invalid("the frame does not begin with the letters RM")
    if version != VERSION:
        raise FrameError(
            f"a frame (a batch of messages, as bytes) has the format {version}, but this ray_messaging reads only the "
            f"format {VERSION}: use one version of ray_messaging in all processes"
        )
    if at > size:
        raise _invalid("the frame's header is longer than the frame")
    if not checked and crc32(view[_PREFIX.size :]) != checksum:
        raise _invalid("the frame's checksum does not match")
    header = _header_of(view[_PREFIX.size : at])
    why = _header_trouble(header, size)
    if why is not None:
        raise _invalid(why)
    batch = _decode_columns(header, _FrameReader(frame, view, at, header.rows, checked))
    batch.frame = frame
    return batch


def is_folded(frame: bytes) -> bool:
    """Return whether a frame's header says that the frame's rows stand for pairs of sender and hearer.

    Return False if the header is invalid.
    """
    if len(frame) < _PREFIX.size:
        return False
    header_length = _PREFIX.unpack_from(frame)[3]
    try:
        return _header_of(memoryview(frame)[_PREFIX.size : _PREFIX.size + header_length]).fold is not None
    except FrameError:
        return False


def _header_of(data: memoryview) -> Header:
    try:
        return _read_header(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"the frame's header cannot be read ({error})") from error


def _header_trouble(header: Header, size: int) -> str | None:
    if header.rows > size:
        return "the frame's count of rows is impossible"
    if header.flags >= 2 * _WIDE_TOPICS:
        return "the frame's flags name unknown columns"
    if bool(header.flags & _FOLD) != (header.fold is not None) or (header.fold and header.audience is None):
        return "the frame's fields about rows that represent pairs contradict each other"
    if header.flags & ~(_TYPED | _SMALL_IDS | _WIDE_TOPICS) >= _EXTENSION and not header.flags & _EXTENSION:
        return (
            "the frame has columns that only frames with broadcasts, questions or steps have, but its header names "
            "none of these"
        )
    if len(header.trace) not in {0, CONTEXT_BYTES}:
        return "the frame's trace context has a wrong length"
    named = (*(row for row, *_ in header.asked_outside), *(row for row, _ in header.behind))
    if max(named, default=-1) >= header.rows:
        return "the frame refers to rows that it does not have"
    if not header.flags & _TYPED:
        return "the frame describes typed columns, but has none" if header.payload_columns else None
    if header.flags & (_INDEX | _LENGTHS) or header.lines != header.rows:
        return "the frame's fields about JSON lines and typed columns contradict each other"
    return None


def _decode_columns(header: Header, reader: _FrameReader) -> Batch:
    folded, small = bool(header.flags & _FOLD), bool(header.flags & _SMALL_IDS)
    size = header.rows * (_I4 if small else _I8).itemsize
    from_values, to_values = reader.cut(size), b"" if folded else reader.cut(size)
    extension = _extension(header, reader) if header.flags & _EXTENSION else None
    # A frame with a single message, for which time matters most, has no optional columns if both ids are ints. Then
    # `_columns` is not called.
    known = _WIDE_OPTIONAL if header.flags & _WIDE_TOPICS else _OPTIONAL
    found = _columns(header, reader, known) if header.flags & (_EXTENSION - 1) else _NO_COLUMNS
    numbers, from_kinds, to_kinds, topic, steps, times, index = found
    from_ids = IdColumn(None, from_kinds, header.from_strings, from_values, _small=small)
    to_ids = nobody(header.rows) if folded else IdColumn(None, to_kinds, header.to_strings, to_values, _small=small)
    if from_kinds is not None or to_kinds is not None:
        _check_ids(from_ids)
        _check_ids(to_ids)
    if topic is not None and len(topic):
        _check(int(topic.max()) < len(header.topics), "a row of the frame uses a subtopic that the frame does not have")
    if header.flags & _TYPED:
        lines: Payloads | None = _read_columns(header.payload_columns, reader)
    else:
        lines = _lines(header, reader, index)
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
        labels={name: _rows(rows, header.rows) for name, rows in header.labels} if header.labels else {},
        noted=_rows(header.noted, header.rows) if header.noted else None,
        rows=header.rows,
        extension=extension,
        trace=TracePoint(header.trace, time()) if header.trace else None,
    )


def _columns(header: Header, reader: _FrameReader, known: tuple[tuple[int, Any], ...]) -> list[Any]:
    """Return the next columns, with None for each column that the frame does not have.

    Args: `known` has, for each column, the flag that says whether the frame has it, and its type.
    """
    return [reader.column(dtype) if header.flags & flag else None for flag, dtype in known]


def _extension(header: Header, reader: _FrameReader) -> Extension:
    delivers, ordinal, numbers, places, expects, causes, cause_places = _columns(header, reader, _EXTENSION_COLUMNS)
    if expects is not None:
        _check(_largest(expects) <= 1, "the frame's mark of a question is neither 0 nor 1")
    return Extension(
        attempt=header.attempt,
        deliver=header.deliver if delivers is None else delivers,
        ordinal=ordinal,
        in_reply_to=_message_ids(header.reply_texts, numbers, places),
        expects_answer=None if expects is None else expects.view(np.bool_),
        reply_mailbox=header.reply_mailbox,
        asked_outside={row: OutsideQuestion(*asked) for row, *asked in header.asked_outside},
        behind={row: tuple(InHand(*each) for each in chain) for row, chain in header.behind},
        failed=header.failed,
        caused_by=_message_ids(header.cause_texts, causes, cause_places),
        audience=None if header.audience is None else AudiencePairs(*header.audience),
        fold=None if header.fold is None else Fold(*header.fold),
    )


def _message_ids(
    texts: tuple[str, ...], numbers: NDArray[np.int64] | None, places: NDArray[np.uint32] | None
) -> MessageIdColumn | None:
    if numbers is None:
        _check(places is None and not texts, "the frame lists ids of messages to which none of its rows refers")
        return None
    _check(_smallest(numbers) >= NO_NUMBER, "the frame refers to a message of an impossible number")
    _check(
        (0 if places is None else _largest(places)) < len(texts),
        "a row of the frame refers to a message whose id the frame does not have",
    )
    return MessageIdColumn(numbers, texts, places)


def _largest(column: NDArray[Any]) -> int:
    """Return the largest value of a column; return 0 if there are no rows, or several rows that are all below 0.

    For a single row, `item` takes a sixth of the time of `max`.
    """
    return int(column.item(0)) if len(column) == 1 else int(column.max(initial=0))


def _smallest(column: NDArray[Any]) -> int:
    """Return the smallest value of a column; return 0 if there are no rows, or several rows that are all above 0."""
    return int(column.item(0)) if len(column) == 1 else int(column.min(initial=0))


def _rows(data: bytes, count: int) -> NDArray[np.uint32]:
    _check(len(data) % 4 == 0, "the frame ends within a row's number")
    rows = np.frombuffer(data, "<u4")
    _check(not len(rows) or int(rows.max()) < count, "the frame refers to rows that it does not have")
    return rows


def _lines(header: Header, reader: _FrameReader, index: NDArray[np.uint32] | None) -> PayloadColumn | None:
    if header.lines < 0:
        _check(
            index is None and reader.at == len(reader.frame),
            "the frame has payloads, but its header says that it has none",
        )
        return None
    if header.flags & _LENGTHS:
        lengths = reader.column(_U4, header.lines)
        _check(
            int(lengths.sum(dtype=np.int64)) == len(reader.frame) - reader.at,
            "the frame's payloads do not have the lengths that the frame states",
        )
        lines = PayloadColumn.cut(bytes(reader.frame[reader.at :]), lengths.tolist(), index)
    else:
        lines = PayloadColumn(reader.frame, header.lines, index, reader.at)
    if not reader.checked and not lines.whole(header.rows):
        raise _invalid("the frame does not have a payload for each of its rows, or its payloads are damaged")
    return lines


def _check_ids(ids: IdColumn) -> None:
    if ids.kinds is None or not len(ids.kinds):
        return
    _check(int(ids.kinds.max()) <= NONE, "the frame uses an unknown kind of id")
    indices = ids.values[ids.kinds == STR]
    if len(indices):
        _check(
            int(indices.min()) >= 0 and int(indices.max()) < len(ids.strings),
            "a row of the frame uses an id of an agent that the frame does not have",
        )


# -- typed columns --------------------------------------------------------------------------------------------------


def _fields_of(table: TypedColumns) -> tuple[ColumnField, ...]:
    """Return the name and type of each typed column, as they are stored in a frame."""
    return tuple(ColumnField(name, *kind) for name, kind in table.schema.items())


def _buffers_of(table: TypedColumns, at: int) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a frame's typed columns, of which the first begins at position `at` of the frame."""
    for column in table.columns.values():
        for buffer in column.buffers:
            padding = -at % _ALIGNMENT
            if padding:
                yield bytes(padding)
            yield np.ascontiguousarray(buffer).data
            at += padding + buffer.nbytes


def _read_columns(fields: tuple[ColumnField, ...], reader: _FrameReader) -> TypedColumns:
    """Read the typed columns at the end of a frame. They are views of the frame's bytes.

    Raises: FrameError if a column is invalid.
    """
    columns = {field.name: _column(field, reader) for field in fields}
    if len(columns) < len(fields) or not columns:
        raise _invalid("the frame has no typed column, or two with the same name")
    if reader.at != len(reader.frame):
        raise _invalid("the frame has further bytes after its last typed column")
    return TypedColumns(columns, reader.rows)


def _column(field: ColumnField, reader: _FrameReader) -> TypedColumn:
    rows, dtype = reader.rows, NUMBERS.get(field.type)
    if dtype is not None:
        values = reader.aligned_column(dtype, rows * max(1, field.width))
        if field.type == "bool" and not reader.checked and len(values) and int(values.view(np.uint8).max()) > 1:
            raise _invalid(f"the frame's column {field.name!r} has a bool that is neither 0 nor 1")
        return NumberColumn(values.reshape(rows, field.width) if field.width else values)
    if field.type != STRING or field.width:
        raise _invalid(
            f"the frame's column {field.name!r} has the type {short_repr(field.type)}, which this library does not know"
        )
    offsets = reader.aligned_column(_I4, rows + 1)
    column = TextColumn(offsets, reader.aligned_column(_U1, max(0, int(offsets[-1]))))
    why = None if reader.checked else column.trouble()
    if why is not None:
        raise _invalid(f"the frame's column {field.name!r} is damaged: {why}")
    return column
