"""What users pass to bulk sends, checked and encoded before anything is sent."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ray_messaging.channels import Address, AgentId, check_id
from ray_messaging.errors import InvalidColumns, InvalidPayload
from ray_messaging.ids import Ids
from ray_messaging.lines import Lines, encode_payload
from ray_messaging.message import Outgoing
from ray_messaging.sending.parcel import BATCH_ROWS


class Entry(NamedTuple):
    """One payload for one or more recipients (None: the channel is no agent's)."""

    from_id: AgentId | None
    to_ids: list[AgentId | None]
    topic: str
    line: bytes


class ColumnChunk(NamedTuple):
    """Some rows of a columnar send."""

    from_ids: Ids
    to_ids: Ids
    lines: Lines


def entries_of(
    messages: Sequence[Outgoing],
    address: Callable[[str], Address],
    recipient: Callable[[str, AgentId | None, object], AgentId],
    limit_bytes: int,
) -> list[Entry]:
    """Check and encode messages; raise what the first bad one is guilty of."""
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
                to_id = recipient(message.channel, to_id, message.to_id)
            entries.append(Entry(message.from_id, [to_id], topic, line))
        elif message.to_ids is None:
            entries.append(Entry(message.from_id, [message.to_id], message.subtopic, line))
        else:
            for start in range(0, len(message.to_ids), BATCH_ROWS):
                part: list[AgentId | None] = [*message.to_ids[start : start + BATCH_ROWS]]
                entries.append(Entry(message.from_id, part, message.subtopic, line))
    return entries


def columns_of(from_ids: object, to_ids: object, payloads: object, limit_bytes: int) -> list[ColumnChunk]:
    """Check and encode columns, in chunks of a batch; raise InvalidColumns, InvalidAddress, InvalidPayload."""
    receivers = Ids.checked(to_ids)
    rows = len(receivers)
    if from_ids is None or isinstance(from_ids, int | str | np.integer):
        senders = Ids.constant(None if from_ids is None else check_id(from_ids), rows)
    else:
        senders = Ids.checked(from_ids, none=True)
    shared = encode_payload(payloads, limit_bytes) if isinstance(payloads, dict) else None
    if shared is None and (not isinstance(payloads, Sequence) or isinstance(payloads, str | bytes)):
        raise InvalidColumns(f"payloads must be a list of dicts or one dict for all, not {type(payloads).__name__}")
    count = rows if shared is not None else len(payloads)  # type: ignore[arg-type]  # a Sequence, as of the line above
    if not len(senders) == rows == count:
        raise InvalidColumns(f"the columns differ in length: {len(senders)} from_ids, {rows} to_ids, {count} payloads")
    chunks = []
    for low in range(0, rows, BATCH_ROWS):
        part = slice(low, min(rows, low + BATCH_ROWS))
        if shared is not None:
            lines = Lines.of([shared], np.zeros(part.stop - low, np.uint32))
        else:
            lines = Lines.encode(payloads[part], limit_bytes)  # type: ignore[index]  # a Sequence, see above
        chunks.append(ColumnChunk(senders.take(part), receivers.take(part), lines))
    return chunks
