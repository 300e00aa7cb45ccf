"""Counts of a group's messages in one step by their fates, and the digest of the messages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.folding import kept_pairs
from ray_messaging.audiences.hearer_pairs import Pairs
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE
from ray_messaging.model.extension import AudiencePairs
from ray_messaging.model.fates import DELIVERED, FATES, UNDELIVERABLE, UNKNOWN
from ray_messaging.model.joining import joined_ids
from ray_messaging.receipt import Outcome, PairFates
from ray_messaging.steps.blocked_sends import encode_blocked
from ray_messaging.steps.digests import (
    SIZE,
    DigestRow,
    HeardBy,
    history_digest,
    numbered_outside,
    step_digest,
    sum_of,
)
from ray_messaging.steps.later_digests import HashedLater, LaterDigests
from ray_messaging.steps.row_sums import asks_of, digest_rows, sum_of_batch
from ray_messaging.steps.step_inbox import FoldedBatch

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps


_NAMED = 5  # undeliverable messages are counted separately for at most this many addresses
# Batches with blocked rows, and for each blocked row the rule and the reason.
Blocked = list[tuple[Batch, Mapping[int, tuple[str, str]]]]
# The values that `StepAccount.copy` returns and `StepAccount.restore` takes.
Kept = tuple[dict[str, int], int, int, Blocked, list[HashedLater], dict[str, int], dict[str, int]]


class StepCounts(msgspec.Struct, array_like=True, frozen=True):
    """The counts that a group stores with a step: messages by fate, and the sum of their digests.

    `digest` is b"" if digests were not computed. `total` counts the messages of this and all earlier steps, by fate.
    `outside` counts the messages from senders outside of the steps that the group has read in the step. If digests are
    computed, the sum includes these messages. `unheard` maps a few addresses to the number of undeliverable messages in
    `total` that were sent to this address.
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
    """Counter of the fates of messages in one attempt at a step.

    `total` counts the messages of all steps so far by fate. `unheard` counts the undeliverable messages by address.

    Args: `later`, if given, keeps the rows, and computes their digests only if they are asked for.
    """

    def __init__(self, *, digest: bool, later: LaterDigests | None = None) -> None:
        self._digest = digest
        self._later = later
        self._unhashed: list[HashedLater] = []  # the rows of the step for which `later` may compute digests
        self._fates: Counter[str] = Counter()
        self._sum = self._outside = 0
        self._blocked: Blocked = []
        self.total: Counter[str] = Counter()
        self.unheard: Counter[str] = Counter()
        self.audiences: Mapping[AudiencePairs, bytes] = {}  # for each version of an audience, the hash of its pairs

    def copy(self) -> Kept:
        """Return a copy of all counts for `restore`.

        It has plain dicts, because copying a Counter takes 20 times as long.
        """
        lists = [*self._blocked], [*self._unhashed]
        return {**self._fates}, self._sum, self._outside, *lists, {**self.total}, {**self.unheard}

    def restore(self, before: Kept) -> None:
        """Set all counts back to those in a result of `copy`."""
        fates, self._sum, self._outside, self._blocked, self._unhashed, total, unheard = before
        self._fates, self.total, self.unheard = Counter(fates), Counter(total), Counter(unheard)

    def add(self, batch: Batch, outcome: Outcome) -> None:
        """Count the rows of a batch by fate.

        A row that has an error instead of a fate prevents the commit of the step.
        """
        if outcome.pairs is not None:
            self._add_broadcasts(batch, outcome.pairs)
            return
        for code, fate in enumerate(FATES):
            if count := outcome.codes.count(code):
                self._fates[fate] += count
        if UNDELIVERABLE in outcome.codes:
            self._name_unheard(batch, np.flatnonzero(outcome.fates == UNDELIVERABLE))
        if outcome.blocks:
            self._blocked.append((batch, outcome.blocks))
        if not self._digest or UNKNOWN in outcome.codes:
            return
        if self._later is not None and (batch.extension is None or batch.extension.audience is None):
            self._unhashed.append(HashedLater(batch, bytes(outcome.codes), outcome.blocks))
        else:  # the digest is computed at once, because the hash of the broadcasts' audience is not kept for later
            self._sum += sum_of_batch(batch, outcome.codes, outcome.blocks, self.audiences)

    def _add_broadcasts(self, batch: Batch, pairs: PairFates) -> None:
        """Add broadcasts with the fates of their pairs.

        A broadcast is hashed once for each fate, and counts once for each pair.
        """
        for code, counts in ((DELIVERED, pairs.delivered), (UNDELIVERABLE, pairs.undeliverable)):
            rows = np.flatnonzero(counts)
            if len(rows):
                self._fates[FATES[code]] += int(counts.sum())
            if self._digest:
                found = digest_rows(batch.take(rows), [code] * len(rows), {}, self.audiences)
                self._sum += sum_of(found, counts[rows].tolist())

    def _name_unheard(self, batch: Batch, rows: NDArray[np.intp]) -> None:
        for row, to_id in zip(rows.tolist(), batch.to_ids.take(rows).tolist(), strict=True):
            address = f"channel {batch.topic_of(row)[1:]!r}" if to_id is None else f"agent {to_id!r}"
            if address in self.unheard or len(self.unheard) < _NAMED:
                self.unheard[address] += 1

    def hear(self, read: Sequence[FoldedBatch | Batch]) -> None:
        """Add messages from outside of the steps, given in the order of their arrival, to the digest."""
        for row, weight in outside_rows(read):
            self._outside += weight
            self._sum += sum_of([row], [weight])

    def take(self, step: int) -> StepCounts:
        """Return the counts of a step, and begin the counts of the next step."""
        if self._later is not None:
            self._later.keep(step, self._unhashed, self._sum)
            self._unhashed = []
        digest = (self._sum % 2 ** (8 * SIZE)).to_bytes(SIZE, "little") if self._digest and self._later is None else b""
        self.total += self._fates
        fates, total = dict(sorted(self._fates.items())), dict(sorted(self.total.items()))
        counts = StepCounts(fates, digest, total, self._outside, dict(self.unheard))
        self._fates, self._sum, self._outside = Counter(), 0, 0
        return counts

    def take_blocked(self) -> bytes:
        """Return the blocked messages of the step, encoded, and forget them here."""
        blocked, self._blocked = self._blocked, []
        return encode_blocked(blocked)


def outside_rows(read: Sequence[FoldedBatch | Batch]) -> list[tuple[DigestRow, int]]:
    """Return messages from outside to agents as rows for the digest, and how often each row counts.

    Messages that a rule rewrote are left out, as they are in the event log.
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
            f"step {number} is not committed by all groups yet; the last such step is: "
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


def check_step_number(step: object) -> int:
    """Return the number of a step; raise ConfigError unless it is an int of at least 0."""
    if (number := whole_number(step)) is None:
        raise ConfigError(f"step {step!r} is not a step: steps are numbered from 0")
    return number


def check_until(until: object) -> int:
    """Return `until`, the first step that does not run; raise ConfigError unless it is an int of at least 0."""
    if (number := whole_number(until)) is None:
        raise ConfigError(f"until={until!r} must be a number of steps: until=20 runs the steps 0 to 19")
    return number


def whole_number(value: object) -> int | None:
    """Return an int of at least 0, or None for anything else."""
    try:
        number = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # others raise
    except TypeError:
        return None
    return number if number >= 0 else None


def messages_of(counts: dict[str, StepCounts]) -> int:
    """Return the number of messages of a step, from the counts of all groups."""
    return sum(sum(each.fates.values()) + each.outside for each in counts.values())


def digest_of(counts: dict[str, StepCounts]) -> bytes:
    """Return the digest of a step; raise ConfigError if its groups have computed no digests."""
    if not all(each.digest for each in counts.values()):
        raise ConfigError("these steps keep no digests: start the experiment with steps=Steps(digest=True)")
    return step_digest(int.from_bytes(each.digest, "little") for each in counts.values())


async def sealed_history(store: "RedisSteps", step: int) -> bytes:
    """Return the digest of all steps up to and including `step`.

    Raises: the same errors as `sealed_counts` and `digest_of`.
    """
    chained = b""
    await sealed_counts(store, step)
    for number in range(step + 1):
        counts = await sealed_counts(store, number)
        chained = history_digest(chained, number, messages_of(counts), digest_of(counts))
    return chained
