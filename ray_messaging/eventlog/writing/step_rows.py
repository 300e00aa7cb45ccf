"""Rows of an experiment's sealed steps, from the boxes of its server."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from ray_messaging.errors import BodyLost, FrameError
from ray_messaging.eventlog.encoding import stored_column
from ray_messaging.eventlog.folder import Folder, StepPosition
from ray_messaging.eventlog.writing.broadcast_hearers import BroadcastHearers
from ray_messaging.eventlog.writing.log_errors import box_lost
from ray_messaging.eventlog.writing.rows.columns import Part, record_batch
from ray_messaging.eventlog.writing.rows.entries import delivered, noted, payload_bytes, pieces, without
from ray_messaging.eventlog.writing.rows.placed_rows import PlacedRows, by_kind
from ray_messaging.eventlog.writing.rows.repeated_columns import each_its_own
from ray_messaging.eventlog.writing.stream_reader import CHUNK_ROWS, PIECE_BYTES
from ray_messaging.model.joining import joined_arrays
from ray_messaging.receipt import FATES
from ray_messaging.steps.reading.box_frames import FIRST_OUTSIDE, amends, batch_of
from ray_messaging.steps.reading.canonical_order import canonical_order, id_ranks
from ray_messaging.steps.step_account import StepCounts
from ray_messaging.steps.supervision.amendments import message_keys
from ray_messaging.transports.step_values import (
    ASKER,
    NOTES,
    OUTSIDE,
    PLACES,
    PUBLICATIONS,
    SUPERVISOR,
    BoxFrame,
    Cover,
    Progress,
    StepSettings,
    counted,
)

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

HOLD = "event log"
_START = "0-0"
_FRAMES = 16  # in one read of a box
_STEPS = 8  # that are asked for at once
_TEXT_BYTES = 2**30
_AHEAD = 3  # a group that joins may take messages from outside for the step after the next


class StepRows(NamedTuple):
    """The rows of one step in canonical order, and the position after them.

    `missing` says what the groups counted and the log does not have.
    """

    rows: Sequence[PlacedRows]
    position: StepPosition
    missing: str = ""


class StepBoxes:
    """The boxes of an experiment with steps, as the event log reads them.

    A step's messages are read once it is sealed: all covered frames that were sent in it, whenever they are delivered.
    A hold keeps the boxes until the rows are in a file. Args: `retry` repeats a call while the server is away.
    """

    def __init__(
        self,
        store: "RedisSteps",
        exp_id: str,
        folder: Folder,
        settings: StepSettings,
        retry: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        hearers: BroadcastHearers,
    ) -> None:
        self.unreadable = 0
        self._store = store
        self._exp_id = exp_id
        self._folder = folder
        self._settings = settings
        self._retry = retry
        self._hearers = hearers
        self._held = -1
        self._sizes: dict[int, int] = {}  # step -> bytes of its frames, of the steps after the hold
        self._after: dict[str, str] = {}  # box -> the last entry with only steps that are in the log

    async def begin(self, position: StepPosition | None) -> StepPosition:
        """Register the hold, and return the position from which to go on. Args: position is that of the folder."""
        progress = await self._store.progress()
        held = progress.holds.get(HOLD)
        handled, outside = position or StepPosition(-1, {})
        # Without a hold nothing has kept the boxes of sealed steps. With one, the steps up to it are in files. A server
        # that begins anew numbers its steps anew.
        handled = progress.sealed if held is None else min(max(handled, held), progress.sealed)
        await self._store.hold(HOLD, handled)
        self._held = handled
        return StepPosition(handled, outside)

    def behind(self, position: StepPosition) -> bool:
        """Tell whether the hold is so far behind that the steps may soon have to wait for it."""
        steps, kept = position.handled - self._held, sum(self._sizes.values())
        return steps >= max(1, self._settings.lag // 4) or 2 * kept > self._settings.lag_bytes

    async def written(self, position: StepPosition) -> None:
        """Move the hold: the rows up to a position are in files."""
        if position.handled > self._held:
            await self._retry(partial(self._store.hold, HOLD, position.handled))
            self._held = position.handled
            self._sizes = {step: nbytes for step, nbytes in self._sizes.items() if step > self._held}

    async def end(self) -> None:
        """End the hold."""
        await self._store.drop_hold(HOLD)

    async def progress(self) -> Progress:
        """Return the progress of all groups."""
        found: Progress = await self._retry(self._store.progress)
        return found

    async def wait(self, news: str, block_s: float) -> None:
        """Wait for news."""
        await self._retry(partial(self._store.wait, news, block_s))

    # -- steps ----------------------------------------------------------------------------------------------------

    async def sealed(self, position: StepPosition, progress: Progress) -> AsyncIterator[StepRows]:
        """Yield the rows of each sealed step after a position. Raises LogError where the server has lost some."""
        listed = position.handled
        for step in range(position.handled + 1, progress.sealed + 1):
            if step > listed:
                listed = min(progress.sealed, step + _STEPS - 1)
                boxes = _by_step(await self._boxes(step, listed + self._settings.horizon))
            own = boxes.get(step, {})
            reads = [self._parts(box, step, covers, position.outside) for box, covers in own.items()]
            found, counts = await asyncio.gather(asyncio.gather(*reads), self._counts(step))
            parts = [part for some in found for part, by_rules in some if not by_rules]
            changed = [part for some in found for part, by_rules in some if by_rules]
            rows, sent = await asyncio.to_thread(_rows_and_fates, self._exp_id, parts, changed)
            outside = {box: taken for box, taken in position.outside.items() if _step_of(box) > step}
            position = StepPosition(step, outside)
            self._after = {box: entry for box, entry in self._after.items() if _step_of(box) > step + 1}
            missing = "" if counts is None or counts == sent else _missing(step, counts, sent)
            yield StepRows(rows, position, missing)

    async def from_outside(self, position: StepPosition, progress: Progress) -> StepRows | None:
        """Return the messages from outside that no group has read yet; None: there are no new ones."""
        parts: list[Part] = []
        outside = dict(position.outside)
        last = max(progress.latest, progress.sealed) + _AHEAD
        for box, every in (await self._boxes(position.handled + 1, last)).items():
            covers = [cover for cover in every if cover.group == OUTSIDE]
            if sum(cover.rows for cover in covers) > outside.get(box, 0):
                frames = await self._frames(box, covers, _START)
                parts += self._fresh(box, frames, outside)
                outside[box] = sum(cover.rows for cover in covers)
        if not parts:
            return None
        rows = await asyncio.to_thread(in_order, self._exp_id, parts)
        return StepRows(rows, StepPosition(position.handled, outside))

    async def _parts(
        self, box: str, step: int, covers: list[Cover], outside: dict[str, int]
    ) -> list[tuple[Part, bool]]:
        """Return the rows of a box that are logged with a step, and whether they are the supervisor's notes."""
        if _step_of(box) == step:
            fresh = self._fresh(box, await self._frames(box, covers, _START), outside)
            return [(part, False) for part in fresh]
        frames = await self._frames(box, covers, self._after.get(box, _START), step)
        self._sizes[step] = self._sizes.get(step, 0) + sum(len(frame.frame) for frame in frames)
        notes = box.startswith(NOTES)
        return [
            (part, notes and frame.tag.group == SUPERVISOR)
            for frame in frames
            if (part := self._part(box, frame)) is not None
        ]

    async def _frames(self, box: str, covers: list[Cover], after: str, step: int | None = None) -> list[BoxFrame]:
        """Return the frames that covers name; frames of dead attempts are dropped page by page."""
        named = {(cover.group, cover.sent, cover.attempt) for cover in covers}
        frames: list[BoxFrame] = []
        found, early, start = None, True, after
        while found is None:
            try:
                page = await self._retry(partial(self._store.read_box, box, after, _FRAMES))
            except BodyLost as error:
                raise box_lost(self._exp_id, self._folder, box) from error
            for frame in page:
                early = early and step is not None and frame.tag.sent <= step
                if early:
                    self._after[box] = frame.entry
            frames += [frame for frame in page if frame.tag in named]
            found = counted(frames, covers)
            if len(page) < _FRAMES:
                break
            after = page[-1].entry
        if found is None and start != _START:  # a server that came back with a slow clock may give out lower entries
            return await self._frames(box, covers, _START, step)
        if found is None:
            raise box_lost(self._exp_id, self._folder, box)
        await self._hearers.prepare(frame.frame for frame in found)
        return found

    def _fresh(self, box: str, frames: Sequence[BoxFrame], taken: dict[str, int]) -> list[Part]:
        """Return the rows of frames from outside that are not in the log yet."""
        left, parts = taken.get(box, 0), []
        for frame in frames:
            if left >= frame.rows:
                left -= frame.rows
            elif (part := self._part(box, frame)) is not None:
                parts.append(part)
        return parts

    def _part(self, box: str, frame: BoxFrame) -> Part | None:
        mailbox, _, at = box.rpartition("@")
        try:
            batch = batch_of(frame, int(at))
            if mailbox != NOTES and amends(frame, batch):
                return None  # a note has its rows
            if batch.lines is None or batch.ordinal is None:
                raise FrameError("this is no valid frame of a step")  # noqa: TRY301 - one way out
            # The streams of boxes number their entries each for itself: one entry may be in several boxes.
            entry = f"{frame.entry}@{at}"
            if mailbox == NOTES:
                return noted(batch, entry, frame.note or b"", [0] * batch.rows)
            return delivered(batch, entry, mailbox.removeprefix(ASKER), self._hearers.of(batch))
        except FrameError as error:
            self.unreadable += 1
            logger.warning("entry %s of %s is not logged: %s", frame.entry, box, error)
            return None

    async def _boxes(self, first: int, last: int) -> Mapping[str, Sequence[Cover]]:
        found: Mapping[str, Sequence[Cover]] = await self._retry(partial(self._store.covered_boxes, first, last))
        return found

    async def _counts(self, step: int) -> Counter[str] | None:
        """Return the fates that the groups counted in a step; None where some did not count."""
        closed = await self._retry(partial(self._store.closed_step, step))
        if not all(each.counts for each in closed.values()):
            return None
        counts: Counter[str] = Counter()
        for each in closed.values():
            counts.update(StepCounts.decode(each.counts).fates)
        return counts


def _superseded(parts: Sequence[Part], changed: Sequence[Part]) -> list[Part]:
    """Return parts without the messages that are among the changed ones, and these."""
    keys = message_keys([part.batch for part in (*changed, *parts)])
    ends = np.cumsum([len(part.batch) for part in (*changed, *parts)])
    gone = np.isin(keys, keys[: ends[len(changed) - 1]])
    cut = [
        without(part, gone[end - len(part.batch) : end]) for part, end in zip(parts, ends[len(changed) :], strict=True)
    ]
    return [*(part for part in cut if part is not None), *changed]


def _rows_and_fates(
    exp_id: str, parts: Sequence[Part], changed: Sequence[Part]
) -> tuple[list[PlacedRows], Counter[str]]:
    """Return the rows of a step, those that rules changed as these left them, and the fates of its messages."""
    left = _superseded(parts, changed) if changed else parts
    return in_order(exp_id, left), _sent(left)


def in_order(exp_id: str, parts: Sequence[Part]) -> list[PlacedRows]:
    """Return the rows of some parts in canonical order."""
    cut = [piece for part in parts for piece, _ in pieces(part, 0, PIECE_BYTES)]
    kinds = {kind: [cut[number] for number in numbers] for kind, numbers in by_kind(cut).items()}
    if not cut:
        return []
    order = _order([piece for same in kinds.values() for piece in same])
    made, low = [], 0
    for kind, same in kinds.items():
        high = low + sum(len(piece.batch) for piece in same)
        places = np.arange(high) if len(kinds) == 1 else np.flatnonzero((order >= low) & (order < high))
        made.append(PlacedRows(kind, _reordered(exp_id, same, pa.array(order[places] - low)), places))
        low = high
    return made


def _reordered(exp_id: str, cut: Sequence[Part], order: pa.Array) -> pa.RecordBatch:
    """Return the rows of some parts, whose payloads are of one kind, in another order."""
    table = pa.Table.from_batches([record_batch(exp_id, chunk) for chunk in _chunks(cut)])
    columns, schema = table.columns, table.schema
    del table
    for at in range(len(columns)):  # so that the memory of each is free before the next one is sorted
        columns[at] = _sorted(columns[at], order)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sorted(column: pa.ChunkedArray, order: pa.Array) -> pa.Array:
    # `take` wants one dictionary for all rows, and Arrow joins at most 2 GiB of texts.
    whole = (stored_column(column) if column.nbytes < _TEXT_BYTES else column.unify_dictionaries()).combine_chunks()
    if whole.null_count == len(whole) or (not whole.null_count and _is_constant(whole)):
        return whole
    found = whole.take(order)
    return each_its_own(found) if whole.type != column.type else found


def _is_constant(column: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(column.type)) and len(column.dictionary) == 1


def _order(parts: Sequence[Part]) -> Any:  # noqa: ANN401 - row numbers (n,)
    batches = [part.batch for part in parts]
    to_ids, from_ids = [batch.to_ids for batch in batches], [batch.from_ids for batch in batches]
    return canonical_order(to_ids, _steps(parts), from_ids, _ordinals(parts))


def _steps(parts: Sequence[Part]) -> Any:  # noqa: ANN401 - int64 (n,)
    return joined_arrays([np.broadcast_to(np.asarray(part.batch.step, np.int64), len(part.batch)) for part in parts])


def _ordinals(parts: Sequence[Part]) -> Any:  # noqa: ANN401 - int64 (n,)
    return joined_arrays([part.batch.ordinal for part in parts if part.batch.ordinal is not None]).astype(np.int64)


def _chunks(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield parts in groups whose rows fit the processor's cache."""
    chunk: list[Part] = []
    rows = nbytes = 0
    for part in parts:
        if chunk and (rows >= CHUNK_ROWS or nbytes + payload_bytes(part) > PIECE_BYTES):
            yield chunk
            chunk, rows, nbytes = [], 0, 0
        chunk.append(part)
        rows += len(part.batch)
        nbytes += payload_bytes(part)
    if chunk:
        yield chunk


def _sent(parts: Sequence[Part]) -> Counter[str]:
    """Count the messages of groups by fate; one that several mailboxes have counts once, a broadcast by its pairs."""
    counts = sum((_pairs_sent(part) for part in parts if _is_said(part)), Counter[str]())
    return counts + _messages_sent([part for part in parts if not _is_said(part)])


def _is_said(part: Part) -> bool:
    """Tell whether the rows are broadcasts, or hearers of them."""
    return part.batch.extension is not None and part.batch.extension.audience is not None


def _pairs_sent(part: Part) -> Counter[str]:
    if isinstance(part.fates, int):
        pairs = part.batch.messages if part.hearers is None else int(part.hearers.pairs.sum())
        return Counter({FATES[part.fates]: pairs})
    return Counter(FATES[fate] for fate in part.fates.tolist())


def _messages_sent(parts: Sequence[Part]) -> Counter[str]:
    if not parts:
        return Counter()
    ordinals, ranks = _ordinals(parts), id_ranks([part.batch.from_ids for part in parts])
    fates = joined_arrays([np.broadcast_to(np.asarray(part.fates, np.int64), len(part.batch)) for part in parts])
    ours = ordinals < FIRST_OUTSIDE
    order = np.lexsort((ordinals[ours], ranks[ours]))
    ordinals, ranks, fates = ordinals[ours][order], ranks[ours][order], fates[ours][order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ordinals[1:] != ordinals[:-1]) | (ranks[1:] != ranks[:-1])
    counts = np.bincount(fates[first], minlength=len(FATES)).tolist()
    return Counter({fate: count for fate, count in zip(FATES, counts, strict=False) if count})


def _missing(step: int, counts: Counter[str], found: Counter[str]) -> str:
    return f"the groups counted {_text(counts)} in step {step}, and the log has {_text(found)} of it"


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {fate}" for fate, count in sorted(counts.items())) or "nothing"


def _by_step(boxes: Mapping[str, Sequence[Cover]]) -> dict[int, dict[str, list[Cover]]]:
    """Return the covers of boxes by the step with which they are logged: the one in which groups sent.

    Messages from outside are logged with the step that reads them.
    """
    found: dict[int, dict[str, list[Cover]]] = {}
    for box, covers in boxes.items():
        for cover in () if box.startswith((PUBLICATIONS, PLACES)) else covers:
            step = _step_of(box) if cover.group == OUTSIDE else cover.sent
            found.setdefault(step, {}).setdefault(box, []).append(cover)
    return found


def _step_of(box: str) -> int:
    return int(box.rpartition("@")[2])
