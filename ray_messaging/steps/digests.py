"""Digests of the messages of a step. Equal messages give equal digests, in any order and with any number of groups.

A row's canonical bytes are, in this order: step sent, step read, from_id, ordinal, to_id, subtopic, fate, rule, labels,
payload. Ordinals number an agent's messages in the step, from 0. For messages from outside of the steps, they number
the sender's messages to the hearer, from 2**31. A question ends with "q". An answer ends with "a" and the id of its
question. If the question came from outside, the ordinal in this id is left out, because it depends on the layout of the
groups. A broadcast has, instead of to_id, "b", the audience's name and the hash of the audience's pairs (without a hash
for the audience of all agents). It counts once for each pair. A number takes 8 bytes, little endian. A text has its
length before it. The digest of a step is the sum of its rows' BLAKE2b-256, modulo 2**256. The history digest chains the
steps: it is the BLAKE2b-256 of the previous history digest, the step, the number of rows, and the step's digest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import repeat
from operator import add
from struct import Struct as Packer
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.audiences.cache import audience_of
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.hearer_pairs import Pairs
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import AudiencePairs
from ray_messaging.model.fates import FATES
from ray_messaging.steps.box_frames import FIRST_OUTSIDE
from ray_messaging.steps.canonical_order import id_ranks

SIZE = 32  # the size of a digest in bytes
KEPT_BYTES: Final = 64 * 2**20  # how many bytes of rows `LaterDigests` keeps at most
_SMALL = 256  # a payload of up to this many bytes may be copied for all rows of a batch at once
_MODULUS: int = 1 << 8 * SIZE
NO_AUDIENCES: Mapping[AudiencePairs, bytes] = {}
_number = Packer("<q").pack
_length = Packer("<I").pack
_NONE = b"n"
_FROM_ID, _ORDINAL, _TO_ID = 17, 25, 34  # the offsets of these fields in the result of `row_bytes`, if the ids are ints


class HeardBy(NamedTuple):
    """The audience of a broadcast: its name, and the hash of its pairs."""

    name: str
    digest: bytes

    @classmethod
    def of(cls, broadcasts: Batch, edges: Edges) -> "HeardBy":
        """Return the name of the audience of some broadcasts, and the hash of its pairs.

        Args: `edges` are these pairs of sender and hearer.
        """
        return cls(audience_of(broadcasts).name, edges.digest)


class DigestRow(NamedTuple):
    """The fields of one message that count in the digest of its step. Equal runs have equal digests."""

    step: int
    step_read: int
    from_id: AgentId | None
    ordinal: int
    to_id: AgentId | None
    subtopic: str
    fate: str
    rule: str | None
    labels: Sequence[str]
    payload: bytes
    in_reply_to: str | None = None
    expects_answer: bool = False
    audience: HeardBy | None = None


def row_bytes(row: DigestRow) -> bytes:
    """Return the bytes of a message from which its digest is computed.

    The order of the fields is at the top of this file.
    """
    return b"".join(
        (
            _number(row.step),
            _number(row.step_read),
            id_bytes(row.from_id),
            _number(row.ordinal),
            id_bytes(row.to_id) if row.audience is None else _audience_bytes(row.audience),
            _text(row.subtopic.encode()),
            _text(row.fate.encode()),
            _NONE if row.rule is None else b"r" + _text(row.rule.encode()),
            _length(len(row.labels)),
            *(_text(label.encode()) for label in sorted(row.labels)),
            _text(row.payload),
            b"q" if row.expects_answer else b"",
            b"" if row.in_reply_to is None else b"a" + _text(_question(row.in_reply_to).encode()),
        )
    )


def _audience_bytes(audience: HeardBy) -> bytes:
    return b"b" + _text(audience.name.encode()) + _text(audience.digest)


def _question(message_id: str) -> str:
    step, _, rest = message_id.partition("-")
    ordinal, _, asker = rest.partition("-")
    outside = ordinal.isdecimal() and int(ordinal) >= FIRST_OUTSIDE
    return f"{step}-outside-{asker}" if outside else message_id


def sum_of(rows: Iterable[DigestRow], weights: Iterable[int] = repeat(1)) -> int:
    """Return the digest of some rows as a number. The digest of a whole step is the sum of such numbers.

    Args: `weights` says how often each row counts.
    """
    total: int = 0
    for row, weight in zip(rows, weights, strict=False):
        total += weight * int.from_bytes(blake2b(row_bytes(row), digest_size=SIZE).digest(), "little")
    return total % _MODULUS


def sum_of_like(
    like: DigestRow,
    from_ids: NDArray[np.int64],
    ordinals: NDArray[np.integer[Any]],
    to_ids: NDArray[np.int64],
    payloads: Sequence[bytes],
) -> int:
    """Return the same number as `sum_of`, in a third of the time, for rows that differ only in the given columns.

    There must be at least one row. No row may be a question, an answer or a broadcast, and all ids must be ints.

    Args: `like` is one of the rows.
    """
    head = row_bytes(like._replace(from_id=0, ordinal=0, to_id=0, payload=b""))[: -len(_length(0))]
    # If all rows have the same small payload, it is joined to all of them at once, without a Python call for each row.
    same = len(payloads[0]) <= _SMALL and payloads.count(payloads[0]) == len(payloads)
    if same:
        head += _text(payloads[0])
    heads = np.tile(np.frombuffer(head, np.uint8), (len(payloads), 1))
    for at, column in ((_FROM_ID, from_ids), (_ORDINAL, ordinals), (_TO_ID, to_ids)):
        heads[:, at : at + 8] = column.astype("<i8").view(np.uint8).reshape(-1, 8)
    rows: Iterable[bytes] = heads.view(f"V{len(head)}").ravel().tolist()
    if not same:  # The rows are joined one by one, because they may have large payloads.
        rows = map(add, rows, map(_text, payloads))
    begun, hashed = blake2b(digest_size=SIZE).copy, list[bytes]()
    for row in rows:
        hashing = begun()  # copying a hash object takes half the time of making a new one
        hashing.update(row)
        hashed.append(hashing.digest())
    parts = np.frombuffer(b"".join(hashed), "<u4").reshape(-1, SIZE // 4).sum(axis=0, dtype=np.uint64)
    total: int = sum(part << 32 * place for place, part in enumerate(parts.tolist()))
    return total % _MODULUS


def asks_of(batch: Batch) -> Sequence[bool]:
    """Return for each message whether it is a question."""
    asks = None if batch.extension is None else batch.extension.expects_answer
    return [False] * batch.rows if asks is None else asks.tolist()


def sum_of_batch(
    batch: Batch,
    codes: Sequence[int],
    blocks: Mapping[int, tuple[str, str]],
    audiences: Mapping[AudiencePairs, bytes],
) -> int:
    """Return the sum of the digests of a batch's rows. This is faster if rows differ only in ids, ordinal and payload.

    Args: `codes` has the fate of each row, `blocks` the rule and reason of each blocked row, and `audiences` the hash
    of each audience's pairs.
    """
    extension, lines = batch.extension, batch.lines
    assert extension is not None
    assert extension.ordinal is not None
    assert lines is not None
    differ = (batch.from_ids.kinds, batch.to_ids.kinds, batch.topic, extension.in_reply_to, extension.audience)
    alike = codes.count(codes[0]) == len(codes) if batch.rows else False
    if not alike or any(each is not None for each in differ) or blocks or batch.labels or any(asks_of(batch)):
        return sum_of(digest_rows(batch, codes, blocks, audiences))
    (like,) = digest_rows(batch.take(np.arange(1)), codes[:1], {}, audiences)
    return sum_of_like(like, batch.from_ids.values, extension.ordinal, batch.to_ids.values, lines.by_row)


def digest_rows(
    batch: Batch,
    codes: Sequence[int],
    blocks: Mapping[int, tuple[str, str]],
    audiences: Mapping[AudiencePairs, bytes] = NO_AUDIENCES,
) -> list[DigestRow]:
    """Return the rows of a batch as `DigestRow`s, from which the digest of their step is computed.

    Args: `codes` has the fate of each row, and `blocks` the rule and reason of each blocked row. `audiences` has the
    hash of each audience, which a broadcast's row contains instead of a hearer.
    """
    extension, lines = batch.extension, batch.lines
    assert extension is not None
    assert extension.ordinal is not None
    assert isinstance(batch.step, int)
    assert isinstance(extension.deliver, int)
    assert lines is not None
    from_ids, to_ids, ordinals = batch.from_ids.tolist(), batch.to_ids.tolist(), extension.ordinal.tolist()
    replies = [None] * batch.rows if extension.in_reply_to is None else extension.in_reply_to.tolist()
    asks, rows = asks_of(batch), []
    audience = None if extension.audience is None else HeardBy(extension.audience.name, audiences[extension.audience])
    for row in range(batch.rows):
        rule, topic = blocks[row][0] if row in blocks else None, batch.topic_of(row)
        rows.append(
            DigestRow(
                batch.step,
                extension.deliver,
                from_ids[row],
                ordinals[row],
                to_ids[row],
                "" if topic[0] == ":" else topic,  # "" for an answer to the user outside of the simulation
                FATES[codes[row]],
                rule,
                batch.labels_of(row),
                lines.row(row),
                replies[row],
                asks[row],
                audience,
            )
        )
    return rows


class HashedLater(NamedTuple):
    """The rows of a batch, kept so that their digests can be computed later.

    `codes` has the rows' fates, and `blocks` has the rule and the reason for each blocked row.
    """

    batch: Batch
    codes: bytes
    blocks: Mapping[int, tuple[str, str]]


class LaterDigests:
    """The rows that a group has sent from this process in its last `count` steps, kept to compute their digests later.

    Rows of steps before `first` are not kept, because the run's result has digests only for the last steps of the run.
    When the rows take more than `KEPT_BYTES`, the digests of the oldest rows are computed, and only the sum of these
    digests is kept for each step.
    """

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count
        self._kept: dict[int, list[HashedLater]] = {}
        self._sums: dict[int, int] = {}
        self._nbytes = 0

    def keep(self, step: int, rows: list[HashedLater], known: int) -> None:
        """Keep the rows of a step, so that their digests can be computed later.

        Rows of an earlier attempt are replaced.

        Args: `known` is the sum of those digests of the step's messages that are computed already.
        """
        if step < self._first:
            return
        self._nbytes += _size(rows) - _size(self._kept.get(step, ()))
        self._kept[step], self._sums[step] = rows, known
        past = step - self._count
        self._nbytes -= _size(self._kept.pop(past, ()))
        self._sums.pop(past, None)
        for number in [*self._kept]:
            if self._nbytes <= KEPT_BYTES:
                break
            self.sum_of(number)

    def sum_of(self, step: int) -> int:
        """Return the sum of the digests of a step's rows, and delete the rows."""
        for each in self._kept.pop(step, ()):
            self._sums[step] += sum_of_batch(each.batch, each.codes, each.blocks, {})
            self._nbytes -= each.batch.nbytes
        return self._sums.get(step, 0)


def _size(rows: Iterable[HashedLater]) -> int:
    return sum(each.batch.nbytes for each in rows)


def numbered_outside(rows: Sequence[DigestRow], pairs: Pairs) -> Iterator[tuple[DigestRow, int]]:
    """Yield messages from senders outside of the steps, each with its ordinal, and with the number of times it counts.

    Ordinals number the sender's messages to one hearer, from `FIRST_OUTSIDE`. A broadcast may be the second message for
    one hearer, and the third message for another hearer. So the broadcast is yielded once for each of these ordinals,
    and counts once for each hearer that has the ordinal. All messages for one agent arrive in one box, so the ordinals
    do not depend on how agents are spread over groups.

    Args: `rows` are in the order of their arrival, and `pairs` has the hearers of each row.
    """
    if not rows:
        return
    of, count = pairs.rows, len(pairs.rows)
    ends = id_ranks([IdColumn.of([row.from_id for row in rows])])[of], id_ranks([pairs.hearers])
    order = np.lexsort((of, *ends))
    begins = np.flatnonzero(np.any([np.diff(end[order], prepend=end[order][:1] - 1) for end in ends], axis=0))
    ordinals = np.empty(count, np.int64)
    ordinals[order] = np.arange(count) - np.repeat(begins, np.diff(begins, append=count))
    keys, weights = np.unique(of * count + ordinals, return_counts=True)
    for key, weight in zip(keys.tolist(), weights.tolist(), strict=True):
        row, ordinal = divmod(key, count)
        yield rows[row]._replace(ordinal=FIRST_OUTSIDE + ordinal), weight


def step_digest(sums: Iterable[int]) -> bytes:
    """Return the digest of a step from the sums that `sum_of` returned for the parts of the step."""
    return (sum(sums) % _MODULUS).to_bytes(SIZE, "little")


def history_digest(before: bytes, step: int, rows: int, digest: bytes) -> bytes:
    """Return the history digest up to a step: a hash that depends on all messages of this and all earlier steps.

    Args: `before` is the history digest up to the previous step, or b"" if there is none.
    """
    return blake2b(_text(before) + _number(step) + _number(rows) + digest, digest_size=SIZE).digest()


def id_bytes(agent: AgentId | None) -> bytes:
    """Return an id as bytes: its kind, then its value."""
    if agent is None:
        return _NONE
    return b"i" + _number(agent) if isinstance(agent, int) else b"s" + _text(agent.encode())


def _text(value: bytes) -> bytes:
    return _length(len(value)) + value
