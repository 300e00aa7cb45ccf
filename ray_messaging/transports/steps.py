"""Steps of an experiment on a Redis or Valkey server: barrier, boxes, and the drivers of groups.

The protocol:

1. A group joins. If n is the last step that some group has opened, the group takes part from step n + 2 on (from step 0
   if no step was opened yet). Messages that were sent before step n + 1 do not reach the group, nor do messages for
   steps after the group has left.
2. A driver takes the group and gets an attempt number. A later driver gets a higher number, and the earlier driver is
   fenced.
3. `open` opens the step after the group's last closed step. It waits for the barrier (until other groups have closed
   the step before), for the window (how far a group may be ahead of the slowest group), for holds (readers of sealed
   boxes, such as the event log), and during a pause.
4. The frames that are sent in step s are written to boxes: box `M@v` has the frames that mailbox M reads in step v,
   where s < v <= s + horizon. Each frame has a tag: group, s, attempt. The server refuses the frames unless the
   attempt's driver has the step open.
5. `close` writes, in one atomic call, the cover of each box to which the attempt wrote (attempt and rows), the counts,
   and the state. A frame without a cover is never read. Frames of a dead attempt never get a cover.
6. A step is sealed when all groups that take part in it have closed it. Then the groups' messages on channels without a
   mailbox are published, once. The boxes of the step are deleted when no hold needs them.
7. When a group can open step v, its box for v is final. Reading a box does not change the box, so any process may read
   it again.
8. A frame from outside (a send to a stepped mailbox by its plain name) gets the step after the latest open step.
9. In WaitFor.SENDERS a group waits only for the groups that it hears. A step that sends to a group that does not hear
   the sender cannot be closed.
10. A group that must wait gets a position in the stream of news; `wait` returns when there are news after it. When
   nothing prevents the step any more, it is opened for all groups that have asked for it, and the news say so.
11. The supervisor takes part in the steps like a group, but has no mailbox. It opens a step when all groups have closed
   the step; its close seals the step. Its frames in a mailbox's box are messages, or change the groups' messages of the
   same step.
12. Every call may be repeated, even late: its effect happens once, and a call of a fenced driver has no effect.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, Fenced
from ray_messaging.transports.connection.blocking_reads import BlockingReads
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.step_bodies import StepBodies
from ray_messaging.transports.step_news import StepNewsReader
from ray_messaging.transports.step_values import (
    SUPERVISOR,
    BoxFrame,
    BoxSize,
    BoxStart,
    ClosedStep,
    Closing,
    Collected,
    CollectedKind,
    Committed,
    Cover,
    Done,
    Driven,
    DrivenGroup,
    Driver,
    GroupProgress,
    News,
    Opened,
    Progress,
    Reason,
    Refused,
    StepSettings,
    StepTag,
    WaitFor,
    Waiting,
    no_steps,
    overtaken,
    without_steps,
)
from ray_messaging.transports.transport_values import FrameFate, SendReply, SendRequest, SendStatus

_RESULTS = 256  # how many results of remembered calls, recorded series or reports one reply has at most
_REPLY_BYTES = 16 * 2**20  # how many bytes of recorded series and remembered results one reply has at most, roughly
_TOLD = 2000  # about how many reports of agents that run ahead are kept at most (see `tell_ahead`)
_UNWRITTEN = 4  # the reply of script commit_step if it has written nothing


class RedisSteps:
    """Steps of one experiment on a Redis or Valkey server.

    Args: `bodies` reads and writes large frames on other servers (None: all frames are on this server).
    """

    in_memory = False  # whether frames carry Batch objects instead of bytes, because only this process reads them

    def __init__(self, link: RedisLink, keys: Keys, bodies: StepBodies | None) -> None:
        self._link = link
        self._keys = keys
        self._steps = keys.steps()
        self.news = StepNewsReader(link, keys.news)
        self._told = BlockingReads(link)
        # The reader of the stream `openings`, which has only the news of steps that `go_on` has opened.
        self.openings = StepNewsReader(link, keys.openings, selected=True)
        self.bodies = bodies

    def close_readers(self) -> None:
        """Close the connections of the readers. The next read opens a new one."""
        self.news.close()
        self.openings.close()
        self._told.close()

    async def begin(self, settings: StepSettings) -> StepSettings:
        """Set up the experiment's steps, unless they are set up already; return the settings that the steps have."""
        fields = settings._asdict()
        used = [(name, value) for name, value in fields.items() if name not in {"seed", "digest"}]
        args = [msgspec.json.encode(fields), *(part for pair in used for part in pair)]
        return _settings(await self._link.script("begin_steps", [self._steps], args))

    async def settings(self) -> StepSettings | None:
        """Return the settings of the experiment's steps, or None if the experiment has no steps."""
        kept = await self._link.command("HGET", self._steps, "settings")
        return None if kept is None else _settings(kept)

    # -- groups ---------------------------------------------------------------------------------------------------

    async def join(self, group: str, *, again: bool = False) -> int:
        """Let a group take part in the steps; return the first step in which it takes part.

        The mailbox of the group has the group's name. The first step is 0 if no step was opened yet. If step 7 was
        opened last, the first step is 9, so that all senders know the group before they send to it. For the name
        SUPERVISOR, a task of the interceptor that closes steps, the first step is the open step, or the next step if
        no step is open.

        Args: With `again`, a group that left the steps when its driver ended may join again.
        Raises: AlreadyExists if the group is leaving; ConfigError if the experiment has no steps.
        """
        keys = [self._steps, self._keys.step(group), self._keys.state(group)]
        since = await self._link.script("join_steps", keys, [*self._of(group), int(again)])
        if since == -1:
            raise AlreadyExists(
                f"group {group!r} is leaving the steps, and has not ended its last step: let the group join again when "
                "this step has ended",
                kind="group",
                value=group,
                owner=None,
            )
        if since == -2:
            raise without_steps(self._keys.exp_id)
        return int(since)

    async def state_before(self, group: str, step: int) -> bytes | None:
        """Return the state that a group had before it closed `step`, a step at which agents leave the group.

        Return None if the group had no state.
        """
        key = self._keys.step(group)
        # When the group closes `step`, the state before `step` is moved from `state` to `left`. So `state` is read
        # first: if the step is closed between the two reads, `left` has the state before `step`.
        now, left = await self._link.commands(("HGET", key, "state"), ("HGET", f"{key}:left", step))
        found: bytes | None = now
        if left:
            found = left[1:] if left[:1] == b"+" else None
        return found

    async def declare(self, hears: Mapping[str, Collection[str] | None], at_step: int | None = None) -> None:
        """Declare from which other groups each group may get messages that it reads in step `at_step` or later.

        `hears` maps a group to the groups that may send to it (None: all groups). In mode WaitFor.SENDERS, a group
        waits only for these groups. A declaration may name groups that join later. A declaration that changes nothing
        may be made at any time.

        Raises: ConfigError if a group may have sent messages for that step already, or the experiment has no steps.
        """
        args = [self._keys.prefix, "" if at_step is None else at_step]
        for group, senders in hears.items():
            args += [group, "*" if senders is None else ",".join(sorted(senders))]
        latest = await self._link.script("declare_senders", [self._steps, self._keys.steps("hears")], args)
        if latest == -2:
            raise without_steps(self._keys.exp_id)
        if latest != -1:
            asked = "for all steps" if at_step is None else f"with at_step={at_step}"
            raise ConfigError(
                f"senders can no longer be declared {asked}, because step {latest} is open, and groups read "
                f"its messages in step {latest + 1}: declare the senders with at_step={latest + 2} or later"
            )

    async def set_wait_for(self, mode: WaitFor) -> None:
        """Set for which groups a group waits from now on, in place of the mode in the settings."""
        if await self._link.script("set_wait_for", [self._steps], [self._keys.prefix, mode]) == -2:
            raise without_steps(self._keys.exp_id)

    async def leave(self, group: str, *, at_once: bool = False) -> int:
        """Make a group leave the steps; return the first step in which it no longer takes part.

        Args: `at_once` also gives up the group's open step. It is for a group whose process is gone for good.
        Raises: UnknownName if the group has not joined.
        """
        until = await self._script("leave_steps", group, int(at_once))
        if until == -1:
            raise no_steps(group)
        return int(until)

    async def take(
        self, group: str, driver: Driver, lease_s: float, over: str = "", until: int | None = None
    ) -> DrivenGroup | Driven:
        """Become the driver of a group, the task that takes the group through its steps.

        If the driver asks again with the same `start`, it gets the same attempt number again. With a higher `start` it
        gets a higher number. Return a `Driven` if another driver has the group.

        Args: `over` is the lease of another driver, if the lease has not changed for its whole duration and so has
        ended. `until` is the first step in which the group no longer takes part (None: the group always takes part,
        even if an earlier driver gave a step).
        Raises: Fenced if a later start of the driver has the group; UnknownName if no such group has joined.
        """
        code, *rest = await self._script(
            "take_group", group, *driver, int(lease_s * 1000), over, "" if until is None else until
        )
        if code == -1:
            raise no_steps(group)
        if code == 0:
            raise overtaken(group, rest[0])
        if code == 2:
            task, start, lease, lease_ms = rest
            return Driven(Driver(task.decode(), start), lease.decode(), lease_ms / 1000)
        attempt, closed, state, until = rest
        return DrivenGroup(attempt, closed, state, until)

    async def renew(self, group: str, attempt: int) -> None:
        """Renew the lease of the driver. Opening or closing a step renews the lease too.

        Raises: Fenced if another driver has taken over the group.
        """
        has = await self._script("renew_driver", group, attempt, 1)
        if has != 1:
            raise _not_ours(has, group, attempt)

    async def let_go(self, group: str, attempt: int) -> None:
        """Stop driving a group, so that the next driver need not wait for the end of this driver's lease.

        An open step is not committed. If another driver has the group already, do nothing.
        """
        await self._script("renew_driver", group, attempt, 0)

    async def state(self, group: str) -> bytes | None:
        """Return the group's state after its last committed step, or None if the group has no state.

        Raises: UnknownName if the group has not joined.
        """
        since, state = await self._link.command("HMGET", self._keys.step(group), "since", "state")
        if since is None:
            raise no_steps(group)
        found: bytes | None = state
        return found

    # -- a step ---------------------------------------------------------------------------------------------------

    async def open(self, group: str, attempt: int, step: int) -> Opened | Waiting | Done:
        """Open a step of a group if nothing prevents it; otherwise return a `Waiting`, which says what prevents it.

        A step must wait for other groups, for slow readers such as the event log, and during a pause. Return a `Done`
        if the group has closed the step already, or does not take part in it.

        Raises: Fenced if another driver has taken over the group, or if the step is not the group's next step.
        """
        reply = await self._link.script("open_step", [self._steps], [*self._of(group), attempt, step])
        return _opening(reply, group, attempt, step)

    async def go_on(self, step: int, until: int, groups: Sequence[str], block_s: float) -> int:
        """Open `step` for `groups`, whose drivers wait until they are told to go on. Return the last closed step.

        Before the return, wait up to `block_s` seconds until all groups have closed all steps before `until`. A step
        counts as closed when all groups have closed it. A driver may also open the step itself, before this call or
        after it. Without `groups` no step is opened.
        """
        deadline = asyncio.get_running_loop().time() + block_s
        found = await self._link.script("open_for_groups", [self._steps], [self._keys.prefix, step, *groups])
        if not found:
            raise without_steps(self._keys.exp_id)
        sealed, news = found[0], found[1].decode()
        while sealed < until - 1 and (left := deadline - asyncio.get_running_loop().time()) > 0:
            read, replies = ("HGET", self._steps, "sealed"), list[Any]()
            news = (await self.news.wait(news, left, [read], replies)).place
            sealed = int(replies[0] if replies else await self._link.command(*read))
        return int(sealed)

    async def send(self, request: SendRequest, tag: StepTag) -> SendReply:
        """Write frames to boxes, atomically, as a transport's `send` does. Each frame's mailbox is the name of a box.

        There are these differences:

        - A frame's number counts from 1 for each attempt, sender and box.
        - The sender's epoch and the directory's version are not checked.
        - Log notes and messages on plain channels are written to the boxes NOTES and PUBLICATIONS of the next step.
        - A frame for a full box is refused at once, with TOO_LARGE.
        - A frame is refused with GONE if its box is for a step that is too far ahead, or not later than the open one.
        - It is also refused with GONE if the group that reads the box does not take part in the box's step or in the
          next step.

        If the attempt does not have the step open, the status is STEP_OVER, and nothing is written.
        """
        keys, args = await self._sending(request, tag)
        cuts: list[None] = []
        reply = await self._link.script("send_to_boxes", keys, args, lambda: cuts.append(None))
        return SendReply(SendStatus(reply[0]), [FrameFate(fate) for fate in reply[1:]], repeated=bool(cuts))

    async def _sending(
        self, request: SendRequest, tag: StepTag, closing: Sequence[Any] = ()
    ) -> tuple[list[str], list[Any]]:
        """Return the keys and the arguments of a script that writes frames.

        If large frames are stored on other servers, they are written there first, and the script gets small stand-ins.

        Args: `closing` has further arguments, which a script that also closes the step takes before the frames.
        """
        writes = request.writes if self.bodies is None else await self.bodies.put(request, tag)
        keys = [self._keys.meta, self._steps, self._keys.step(tag.group), self._keys.sent(tag.group)]
        args = [*self._of(tag.group), tag.attempt, tag.sent, request.sender, request.interceptor_epoch, *closing]
        return keys, [*args, *(part for write in writes for part in write.arguments())]

    async def close(
        self, group: str, attempt: int, step: int, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused:
        """Close a step. From now on, all messages that this attempt at the step has sent are valid.

        With `go_on` the next step is opened too, if nothing prevents it. Return Refused, and change nothing, if the
        messages or the recorded series are not as the server expects them (see `Refused`).

        Raises: Fenced if another driver has taken over the group, or if the step is not open; Closed if the group was
        removed or has left the steps; MailboxFull if `closing` has series or calls and the server's memory is full.
        After an error nothing has changed.
        """
        script = "close_collecting_step" if closing.series or closing.calls else "close_step"
        args = [*self._of(group), attempt, step, *_closing(closing, go_on=go_on)]
        reply = await self._link.script(script, [self._steps, self._keys.step(group)], args)
        return _closed(reply, group, attempt, step)

    async def commit(
        self, request: SendRequest, tag: StepTag, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused | None:
        """Write all frames of a step, and close it as `close` does, in one call; the frames' numbers begin at 1.

        If some frame cannot be written, or the attempt does not have the step open, return None and change nothing. To
        learn the reason, call `send` and then `close`: one of the two returns or raises it.

        Raises: Fenced in the same cases as `close`.
        """
        keys, args = await self._sending(request, tag, _closing(closing, go_on=go_on))
        reply = await self._link.script("commit_step", keys, args)
        return None if reply[0] == _UNWRITTEN else _closed(reply, tag.group, tag.attempt, tag.sent)

    async def remember(self, group: str, attempt: int, step: int, results: Mapping[str, bytes]) -> bool:
        """Keep results of remembered calls, which agents made by `me.remember`, until the step is closed.

        Later attempts at the step find them, and need not make the calls again.

        The step may be the open one or a later one. Return False, and keep nothing, if the step is closed, or the group
        has a later attempt.
        """
        args: list[Any] = [attempt, step, len(results)]
        for name, result in results.items():
            args += [name, result]
        keys = [self._keys.step(group), self._keys.results(group)]
        return bool(await self._link.script("remember_calls", keys, args))

    async def remembered(self, group: str, step: int) -> dict[str, bytes]:
        """Return, by the calls' keys, the results of remembered calls that attempts at a group's step have kept.

        The server has the results until the step is closed.
        """
        key, prefix = self._keys.results(group), b"%d:" % step
        names = [name for name in await self._link.command("HKEYS", key) if name.startswith(prefix)]
        found: dict[str, bytes] = {}
        for low in range(0, len(names), _RESULTS):
            part = names[low : low + _RESULTS]
            values = await self._link.command("HMGET", key, *part)
            pairs = zip(part, values, strict=True)
            found |= {name.removeprefix(prefix).decode(): value for name, value in pairs if value is not None}
        return found

    async def wait(self, news: str, block_s: float, *, box: str = "", count: int = 0, unasked: bool = False) -> News:
        """Wait up to `block_s` seconds for entries after `news` in the stream of news; return the latest entry.

        Args: `news` is an entry id. `box` is the name of a box whose beginning is read in the same round trip, as
        `open_box` reads it ("": no box). With `unasked`, wait only until `go_on` opens a step for groups that have not
        asked for it.
        """
        reader = self.openings if unasked else self.news
        if not box:
            return await reader.wait(news, block_s)
        replies: list[Any] = []
        found = await reader.wait(news, block_s, self._start_of(box, count), replies)
        return found._replace(start=await self._begun(box, replies)) if replies else found

    async def tell_ahead(self, news: Sequence[bytes]) -> None:
        """Tell all groups about agents that run ahead. If the server's answer is lost, the reports may come twice.

        An agent runs ahead if it begins a step before all groups have closed the step before it.
        """
        trim = "MAXLEN", "~", _TOLD
        await self._link.commands(*(("XADD", self._keys.told, *trim, "*", "told", each) for each in news))

    async def told_ahead(self, place: str, block_s: float) -> list[tuple[str, bytes]]:
        """Return reports about agents that have begun a step before all groups have closed the step before it.

        Wait up to `block_s` seconds for reports after the position `place` of the stream. Each report comes with its
        own position.
        """
        [found] = await self._told.read({self._keys.told: place}, _RESULTS, block_s)
        return [(entry.decode(), fields[1]) for entry, fields in found[0][1]] if found else []

    # -- boxes ----------------------------------------------------------------------------------------------------

    async def read_box(self, box: str, after: str = "0-0", count: int = 64) -> list[BoxFrame]:
        """Return up to `count` frames of a box after the stream entry `after`.

        They include frames of failed attempts at the step. `counted` selects the frames of committed attempts.
        """
        entries = await self._link.command("XRANGE", self._keys.box(box), f"({after}", "+", "COUNT", count)
        return await self._whole(box, entries)

    async def open_box(self, box: str, count: int) -> BoxStart:
        """Return the first `count` frames of a box, and its covers so far.

        Covers list the committed attempts at steps: only their frames count. `close` adds the attempt that it commits.
        """
        return await self._begun(box, await self._link.commands(*self._start_of(box, count)))

    async def _begun(self, box: str, replies: Sequence[Any]) -> BoxStart:
        covers, entries = replies
        return BoxStart(_covers(covers), await self._whole(box, entries))

    async def _whole(self, box: str, entries: Sequence[Any]) -> list[BoxFrame]:
        """Return the frames in stream entries. Large frames that are stored on other servers are read from there."""
        frames = [_box_frame(entry.decode(), fields) for entry, fields in entries]
        return frames if self.bodies is None else await self.bodies.fetch(box, frames)

    def _start_of(self, box: str, count: int) -> list[tuple[Any, ...]]:
        # One script that reads covers and frames would copy the frames once more, which takes four times as long.
        return [("HGETALL", self._keys.cover(box)), ("XRANGE", self._keys.box(box), "-", "+", "COUNT", count)]

    async def covers(self, box: str) -> list[Cover]:
        """Return the covers of a box: which attempts at steps are committed, and how many rows each sent to the box.

        When all groups have closed the step before the box's step, the covers are complete.
        """
        return _covers(await self._link.command("HGETALL", self._keys.cover(box)))

    async def covered_boxes(self, first: int, last: int) -> dict[str, list[Cover]]:
        """Return the covers of each box of the steps from `first` to `last`. The keys of the result are boxes' names.

        The covers of a box list the attempts committed so far, each with the number of rows that it sent to the box.
        """
        found = await self._link.script("list_boxes", [self._steps], [self._keys.prefix, first, last])
        return {
            name.decode(): [_cover(*each) for each in zip(covers[::2], covers[1::2], strict=True)]
            for name, *covers in found
        }

    async def box_size(self, box: str) -> BoxSize:
        """Return the size of a box, and its limits."""
        rows, nbytes = await self._link.command("HMGET", self._keys.cover(box), "rows", "bytes")
        limit_rows, limit_bytes = await self._link.command("HMGET", self._steps, "box_rows", "box_bytes")
        return BoxSize(int(rows or 0), int(nbytes or 0), int(limit_rows or 0), int(limit_bytes or 0))

    async def closed_step(self, step: int) -> Mapping[str, ClosedStep]:
        """Return, for each group that has closed a step, the number of the committed attempt, and the group's counts.

        The server has them for the last `horizon` steps (see `StepSettings`).
        """
        found = await self._link.command("HGETALL", self._keys.steps(str(step)))
        fields = dict(zip(found[::2], found[1::2], strict=True))
        return {
            name[2:].decode(): ClosedStep(int(value), fields[b"n:" + name[2:]])
            for name, value in fields.items()
            if name.startswith(b"k:")
        }

    async def collected(self, through: int) -> list[Collected]:
        """Return the recorded series and results of remembered calls that groups have stored up to step `through`.

        Data that `drop_collected` has deleted are not included.
        """
        found: list[Collected] = []
        after, count = "-", 1
        while page := await self._link.command("XRANGE", self._keys.steps("collected"), after, "+", "COUNT", count):
            for entry, fields in page:
                each = dict(zip(fields[::2], fields[1::2], strict=True))
                kind = CollectedKind(each[b"k"].decode())
                found.append(Collected(entry.decode(), kind, int(each[b"s"]), each[b"g"].decode(), each[b"d"]))
            after = f"({found[-1].entry}"
            count = max(1, min(_RESULTS, _REPLY_BYTES // max(len(each.data) for each in found[-len(page) :])))
        return [each for each in found if each.step <= through]

    async def collected_born(self, now: str) -> str:
        """Return the time that the first call of this method has stored. In the first call, store and return `now`."""
        await self._link.command("HSETNX", self._steps, "collected_born", now)
        return bytes(await self._link.command("HGET", self._steps, "collected_born")).decode()

    async def collected_bytes(self) -> int:
        """Return how many bytes recorded series and results of remembered calls together take on the server."""
        return int(await self._link.command("HGET", self._steps, "collected_bytes") or 0)

    async def drop_collected(self, entries: Sequence[Collected]) -> None:
        """Delete recorded series and results of remembered calls, after they were written to a file."""
        for low in range(0, len(entries), _RESULTS):
            names = [each.entry for each in entries[low : low + _RESULTS]]
            await self._link.script("drop_collected", [self._steps, self._keys.steps("collected")], names)

    async def blocked(self, step: int, groups: Sequence[str]) -> list[bytes]:
        """Return the messages of `groups` that rules blocked in a step. A group stores them when it closes the step.

        The server has these messages until all groups have closed the next step.
        """
        found = await self._link.command("HMGET", self._keys.steps(f"{step}:blocked"), *groups)
        return [each for each in found if each is not None]

    # -- control --------------------------------------------------------------------------------------------------

    async def hold(self, name: str, through: int) -> None:
        """Keep the boxes of steps after `through` on the server, for a reader such as the event log.

        No step begins that is too far ahead of `through`. If `through` is STANDSTILL, no step begins at all.

        Args: `name` is the reader's name, and `through` the last step that it has read. If the reader has called this
        before, a lower `through` than before changes nothing.
        """
        await self._hold(name, through)

    async def drop_hold(self, name: str) -> None:
        """End a reader's hold, so that boxes are no longer kept on the server for this reader."""
        await self._hold(name, "")

    async def _hold(self, name: str, through: int | str) -> None:
        keys = [self._steps, self._keys.holds]
        if await self._link.script("hold_boxes", keys, [self._keys.prefix, name, through]) == 0:
            raise without_steps(self._keys.exp_id)

    async def pause(self) -> int:
        """Prevent further steps; return the last step that groups may still open."""
        return await self._target("now")

    async def resume(self, target: int | None = None) -> None:
        """Let groups open steps up to and including `target` from now on (None: all steps)."""
        await self._target("" if target is None else target)

    async def _target(self, target: int | str) -> int:
        found = await self._link.script("target_steps", [self._steps], [self._keys.prefix, target])
        if found == -2:
            raise without_steps(self._keys.exp_id)
        return int(found)

    async def progress(self) -> Progress:
        """Return the progress of all groups."""
        keys = [self._steps, self._keys.steps("closed"), self._keys.holds]
        reply = await self._link.script("read_progress", keys, [self._keys.prefix])
        if not reply:
            raise without_steps(self._keys.exp_id)
        (sealed, latest, target, news, mode), holds, *members = reply
        groups = {name.decode(): _group(fields) for name, *fields in members}
        supervisor = groups.pop(SUPERVISOR, None)
        return Progress(
            int(sealed),
            int(latest),
            _int(target),
            groups,
            {name.decode(): int(through) for name, through in zip(holds[::2], holds[1::2], strict=True)},
            (news or b"0-0").decode(),
            WaitFor(mode.decode()),
            supervisor,
        )

    # -- calls ----------------------------------------------------------------------------------------------------

    def _of(self, group: str) -> list[str]:
        return [self._keys.prefix, group]

    async def _script(self, name: str, group: str, *args: Any) -> Any:  # noqa: ANN401 - a reply
        keys = [self._steps, self._keys.step(group)]
        return await self._link.script(name, keys, [*self._of(group), *args])


def _not_ours(has: int, group: str, attempt: int) -> Fenced:
    """Build the error for a driver after a later driver has taken over the group, or the server has lost the steps."""
    if has == 0:
        return overtaken(group, attempt)
    return Fenced(
        f"the server has lost the steps of group {group!r}, because it was flushed, or restored from older data: end "
        "this task, and start the experiment anew",
        name=group,
        epoch=attempt,
    )


def _behind(group: str, closed: int, what: str) -> Fenced:
    """Build the error for a step of a group that is not the step after `closed`, the group's last closed step."""
    last = "it has closed no step" if closed < 0 else f"the last step that it closed is {closed}"
    return Fenced(
        f"group {group!r} {what}: {last}. Either the group was removed and created again, or the server has lost "
        "steps in a crash: take all groups through their steps again from the last closed step, or start anew",
        name=group,
        epoch=closed,
    )


def _covers(fields: list[bytes]) -> list[Cover]:
    pairs = zip(fields[::2], fields[1::2], strict=True)
    return [_cover(name, value) for name, value in pairs if name.startswith(b"c:")]


def _closing(closing: Closing, *, go_on: bool) -> list[Any]:
    """Return the arguments that a script needs to close a step with `closing`."""
    state: tuple[str, bytes] = "=", b""
    if closing.state_changed:
        state = ("-", b"") if closing.state is None else ("+", closing.state)
    return [closing.rows, closing.counts, *state, int(go_on), closing.series, closing.blocked, closing.calls]


def _closed(reply: list[Any], group: str, attempt: int, step: int) -> Committed | Refused:
    if reply[0] == 2:
        return Refused(step, reply[1], tuple(name.decode() for name in reply[2:]))
    if reply[0] == 5:
        return Refused(step, 0, series=reply[1])
    if reply[0] == 3:
        closed, until = reply[1:]
        if until is not None and step >= int(until):
            raise Closed(
                f"group {group!r} was removed, or has left the steps, so nothing that the group did in step {step} is "
                "committed: end the task that takes the group through its steps"
            )
        raise _behind(group, closed, f"cannot close step {step}, which it has not opened")
    if reply[0] != 1:
        raise _not_ours(reply[0], group, attempt)
    following = reply[2] if len(reply) > 2 else None
    # The next step is not open if a later driver has taken over the group. The close counts nevertheless.
    if following is None or following[0] <= 0:
        return Committed(step, reply[1])
    return Committed(step, reply[1], _opening(following, group, attempt, step + 1))


def _opening(reply: list[Any], group: str, attempt: int, step: int) -> Opened | Waiting | Done:
    code, *rest = reply
    if code == 1:
        directory, blocked, news, *covers = rest
        parts = zip(covers[::4], covers[1::4], covers[2::4], covers[3::4], strict=True)
        found = tuple(Cover(name.decode(), int(sent), int(by), int(rows)) for name, sent, by, rows in parts)
        return Opened(step, found, directory, blocked == 1, news.decode())
    if code == 2:
        reason, total, news, *names = rest
        return Waiting(step, Reason(reason.decode()), tuple(name.decode() for name in names), total, news.decode())
    if code == 3:
        return Done(rest[0])
    if code == 4:
        raise _behind(group, rest[0], f"cannot open step {step}")
    raise _not_ours(code, group, attempt)


def _int(value: bytes | None) -> int | None:
    return None if value is None else int(value)


def _group(fields: list[Any]) -> GroupProgress:
    closed, opened, task, start, idle_ms, since, until, silent_ms = fields
    driver = Driver(task.decode(), int(start)) if task else None
    return GroupProgress(int(closed), _int(opened), driver, int(idle_ms), int(since), _int(until), int(silent_ms))


def _cover(name: bytes, value: bytes) -> Cover:
    _, sent, group = name.split(b":", 2)
    attempt, _, rows = value.partition(b":")
    return Cover(group.decode(), int(sent), int(attempt), int(rows))


def _box_frame(entry: str, fields: list[bytes]) -> BoxFrame:
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    sent, attempt, rows, first, group = found[b"t"].split(b":", 4)
    publish = tuple(value for name, value in zip(fields[::2], fields[1::2], strict=True) if name in {b"c", b"d"})
    tag = StepTag(group.decode(), int(sent), int(attempt))
    return BoxFrame(entry, tag, int(rows), found.get(b"f", b""), int(first), found.get(b"n"), publish)


def _settings(kept: bytes) -> StepSettings:
    fields = msgspec.json.decode(kept)
    return StepSettings(**fields | {"wait_for": WaitFor(fields["wait_for"])})
