"""Reading of the messages of an experiment's steps from the boxes on its server, for the event log.

A box has the messages that one mailbox reads in one step. A step is sealed when all groups have ended it. If a group
failed and ran a step again, the boxes also have frames of the failed attempt. Each box has records, called covers,
which say from which attempts its frames are valid.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_messaging.common import task_health
from ray_messaging.default_limits_and_leases import STEP_NEWS_TIMEOUT_S
from ray_messaging.errors import BodyLost, FrameError, LogError
from ray_messaging.eventlog.folder import StepPosition
from ray_messaging.eventlog.log_schema import joined_rows, stored_column
from ray_messaging.eventlog.writing.entries import PIECE_BYTES, chunks_of, delivered, noted, pieces, without
from ray_messaging.eventlog.writing.hearers import FrameHearers
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.eventlog.writing.repeated_columns import each_its_own
from ray_messaging.eventlog.writing.stream_reader import StreamReader
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE
from ray_messaging.model.fates import FATES
from ray_messaging.model.joining import joined_arrays
from ray_messaging.steps.box_frames import FIRST_OUTSIDE, amendments_of, amends, batch_of, message_keys
from ray_messaging.steps.canonical_order import canonical_order, id_ranks
from ray_messaging.steps.step_account import StepCounts
from ray_messaging.transports.step_values import (
    ASKER,
    NOTES,
    OUTSIDE,
    PLACES,
    PUBLICATIONS,
    SUPERVISOR,
    BoxFrame,
    Cover,
    News,
    Progress,
    StepSettings,
    box_in_words,
    counted,
)
from ray_messaging.wire.frames import is_folded
from ray_messaging.wire.notes import LogNote, before_of, decode_log_note, why_of

logger = logging.getLogger(__name__)

HOLD = "event log"
_START = "0-0"
_FRAMES = 16  # the most frames that one read of a box returns
_STEPS = 8  # the most steps whose boxes are listed by one call
# A message from outside of steps may be for a step that is up to this many steps after the latest step. For example, a
# group that joins may accept messages for the second step after the latest one.
_AHEAD = 3
_TEXT_BYTES = 2**30


class StepFeed:
    """Reader of the messages of an experiment's steps. It passes their rows to the event log.

    The messages that were sent in a step are read when the step has ended for all groups, even if they are delivered in
    a later step. The server keeps the messages until their rows are in a file, because this reader asks it to.

    `position` says up to which step the messages are in the log.

    Args: `reader` reads the experiment's streams. `take` is `LogWriter._take`, which gets the rows. Its last argument
    is a text about missing messages, or "" if the log has as many messages of a step as the groups have counted.
    `passed` is called without arguments when the log has the messages for which a caller of `ask` waits.
    """

    def __init__(
        self,
        reader: StreamReader,
        settings: StepSettings,
        take: Callable[[pa.RecordBatch | None, Callable[[], bool], str], Awaitable[None]],
        passed: Callable[[], None],
    ) -> None:
        self.position = StepPosition(-1, {})
        self.unreadable = 0
        self._reader = reader
        self._store = reader.transport.steps
        self._settings = settings
        self._take = take
        self._passed = passed
        self._held = -1
        self._sizes: dict[int, int] = {}  # for each step that is in no file yet, the size of its frames in bytes
        # For each box, the entry up to which all frames were sent in steps that were read for the log.
        self._after: dict[str, str] = {}
        self._asked = self._answered = 0
        self._question = asyncio.Event()
        self._news: asyncio.Task[News] | None = None

    async def begin(self, position: StepPosition | None) -> None:
        """Begin to read the steps after `position` (None: no step is in a file), and make the server keep them.

        If the server's records of the steps disagree with `position`, the records decide where the log continues.
        """
        progress = await self._store.progress()
        held = progress.holds.get(HOLD)
        handled, outside = position or self.position
        # The server decides where the log continues. A hold is a request to keep the boxes of the steps after a given
        # step. If the server has no hold of the log, it has not kept the boxes of sealed steps. If the server has
        # a hold, the steps up to the hold are in files. A server that has lost its data numbers steps from 0 again.
        handled = progress.sealed if held is None else min(max(handled, held), progress.sealed)
        await self._store.hold(HOLD, handled)
        self._held = handled
        self.position = StepPosition(handled, outside)

    def _move(self, position: StepPosition) -> bool:
        """Set the position up to which the log has read; return whether groups may soon have to wait for the log.

        They have to wait if too many steps, or too many bytes, are in no file yet: the server must keep these messages.
        """
        self.position = position
        steps, kept = position.handled - self._held, sum(self._sizes.values())
        return steps >= max(1, self._settings.lag // 4) or 2 * kept > self._settings.lag_bytes

    async def written(self, position: StepPosition) -> None:
        """Tell the server that all rows up to a position are in files, so that it can remove these steps' messages."""
        if position.handled > self._held:
            await self._reader.retry(partial(self._store.hold, HOLD, position.handled))
            self._held = position.handled
            self._sizes = {step: nbytes for step, nbytes in self._sizes.items() if step > self._held}

    async def end(self) -> None:
        """Allow the server to remove messages of steps that are not in the log."""
        await self._store.drop_hold(HOLD)

    def ask(self) -> Callable[[], bool]:
        """Ask for the messages that the server has now: those of ended steps, and those from outside of steps.

        Returns: a function that returns whether the log has these messages.
        """
        self._asked += 1
        self._question.set()
        asked = self._asked
        return lambda: self._answered >= asked

    async def run(self) -> None:
        """Pass messages of steps to the log until cancelled. Raises LogError if the server has lost messages."""
        try:
            while True:
                asked = self._asked
                self._question.clear()
                progress = await self._reader.retry(self._store.progress)
                await self._pass_on_sealed(progress.sealed)
                if asked > self._answered:
                    await self._pass_on_outside(progress)
                    self._answered = asked
                    self._passed()
                await self._wait(progress.news)
        finally:
            if self._news is not None:
                await task_health.end(self._news)

    async def _wait(self, news: str) -> None:
        """Wait until something new has happened in a step, or until `ask` is called.

        Args: `news` is the id of the last event that was seen, in the server's stream of events of steps. If `ask` ends
        the wait, the next call of this method waits for the answer to the same request.
        """
        if self._news is None:
            waiting = self._reader.retry(partial(self._store.wait, news, STEP_NEWS_TIMEOUT_S))
            self._news = asyncio.create_task(waiting, name="ray_messaging log news of steps")
        question = asyncio.create_task(self._question.wait(), name="ray_messaging log question")
        try:
            await asyncio.wait([self._news, question], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await task_health.end(question)
        if self._news.done():
            done, self._news = self._news, None
            done.result()

    async def _pass_on_sealed(self, sealed: int) -> None:
        """Pass to the log the messages of the steps up to `sealed`, the last step that has ended for all groups."""
        listed = self.position.handled
        for step in range(listed + 1, sealed + 1):
            if step > listed:
                listed = min(sealed, step + _STEPS - 1)
                boxes = _by_step(await self._boxes(step, listed + self._settings.horizon))
            own = boxes.get(step, {})
            reads = [self._parts(box, step, covers) for box, covers in own.items()]
            found, counts = await asyncio.gather(asyncio.gather(*reads), self._counts(step))
            parts = [part for some in found for part, by_rules in some if not by_rules]
            changed = [part for some in found for part, by_rules in some if by_rules]
            rows, sent = await asyncio.to_thread(_rows_and_fates, self._reader.exp_id, parts, changed)
            outside = {box: taken for box, taken in self.position.outside.items() if _step_of(box) > step}
            missing = "" if counts is None or counts == sent else _missing(step, counts, sent)
            await self._take(rows, partial(self._move, StepPosition(step, outside)), missing)
            self._after = {box: entry for box, entry in self._after.items() if _step_of(box) > step + 1}

    async def _pass_on_outside(self, progress: Progress) -> None:
        """Pass to the log the new messages from outside of steps, although no group has read them yet."""
        parts: list[LoggedPart] = []
        handled, outside = self.position.handled, dict(self.position.outside)
        last = max(progress.latest, progress.sealed) + _AHEAD
        for box, every in (await self._boxes(handled + 1, last)).items():
            covers = [cover for cover in every if cover.group == OUTSIDE]
            if sum(cover.rows for cover in covers) > outside.get(box, 0):
                parts += self._fresh(box, *await self._frames(box, covers, _START))
                outside[box] = sum(cover.rows for cover in covers)
        if parts:
            rows = await asyncio.to_thread(_in_order, self._reader.exp_id, parts)
            await self._take(rows, partial(self._move, StepPosition(handled, outside)), "")

    async def _parts(self, box: str, step: int, covers: list[Cover]) -> list[tuple[LoggedPart, bool]]:
        """Return those rows of a box (what one mailbox reads in one step) that the log has under `step`.

        If the box is read in `step` itself, these are the messages from outside of steps. If it is read in a later
        step, these are the messages that groups sent in `step`.

        Each part comes with a bool: True if it has messages that rules for whole steps have blocked or changed.

        Args: `covers` says which attempts at steps have valid frames in the box.
        """
        if _step_of(box) == step:
            return [(part, False) for part in self._fresh(box, *await self._frames(box, covers, _START))]
        frames, hearers_of = await self._frames(box, covers, self._after.get(box, _START), step)
        self._sizes[step] = self._sizes.get(step, 0) + sum(len(frame.frame) for frame in frames)
        notes = box.startswith(NOTES)
        amendments = {} if notes else await asyncio.to_thread(_amendments, frames, step)
        return [
            (part, notes and frame.tag.group == SUPERVISOR)
            for at, frame in enumerate(frames)
            if (part := self._part(box, frame, hearers_of, amendments.get(at, ()))) is not None
        ]

    async def _frames(
        self, box: str, covers: list[Cover], after: str, step: int | None = None
    ) -> tuple[list[BoxFrame], FrameHearers]:
        """Return the valid frames of a box (what one mailbox reads in a step), and whom their broadcasts reach.

        Args: `covers` says which attempts at steps have valid frames. Reading begins after the entry `after`. `step` is
        the step in which the frames were sent (None: they come from outside of steps).
        """
        named = {(cover.group, cover.sent, cover.attempt) for cover in covers}
        frames: list[BoxFrame] = []
        found, early, start = None, True, after
        while found is None:
            try:
                page = await self._reader.retry(partial(self._store.read_box, box, after, _FRAMES))
            except BodyLost as error:
                raise self._lost(box) from error
            for frame in page:
                early = early and step is not None and frame.tag.sent <= step
                if early:
                    self._after[box] = frame.entry
            frames += [frame for frame in page if frame.tag in named]
            found = counted(frames, covers)
            if len(page) < _FRAMES:
                break
            after = page[-1].entry
        # If the server restarted with a clock that is behind, new entries may have lower ids than older ones. So the
        # box is read again from its start.
        if found is None and start != _START:
            return await self._frames(box, covers, _START, step)
        if found is None:
            raise self._lost(box)
        return found, await self._reader.hearers.of_frames(frame.frame for frame in found)

    def _lost(self, box: str) -> LogError:
        where = self._reader.folder.where
        return LogError(
            f"{box_in_words(box)} of experiment {self._reader.exp_id!r} are lost, because the server was flushed, or "
            f"restored from older data, so the log in {where!r} ends before that step: shut the experiment down, and "
            "start it anew by on_existing='reset', or in a new folder",
            path=where,
            lost=True,
        )

    def _fresh(self, box: str, frames: Sequence[BoxFrame], hearers_of: FrameHearers) -> list[LoggedPart]:
        """Return the rows of frames that were sent outside of steps, if the log does not have them yet."""
        left, parts = self.position.outside.get(box, 0), []
        for frame in frames:
            if left >= frame.rows:
                left -= frame.rows
            elif (part := self._part(box, frame, hearers_of)) is not None:
                parts.append(part)
        return parts

    def _part(
        self, box: str, frame: BoxFrame, hearers_of: FrameHearers, amendments: Sequence[Batch] = ()
    ) -> LoggedPart | None:
        """Return the rows of a frame for the log, or None if there are none.

        Rules for whole steps block or change messages by amendments: frames that change how messages of other frames
        are delivered. The blocked and changed messages are in the box NOTES. So amendments have no rows here, and
        broadcasts are left out for the hearers for whom an amendment blocks or changes them.

        Args: `amendments` has the amendments to the broadcasts of this frame.
        """
        mailbox, _, at = box.rpartition("@")
        try:
            batch = batch_of(frame, int(at))
            if mailbox != NOTES and amends(frame, batch):
                return None  # the box NOTES has the rows of an amendment
            if batch.lines is None or batch.ordinal is None:
                raise FrameError("the frame has no payloads, or does not number its messages (ordinals)")  # noqa: TRY301 - reported below
            if batch.fold is not None and amendments:
                found = hearers_of.unamended(batch, amendments)
                if found is None:
                    return None
                batch = found
            # Each box has its own numbers of entries, so several boxes may have the same entry id.
            entry = f"{frame.entry}@{at}"
            if mailbox == NOTES:
                return noted(batch, entry, decode_log_note(frame.note or b"", len(batch)), [0] * batch.rows)
            return delivered(batch, entry, mailbox.removeprefix(ASKER), hearers_of(batch))
        except FrameError as error:
            self.unreadable += 1
            logger.warning("entry %s of %s is not logged: %s", frame.entry, box, error)
            return None

    async def _boxes(self, first: int, last: int) -> Mapping[str, Sequence[Cover]]:
        return await self._reader.retry(partial(self._store.covered_boxes, first, last))

    async def _counts(self, step: int) -> Counter[str] | None:
        """Return how many messages the groups counted in a step, by fate.

        The result is None if a group did not count its messages, or if the server no longer has the counts.
        """
        closed = await self._reader.retry(partial(self._store.closed_step, step))
        if not closed or not all(each.counts for each in closed.values()):
            return None
        counts: Counter[str] = Counter()
        for each in closed.values():
            counts.update(StepCounts.decode(each.counts).fates)
        return counts


def _amendments(frames: Sequence[BoxFrame], step: int) -> dict[int, list[Batch]]:
    """Return how rules for whole steps have changed broadcasts: {index of the broadcasts' frame: changes}."""
    made = [(frame, batch_of(frame, step)) for frame in frames if frame.tag.group == SUPERVISOR]
    changes = [batch for frame, batch in made if amends(frame, batch)]
    folded: dict[int, Batch] = {}
    for at, frame in enumerate(frames) if changes else ():
        if is_folded(frame.frame):
            with suppress(FrameError):  # the error is reported when the frame is logged
                batch = batch_of(frame, step)
                if batch.ordinal is not None:
                    folded[at] = batch
    return dict(zip(folded, amendments_of([*folded.values()], changes), strict=True))


def _superseded(parts: Sequence[LoggedPart], changed: Sequence[LoggedPart]) -> list[LoggedPart]:
    """Return the rows of a step, without those that rules for whole steps changed, and then the `changed` rows."""
    keys = message_keys([part.batch for part in (*changed, *parts)])
    found = np.split(keys, np.cumsum([len(part.batch) for part in (*changed, *parts)])[:-1])
    news, olds = found[: len(changed)], found[len(changed) :]
    gone = joined_arrays(news)
    cut = [without(part, np.isin(old, gone)) for part, old in zip(parts, olds, strict=True)]
    earlier = Earlier(zip(parts, olds, strict=True))
    return [
        *(part for part in cut if part is not None),
        *(earlier.kept_in(part, new) for part, new in zip(changed, news, strict=True)),
    ]


class Earlier:
    """The changes that rules for single messages made to payloads: for each message, its original payload and the rule.

    Args: `parts` are all messages of a step, in parts. Each part comes with an array that has a key for each row.
    """

    def __init__(self, parts: Iterable[tuple[LoggedPart, NDArray[np.int64]]]) -> None:
        self._lines: dict[int, bytes] = {}
        self._rules: dict[int, tuple[str, str]] = {}
        for part, keys in parts:
            if part.note is not None and part.note.before:
                for said in part.note.before:
                    self._lines |= dict.fromkeys(keys[np.frombuffer(said.rows, "<u4")].tolist(), said.line)
                for why in part.note.why:
                    self._rules |= dict.fromkeys(keys[np.frombuffer(why.rows, "<u4")].tolist(), (why.rule, why.reason))

    def kept_in(self, part: LoggedPart, keys: NDArray[np.int64]) -> LoggedPart:
        """Return `part` with a log note that has the payloads as the agents sent them.

        `part` has messages that rules for whole steps have changed. If a rule for single messages changed a message
        before, the note gets the message's original payload. If the note names no rule for the message, the note also
        gets the rule for single messages.

        Args: `keys` has, for each row, the key under which this object keeps the earlier change of the message.
        """
        known = [(row, key) for row, key in enumerate(keys.tolist()) if key in self._lines] if self._lines else []
        if not known or part.note is None:
            return part
        note = part.note
        lines = {row: said.line for said in note.before for row in np.frombuffer(said.rows, "<u4").tolist()}
        rules = {row: (why.rule, why.reason) for why in note.why for row in np.frombuffer(why.rows, "<u4").tolist()}
        lines |= {row: self._lines[key] for row, key in known}
        rules = {row: self._rules[key] for row, key in known} | rules
        made = LogNote(note.fate, note.mailbox, why_of(map(rules.get, range(len(keys)))), before_of(lines))
        return part._replace(note=made)


def _rows_and_fates(
    exp_id: str, parts: Sequence[LoggedPart], changed: Sequence[LoggedPart]
) -> tuple[pa.RecordBatch | None, Counter[str]]:
    """Return the rows of a step, and the number of messages by fate.

    The rows in `changed` replace the other rows of the same messages.
    """
    left = _superseded(parts, changed) if changed else parts
    return _in_order(exp_id, left), _sent(left)


def _in_order(exp_id: str, parts: Sequence[LoggedPart]) -> pa.RecordBatch | None:
    """Build the rows of a step in the order that is the same in all runs; return None if there are no rows."""
    cut = [piece for part in parts for piece, _ in pieces(part, 0, PIECE_BYTES)]
    if not cut:
        return None
    batches = [part.batch for part in cut]
    sent = joined_arrays([np.broadcast_to(np.asarray(batch.step, np.int64), len(batch)) for batch in batches])
    to_ids, from_ids = [batch.to_ids for batch in batches], [batch.from_ids for batch in batches]
    order = pa.array(canonical_order(to_ids, sent, from_ids, _ordinals_of(cut)))
    table = joined_rows(record_batch(exp_id, chunk) for chunk, _ in chunks_of((part, None) for part in cut))
    columns, schema = table.columns, table.schema
    del table
    # Columns are sorted one by one, so that the memory of each is freed before the next one is sorted.
    for at in range(len(columns)):
        columns[at] = _sorted(columns[at], order)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sorted(column: pa.ChunkedArray, order: pa.Array) -> pa.Array:
    # `take` needs the column in one piece. A long dictionary is replaced by plain texts, but not in a large column,
    # because Arrow cannot join more than 2 GiB of texts.
    whole = (stored_column(column) if column.nbytes < _TEXT_BYTES else column.unify_dictionaries()).combine_chunks()
    one = pa.types.is_dictionary(whole.type) and len(whole.dictionary) == 1
    if whole.null_count == len(whole) or (one and not whole.null_count):
        return whole
    found = whole.take(order)
    return each_its_own(found) if whole.type != column.type else found


def _ordinals_of(parts: Sequence[LoggedPart]) -> NDArray[np.int64]:
    found = joined_arrays([part.batch.ordinal for part in parts if part.batch.ordinal is not None])
    return np.asarray(found, np.int64)


def _sent(parts: Sequence[LoggedPart]) -> Counter[str]:
    """Count the messages that groups sent, by fate.

    A message in several mailboxes counts once. A broadcast counts once for each hearer.
    """
    said = [part for part in parts if _is_said(part)]
    inside = (part for part in said if part.batch.ordinal is None or (part.batch.ordinal < FIRST_OUTSIDE).any())
    return sum(map(_pairs_sent, inside), Counter[str]()) + _messages_sent(
        [each for each in parts if not _is_said(each)]
    )


def _is_said(part: LoggedPart) -> bool:
    """Return whether the rows are broadcasts, or messages to single hearers of a broadcast."""
    return part.batch.extension is not None and part.batch.extension.audience is not None


def _pairs_sent(part: LoggedPart) -> Counter[str]:
    if isinstance(part.fates, int):
        # if the hearers are not known, rows without a recipient count as 0 messages
        to_ids, hearers = part.batch.to_ids, part.hearers
        named = len(to_ids) if to_ids.kinds is None else int((to_ids.kinds != NONE).sum())
        return Counter({FATES[part.fates]: named if hearers is None else int(hearers.pairs.sum())})
    return Counter(FATES[fate] for fate in part.fates.tolist())


def _messages_sent(parts: Sequence[LoggedPart]) -> Counter[str]:
    if not parts:
        return Counter()
    ordinals, ranks = _ordinals_of(parts), id_ranks([part.batch.from_ids for part in parts])
    fates = joined_arrays([np.broadcast_to(np.asarray(part.fates, np.int64), len(part.batch)) for part in parts])
    ours = ordinals < FIRST_OUTSIDE
    order = np.lexsort((ordinals[ours], ranks[ours]))
    ordinals, ranks, fates = ordinals[ours][order], ranks[ours][order], fates[ours][order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ordinals[1:] != ordinals[:-1]) | (ranks[1:] != ranks[:-1])
    counts = np.bincount(fates[first], minlength=len(FATES)).tolist()
    return Counter({fate: count for fate, count in zip(FATES, counts, strict=False) if count})


def _missing(step: int, counts: Counter[str], found: Counter[str]) -> str:
    return f"of step {step}, the groups counted {_text(counts)}, but the log has {_text(found)}"


def _text(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {fate}" for fate, count in sorted(counts.items())) or "nothing"


def _by_step(boxes: Mapping[str, Sequence[Cover]]) -> dict[int, dict[str, list[Cover]]]:
    """Group covers by the step in which their messages were sent; return {step: {box: covers}}.

    A cover is a record that says which frames of a box (what one mailbox reads in one step) are valid. `boxes` has the
    covers of each box. Covers of messages from outside of steps are grouped by the step in which these messages are
    read. The boxes PUBLICATIONS and PLACES are left out.
    """
    found: dict[int, dict[str, list[Cover]]] = {}
    for box, covers in boxes.items():
        for cover in () if box.startswith((PUBLICATIONS, PLACES)) else covers:
            step = _step_of(box) if cover.group == OUTSIDE else cover.sent
            found.setdefault(step, {}).setdefault(box, []).append(cover)
    return found


def _step_of(box: str) -> int:
    return int(box.rpartition("@")[2])
