"""The messages of bulk sends, checked and encoded before anything is sent."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, check_id, check_recipient
from ray_messaging.common.limits import BATCH_BYTES, BATCH_ROWS
from ray_messaging.compat.msg import Msg
from ray_messaging.errors import InvalidColumns, InvalidPayload
from ray_messaging.message import Outgoing
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload
from ray_messaging.sending.accumulation.allowed_senders import no_from_id
from ray_messaging.sending.accumulation.pending_batch import Entry, RowBatch


class ColumnChunk(NamedTuple):
    """Some rows of a send by columns."""

    from_ids: IdColumn
    to_ids: IdColumn
    lines: PayloadColumn

    def take(self, rows: NDArray[np.intp]) -> "ColumnChunk":
        """Return some of the rows."""
        return ColumnChunk(self.from_ids.take(rows), self.to_ids.take(rows), self.lines.take(rows))

    def within_limits(self) -> "list[ColumnChunk]":
        """Return the rows in order, in chunks that are halved until each is within the limits of a batch."""
        rows = len(self.from_ids)
        if (rows <= BATCH_ROWS and self.lines.nbytes <= BATCH_BYTES) or rows == 1:
            return [self]
        halves = self.take(np.arange(rows // 2)), self.take(np.arange(rows // 2, rows))
        return [chunk for half in halves for chunk in half.within_limits()]


def entries_of(
    messages: Sequence[Outgoing],
    address: Callable[[str], tuple[AgentId | None, str]],
    limit_bytes: int,
    group: str | None = None,
) -> list[Entry]:
    """Check and encode messages; raise the error of the first bad one.

    Args: group is the name of a sender that sends only for its own agents: there each message needs a from_id.
    """
    entries: list[Entry] = []
    for message in messages:
        if not isinstance(message, Outgoing):
            raise InvalidPayload(
                f"send_messages takes Outgoing, not {type(message).__name__}: Outgoing(channel, payload)"
            )
        line = encode_payload(message.payload, limit_bytes)
        if message.channel is not None:
            to_id, topic = address(message.channel)
            if message.to_id is not None:
                to_id = check_recipient(message.channel, to_id, message.to_id)
            entries.append(Entry(message.from_id, [to_id], topic, line))
        elif message.to_ids is None:
            entries.append(Entry(message.from_id, [message.to_id], message.subtopic, line))
        else:
            for start in range(0, len(message.to_ids), BATCH_ROWS):
                part: list[AgentId | None] = [*message.to_ids[start : start + BATCH_ROWS]]
                entries.append(Entry(message.from_id, part, message.subtopic, line))
    if group is not None and any(message.unnamed for message in messages):
        raise no_from_id(group)
    return entries


def columns_of(from_ids: object, to_ids: object, payloads: object, limit_bytes: int) -> list[ColumnChunk]:
    """Check and encode columns, in chunks of at most a batch; raise InvalidColumns, InvalidAddress, InvalidPayload."""
    senders = None if from_ids is None or _is_one(from_ids) else IdColumn.checked(from_ids, none=True)
    receivers = None if _is_one(to_ids) else IdColumn.checked(to_ids)
    shared = _shared(payloads, limit_bytes)
    lengths = {
        "from_ids": None if senders is None else len(senders),
        "to_ids": None if receivers is None else len(receivers),
        "payloads": None if shared is not None else len(payloads),  # type: ignore[arg-type]  # a Sequence, else it raises
    }
    counted = {name: length for name, length in lengths.items() if length is not None}
    if len(set(counted.values())) > 1:
        found = ", ".join(f"{length} {name}" for name, length in counted.items())
        raise InvalidColumns(f"the columns differ in length: {found}")
    rows = next(iter(counted.values()), 1)
    if senders is None:
        senders = IdColumn.constant(None if from_ids is None else check_id(from_ids), rows)
    if receivers is None:
        receivers = IdColumn.constant(check_id(to_ids), rows)
    chunks: list[ColumnChunk] = []
    for low in range(0, rows, BATCH_ROWS):
        part = slice(low, min(rows, low + BATCH_ROWS))
        if shared is not None:
            lines = PayloadColumn.of([shared], np.zeros(part.stop - low, np.uint32))
        else:
            lines = PayloadColumn.encode(payloads[part], limit_bytes)  # type: ignore[index]  # a Sequence, see above
        chunks += ColumnChunk(senders.take(part), receivers.take(part), lines).within_limits()
    return chunks


def _is_one(ids: object) -> bool:
    """Tell whether this is one id for all rows, and no column."""
    return isinstance(ids, int | str | np.integer)


def payload_column(payloads: object, rows: int, limit_bytes: int) -> PayloadColumn:
    """Check and encode n payloads, or one for all; raise InvalidColumns, InvalidPayload, PayloadTooLarge."""
    shared = _shared(payloads, limit_bytes)
    if shared is not None:
        return PayloadColumn.of([shared], np.zeros(rows, np.uint32))
    if len(payloads) != rows:  # type: ignore[arg-type]  # a Sequence, else it raises
        raise InvalidColumns(f"the columns differ in length: {rows} messages, {len(payloads)} payloads")  # type: ignore[arg-type]
    return PayloadColumn.encode(payloads, limit_bytes)  # type: ignore[arg-type]  # as above


def _shared(payloads: object, limit_bytes: int) -> bytes | None:
    """Return the payload that is one for all, encoded; None: there is one each. Raises InvalidColumns."""
    if isinstance(payloads, dict | Msg):
        return encode_payload(payloads, limit_bytes)
    if not isinstance(payloads, Sequence) or isinstance(payloads, str | bytes):
        raise InvalidColumns(f"payloads must be a list of dicts or Msgs, or one for all, not {type(payloads).__name__}")
    return None


def batches_of_entries(entries: Sequence[Entry], step: int | None) -> list[Batch]:
    """Build batches of entries for a messager in another process."""
    batches: list[Batch] = []
    now = time.time()
    for chunk in entry_chunks(entries):
        draft = RowBatch(step)
        for entry in chunk:
            draft.extend(entry, now)
        batches.append(draft.seal("", 0, 0))
    return batches


def entry_chunks(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Split entries into batches, by rows and by bytes."""
    chunk: list[Entry] = []
    rows = nbytes = 0
    for entry in entries:
        if chunk and (rows + len(entry.to_ids) > BATCH_ROWS or nbytes + len(entry.line) > BATCH_BYTES):
            yield chunk
            chunk, rows, nbytes = [], 0, 0
        if entry.to_ids:
            chunk.append(entry)
        rows += len(entry.to_ids)
        nbytes += len(entry.line)
    if chunk:
        yield chunk


def batches_of_columns(chunks: Sequence[ColumnChunk], topic: str, step: int | None) -> list[Batch]:
    """Build batches of columns for a messager in another process, one per chunk."""
    now = time.time()
    return [
        Batch(
            sender="",
            epoch=0,
            first=0,
            from_ids=chunk.from_ids,
            rows=len(chunk.from_ids),
            to_ids=chunk.to_ids,
            topics=(topic,),
            step=step,
            sent_at=now,
            lines=chunk.lines,
        )
        for chunk in chunks
    ]
