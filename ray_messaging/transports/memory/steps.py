"""Steps of an experiment on a MemoryServer."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping

from ray_messaging.transports.epochs import new_epoch
from ray_messaging.transports.memory.box_call import BoxCall
from ray_messaging.transports.memory.server import Experiment, number
from ray_messaging.transports.memory.step_data import Box, Member, StepData
from ray_messaging.transports.steps.errors import (
    leaving,
    no_steps,
    not_closable,
    overtaken,
    too_far,
    too_late,
    without_steps,
)
from ray_messaging.transports.steps.values import (
    SUPERVISOR,
    BoxFrame,
    BoxSize,
    BoxStart,
    ClosedStep,
    Closing,
    Committed,
    Cover,
    Done,
    Driven,
    Driver,
    GroupProgress,
    News,
    Opened,
    Progress,
    Reason,
    Refused,
    StepSettings,
    StepTag,
    Taken,
    WaitFor,
    Waiting,
    box_name,
)
from ray_messaging.transports.transport import FrameFate, Published, SendReply, SendRequest, SendStatus


class MemorySteps:
    """Steps of one experiment on a MemoryServer. Nothing within a call awaits but `wait`."""

    def __init__(self, exp: Experiment, exp_id: str, publish: Callable[[Published], int]) -> None:
        self._exp = exp
        self._exp_id = exp_id
        self._publish = publish

    @property
    def _data(self) -> StepData:
        if self._exp.steps.settings is None:
            raise without_steps(self._exp_id)
        return self._exp.steps

    def _seal(self) -> None:
        sealed = self._data.seal()
        for channel, data in sealed.publications:
            self._publish(Published(channel, data))
        for name, frame in sealed.answers:
            box = self._exp.mailboxes.get(name)
            if box is not None and box.fate(0, 0, 0) is not FrameFate.GONE:
                self._exp.entry += 1
                box.append(self._exp.entry, frame.rows, frame.frame)
                self._exp.wake()

    async def settings(self) -> StepSettings | None:
        """Return the settings of the experiment's steps; None: it has no steps."""
        return self._exp.steps.settings

    async def begin(self, settings: StepSettings) -> StepSettings:
        """Set the experiment's steps up, unless they are; return the settings that hold."""
        data = self._exp.steps
        if data.settings is None:
            data.settings, data.wait_for = settings, settings.wait_for
        return data.settings

    # -- groups ---------------------------------------------------------------------------------------------------

    async def join(self, group: str, *, again: bool = False) -> int:
        """Make a group a member, and its mailbox stepped; return the first step in which it counts."""
        data, before = self._data, self._data.members.get(group)
        if before is not None and (before.until is None or (before.ending and not again)):
            return before.since
        if before is not None and before.counts:
            raise leaving(group)
        supervises, begun = group == SUPERVISOR, data.latest >= 0
        since = max(data.latest + 2 * (begun and not supervises), data.sealed + 1)
        member = Member(since, since - 1)
        if before is not None:
            member.attempt, member.driver, member.lease_s = before.attempt, before.driver, before.lease_s
            member.beat, member.state = before.beat, before.state
        data.members[group] = member
        data.joined += group != SUPERVISOR
        self._seal()  # where all others count from a later step, too
        data.release()  # where it was the last one that step 0 waited for
        data.tell()
        return since

    async def declare(self, hears: Mapping[str, Collection[str] | None], at_step: int | None = None) -> None:
        """Declare which groups may send to a group; raise ConfigError where it is too late for that."""
        data, at = self._data, max(at_step or 0, 0)
        wanted = {group: None if senders is None else frozenset(senders) for group, senders in hears.items()}
        changed = {
            group: senders
            for group, senders in wanted.items()
            if data.declared(group, max(at, data.latest + 1)) != senders
        }
        if changed and data.latest >= 0 and at < data.latest + 2:
            raise too_late(at_step, data.latest)
        for group, senders in changed.items():
            data.declare(group, senders, at)
        if changed:
            data.tell()

    async def set_wait_for(self, mode: WaitFor) -> None:
        """Set which groups a group waits for, whatever the settings say."""
        if self._data.wait_for != mode:
            self._data.wait_for = mode
            self._data.tell()

    async def leave(self, group: str, *, at_once: bool = False) -> int:
        """End a membership; return the first step in which the group does not count."""
        data = self._data
        member = self._member(group)
        until = max(data.latest + 2, member.since) if member.until is None else member.until
        if at_once and member.closed + 1 < until:
            until = member.closed + 1
            data.abandon(member)
            member.results.clear()
        member.ending = False
        member.until, member.changed = until, time.monotonic()
        self._seal()
        data.tell()
        return until

    def _member(self, group: str) -> Member:
        member = self._data.members.get(group)
        if member is None:
            raise no_steps(group)
        return member

    async def take(
        self, group: str, driver: Driver, lease_s: float, over: str = "", until: int | None = None
    ) -> Taken | Driven:
        """Take a group to drive it; raise Fenced, UnknownName."""
        member = self._member(group)
        holder = member.driver
        if holder is not None and holder.task == driver.task:
            if driver.start < holder.start:
                raise overtaken(group, member.attempt)
        elif holder is not None and member.lease != over:
            return Driven(holder, member.lease, member.lease_s)
        if holder != driver:
            member.attempt = new_epoch(member.attempt)
            self._data.abandon(member)
            member.driver, member.lease_s, member.changed = driver, lease_s, time.monotonic()
        member.beat += 1
        if member.counts and (member.until is None or member.ending):
            if until is None:
                member.until, member.ending = None, False
            elif until > member.closed + 1:
                member.until, member.ending = until, True
        return Taken(member.attempt, member.closed, member.state, member.until)

    async def renew(self, group: str, attempt: int) -> None:
        """Change the lease of the driver; raise Fenced."""
        self._data.owned(group, attempt).beat += 1

    async def let_go(self, group: str, attempt: int) -> None:
        """Give a group up, so that the next driver need not wait; an open step stays uncovered."""
        member = self._data.members.get(group)
        if member is not None and member.attempt == attempt:
            self._data.abandon(member)
            member.attempt = new_epoch(attempt)
            member.driver, member.changed = None, time.monotonic()

    async def state(self, group: str) -> bytes | None:
        """Return the state that the group's last committed step left; raise UnknownName."""
        return self._member(group).state

    # -- a step ---------------------------------------------------------------------------------------------------

    async def open(self, group: str, attempt: int, step: int) -> Opened | Waiting | Done:
        """Open a step; raise Fenced."""
        return self._open(group, attempt, step)

    def _open(self, group: str, attempt: int, step: int) -> Opened | Waiting | Done:
        data = self._data
        member = data.owned(group, attempt)
        if step <= member.closed or (member.until is not None and step >= member.until):
            return Done(member.closed)
        if step > member.closed + 1:
            raise too_far(group, step, member.closed)
        member.beat += 1
        if (against := self._ask(group, member, step)) is not None:
            return against
        box = data.boxes.get(box_name(group, step), Box(step))
        return Opened(step, tuple(box.covers.values()), self._exp.directory)

    def _ask(self, group: str, member: Member, step: int) -> Waiting | None:
        """Open a step to a group, if nothing speaks against it."""
        data = self._data
        if group == SUPERVISOR:
            if member.asked != step:
                if (against := data.unfinished(step)) is not None:
                    return against
                member.asked, member.ahead, member.changed = step, step, time.monotonic()
        elif data.open_of(member) != step:
            member.asked, data.asked = step, max(data.asked, step)
            against = data.obstacle(group, step) if step > data.opened else None
            if against is not None:
                return against
            member.changed = time.monotonic()
            if step > data.sealed + 1:
                member.ahead, data.latest = step, max(data.latest, step)
            data.release()
        return None

    async def send(self, request: SendRequest, tag: StepTag) -> SendReply:
        """Write frames to boxes, atomically: nothing here awaits."""
        data, member = self._data, self._data.members.get(tag.group)
        if member is None or member.attempt != tag.attempt or data.open_of(member) != tag.sent:
            return SendReply(SendStatus.STEP_OVER)
        return BoxCall(data, member, request, tag, self._exp.verdict_status(request.interceptor_epoch)).run()

    async def commit(
        self, request: SendRequest, tag: StepTag, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused | None:
        """Write all frames of a step, and close it; None: nothing was written. Nothing here awaits anything else."""
        data, member = self._data, self._data.members.get(tag.group)
        record = data.records.get(tag.sent, {}).get(tag.group)
        if member is None or member.attempt != tag.attempt:
            if record is None or record.attempt != tag.attempt:
                return None
        elif member.closed < tag.sent:
            call = BoxCall(data, member, request, tag, self._exp.verdict_status(request.interceptor_epoch))
            if data.open_of(member) != tag.sent or not call.run_whole():
                return None
        else:
            go_on = False  # an earlier call has closed it: as commit_step.lua, which only reads then
        return await self.close(tag.group, tag.attempt, tag.sent, closing, go_on=go_on)

    async def close(
        self, group: str, attempt: int, step: int, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused:
        """Close a step; raise Fenced."""
        data = self._data
        record = data.records.get(step, {}).get(group)
        if record is not None and record.attempt == attempt and data.members[group].fence(group, attempt):
            return Committed(step, data.sealed)  # it counts, whoever has the group now
        member = data.owned(group, attempt)
        if member.closed < step:
            if data.open_of(member) != step:
                raise not_closable(group, step, member.closed, member.until)
            if (refused := self._refused(group, member, step, closing)) is not None:
                return refused
            asks = go_on and group != SUPERVISOR and (member.until is None or step + 1 < member.until)
            self._close(group, member, step, closing, asks=asks)
            # Most groups wait for others after a close, and need not know for which.
            if asks and data.wait_for == WaitFor.ALL and data.sealed < step:
                return Committed(step, data.sealed, data.waiting(step + 1, Reason.GROUPS, []))
        return Committed(step, data.sealed, self._open(group, attempt, step + 1) if go_on else None)

    def _refused(self, group: str, member: Member, step: int, closing: Closing) -> Refused | None:
        boxes = {name: rows for name, (rows, _) in member.sent.items() if not name.startswith(":")}
        read = [(name, self._data.heard(name, int(at))) for name, _, at in (box.rpartition("@") for box in boxes)]
        deaf = dict.fromkeys(name for name, heard in read if heard is not None and group not in {name, *heard})
        rows = sum(boxes.values())
        return Refused(step, rows, tuple(deaf)) if deaf or rows != closing.rows else None

    def _close(self, group: str, member: Member, step: int, closing: Closing, *, asks: bool) -> None:
        data = self._data
        for name, (rows, _) in member.sent.items():
            data.boxes[name].covers[group, step] = Cover(group, step, member.attempt, rows)
        data.records[step][group] = ClosedStep(member.attempt, closing.counts)
        member.keep_left_state(step, data.sealed)
        if closing.state_changed:
            member.state = closing.state
        member.closed, member.changed = step, time.monotonic()
        member.asked = step + 1 if asks else None
        data.asked = max(data.asked, step + 1 if asks else -1)
        member.sent.clear()
        member.numbers.clear()
        member.results.clear()
        member.beat += 1
        self._seal()

    async def remember(self, group: str, attempt: int, step: int, results: Mapping[str, bytes]) -> bool:
        """Keep results of calls until the step is closed; return whether the attempt has the step open."""
        member = self._data.members.get(group)
        if member is None or member.attempt != attempt or self._data.open_of(member) != step:
            return False
        member.results.update(results)
        return True

    async def remembered(self, group: str, step: int) -> dict[str, bytes]:
        """Return the results that all attempts at a group's open step have kept."""
        member = self._data.members.get(group)
        return dict(member.results) if member is not None and member.closed + 1 == step else {}

    async def wait(self, news: str, block_s: float, *, box: str = "", count: int = 0) -> News:
        """Return the newest of the news, once there are some after a place; at the latest after `block_s`."""
        data = self._data
        try:
            async with asyncio.timeout(block_s):
                while data.news <= number(news):
                    await data.told.wait()
        except TimeoutError:
            return News(news)
        start = BoxStart(*await self.open_box(box, count)) if box else None
        return News(f"{data.news}-0", data.opened, len(await self.boxes(data.opened)), self._exp.directory, start)

    # -- boxes ----------------------------------------------------------------------------------------------------

    async def open_box(self, box: str, count: int) -> tuple[list[Cover], list[BoxFrame]]:
        """Return all that counts of a box so far, and its first frames."""
        return await self.covers(box), await self.read_box(box, count=count)

    async def read_box(self, box: str, after: str = "0-0", count: int = 64) -> list[BoxFrame]:
        """Return up to `count` frames of a box after an entry, those of all attempts."""
        frames = found.frames if (found := self._data.boxes.get(box)) else []
        low = bisect_right(frames, number(after), key=lambda frame: number(frame.entry))
        return frames[low : low + count]

    async def covers(self, box: str) -> list[Cover]:
        """Return all that counts of a box so far."""
        found = self._data.boxes.get(box)
        return list(found.covers.values()) if found else []

    async def boxes(self, step: int) -> list[str]:
        """Return the names of the boxes for a step."""
        return sorted(name for name, box in self._data.boxes.items() if box.step == step)

    async def covered_boxes(self, first: int, last: int) -> dict[str, list[Cover]]:
        """Return what counts so far of each box for the steps from `first` to `last`."""
        found = self._data.boxes.items()
        return {name: list(box.covers.values()) for name, box in found if first <= box.step <= last}

    async def box_size(self, box: str) -> BoxSize:
        """Return the size of a box, and its limits."""
        return BoxSize(*self._data.size_of(box), self._data.given.box_rows, self._data.given.box_bytes)

    async def closed_step(self, step: int) -> Mapping[str, ClosedStep]:
        """Return the closing of a step by each group."""
        return dict(self._data.records.get(step, {}))

    # -- control --------------------------------------------------------------------------------------------------

    async def hold(self, name: str, through: int) -> None:
        """Keep the boxes of later steps than `through` until this name handles them."""
        holds = self._data.holds
        holds[name] = max(through, holds.get(name, through))
        self._handled()

    def _handled(self) -> None:
        """Do what a hold that has moved or ended makes possible, and wake all who wait."""
        self._data.drop()
        self._data.release()
        self._data.tell()

    async def drop_hold(self, name: str) -> None:
        """End a hold."""
        self._data.holds.pop(name, None)
        self._handled()

    async def pause(self) -> int:
        """Open no step that nobody has opened yet; return the last one that may be."""
        data = self._data
        data.target = data.latest if data.target is None else min(data.latest, data.target)
        data.release()
        data.tell()
        return data.target

    async def resume(self, target: int | None = None) -> None:
        """Open steps up to a target from now on (None: all)."""
        self._data.target = target
        self._data.release()
        self._data.tell()

    async def progress(self) -> Progress:
        """Return the progress of all groups."""
        data, now = self._data, time.monotonic()
        groups = {}
        for name, member in data.members.items():
            if member.counts:
                step, changed = data.open_of(member), member.changed
                if step is not None and step == data.opened:
                    changed = max(changed, data.opened_at)  # it has waited until then
                idle_ms = int((now - changed) * 1000)
                groups[name] = GroupProgress(member.closed, step, member.driver, idle_ms, member.since, member.until)
        supervisor = groups.pop(SUPERVISOR, None)
        holds, news = dict(data.holds), f"{data.news}-0"
        return Progress(data.sealed, data.latest, data.target, groups, holds, news, data.wait_for, supervisor)
