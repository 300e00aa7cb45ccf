"""The account of one step of a group: the fates of its messages, and their digest."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ray_messaging.model.batch import Batch
from ray_messaging.receipt import FATES, Outcome
from ray_messaging.steps.digests import SIZE, DigestRow, sum_of


class StepCounts(msgspec.Struct, array_like=True, frozen=True):
    """Counts that a group leaves about a step: messages by fate, and the sum of their digests (b"": not computed).

    `total` has the messages of this step and of all steps before, by fate.
    """

    fates: dict[str, int]
    digest: bytes = b""
    total: dict[str, int] = {}

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
        self._sum = 0
        self.total: Counter[str] = Counter()

    def add(self, batch: Batch, outcome: Outcome) -> None:
        """Add a batch of rows with their fates."""
        for code, fate in enumerate(FATES):
            if count := outcome.codes.count(code):
                self._fates[fate] += count
        if self._digest:
            self._sum += sum_of(digest_rows(batch, outcome.codes, outcome.blocks))

    def take(self) -> StepCounts:
        """Return the counts of the step, and begin the next one."""
        digest = (self._sum % 2 ** (8 * SIZE)).to_bytes(SIZE, "little") if self._digest else b""
        self.total += self._fates
        counts = StepCounts(dict(sorted(self._fates.items())), digest, dict(sorted(self.total.items())))
        self._fates, self._sum = Counter(), 0
        return counts


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
