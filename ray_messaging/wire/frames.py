"""Encoding of a batch as a frame, and decoding.

A frame, in order; all numbers are little endian:

    "RM", version u8, spare u8     2 if the batch has an extension, else 1: plain messages are as they always were
    crc32 u32                      of all that follows
    header length u32
    header                         msgpack array: `Header`, or `ExtendedHeader` in version 2; it grows at its end only
    from_ids, to_ids               i8 a row: the id, or its index in the header's table where the kind says so
    columns by flags, version 2    deliver i8, ordinal u4, numbers i8 and places u4 of `in_reply_to`, expects_answer u1
    columns by flags               numbers u4, kinds of from_ids and to_ids u1, topic u2, step i8, sent_at f8,
                                   index u4 (each row's line), lengths u4 (a row per line, where lines have no ends)
    payloads                       one JSON text per line

An absent column takes no byte. Payloads in typed columns have their place: the flag `_TYPED`, descriptions in
`ExtendedHeader.payload_columns`, and, in place of the lines, the columns, each at a multiple of 8 bytes from the start
of the frame, so that numpy and Arrow read them there. This library refuses them. For invalid bytes `decode` raises
FrameError before it allocates memory by a size that they claim.
"""

import copyreg
from collections.abc import Callable
from operator import is_
from struct import Struct as Packer
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.errors import FrameError
from ray_messaging.model.batch import Batch, Origin
from ray_messaging.model.columns import NONE, STR, IdColumn, PayloadColumn
from ray_messaging.model.extension import Audience, Extension
from ray_messaging.model.message_ids import NO_NUMBER, MessageIdColumn

try:  # CRC-32 by the processor's own instructions, in a tenth of the time
    from isal.isal_zlib import crc32
except ImportError:  # not available for this machine
    from zlib import crc32

FOREIGN_SENDER = "foreign-"  # prefix of a mailbox's name: the sender of foreign clients' messages
MAGIC, PLAIN, EXTENDED = b"RM", 1, 2  # and the versions
_PREFIX = Packer("<2sBxII")

_NUMBERS, _FROM_KINDS, _TO_KINDS, _TOPIC, _STEPS, _TIMES, _INDEX, _LENGTHS = (1 << bit for bit in range(8))
_I8, _F8, _U4, _U2, _U1 = map(np.dtype, ("<i8", "<f8", "<u4", "<u2", "u1"))

# Optional columns in their order after the fixed ones. The lengths come last: they have a row per line.
_OPTIONAL = (
    (_NUMBERS, _U4), (_FROM_KINDS, _U1), (_TO_KINDS, _U1), (_TOPIC, _U2), (_STEPS, _I8), (_TIMES, _F8), (_INDEX, _U4)
)  # fmt: skip
_FLAGS = (*(flag for flag, _ in _OPTIONAL), _LENGTHS)
_ABSENT = (None,) * len(_FLAGS)
_NO_COLUMNS = [None] * len(_OPTIONAL)

# Version 2: a flag that every frame has, and optional columns in their order after the fixed ones.
_EXTENSION, _DELIVER, _ORDINAL, _REPLY_NUMBERS, _REPLY_PLACES, _EXPECTS, _TYPED = (1 << bit for bit in range(8, 15))
_EXTENSION_COLUMNS = (
    (_DELIVER, _I8), (_ORDINAL, _U4), (_REPLY_NUMBERS, _I8), (_REPLY_PLACES, _U4), (_EXPECTS, _U1)
)  # fmt: skip

_Number = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Step = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Topic = Annotated[str, msgspec.Meta(min_length=1)]


class Header(msgspec.Struct, array_like=True, frozen=True):
    """Header of a frame; append-only."""

    sender: str
    epoch: _Number
    first: _Number
    rows: _Number
    flags: _Number
    lines: int  # -1: no payloads (a verdict request with ids only)
    topics: Annotated[tuple[_Topic, ...], msgspec.Meta(min_length=1)]
    from_strings: tuple[str, ...]
    to_strings: tuple[str, ...]
    step: _Step | None
    sent_at: float
    labels: tuple[tuple[str, bytes], ...] = ()  # a label and its rows, uint32
    noted: bytes = b""  # rows, uint32


class ExtendedHeader(Header, frozen=True):
    """Header of a frame of version 2; append-only."""

    flags: Annotated[int, msgspec.Meta(ge=_EXTENSION, lt=2**62)]
    attempt: _Number = 0
    deliver: _Step | None = None
    reply_mailbox: str = ""
    reply_texts: tuple[str, ...] = ()
    audience: tuple[str, _Number] | None = None
    payload_columns: tuple[Any, ...] = ()  # reserved: a name, a type and a width each


def encode(batch: Batch, *, with_payload: bool = True) -> bytes:
    """Encode a batch; the same batch always gives the same bytes."""
    from_ids, to_ids, lines = batch.from_ids, batch.to_ids, batch.lines if with_payload else None
    step, steps = (None, batch.step) if isinstance(batch.step, np.ndarray) else (batch.step, None)
    sent_at, times = (0.0, batch.sent_at) if isinstance(batch.sent_at, np.ndarray) else (batch.sent_at, None)
    flags = 0
    columns: list[memoryview] = []
    optional = (
        batch.numbers,
        from_ids.kinds,
        to_ids.kinds,
        batch.topic,
        steps,
        times,
        None if lines is None else lines.index,
        np.array([*map(len, lines.list)], "<u4") if lines is not None and lines.raw else None,
    )
    if not all(map(is_, optional, _ABSENT)):  # a single message, the latency case, has none of them
        for flag, column in zip(_FLAGS, optional, strict=True):
            if column is not None:
                flags |= flag
                columns.append(np.ascontiguousarray(column).data)
    version, fields = PLAIN, _header(batch, flags, lines, step, sent_at)
    if batch.extension is not None:
        version, fields, columns[:0] = EXTENDED, *_extended(fields, batch.extension)
    header = _encode_header(fields)
    parts = [header, from_ids.packed, to_ids.packed, *columns]
    if lines is not None:
        parts.append(lines.blob)
    checksum = 0
    for part in parts:
        checksum = crc32(part, checksum)
    return b"".join((_PREFIX.pack(MAGIC, version, checksum, len(header)), *parts))


# A batch is pickled as its frame, by Ray too.
def _reduced(batch: Batch) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
    frame = encode(batch) if batch.frame is None else batch.frame
    return (decode, (frame,)) if batch.origin is None else (_decode_read, (frame, batch.origin))


def _decode_read(frame: bytes, origin: Origin) -> Batch:
    batch = decode(frame)
    batch.origin = origin
    return batch


copyreg.pickle(Batch, _reduced)

_encode_header = msgspec.msgpack.Encoder().encode
_read_header = {
    PLAIN: msgspec.msgpack.Decoder(Header).decode,
    EXTENDED: msgspec.msgpack.Decoder(ExtendedHeader).decode,
}


def _header(batch: Batch, flags: int, lines: PayloadColumn | None, step: int | None, sent_at: float) -> Header:
    return Header(
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
    )


def _extended(header: Header, extension: Extension) -> tuple[ExtendedHeader, list[memoryview]]:
    """Return the header with an extension's fields, and the extension's columns."""
    deliver, replies = extension.deliver, extension.in_reply_to
    each = isinstance(deliver, np.ndarray)
    optional = (
        deliver if each else None,
        extension.ordinal,
        None if replies is None else replies.numbers,
        None if replies is None else replies.places,
        extension.expects_answer,
    )
    flags, columns = header.flags | _EXTENSION, list[memoryview]()
    for (flag, dtype), column in zip(_EXTENSION_COLUMNS, optional, strict=True):
        if column is not None:
            flags |= flag
            columns.append(np.ascontiguousarray(column, dtype).data)
    fields = msgspec.structs.asdict(header) | {
        "flags": flags,
        "attempt": extension.attempt,
        "deliver": None if each else deliver,
        "reply_mailbox": extension.reply_mailbox,
        "reply_texts": () if replies is None else replies.texts,
        "audience": extension.audience,
    }
    return ExtendedHeader(**fields), columns


def _check(ok: object, reason: str) -> None:
    if not ok:
        raise _invalid(reason)


def _invalid(reason: str) -> FrameError:
    return FrameError(f"invalid frame: {reason}; drop it, and find the client that wrote it")


class _Reader(msgspec.Struct):
    """Reader that cuts columns off a frame, never past its end."""

    frame: bytes
    view: memoryview
    at: int
    rows: int
    flags: int
    checked: bool

    def column(self, dtype: Any, rows: int | None = None) -> Any:  # noqa: ANN401 - numpy's dtype and array
        return np.frombuffer(self.cut((self.rows if rows is None else rows) * dtype.itemsize), dtype)

    def cut(self, nbytes: int) -> memoryview:
        """Return the next bytes."""
        at = self.at
        self.at = at + nbytes
        if self.at > len(self.view):
            raise _invalid("it ends within a column")
        return self.view[at : self.at]

    def optional(self) -> list[Any]:
        """Return the optional columns, None for each that is missing."""
        if not self.flags:  # a single message, the latency case
            return _NO_COLUMNS
        return self.columns(_OPTIONAL)

    def columns(self, known: tuple[tuple[int, Any], ...]) -> list[Any]:
        """Return the next columns, None for each that is missing."""
        return [self.column(dtype) if self.flags & flag else None for flag, dtype in known]


def decode(frame: bytes, *, checked: bool = False) -> Batch:
    """Decode a frame; columns and payloads are views of its bytes. Raises FrameError.

    Args: checked tells that the process that passed it on has decoded it: its checksum and payloads are not read again.
    """
    size = len(frame)
    if not _PREFIX.size <= size <= FRAME_LIMIT:
        raise _invalid(f"{size} bytes is no size of a frame")
    magic, version, checksum, header_length = _PREFIX.unpack_from(frame)
    at = _PREFIX.size + header_length
    view = memoryview(frame)
    why = _prefix_trouble(magic, version, at, size)
    if why is None and not checked and crc32(view[_PREFIX.size :]) != checksum:
        why = "its checksum does not match"
    if why is not None:
        raise _invalid(why)
    try:
        header = _read_header[version](view[_PREFIX.size : at])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(f"its header cannot be read ({error})") from error
    why = _header_trouble(header, size)
    if why is not None:
        raise _invalid(why)
    batch = _decode_columns(header, _Reader(frame, view, at, header.rows, header.flags, checked))
    batch.frame = frame
    return batch


def _prefix_trouble(magic: bytes, version: int, at: int, size: int) -> str | None:
    if magic != MAGIC:
        return "it does not begin with RM"
    if version not in _read_header:
        return f"it has version {version}, this library reads up to {EXTENDED}: update ray_messaging"
    return "its header is longer than itself" if at > size else None


def _header_trouble(header: Header, size: int) -> str | None:
    if header.rows > size:
        return "its count of rows is impossible"
    if header.flags < _EXTENSION:
        return None
    if isinstance(header, ExtendedHeader) and (header.flags & _TYPED or header.payload_columns):
        return "its payloads are in typed columns, which this library cannot read: update ray_messaging"
    if not isinstance(header, ExtendedHeader) or header.flags >= _TYPED:
        return "it has columns that this library does not know"
    return None


def _decode_columns(header: Header, reader: _Reader) -> Batch:
    from_values, to_values = reader.cut(header.rows * _I8.itemsize), reader.cut(header.rows * _I8.itemsize)
    extension = _extension(header, reader) if isinstance(header, ExtendedHeader) else None
    numbers, from_kinds, to_kinds, topic, steps, times, index = reader.optional()
    from_ids = IdColumn(None, from_kinds, header.from_strings, from_values)
    to_ids = IdColumn(None, to_kinds, header.to_strings, to_values)
    if from_kinds is not None or to_kinds is not None:
        _check_ids(from_ids)
        _check_ids(to_ids)
    if topic is not None and len(topic):
        _check(int(topic.max()) < len(header.topics), "it uses a topic it does not name")
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
    )


def _extension(header: ExtendedHeader, reader: _Reader) -> Extension:
    delivers, ordinal, numbers, places, expects = reader.columns(_EXTENSION_COLUMNS)
    if expects is not None:
        _check(not len(expects) or int(expects.max()) <= 1, "it expects an answer in another way than yes or no")
    return Extension(
        attempt=header.attempt,
        deliver=header.deliver if delivers is None else delivers,
        ordinal=ordinal,
        in_reply_to=_replies(header.reply_texts, numbers, places),
        expects_answer=None if expects is None else expects.view(np.bool_),
        reply_mailbox=header.reply_mailbox,
        audience=None if header.audience is None else Audience(*header.audience),
    )


def _replies(
    texts: tuple[str, ...], numbers: NDArray[np.int64] | None, places: NDArray[np.uint32] | None
) -> MessageIdColumn | None:
    if numbers is None:
        _check(places is None and not texts, "it answers questions that it does not name")
        return None
    _check(not len(numbers) or int(numbers.min()) >= NO_NUMBER, "it answers a question of an impossible number")
    last = 0 if places is None or not len(places) else int(places.max())
    _check(last < len(texts), "it answers a question that it does not name")
    return MessageIdColumn(numbers, texts, places)


def _rows(data: bytes, count: int) -> NDArray[np.uint32]:
    _check(len(data) % 4 == 0, "it ends within a row's number")
    rows = np.frombuffer(data, "<u4")
    _check(not len(rows) or int(rows.max()) < count, "it names rows it does not have")
    return rows


def _lines(header: Header, reader: _Reader, index: NDArray[np.uint32] | None) -> PayloadColumn | None:
    if header.lines < 0:
        _check(index is None and reader.at == len(reader.frame), "it holds payloads it does not announce")
        return None
    if header.flags & _LENGTHS:
        lengths = reader.column(_U4, header.lines)
        _check(int(lengths.sum(dtype=np.int64)) == len(reader.frame) - reader.at, "its payloads have another length")
        lines = PayloadColumn.cut(bytes(reader.frame[reader.at :]), lengths.tolist(), index)
    else:
        lines = PayloadColumn(reader.frame, header.lines, index, reader.at)
    if not reader.checked and not lines.whole(header.rows):
        raise _invalid("its payloads do not match its rows")
    return lines


def _check_ids(ids: IdColumn) -> None:
    if ids.kinds is None or not len(ids.kinds):
        return
    _check(int(ids.kinds.max()) <= NONE, "it uses an unknown kind of id")
    indices = ids.values[ids.kinds == STR]
    if len(indices):
        _check(int(indices.min()) >= 0 and int(indices.max()) < len(ids.strings), "it uses an id it does not name")
