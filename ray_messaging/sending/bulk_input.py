"""Checks and encoding of the messages of bulk sends, before any message is sent. A bulk send sends many messages."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, check_id, check_recipient
from ray_messaging.addressing.directory import Routes
from ray_messaging.audiences.cache import EVERYBODY, AudienceCache, name_of
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.compat.msg import Msg
from ray_messaging.compat.payload_objects import is_object
from ray_messaging.default_limits_and_leases import BATCH_BYTES, BATCH_ROWS, BROADCAST_PAIRS, CALL_BYTES, COLUMN_ROWS
from ray_messaging.errors import InvalidColumns, InvalidPayload, UnknownSender
from ray_messaging.message import cause_here
from ray_messaging.model.agent_sets import NO_AGENTS
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload, nobody
from ray_messaging.model.extension import UNRESOLVED, AudiencePairs, Extension
from ray_messaging.model.typed.input import is_array, is_table, table_of
from ray_messaging.model.typed.typed_table import Payloads
from ray_messaging.outgoing import Outgoing
from ray_messaging.sending.pending_batch import PendingBatch, caused_by_one


def no_from_id(group: str) -> UnknownSender:
    """Build the error for a message without a from_id."""
    return UnknownSender(
        f"a message has no from_id, so no message of this call was sent: pass the agent of group {group!r} that sends "
        "it, or from_id=None for the user, as in Outgoing(channel, payload, from_id=None)",
        value=None,
        group=group,
    )


_IDS_BYTES = 16  # the bytes that the two ids of a row take


class ColumnChunk(NamedTuple):
    """Some rows of a send whose messages were given as columns.

    `lines` has the payloads.
    """

    from_ids: IdColumn
    to_ids: IdColumn
    lines: Payloads

    def take(self, rows: NDArray[np.intp]) -> "ColumnChunk":
        """Return a chunk that has only the given rows."""
        return ColumnChunk(self.from_ids.take(rows), self.to_ids.take(rows), self.lines.take(rows))

    def batch(
        self, topics: tuple[str, ...], step: int | None, sent_at: float, extension: Extension | None = None
    ) -> Batch:
        """Return the rows as a batch. Its sender, and the number of its first message, are set later."""
        return Batch(
            sender="",
            epoch=0,
            first=0,
            from_ids=self.from_ids,
            rows=len(self.from_ids),
            to_ids=self.to_ids,
            topics=topics,
            step=step,
            sent_at=sent_at,
            lines=self.lines,
            extension=extension,
        )

    def within_limits(self) -> "list[ColumnChunk]":
        """Return the rows in order, in chunks that are within the limits of a batch.

        A chunk that exceeds a limit is halved until its parts are within the limits, or have one row.
        """
        rows = len(self.from_ids)
        most = COLUMN_ROWS if self.lines.small else BATCH_ROWS
        if (rows <= most and self.lines.nbytes <= BATCH_BYTES) or rows == 1:
            return [self]
        halves = self.take(np.arange(rows // 2)), self.take(np.arange(rows // 2, rows))
        return [chunk for half in halves for chunk in half.within_limits()]


def batches_of(
    messages: Sequence[Outgoing],
    address: Callable[[str], tuple[AgentId | None, str]],
    limit_bytes: int,
    step: int | None,
    group: str | None = None,
) -> list[Batch]:
    """Check and encode messages; return them as batches within the limits. Sender and numbers are set later.

    Args: `address` returns the agent and the topic of a channel. `group` is the name of a group, which sends only for
    its own agents, so that each message needs a from_id. If `group` is None, a message may have any sender.
    Raises: the error of the first message with an invalid channel, recipient or payload. If there is none,
    UnknownSender for a message of a group without a from_id.
    """
    drafts = [PendingBatch(step)]
    cause, now = cause_here(), time.time()
    for message in messages:
        if not isinstance(message, Outgoing):
            raise InvalidPayload(
                f"send_messages takes Outgoing, not {type(message).__name__}: write Outgoing(channel, payload)"
            )
        line = encode_payload(message.payload, limit_bytes)
        to_id, topic = (message.to_id, message.subtopic) if message.channel is None else address(message.channel)
        if message.channel is not None and message.to_id is not None:
            to_id = check_recipient(message.channel, to_id, message.to_id)
        to_ids = (to_id,) if message.to_ids is None else message.to_ids
        for start in range(0, len(to_ids), BATCH_ROWS):
            part = to_ids if len(to_ids) <= BATCH_ROWS else to_ids[start : start + BATCH_ROWS]
            draft = drafts[-1]
            if len(draft) + len(part) > BATCH_ROWS or draft.nbytes + len(line) > BATCH_BYTES:
                drafts.append(draft := PendingBatch(step))
            draft.append(message.from_id, part, topic, line, cause, now)
    if group is not None and any(message.unnamed for message in messages):
        raise no_from_id(group)
    return [draft.seal("", 0, 0) for draft in drafts if len(draft)]


def columns_of(from_ids: object, to_ids: object, payloads: object, limit_bytes: int) -> list[ColumnChunk]:
    """Check and encode columns; return them in chunks, each of which fits into one batch.

    Raises: InvalidColumns if the columns do not fit together; InvalidAddress for an invalid id; InvalidPayload or
    PayloadTooLarge for an invalid payload.
    """
    senders = None if from_ids is None or _is_one(from_ids) else IdColumn.checked(from_ids, none=True)
    receivers = None if _is_one(to_ids) else IdColumn.checked(to_ids)
    given = _given(payloads, limit_bytes)
    lengths = {
        "from_ids": None if senders is None else len(senders),
        "to_ids": None if receivers is None else len(receivers),
        "payloads": given.rows,
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
    for low in range(0, rows, given.batch_rows):
        part = slice(low, min(rows, low + given.batch_rows))
        chunks += ColumnChunk(senders.take(part), receivers.take(part), given.encoded(part)).within_limits()
    return chunks


def _is_one(ids: object) -> bool:
    """Return whether a caller passed one id for all rows instead of a column of ids."""
    return isinstance(ids, int | str | np.integer)


def payload_column(payloads: object, rows: int, limit_bytes: int) -> Payloads:
    """Check and encode payloads: `rows` of them, or one for all rows.

    Raises: InvalidColumns if the number of payloads is not `rows`; InvalidPayload or PayloadTooLarge for an invalid
    payload.
    """
    given = _given(payloads, limit_bytes)
    if given.rows is not None and given.rows != rows:
        raise InvalidColumns(f"the columns differ in length: {rows} messages, {given.rows} payloads")
    return given.encoded(slice(0, rows))


class _Given(NamedTuple):
    """Payloads that a caller passed.

    `rows` is the number of payloads, or None for one payload for all rows. `encoded` encodes the payloads of a slice of
    rows. `batch_rows` is the most rows that a caller should pass to `encoded` at a time.
    """

    rows: int | None
    batch_rows: int
    encoded: Callable[[slice], Payloads]


def _given(payloads: object, limit_bytes: int) -> _Given:
    """Return the payloads that a caller passed, with their number and the function that encodes them.

    Raises: InvalidColumns, InvalidPayload or PayloadTooLarge for payloads that cannot be sent.
    """
    one = isinstance(payloads, dict | Msg)
    if not one and is_table(payloads):
        table = table_of(payloads)
        table.check_rows(limit_bytes)
        row_bytes = table.nbytes // max(1, table.count) + _IDS_BYTES
        # A batch of this many rows usually becomes one frame.
        batch_rows = min(COLUMN_ROWS, max(BATCH_ROWS, CALL_BYTES // row_bytes))
        return _Given(table.count, batch_rows, lambda rows: table.part(rows.start, rows.stop))
    if one or is_object(payloads):
        _check_arrays(payloads)
        line = encode_payload(payloads, limit_bytes)
        shared = [line]
        return _Given(
            None, BATCH_ROWS, lambda rows: PayloadColumn.of(shared, np.zeros(rows.stop - rows.start, np.uint32))
        )
    if not isinstance(payloads, Sequence) or isinstance(payloads, str | bytes):
        raise InvalidColumns(
            "payloads must be a list of dicts, Msgs or objects, one dict, Msg or object for all messages, "
            f"columns(...), a pyarrow table or a DataFrame, not {type(payloads).__name__}"
        )

    def encoded(rows: slice) -> Payloads:
        # Slicing a list takes an eighth of the time of encoding it, so it is not done if all payloads are wanted.
        part = payloads if len(payloads) == rows.stop - rows.start else payloads[rows]
        return PayloadColumn.encode(part, limit_bytes)

    return _Given(len(payloads), BATCH_ROWS, encoded)


def _check_arrays(payload: object) -> None:
    """Raise InvalidColumns for a dict of arrays. It was probably meant as columns, and not as one payload for all."""
    for name, value in payload.items() if isinstance(payload, dict) else ():
        if is_array(value):
            raise InvalidColumns(
                f"payloads is one dict for all messages, and its {name!r} is an array: write columns({name}=array) to "
                "give each message one value, or array.tolist() to send all values in each message",
                column=name,
            )


def batches_of_columns(chunks: Sequence[ColumnChunk], topic: str, step: int | None) -> list[Batch]:
    """Build one batch from each chunk of columns. The batches get their sender and their numbers later."""
    now, cause = time.time(), cause_here()
    return [chunk.batch((topic,), step, now, caused_by_one(cause, len(chunk.from_ids))) for chunk in chunks]


def unspread_batches(chunks: Sequence[ColumnChunk], audience: object, topic: str, step: int | None) -> list[Batch]:
    """Build one batch from each chunk of broadcasts. Each batch has one row for each broadcast, and no recipients.

    Args: `audience` is an audience's handle or name, or EVERYBODY.
    """
    return [to_audience(batch, audience) for batch in batches_of_columns(chunks, topic, step)]


def to_audience(batch: Batch, audience: object) -> Batch:
    """Make each message of a batch a broadcast to an audience; return the batch. The hearers are looked up later.

    Args: `audience` is an audience's handle or name, or EVERYBODY.
    """
    batch.to_ids, batch.extension = nobody(batch.rows), batch.extension or Extension()
    batch.extension.audience = AudiencePairs(name_of(audience), UNRESOLVED)
    return batch


async def edges_of(audience: AudiencePairs, topic: str, routes: Routes, audiences: AudienceCache) -> Edges:
    """Return an audience's pairs of sender and hearer.

    The hearers of EVERYBODY are all agents that listen on the topic.
    """
    if audience != EVERYBODY:
        return await audiences.edges(audience)
    everybody = NO_AGENTS
    for record in routes.records.values():
        everybody |= record.agents(topic)
    return MemberEdges.everybody(everybody)


def within_pairs(broadcasts: Batch, edges: Edges) -> Iterator[Batch]:
    """Divide the broadcasts of a batch into smaller batches, without the broadcasts that nobody hears.

    Each smaller batch has at most BROADCAST_PAIRS pairs of sender and hearer, or is a single broadcast.
    """
    counts = edges.counts(broadcasts.from_ids)
    heard = np.flatnonzero(counts)
    for rows in split_rows(heard, np.cumsum(counts[heard]), BROADCAST_PAIRS, len(heard)):
        part = broadcasts.take(rows)
        part.numbers = None
        yield part


def split_rows(
    rows: NDArray[np.intp], volumes: NDArray[np.int64], most: int, most_rows: int
) -> Iterator[NDArray[np.intp]]:
    """Divide rows into parts. Each part has at most `most_rows` rows with a total volume of at most `most`.

    A single row whose volume exceeds `most` is a part of its own.

    Args: `volumes` has, for each row, the total volume of all rows up to and including this row. The unit is the
    caller's, such as bytes.
    """
    low = 0
    while low < len(rows):
        before = int(volumes[low - 1]) if low else 0
        fitting = int(np.searchsorted(volumes, before + most, side="right"))
        high = max(low + 1, min(low + most_rows, fitting))
        yield rows[low:high]
        low = high
