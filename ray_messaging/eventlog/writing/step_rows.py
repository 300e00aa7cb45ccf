"""Rows of an experiment's sealed steps, read from the boxes on its server, and their feed into the event log."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ray_messaging.common import task_health
from ray_messaging.errors import BodyLost, FrameError
from ray_messaging.eventlog.folder import Folder, StepPosition
from ray_messaging.eventlog.writing.columns import Part
from ray_messaging.eventlog.writing.entries import delivered, noted, without
from ray_messaging.eventlog.writing.hearers import BroadcastHearers
from ray_messaging.eventlog.writing.placed_rows import PlacedRows, in_order, ordinals_of
from ray_messaging.eventlog.writing.segment_store import box_lost
from ray_messaging.limits_and_timeouts import STEP_NEWS_TIMEOUT_S
from ray_messaging.model.joining import joined_arrays
from ray_messaging.receipt import FATES
from ray_messaging.steps.box_frames import FIRST_OUTSIDE, amends, batch_of, message_keys
from ray_messaging.steps.canonical_order import id_ranks
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
    Progress,
    StepSettings,
    counted,
)
from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

HOLD = "event log"
STEPS = ":steps"  # the feed's name among the streams that a task waits for
_START = "0-0"
_FRAMES = 16  # in one read of a box
_STEPS = 8  # whose boxes are listed in one call
_AHEAD = 3  # a group that joins may accept messages from outside for the step after the next


class StepRows(NamedTuple):
    """The rows of one step in canonical order, and the log's position after them.

    `missing` says which messages the groups counted that the log does not have; it is "" if there are none.
    """

    rows: Sequence[PlacedRows]
    position: StepPosition
    missing: str = ""


class StepBoxes:
    """The boxes of an experiment with steps, as the event log reads them.

    A step's messages are read once the step is sealed: all covered frames that were sent in it, whenever they are
    delivered. The log has a hold on the server, which keeps the boxes until their rows are in a file.

    Args: `retry` repeats a call while the server is away.
    """

    def __init__(
        self,
        store: RedisSteps,
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
        self._sizes: dict[int, int] = {}  # step -> bytes of its frames, for the steps after the hold
        self._after: dict[str, str] = {}  # box -> the last entry up to which all its steps are in the log

    async def begin(self, position: StepPosition | None) -> StepPosition:
        """Register the log's hold on the boxes, and return the position from which to go on.

        Args: position is that of the newest segment in the folder; None: there is none.
        """
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
        """Return whether the log's hold is so far behind that the groups may soon have to wait for the log."""
        steps, kept = position.handled - self._held, sum(self._sizes.values())
        return steps >= max(1, self._settings.lag // 4) or 2 * kept > self._settings.lag_bytes

    async def written(self, position: StepPosition) -> None:
        """Move the hold up to a position: the rows before it are in files, so their boxes may go."""
        if position.handled > self._held:
            await self._retry(partial(self._store.hold, HOLD, position.handled))
            self._held = position.handled
            self._sizes = {step: nbytes for step, nbytes in self._sizes.items() if step > self._held}

    async def end(self) -> None:
        """Remove the hold from the server."""
        await self._store.drop_hold(HOLD)

    async def progress(self) -> Progress:
        """Return how far the groups' steps are."""
        found: Progress = await self._retry(self._store.progress)
        return found

    async def wait(self, news: str, block_s: float) -> None:
        """Wait until there is news of steps after `news`, or up to block_s seconds."""
        await self._retry(partial(self._store.wait, news, block_s))

    # -- steps ----------------------------------------------------------------------------------------------------

    async def sealed(self, position: StepPosition, progress: Progress) -> AsyncIterator[StepRows]:
        """Yield the rows of each sealed step after a position. Raises LogError if the server has lost some of them."""
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
        """Return the messages from outside that no group has read yet; None if there are no new ones."""
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
        """Return the rows of a box that are logged with a step.

        The second of each pair says if they are the supervisor's notes.
        """
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
        """Return the frames that covers name. Frames of attempts that do not count are dropped page by page.

        Args: after is the entry to begin after; step is the step whose frames are wanted, None: those from outside.
        """
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
        """Return the rows of frames from outside that are not in the log yet.

        Args: taken maps each box to the number of its rows that are in the log.
        """
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
                return None  # its rows are in a note
            if batch.lines is None or batch.ordinal is None:
                raise FrameError("this is no valid frame of a step")  # noqa: TRY301 - one way out
            # Each box numbers its entries on its own, so the same entry id may be in several boxes.
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
        """Return the number of messages by fate that the groups counted in a step; None if some group did not count."""
        closed = await self._retry(partial(self._store.closed_step, step))
        if not all(each.counts for each in closed.values()):
            return None
        counts: Counter[str] = Counter()
        for each in closed.values():
            counts.update(StepCounts.decode(each.counts).fates)
        return counts


def _superseded(parts: Sequence[Part], changed: Sequence[Part]) -> list[Part]:
    """Return the parts without the messages that are also among the changed parts, followed by the changed parts."""
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
    """Return the rows of a step, and the number of its messages by fate.

    Args: `changed` are the rows of messages that rules on whole steps changed. They replace those in `parts`.
    """
    left = _superseded(parts, changed) if changed else parts
    return in_order(exp_id, left), _sent(left)


def _sent(parts: Sequence[Part]) -> Counter[str]:
    """Count the messages of groups by fate.

    A message in several mailboxes counts once, a broadcast once for each of its pairs. Messages from outside do not
    count.
    """
    counts = sum((_pairs_sent(part) for part in parts if _is_said(part) and not _is_outside(part)), Counter[str]())
    return counts + _messages_sent([part for part in parts if not _is_said(part)])


def _is_said(part: Part) -> bool:
    """Return whether the rows of a part are broadcasts, or messages to single hearers of a broadcast."""
    return part.batch.extension is not None and part.batch.extension.audience is not None


def _is_outside(part: Part) -> bool:
    return part.batch.ordinal is not None and bool((part.batch.ordinal >= FIRST_OUTSIDE).all())


def _pairs_sent(part: Part) -> Counter[str]:
    if isinstance(part.fates, int):
        pairs = part.batch.messages if part.hearers is None else int(part.hearers.pairs.sum())
        return Counter({FATES[part.fates]: pairs})
    return Counter(FATES[fate] for fate in part.fates.tolist())


def _messages_sent(parts: Sequence[Part]) -> Counter[str]:
    if not parts:
        return Counter()
    ordinals, ranks = ordinals_of(parts), id_ranks([part.batch.from_ids for part in parts])
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
    """Return the covers of boxes by the step with which they are logged: the step in which groups sent the messages.

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


class StepFeed:
    """Feed of the rows of steps into a log. It passes on the rows of each step once the step is sealed.

    Args: `take` adds rows to the log, with the position after them. `passed` is called after each round.
    """

    def __init__(
        self,
        boxes: StepBoxes,
        position: StepPosition,
        take: Callable[[StepRows], Awaitable[None]],
        passed: Callable[[], None],
    ) -> None:
        self.boxes = boxes
        self.position = position
        self._take = take
        self._passed = passed
        self._asked = self._answered = 0
        self._question = asyncio.Event()
        self._news: asyncio.Task[None] | None = None

    def ask(self) -> str:
        """Ask for all messages that are sealed or came from outside by now.

        Return the name of the round to pass to `reached`.
        """
        self._asked += 1
        self._question.set()
        return f"{self._asked}-0"

    def reached(self, entry: str) -> bool:
        """Return whether the log has all that was asked for in a round of `ask`."""
        return self._answered >= int(entry.partition("-")[0])

    async def run(self) -> None:
        """Pass steps on until cancelled. Raises LogError if the server has lost some of them."""
        try:
            while True:
                asked = self._asked
                self._question.clear()
                progress = await self.boxes.progress()
                async for rows in self.boxes.sealed(self.position, progress):
                    await self._pass_on(rows)
                if asked > self._answered:
                    outside = await self.boxes.from_outside(self.position, progress)
                    if outside is not None:
                        await self._pass_on(outside)
                    self._answered = asked
                    self._passed()
                await self._wait(progress.news)
        finally:
            if self._news is not None:
                await task_health.end(self._news)

    async def _pass_on(self, rows: StepRows) -> None:
        self.position = rows.position
        await self._take(rows)

    async def _wait(self, news: str) -> None:
        """Wait for news of steps, or for a call of `ask`.

        In the second case the wait for news goes on during the next call.
        """
        if self._news is None:
            self._news = asyncio.create_task(
                self.boxes.wait(news, STEP_NEWS_TIMEOUT_S), name="ray_messaging log news of steps"
            )
        question = asyncio.create_task(self._question.wait(), name="ray_messaging log question")
        try:
            await asyncio.wait([self._news, question], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await task_health.end(question)
        if self._news.done():
            done, self._news = self._news, None
            done.result()
