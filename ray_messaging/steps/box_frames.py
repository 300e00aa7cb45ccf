"""Frames of boxes as batches."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import fold, kept_places, spread
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AskedOutside, Extension, OutsideQuestion
from ray_messaging.model.joining import joined_arrays
from ray_messaging.steps.canonical_order import id_ranks
from ray_messaging.transports.step_values import OUTSIDE, SUPERVISOR, BoxFrame
from ray_messaging.wire.frames import decode

BLOCKED, CHANGED = ":blocked", ":changed"  # senders of the supervisor's frames that change other frames
FIRST_ADDED = 2**30  # ordinals from here on are of messages that a rule added
FIRST_OUTSIDE = 2**31  # ordinals from here on are of messages from outside


class BoxBatches(NamedTuple):
    """The frames of a box, decoded: messages, broadcasts (`folded`), and the supervisor's changes of both."""

    messages: list[Batch]
    folded: list[Batch]
    amendments: list[Batch]


def batches_of(frames: Iterable[BoxFrame], step: int) -> BoxBatches:
    """Decode the frames of a box that count for a step, with the supervisor's changes applied to all but broadcasts.

    Raises: FrameError for a frame that cannot be decoded.
    """
    found = BoxBatches([], [], [])
    for frame in frames:
        batch = batch_of(frame, step)
        kind = found.amendments if amends(frame, batch) else found.messages if batch.fold is None else found.folded
        kind.append(batch)
    return found._replace(messages=amended(found.messages, found.amendments)) if found.amendments else found


def from_outside(frames: Iterable[BoxFrame], step: int) -> list[Batch]:
    """Decode the frames in a step's box that came from outside of the steps, in the order of their arrival."""
    found = sorted((frame for frame in frames if frame.tag.group == OUTSIDE), key=lambda frame: frame.first)
    return [batch_of(frame, step) for frame in found]


def amends(frame: BoxFrame, batch: Batch) -> bool:
    """Return whether a frame changes other frames of its box. Otherwise its rows are messages."""
    return frame.tag.group == SUPERVISOR and batch.sender in {BLOCKED, CHANGED}


def batch_of(frame: BoxFrame, step: int) -> Batch:
    """Decode a frame of a step's box. Messages from outside of the steps get that step.

    Raises: FrameError for a frame that cannot be decoded.
    """
    batch = decode(frame.frame)
    if frame.tag.group == OUTSIDE:
        ordinals = np.arange(batch.rows, dtype=np.uint32) + np.uint32(FIRST_OUTSIDE + frame.first)
        given = batch.extension or Extension()
        asked = _asked_outside(batch, given)  # before the messages lose the ids that they have outside of steps
        batch.step = step
        batch.extension = Extension(
            deliver=step,
            ordinal=ordinals,
            expects_answer=given.expects_answer,
            asked_outside=asked,
            audience=given.audience,
            fold=given.fold,
        )
    return batch


def _asked_outside(batch: Batch, extension: Extension) -> AskedOutside:
    """Return the questions in a batch from outside, by row."""
    if extension.expects_answer is None:
        return {}
    rows = np.flatnonzero(extension.expects_answer).tolist()
    return {row: OutsideQuestion(extension.reply_mailbox, batch.message_id(row)) for row in rows}


class _Place(NamedTuple):
    """A row in one of several batches."""

    batch: int
    row: int


def amended(batches: Sequence[Batch], amendments: Sequence[Batch]) -> list[Batch]:
    """Return batches of a box with amendments applied. Each batch, and each amendment, belongs to one step."""
    found = list(batches)
    for step in dict.fromkeys(each.step for each in amendments):
        changes = [each for each in amendments if each.step == step]
        targets = [place for place, batch in enumerate(found) if batch.step == step and batch.rows]
        hits = _hits([found[place] for place in targets], changes)
        for place, rows in zip(targets, hits, strict=True):
            if rows:
                found[place] = _apply(found[place], rows, changes)
    return [batch for batch in found if batch.rows]


def amended_broadcasts(folded: Batch, edges: Edges, amendments: Sequence[Batch]) -> Batch | None:
    """Return a folded batch of broadcasts with amendments of its pairs applied; None if no pair is left.

    Pairs of one broadcast that are changed in different ways are in different rows.

    Args: edges are the pairs of the audience's version whose hearers are the agents to which the frame refers.
    """
    return _amended_pairs(folded, edges, amendments, without_changed=False)


def unamended_broadcasts(folded: Batch, edges: Edges, amendments: Sequence[Batch]) -> Batch | None:
    """Return those pairs of a folded batch that no amendment blocks or changes; None if there are none.

    Args: edges are as in `amended_broadcasts`.
    """
    return _amended_pairs(folded, edges, amendments, without_changed=True)


def _amended_pairs(folded: Batch, edges: Edges, amendments: Sequence[Batch], *, without_changed: bool) -> Batch | None:
    changes = [each for each in amendments if each.step == folded.step]
    if not changes:
        return folded
    assert folded.fold is not None
    pairs = _spread(folded, edges)
    kept = kept_places(folded.fold.kept, pairs.rows) if folded.fold.kept else np.arange(pairs.rows)
    hits = {int(kept[row]): place for row, place in _hits([pairs.take(kept)], changes)[0].items()}
    if not hits:
        return folded
    changed = {row: place for row, place in hits.items() if changes[place.batch].sender == CHANGED}
    gone = hits.keys() if without_changed else hits.keys() - changed.keys()
    kept = kept[~np.isin(kept, np.fromiter(gone, np.intp))]
    if not len(kept):
        return None
    kinds = None
    if changed and not without_changed:
        pairs, kinds = _changed(pairs, changed, changes), np.zeros(pairs.rows, np.intp)
        known: dict[tuple[bytes, tuple[str, ...]], int] = {}
        assert pairs.lines is not None
        for row in changed:
            kinds[row] = known.setdefault((pairs.lines.row(row), tuple(pairs.labels_of(row))), len(known) + 1)
    made, _ = fold(pairs, kept, np.arange(pairs.rows), folded.fold.agents, kinds)
    made.numbers = None
    return made


def _spread(folded: Batch, edges: Edges) -> Batch:
    """Return all pairs of broadcasts, also those that do not count. Each broadcast is numbered by its row."""
    numbered = copy(folded)
    numbered.numbers = None
    return spread(numbered, edges)


def _hits(targets: Sequence[Batch], amendments: Sequence[Batch]) -> list[dict[int, _Place]]:
    """Return, for each target, the rows that are changed, each with the place of its amendment."""
    keys = message_keys([*amendments, *targets])
    ends = np.cumsum([batch.rows for batch in (*amendments, *targets)])
    amending = int(ends[len(amendments) - 1])
    places = [_Place(at, row) for at, batch in enumerate(amendments) for row in range(batch.rows)]
    order = np.argsort(keys[:amending], kind="stable")
    ours = keys[:amending][order]
    found: list[dict[int, _Place]] = []
    for low, high in zip(ends[len(amendments) - 1 : -1].tolist(), ends[len(amendments) :].tolist(), strict=True):
        wanted = keys[low:high]
        at = np.minimum(np.searchsorted(ours, wanted), amending - 1)
        rows = np.flatnonzero(ours[at] == wanted)
        found.append({row: places[order[at[row]]] for row in rows.tolist()})
    return found


def _apply(batch: Batch, rows: dict[int, _Place], amendments: Sequence[Batch]) -> Batch:
    changed = {row: place for row, place in rows.items() if amendments[place.batch].sender == CHANGED}
    made = _changed(batch, changed, amendments)
    stay = np.ones(batch.rows, np.bool_)
    stay[[row for row in rows if row not in changed]] = False
    return made if stay.all() else made.take(np.flatnonzero(stay))


def _changed(batch: Batch, changed: Mapping[int, _Place], amendments: Sequence[Batch]) -> Batch:
    """Return a batch with the payloads and labels of amendments in place of those of some rows."""
    lines: dict[int, bytes] = {}
    labels = {name: set(marked.tolist()) for name, marked in batch.labels.items()}
    for row, place in changed.items():
        amendment = amendments[place.batch]
        assert amendment.lines is not None
        lines[row] = amendment.lines.row(place.row)
        for name in amendment.labels_of(place.row):
            labels.setdefault(name, set()).add(row)
    made = batch.with_payloads(lines)
    made.labels = {name: np.array(sorted(marked), np.uint32) for name, marked in labels.items()}
    return made


def message_keys(batches: Sequence[Batch]) -> NDArray[np.int64]:
    """Return a number for each row, which is equal for copies of one message. The batches belong to one step.

    Copies have equal from_id and ordinal, and if some rows are broadcasts, equal to_id: that of broadcasts is None.
    """
    _, senders = np.unique(id_ranks([batch.from_ids for batch in batches]), return_inverse=True)
    ordinals = joined_arrays([batch.ordinal for batch in batches if batch.ordinal is not None])
    keys: NDArray[np.int64] = (senders.astype(np.int64) << 32) | ordinals.astype(np.int64)
    if any(batch.extension is not None and batch.extension.audience is not None for batch in batches):
        said = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        keys = (said << 32) | np.unique(id_ranks([batch.to_ids for batch in batches]), return_inverse=True)[1]
    return keys
