"""Account of a group's messages in one step: their fates, their digest, and which of them rules blocked."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId
from ray_messaging.audiences.folding import kept_pairs
from ray_messaging.audiences.hearer_pairs import Pairs
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE, IdColumn
from ray_messaging.model.extension import AudiencePairs, Extension
from ray_messaging.model.fates import BLOCKED, DELIVERED, FATES, UNDELIVERABLE, UNKNOWN
from ray_messaging.model.joining import joined_arrays, joined_ids
from ray_messaging.model.whole_numbers import check_step_number
from ray_messaging.receipt import Outcome, PairFates
from ray_messaging.steps.agent_places import NO_PLACES, AgentPlaces
from ray_messaging.steps.canonical_order import id_ranks
from ray_messaging.steps.digests import (
    DigestRow,
    HashedLater,
    HeardBy,
    LaterDigests,
    asks_of,
    digest_rows,
    history_digest,
    numbered_outside,
    step_digest,
    sum_of,
    sum_of_batch,
)
from ray_messaging.steps.step_inbox import FoldedBatch
from ray_messaging.steps.step_sends import question_id
from ray_messaging.wire.frames import decode, encode
from ray_messaging.wire.notes import LogNote, decode_log_note, encode_log_note, why_of

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps


_NAMED = 5  # undeliverable messages are counted separately for at most this many addresses
# For each batch with blocked messages: a frame of the batch without payloads, and a note with the rules and reasons.
_Parts = list[tuple[bytes, bytes]]


class StepCounts(msgspec.Struct, array_like=True, frozen=True):
    """The counts that a group stores with a step: messages by fate, and the sum of their digests.

    `digest` is the sum, or b"" if digests were not computed. `total` counts the messages of this and all earlier steps,
    by fate. `outside` counts the messages that the group has read in the step, and that came from senders outside of
    the steps. `digest` includes these messages. If digests were not computed, `outside` is 0. `unheard` maps each of a
    few addresses to the number of undeliverable messages in `total` that were sent to it.
    """

    fates: dict[str, int]
    digest: bytes = b""
    total: dict[str, int] = {}
    outside: int = 0
    unheard: dict[str, int] = {}

    def encode(self) -> bytes:
        """Encode the counts as the server stores them."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> "StepCounts":
        """Decode counts that the server has stored."""
        return msgspec.msgpack.decode(encoded, type=cls)


class StepAccount:
    """Account of the messages that a group sends in its steps: their fates and digests.

    `before` has the counts of the last committed step.

    Args: `later`, if given, keeps the rows, and computes their digests only if they are asked for.
    """

    def __init__(self, *, digest: bool, later: LaterDigests | None = None) -> None:
        self.before = StepCounts({})
        self.audiences: Mapping[AudiencePairs, bytes] = {}  # for each version of an audience, the hash of its pairs
        self._digest = digest
        self._later = later
        # How many messages from outside of the steps the group has read in the open step, and their digest.
        self._heard = 0, 0

    def hear(self, read: Sequence[FoldedBatch | Batch]) -> None:
        """Count the messages from outside of the steps that the group reads in the open step.

        If no digests are computed, these messages are not counted.

        Args: `read` has these messages in the order of their arrival.
        """
        rows = outside_rows(read) if self._digest else []
        self._heard = sum(weight for _, weight in rows), sum(sum_of([row], [weight]) for row, weight in rows)

    def of_step(self, step: int, sent: Iterable[tuple[Batch, Outcome]]) -> StepCounts:
        """Return the counts of the open step.

        A row that has an error instead of a fate is not counted. The step is then not committed.

        Args: `sent` has the batches that the group has sent in the step, with the fates of their rows.
        """
        fates, unheard, (outside, digest) = Counter[str](), Counter(self.before.unheard), self._heard
        unhashed: list[HashedLater] = []
        for batch, outcome in sent:
            if outcome.pairs is not None:
                digest += self._add_broadcasts(fates, batch, outcome.pairs)
                continue
            for code, fate in enumerate(FATES):
                if count := outcome.codes.count(code):
                    fates[fate] += count
            if UNDELIVERABLE in outcome.codes:
                _name_unheard(unheard, batch, np.flatnonzero(outcome.fates == UNDELIVERABLE))
            if not self._digest or UNKNOWN in outcome.codes:
                continue
            if self._later is not None and (batch.extension is None or batch.extension.audience is None):
                unhashed.append(HashedLater(batch, bytes(outcome.codes), outcome.blocks))
            else:  # `later` cannot digest broadcasts, because it does not have the hash of their audience
                digest += sum_of_batch(batch, outcome.codes, outcome.blocks, self.audiences)
        hashed = b""
        if self._later is not None:
            self._later.keep(step, unhashed, digest)
        elif self._digest:
            hashed = step_digest([digest])
        total = Counter(self.before.total) + fates
        return StepCounts(dict(sorted(fates.items())), hashed, dict(sorted(total.items())), outside, dict(unheard))

    def _add_broadcasts(self, fates: Counter[str], batch: Batch, pairs: PairFates) -> int:
        """Count broadcasts by fate, once for each pair of a broadcast and a hearer; return the sum of their digests.

        `pairs` has, for each broadcast, the number of its pairs with each fate. A broadcast is hashed once for each
        fate that its pairs have.
        """
        digest = 0
        for code, counts in ((DELIVERED, pairs.delivered), (UNDELIVERABLE, pairs.undeliverable)):
            rows = np.flatnonzero(counts)
            if len(rows):
                fates[FATES[code]] += int(counts.sum())
            if self._digest:
                found = digest_rows(batch.take(rows), [code] * len(rows), {}, self.audiences)
                digest += sum_of(found, counts[rows].tolist())
        return digest


def _name_unheard(unheard: Counter[str], batch: Batch, rows: NDArray[np.intp]) -> None:
    """Count undeliverable messages by address, in `unheard`. Only a few addresses get a count."""
    for row, to_id in zip(rows.tolist(), batch.to_ids.take(rows).tolist(), strict=True):
        topic = batch.topic_of(row)
        address = f"channel {topic[1:]!r}" if to_id is None else f"agent {to_id!r}"
        if to_id is not None and topic != AGENT_CHAT:  # a group may host this agent, but not listen on the subtopic
            address = f"subtopic {topic!r} of {address}"
        if address in unheard or len(unheard) < _NAMED:
            unheard[address] += 1


def outside_rows(read: Sequence[FoldedBatch | Batch]) -> list[tuple[DigestRow, int]]:
    """Return the messages that senders outside of the steps sent to agents, as rows for digests.

    Each row comes with the number of times that it counts (see `numbered_outside`). Messages that a rule rewrote are
    left out: the event log takes them from a separate note, and not from the batches in `read`.
    """
    rows: list[DigestRow] = []
    places, hearers = [], []
    for each in read:
        batch, heard_by = (each, None) if isinstance(each, Batch) else (each.batch, HeardBy.of(*each))
        said, heard = _outside_pairs(each)
        counted = np.isin(said, [] if batch.noted is None else batch.noted, invert=True)
        said, heard = said[counted], heard.take(counted)
        used, numbers = np.unique(said, return_inverse=True)
        places.append(len(rows) + numbers)
        hearers.append(heard)
        asks, to_ids = asks_of(batch), batch.to_ids.tolist()
        assert isinstance(batch.step, int)
        assert batch.lines is not None
        for row in used.tolist():
            ends = batch.step, batch.step, batch.from_ids[row], 0, to_ids[row]
            fields = batch.topic_of(row), FATES[DELIVERED], None, batch.labels_of(row), batch.lines.row(row)
            rows.append(DigestRow(*ends, *fields, expects_answer=asks[row], audience=heard_by))
    return [*numbered_outside(rows, Pairs(np.concatenate(places), joined_ids(hearers)))] if rows else []


def _outside_pairs(read: FoldedBatch | Batch) -> Pairs:
    """Return the pairs of message and agent that reads it, for a batch that was sent from outside of steps."""
    if not isinstance(read, Batch):
        return kept_pairs(*read)
    kinds = read.to_ids.kinds
    rows = np.arange(read.rows) if kinds is None else np.flatnonzero(kinds != NONE)
    return Pairs(rows, read.to_ids.take(rows))


async def sealed_counts(store: "RedisSteps", step: int) -> dict[str, StepCounts]:
    """Return the counts of each group for a step that all groups have committed.

    Raises: ConfigError unless `step` is a step number; UnknownName if some group has not committed the step, or if the
    counts of the step are no longer kept.
    """
    number = check_step_number(step)
    sealed = (await store.progress()).sealed
    if number > sealed:
        raise UnknownName(
            f"step {number} is not committed by all groups yet; the last step that all have committed is: "
            f"{sealed if sealed >= 0 else 'none'}. Call messaging.steps.wait(until={number + 1}) first",
            kind="step",
            value=number,
        )
    left = await store.closed_step(number)
    if not left:
        raise UnknownName(
            f"step {number} is no longer kept: the server keeps only the counts of the last steps before {sealed}. "
            "The event log has all steps: start with log_dir=, and use messaging.log",
            kind="step",
            value=number,
        )
    return {group: StepCounts.decode(each.counts) for group, each in left.items()}


def messages_of(counts: dict[str, StepCounts]) -> int:
    """Return the number of messages of a step, from the counts of all groups."""
    return sum(sum(each.fates.values()) + each.outside for each in counts.values())


def digest_of(counts: dict[str, StepCounts]) -> bytes:
    """Return the digest of a step, which is a hash of all its messages.

    Raises: ConfigError if the groups have computed no digests.
    """
    if not all(each.digest for each in counts.values()):
        raise ConfigError("these steps keep no digests: start the experiment with steps=Steps(digest=True)")
    return step_digest(int.from_bytes(each.digest, "little") for each in counts.values())


async def sealed_history(store: "RedisSteps", step: int) -> bytes:
    """Return the digest of all steps up to and including `step`.

    Raises: the same errors as `sealed_counts` and `digest_of`, such as UnknownName if a group has not committed `step`,
    and ConfigError if no digests were computed.
    """
    chained = b""
    await sealed_counts(store, step)
    for number in range(step + 1):
        counts = await sealed_counts(store, number)
        chained = history_digest(chained, number, messages_of(counts), digest_of(counts))
    return chained


class BlockedSend(NamedTuple):
    """A message that a rule blocked. For a question, `message_id` is the id that `ask` returned to the model."""

    message_id: str
    from_id: AgentId
    to_id: AgentId | None
    rule: str
    reason: str


def encode_blocked(batches: Iterable[tuple[Batch, Mapping[int, tuple[str, str]]]]) -> bytes:
    """Encode the blocked rows of batches, with the rule and the reason of each row.

    Without blocked rows, return b"".
    """
    parts = [_part(batch, blocks) for batch, blocks in batches if blocks]
    return msgspec.msgpack.encode(parts) if parts else b""


def _part(batch: Batch, blocks: Mapping[int, tuple[str, str]]) -> tuple[bytes, bytes]:
    taken = batch.take(np.fromiter(blocks, np.intp))
    taken.labels, taken.noted, taken.extension = {}, None, Extension(ordinal=taken.ordinal)
    return encode(taken, with_payload=False), encode_log_note(LogNote(BLOCKED, why=why_of(blocks.values())))


class BlockedSends(Sequence[BlockedSend]):
    """Messages that some agents sent in a step and that rules blocked, ordered by sender, then in order of sending.

    `places` has, for each message, the index of its sender among the group's agents.

    Args: `parts` are results of `encode_blocked`. Messages in them that other agents sent are left out.
    """

    def __init__(self, step: int, parts: Iterable[bytes], agents: AgentPlaces) -> None:
        self._step = step
        ids: list[tuple[IdColumn, IdColumn]] = [(IdColumn.of([]), IdColumn.of([]))]
        ordinals, whys = [np.zeros(0, np.uint32)], [np.zeros(0, np.intp)]
        # Pairs of rule and reason. The same pair may be in the list several times. `_whys` has, for each message, an
        # index into this list.
        self._why: list[tuple[str, str]] = []
        for frame, noted in (each for part in parts for each in msgspec.msgpack.decode(part, type=_Parts)):
            batch = decode(frame)
            assert batch.ordinal is not None
            why = np.zeros(batch.rows, np.intp)
            for each in decode_log_note(noted, batch.rows).why:
                why[np.frombuffer(each.rows, "<u4")] = len(self._why)
                self._why.append((each.rule, each.reason))
            ids.append((batch.from_ids, batch.to_ids))
            ordinals.append(batch.ordinal)
            whys.append(why)
        from_ids, to_ids = (joined_ids(columns) for columns in zip(*ids, strict=True))
        places, numbers = agents.find(from_ids), joined_arrays(ordinals)
        order = np.lexsort((id_ranks([to_ids]), numbers, places))
        order = order[places[order] >= 0]
        self.places, self._ordinals, self._whys = places[order], numbers[order], joined_arrays(whys)[order]
        self._from_ids, self._to_ids = from_ids.take(order), to_ids.take(order)

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, row: int) -> BlockedSend: ...
    @overload
    def __getitem__(self, row: slice) -> list[BlockedSend]: ...
    def __getitem__(self, row: int | slice) -> BlockedSend | list[BlockedSend]:
        """Return one message, or a list of messages for a slice."""
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        from_id, why = self._from_ids[row], self._why[self._whys[row]]
        assert from_id is not None  # a group sends only messages of its agents, so there is always a sender
        return BlockedSend(question_id(self._step, self._ordinals[row], from_id), from_id, self._to_ids[row], *why)

    def of(self, place: int) -> Sequence[BlockedSend]:
        """Return the blocked messages of the agent at index `place` among the group's agents."""
        if not len(self):
            return ()
        low, high = np.searchsorted(self.places, [place, place + 1]).tolist()
        return self[low:high]

    @property
    def from_ids(self) -> NDArray[Any]:
        """Return each message's sender, int64 (n,). If some ids are strs, the array has the dtype object."""
        return self._from_ids.to_numpy()

    @property
    def to_ids(self) -> NDArray[Any]:
        """Return each message's recipient, int64 (n,).

        If some recipients are strs, or None (the user outside of the simulation), the array has the dtype object.
        """
        return self._to_ids.to_numpy()

    @property
    def rules(self) -> list[str]:
        """Return the rule that blocked each message."""
        return [self._why[why][0] for why in self._whys.tolist()]

    @property
    def reasons(self) -> list[str]:
        """Return why each message was blocked."""
        return [self._why[why][1] for why in self._whys.tolist()]


NOTHING_BLOCKED = BlockedSends(-1, (), NO_PLACES)
