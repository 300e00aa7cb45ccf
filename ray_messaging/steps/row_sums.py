"""The rows of a batch as the digest of a step needs them, and the sum of their digests."""

from collections.abc import Mapping, Sequence

import numpy as np

from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AudiencePairs
from ray_messaging.model.fates import FATES
from ray_messaging.steps.digests import DigestRow, HeardBy, sum_of, sum_of_like

NO_AUDIENCES: Mapping[AudiencePairs, bytes] = {}


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
    """Return the sum of the digests of a batch's rows. It is faster if rows differ only in ids, ordinal and payload."""
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
    """Return the rows of a batch in the form of which digests are computed.

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
                "" if topic[0] == ":" else topic,  # the empty subtopic stands for an answer to the user
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
