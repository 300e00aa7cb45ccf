"""The account of one step of a group: the fates of its messages, and their digest."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.model.batch import Batch
from ray_messaging.receipt import DELIVERED, FATES, Outcome
from ray_messaging.steps.accounts.digests import SIZE, DigestRow, sum_of
from ray_messaging.steps.box_frames import FIRST_OUTSIDE

Pair = tuple[AgentId | None, AgentId | None]  # sender and recipient


class StepCounts(msgspec.Struct, array_like=True, frozen=True):
    """Counts that a group leaves about a step: messages by fate, and the sum of their digests (b"": not computed).

    `total` has the messages of this step and of all steps before, by fate. `outside` counts the messages from outside
    that the group has read in it; with digests, the sum has them, too.
    """

    fates: dict[str, int]
    digest: bytes = b""
    total: dict[str, int] = {}
    outside: int = 0

    def encode(self) -> bytes:
        """Encode the counts for the server."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, encoded: bytes) -> "StepCounts":
        """Decode counts from the server."""
        return msgspec.msgpack.decode(encoded, type=cls)


class StepAccount:
    """The fates of the messages of one attempt at a step. It takes the place of a sender's local log.

    `total` counts those of all steps so far.
    """

    def __init__(self, *, digest: bool) -> None:
        self._digest = digest
        self._fates: Counter[str] = Counter()
        self._sum = self._outside = 0
        self.total: Counter[str] = Counter()

    def add(self, batch: Batch, outcome: Outcome) -> None:
        """Add a batch of rows with their fates."""
        for code, fate in enumerate(FATES):
            if count := outcome.codes.count(code):
                self._fates[fate] += count
        if self._digest:
            self._sum += sum_of(digest_rows(batch, outcome.codes, outcome.blocks))

    def hear(self, batches: Sequence[Batch]) -> None:
        """Add messages from outside, in the order of their arrival, to the digest."""
        rows = outside_rows(batches)
        self._outside += len(rows)
        self._sum += sum_of(rows)

    def take(self) -> StepCounts:
        """Return the counts of the step, and begin the next one."""
        digest = (self._sum % 2 ** (8 * SIZE)).to_bytes(SIZE, "little") if self._digest else b""
        self.total += self._fates
        fates, total = dict(sorted(self._fates.items())), dict(sorted(self.total.items()))
        counts = StepCounts(fates, digest, total, self._outside)
        self._fates, self._sum, self._outside = Counter(), 0, 0
        return counts


def outside_rows(batches: Sequence[Batch]) -> list[DigestRow]:
    """Return messages from outside to agents as they count for the digest, without those that a rule rewrote.

    The log has the latter without ordinals. The number of a row is its place among those of one sender and recipient:
    so groups do not matter.
    """
    rows, places = [], Counter[Pair]()
    for batch in batches:
        noted = set() if batch.noted is None else set(batch.noted.tolist())
        assert isinstance(batch.step, int)
        assert batch.lines is not None
        pairs = zip(batch.from_ids.tolist(), batch.to_ids.tolist(), strict=True)
        for row, pair in enumerate(pairs):
            if pair[1] is not None and row not in noted:
                fields = (batch.topic_of(row), FATES[DELIVERED], None, batch.labels_of(row), batch.lines.row(row))
                rows.append(DigestRow(batch.step, batch.step, pair[0], outside_ordinal(places, pair), pair[1], *fields))
    return rows


def outside_ordinal(places: "Counter[Pair]", pair: Pair) -> int:
    """Return the number of the next message from outside of one sender and recipient, and count it."""
    places[pair] += 1
    return FIRST_OUTSIDE + places[pair] - 1


def digest_rows(batch: Batch, codes: Sequence[int], blocks: Mapping[int, tuple[str, str]]) -> list[DigestRow]:
    """Return the rows of a batch as they count for the digest: with their fates, and rule and reason if blocked."""
    extension, lines = batch.extension, batch.lines
    assert extension is not None
    assert extension.ordinal is not None
    assert isinstance(batch.step, int)
    assert isinstance(extension.deliver, int)
    assert lines is not None
    from_ids, to_ids, ordinals = batch.from_ids.tolist(), batch.to_ids.tolist(), extension.ordinal.tolist()
    rows = []
    for row in range(batch.rows):
        rule = blocks[row][0] if row in blocks else None
        rows.append(
            DigestRow(
                batch.step,
                extension.deliver,
                from_ids[row],
                ordinals[row],
                to_ids[row],
                batch.topic_of(row),
                FATES[codes[row]],
                rule,
                batch.labels_of(row),
                lines.row(row),
            )
        )
    return rows
