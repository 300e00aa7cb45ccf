"""Folding: a broadcast's messages, one for each hearer, are sent as a single row. Unfolding restores the messages."""

from collections.abc import Mapping
from copy import copy
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.graph_edges import gathered
from ray_messaging.audiences.hearer_pairs import Pairs
from ray_messaging.errors import FrameError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import PayloadColumn, nobody
from ray_messaging.model.extension import Fold
from ray_messaging.model.typed.typed_table import Payloads

_RUNS, _BITS = b"r", b"b"
_PLACE = np.dtype("<u4")


def encode_kept(places: NDArray[np.intp], pairs: int) -> bytes:
    """Encode which of `pairs` pairs are kept: `places` has their numbers, ascending. Return b"" if all are kept.

    The bytes are ranges of numbers, or one bit for each pair, whichever is shorter. So the result is short if only a
    few pairs are kept, or only a few are left out.
    """
    if len(places) == pairs:
        return b""
    begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    if len(begins) * 2 * _PLACE.itemsize <= (pairs + 7) // 8:
        ends = places[np.append(begins[1:], len(places)) - 1] + 1 if len(begins) else begins
        return _RUNS + np.stack((places[begins], ends), axis=1).astype(_PLACE).tobytes()
    bits = np.zeros(pairs, np.bool_)
    bits[places] = True
    return _BITS + np.packbits(bits).tobytes()


def kept_places(kept: bytes, pairs: int) -> NDArray[np.intp]:
    """Decode the result of `encode_kept`: return the numbers of the kept pairs.

    Raises: FrameError if `kept` cannot be decoded, or does not fit the number of pairs, `pairs`.
    """
    kind, data = kept[:1], kept[1:]
    if kind == _BITS and len(data) == (pairs + 7) // 8:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=pairs)
        return np.flatnonzero(bits)
    if kind == _RUNS and len(data) % (2 * _PLACE.itemsize) == 0:
        bounds = np.frombuffer(data, _PLACE).astype(np.int64)
        steps = np.diff(bounds, prepend=-1)
        if bool((steps >= 0).all()) and bool((steps[1::2] > 0).all()) and (not len(bounds) or bounds[-1] <= pairs):
            return gathered(bounds[::2], steps[1::2])
    raise FrameError(
        "a frame (a batch of messages) on the server has a list of pairs of sender and hearer that cannot be decoded "
        "or does not fit the frame's messages: find the program that wrote this frame"
    )


def agents_digest(agents: AgentSet) -> bytes:
    """Return the digest that stands for a set of agents in encoded broadcasts."""
    digest = blake2b(agents.ints.astype("<i8", copy=False).data, digest_size=12)
    for name in sorted(agents.strings):
        digest.update(len(name).to_bytes(4, "little") + name.encode())
    return digest.digest()


def spread(broadcasts: Batch, edges: Edges) -> Batch:
    """Return a batch in which each broadcast has one row for each hearer. `edges` has the hearers of each sender.

    The rows of a broadcast share its message number and its payload.
    """
    return _of_pairs(broadcasts, edges.expand(broadcasts.from_ids))


def _of_pairs(broadcasts: Batch, found: Pairs) -> Batch:
    rows, hearers = found
    bare = copy(broadcasts)
    bare.lines = None
    pairs = bare.take(rows)
    pairs.to_ids = hearers
    pairs.lines = None if broadcasts.lines is None else _repeated(broadcasts.lines, rows)
    return pairs


def fold(
    pairs: Batch, rows: NDArray[np.intp], there: NDArray[np.intp], agents: bytes, kinds: NDArray[np.intp] | None = None
) -> tuple[Batch, NDArray[np.intp]]:
    """Fold some rows of a batch that `spread` made: rows of the same broadcast and kind become one row of the result.

    Args: `rows` are the rows to fold, ascending. All of them are for agents of one mailbox. `there` are all rows of the
    batch whose hearers are agents of this mailbox, and `agents` is the digest of the mailbox's agents. `kinds` has the
    kind of each row of the batch, as a number (None: all rows have the same kind).
    Returns: the folded batch, and for each of `rows` the index of its row in the folded batch.
    """
    assert pairs.numbers is not None
    assert pairs.extension is not None
    numbers = pairs.numbers.astype(np.int64)
    begins = np.diff(numbers[rows], prepend=-1) != 0
    order = np.arange(len(rows)) if kinds is None else np.lexsort((kinds[rows], numbers[rows]))
    if kinds is not None:
        rows = rows[order]
        begins |= np.diff(kinds[rows], prepend=-1) != 0
    first = np.flatnonzero(begins)
    made = pairs.take(rows[first])
    made.to_ids = nobody(made.rows)
    # `Fold` numbers the pairs of all rows of the result together: the numbers of a row's pairs follow those of the row
    # before it.
    low = np.searchsorted(numbers[there], numbers[rows[first]])
    high = np.searchsorted(numbers[there], numbers[rows[first]], side="right")
    starts = np.cumsum(high - low) - (high - low)
    places = np.searchsorted(there, rows) + np.repeat(starts - low, np.diff(first, append=len(rows)))
    assert made.extension is not None
    made.extension.fold = Fold(agents, len(rows), encode_kept(places, int((high - low).sum())))
    at = np.empty(len(rows), np.intp)
    at[order] = np.cumsum(begins) - 1
    return made, at


def row_kinds(lines: Mapping[int, bytes], labels: Mapping[str, NDArray[np.uint32]], rows: int) -> NDArray[np.intp]:
    """Return the argument `kinds` of `fold`: 0 for a row that no rule has rewritten or labelled, else a number above 0.

    Rows with equal new payloads and equal labels get equal numbers.

    Args: `lines` has the new payloads of the rewritten rows, and `labels` the rows with each label.
    """
    marks: dict[int, tuple[object, ...]] = {row: (line,) for row, line in lines.items()}
    for name, marked in sorted(labels.items()):
        for row in marked.tolist():
            marks[row] = (*marks.get(row, (None,)), name)
    known: dict[tuple[object, ...], int] = {}
    kinds = np.zeros(rows, np.intp)
    kinds[[*marks]] = [known.setdefault(mark, len(known) + 1) for mark in marks.values()]
    return kinds


def unfold(broadcasts: Batch, edges: Edges) -> Batch:
    """Return the messages that folded broadcasts stand for, one for each hearer.

    Args: `broadcasts` has one row for each broadcast. `edges` has those pairs (sender, hearer) of the audience whose
    hearers are agents of the mailbox that got the broadcasts.

    Raises: FrameError if `edges` and `broadcasts.fold` give different numbers of pairs.
    """
    return _of_pairs(broadcasts, kept_pairs(broadcasts, edges))


def kept_pairs(broadcasts: Batch, edges: Edges) -> Pairs:
    """Return which agent hears which row of folded broadcasts. Each row stands for the messages to several agents.

    Arguments and errors are as for `unfold`.
    """
    folded = broadcasts.fold
    assert folded is not None
    found = int(edges.counts(broadcasts.from_ids).sum())
    if not folded.kept and found != folded.pairs:
        raise _other_pairs(broadcasts, found)
    rows, hearers = edges.expand(broadcasts.from_ids)
    if not folded.kept:
        return Pairs(rows, hearers)
    kept = kept_places(folded.kept, len(rows))
    if len(kept) != folded.pairs:
        raise _other_pairs(broadcasts, len(kept))
    return Pairs(rows[kept], hearers.take(kept))


def _other_pairs(broadcasts: Batch, found: int) -> FrameError:
    assert broadcasts.extension is not None
    assert broadcasts.extension.audience is not None
    name, version = broadcasts.extension.audience
    return FrameError(
        f"the files of audience {name!r} (version {version}) differ between this process and the sender of a "
        f"broadcast: the sender's files give {broadcasts.messages:,} pairs of sender and hearer, and the files here "
        f"{found:,}. Restore the files as the sender has them, or make the audience again by messaging.create_audience"
    )


def _repeated(lines: Payloads, rows: NDArray[np.intp]) -> Payloads:
    """Return a column with the payload of each of the given rows, which may repeat. JSON text is not copied."""
    if not isinstance(lines, PayloadColumn):
        return lines.take(rows)
    index = rows if lines.index is None else lines.index[rows]
    return PayloadColumn.of(lines.list, index.astype(np.uint32), raw=lines.raw)
