"""Steps under any order of calls: repeated, late, by overtaken drivers, with lost replies."""

import asyncio
import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, Fenced
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.step_values import (
    OUTSIDE,
    Closing,
    Committed,
    Done,
    Driven,
    Driver,
    GroupProgress,
    Opened,
    Refused,
    StepSettings,
    StepTag,
    WaitFor,
    box_name,
    counted,
)
from ray_messaging.transports.transport_values import FrameFate, FrameWrite, Limits, SendRequest, SendStatus

GROUPS = ("a", "b", "c")
HORIZON = 3
groups = st.sampled_from(GROUPS)


class Attempt:
    """The beliefs of one driver: it learns of the server by answers alone."""

    def __init__(self, group, attempt, closed):
        self.group, self.attempt, self.closed = group, attempt, closed
        self.step, self.numbers, self.rows, self.last = None, {}, 0, None


def counts(member):
    """Return whether a group still counts in a step that it has not closed."""
    return member.until is None or member.closed + 1 < member.until


class StepMachine(RuleBasedStateMachine):
    """Drivers, outsiders and operators in any order; a model beside them knows which attempts count."""

    attempts = Bundle("attempts")

    @initialize(
        wait_for=st.sampled_from(WaitFor),
        window=st.integers(1, 3),
        expected=st.sampled_from([0, 2]),
        held=st.booleans(),
        hears=st.fixed_dictionaries({name: st.none() | st.sets(groups) for name in GROUPS}),
    )
    def begin(self, wait_for, window, expected, held, hears):
        self.loop = asyncio.new_event_loop()
        self.transport = open_transport(self.server, f"test-{uuid.uuid4().hex}", MessagingConfig())
        self.steps, self.keys = self.transport.steps, self.transport.keys
        self.do(self.open_mailboxes())
        given = StepSettings(wait_for=wait_for, window=window, groups=expected, horizon=HORIZON, lag=2)
        self.do(self.steps.begin(given))
        self.do(self.steps.declare(hears))
        self.graph = {(name, 0): senders for name, senders in hears.items()}
        if held:
            self.do(self.steps.hold("log", -1))
        self.frames = self.tasks = 0
        self.wrote = {}  # tag -> [(box, frame)]
        self.counts = {}  # (group, step) -> attempt
        self.read = set()  # boxes
        self.left = {}  # group -> first steps in which it did not count

    def do(self, call):
        return self.loop.run_until_complete(call)

    async def open_mailboxes(self):
        await self.transport.connect()
        for name in GROUPS:
            version = (await self.transport.load_directory(-1)).version
            limits = Limits(10**6, 2**30, 60.0, leased=False)
            await self.transport.listen(MailboxRecord(name, [], [], []), version, limits, owner="", epoch=None)
        self.outsider = (await self.transport.take_sender_epoch("outsider", keep_s=60)).epoch
        self.outside = dict.fromkeys(GROUPS, 0)

    def command(self, *words):
        return self.do(self.transport.link.command(*words))

    def seen(self):
        """Return all that the server keeps."""
        names = sorted(self.command("KEYS", f"{self.keys.prefix}*"))
        return dict(zip(names, self.do(self.transport.link.commands(*(("DUMP", name) for name in names))), strict=True))

    @property
    def now(self):
        return self.do(self.steps.progress())

    @property
    def members(self):
        """Return the groups that have joined, also those that have left."""
        found, groups = {}, self.now.groups
        for name in GROUPS:
            since, closed, until = self.command("HMGET", self.keys.step(name), "since", "closed", "until")
            if since is not None:
                opened = groups[name].open if name in groups else None
                until = None if until is None else int(until)
                found[name] = GroupProgress(int(closed), opened, None, 0, int(since), until)
        return found

    def frame(self):
        self.frames += 1
        return b"%d" % self.frames

    def counting(self, box):
        """Return what the model says a box holds."""
        tags = [StepTag(name, step, attempt) for (name, step), attempt in self.counts.items()]
        tags += [tag for tag in self.wrote if tag.group == OUTSIDE]
        return sorted(frame for tag in tags for at, frame in self.wrote.get(tag, ()) if at == box)

    async def holding(self, box, covers):
        frames = counted(await self.steps.read_box(box, count=10_000), covers)
        return sorted(frame.frame for frame in frames)

    # -- members ------------------------------------------------------------------------------------------------------

    @rule(group=groups, again=st.booleans())
    def join(self, group, again=True):
        try:
            since = self.do(self.steps.join(group, again=again))
        except AlreadyExists:
            assert self.members[group].until is not None
        else:
            assert self.do(self.steps.join(group, again=again)) == since

    @rule(group=groups, at_once=st.booleans())
    def leave(self, group, at_once):
        if group in self.members:
            until = self.do(self.steps.leave(group, at_once=at_once))
            assert self.do(self.steps.leave(group, at_once=at_once)) == until
            self.left.setdefault(group, []).append(until)

    @rule(target=attempts, group=groups, ahead=st.none() | st.integers(1, 6))
    def take(self, group, ahead=None):
        if group not in self.members:
            return multiple()
        self.tasks += 1
        driver = Driver(f"task-{self.tasks}")
        until = None if ahead is None else self.now.latest + ahead
        found = self.do(self.steps.take(group, driver, 1.0, until=until))
        if isinstance(found, Driven):
            found = self.do(self.steps.take(group, driver, 1.0, found.lease, until))
        for name, other in self.members.items():
            if other.until is not None:
                self.left.setdefault(name, []).append(other.until)
        return Attempt(group, found.attempt, found.closed)

    @rule(attempt=attempts)
    def let_go(self, attempt):
        before, owner = self.seen(), self.owns(attempt)
        self.do(self.steps.let_go(attempt.group, attempt.attempt))
        assert not self.owns(attempt)
        assert owner or self.seen() == before

    def owns(self, attempt):
        return int(self.command("HGET", self.keys.step(attempt.group), "attempt")) == attempt.attempt

    # -- a step -------------------------------------------------------------------------------------------------------

    @rule(attempt=attempts)
    def open(self, attempt):
        self._open(attempt)

    def _open(self, attempt):
        before, step = self.seen(), attempt.closed + 1
        try:
            answer = self.do(self.steps.open(attempt.group, attempt.attempt, step))
        except Fenced:
            assert not self.owns(attempt)
            assert self.seen() == before
            return None
        assert self.owns(attempt)
        if isinstance(answer, Opened):
            self.opened(attempt, answer)
        elif isinstance(answer, Done):
            attempt.closed = max(attempt.closed, answer.closed)
        return answer

    def opened(self, attempt, answer):
        if attempt.step != answer.step:
            attempt.step, attempt.numbers, attempt.rows, attempt.last = answer.step, {}, 0, None
        box = box_name(attempt.group, answer.step)
        assert self.do(self.holding(box, answer.covers)) == self.counting(box)
        self.read.add(box)

    @rule(attempt=attempts, told=st.sets(groups, min_size=1), ahead=st.integers(-1, 1))
    def go_on(self, attempt, told, ahead):
        sealed, group = self.now.sealed, attempt.group
        step = sealed + 1 + ahead
        assert self.do(self.steps.go_on(step, 0, sorted(told), 0.0)) == sealed
        if ahead == 0 and group in told and self.owns(attempt) and self.members[group].open == step:
            covers = tuple(self.do(self.steps.covers(box_name(group, step))))
            self.opened(attempt, Opened(step, covers, 0, blocked=False, news=""))  # without a question of the driver

    @rule(attempt=attempts, mailbox=groups, ahead=st.integers(1, HORIZON), rows=st.integers(1, 3))
    def send(self, attempt, mailbox, ahead, rows):
        if attempt.step is None:
            return
        before, tag = self.seen(), StepTag(attempt.group, attempt.step, attempt.attempt)
        box, frame = box_name(mailbox, attempt.step + ahead), self.frame()
        write = FrameWrite(box, attempt.numbers.get(box, 0) + 1, rows, frame)
        attempt.last = SendRequest("writer", 0, 0, -1, [write]), tag
        reply = self.do(self.steps.send(*attempt.last))
        if reply.status is SendStatus.STEP_OVER:
            assert self.seen() == before
            assert not self.owns(attempt) or self.members[attempt.group].open != attempt.step
            return
        reader, read = self.members.get(mailbox), attempt.step + ahead
        counts = (
            reader is not None and attempt.step >= reader.since - 1 and (reader.until is None or read < reader.until)
        )
        assert (reply.status, reply.fates) == (SendStatus.OK, [FrameFate.WRITTEN if counts else FrameFate.GONE])
        if not counts:
            assert self.seen() == before
            attempt.last = None
            return
        attempt.numbers[box] = write.seq
        attempt.rows += rows
        self.wrote.setdefault(tag, []).append((box, frame))

    @rule(attempt=attempts)
    def send_again(self, attempt):
        if attempt.last is None:
            return
        before = self.seen()
        reply = self.do(self.steps.send(*attempt.last))
        assert reply.status is SendStatus.STEP_OVER or reply.fates == [FrameFate.DUPLICATE]
        assert self.seen() == before

    @rule(attempt=attempts, lost=st.booleans(), go_on=st.booleans())
    def close(self, attempt, lost, go_on):
        if attempt.step is not None:
            self._close(attempt, lost=lost, go_on=go_on)

    def _close(self, attempt, *, lost, go_on):
        before, key = self.seen(), (attempt.group, attempt.step)
        closing = Closing(attempt.rows, b"counts")
        try:
            answer = self.do(self.steps.close(attempt.group, attempt.attempt, attempt.step, closing, go_on=go_on))
        except Fenced as error:  # its group may have left and joined again meanwhile
            behind = "removed and created again" in str(error)
            assert self.owns(attempt) == behind
            answer = None
        except Closed:  # its group has left meanwhile
            assert self.owns(attempt)
            answer = None
        if answer is None:
            assert self.seen() == before
            assert self.counts.get(key) != attempt.attempt
            return
        if isinstance(answer, Refused):
            assert answer.deaf
            assert all(self.is_deaf(name, attempt) for name in answer.deaf)
            assert self.seen() == before
            return
        assert isinstance(answer, Committed)
        assert self.counts.setdefault(key, attempt.attempt) == attempt.attempt
        if not lost:
            attempt.closed = max(attempt.closed, attempt.step)
            attempt.step = None
            if isinstance(answer.following, Opened):
                self.opened(attempt, answer.following)

    def hears(self, group, step):
        """Return the groups that a group hears in a step, as they were declared; None: all."""
        return self.graph[group, max(first for name, first in self.graph if name == group and first <= step)]

    def is_deaf(self, group, attempt):
        """Tell whether an attempt wrote to a group that does not hear it."""
        tag = StepTag(attempt.group, attempt.step, attempt.attempt)
        read = [int(box.rpartition("@")[2]) for box, _ in self.wrote[tag] if box.startswith(f"{group}@")]
        return any((heard := self.hears(group, step)) is not None and attempt.group not in heard for step in read)

    @rule(group=groups, senders=st.none() | st.sets(groups), ahead=st.none() | st.integers(0, 4))
    def declare(self, group, senders, ahead):
        before, latest = self.seen(), self.now.latest
        at = None if ahead is None else latest + ahead
        try:
            self.do(self.steps.declare({group: senders}, at))
        except ConfigError:
            assert latest >= 0
            assert at is None or at < latest + 2
            assert self.seen() == before
            return
        at = max(at or 0, 0)
        if self.hears(group, max(at, latest + 1)) != senders:
            assert latest < 0 or at >= latest + 2
            self.graph = {key: old for key, old in self.graph.items() if key[0] != group or key[1] < at}
            self.graph[group, at] = senders

    @rule(mode=st.sampled_from(WaitFor))
    def wait_for(self, mode):
        self.do(self.steps.set_wait_for(mode))

    # -- others -------------------------------------------------------------------------------------------------------

    @rule(mailbox=groups, rows=st.integers(1, 3))
    def send_from_outside(self, mailbox, rows):
        member = self.members.get(mailbox)
        if member is None:
            return
        step, frame = max(self.now.latest + 1, member.since), self.frame()
        write = FrameWrite(mailbox, self.outside[mailbox] + 1, rows, frame)
        version = self.do(self.transport.load_directory(-1)).version
        reply = self.do(self.transport.send(SendRequest("outsider", self.outsider, version, -1, [write])))
        left = member.until is not None and step >= member.until
        assert (reply.status, reply.fates) == (SendStatus.OK, [FrameFate.GONE if left else FrameFate.WRITTEN])
        if left:
            return
        self.outside[mailbox] += 1
        self.wrote.setdefault(StepTag(OUTSIDE, step - 1, 0), []).append((box_name(mailbox, step), frame))

    @rule()
    def pause(self):
        assert self.do(self.steps.pause()) <= self.now.latest

    @rule(ahead=st.none() | st.integers(0, 2))
    def resume(self, ahead):
        self.do(self.steps.resume(None if ahead is None else self.now.latest + ahead))

    @rule()
    def log_handles_what_is_final(self):
        now = self.now
        if "log" in now.holds:
            self.do(self.steps.hold("log", min(now.sealed + 1, now.latest)))

    @invariant()
    def each_box_counts_what_closed_attempts_sent(self):
        found = self.do(self.steps.covered_boxes(0, self.now.latest + 1 + HORIZON))
        for name, covers in found.items():
            assert self.do(self.holding(name, covers)) == self.counting(name)

    def teardown(self):
        """Let all groups go two steps on: each inbox is checked, and nothing can hold them up."""
        if hasattr(self, "loop"):
            try:
                self.go_on_to_the_end()
            finally:
                self.do(self.transport.close())
                self.loop.close()

    def go_on_to_the_end(self):
        self.do(self.steps.resume())
        self.do(self.steps.drop_hold("log"))
        for group in GROUPS:
            self.join(group)
        attempts = [self.take(group) for group in GROUPS]
        end = self.now.latest + 3
        while any(counts(member) and member.closed < end for member in self.members.values()):
            before = {name: member.closed for name, member in self.members.items()}
            for attempt in attempts:
                if isinstance(self._open(attempt), Opened):
                    self._close(attempt, lost=False, go_on=False)
            assert {name: member.closed for name, member in self.members.items()} != before
        sent = {tag: frames for tag, frames in self.wrote.items() if self.counts.get(tag[:2]) == tag.attempt}
        for box, tag in {(box, tag) for tag, frames in sent.items() for box, _ in frames}:
            group, _, step = box.rpartition("@")
            left = any(tag.sent < until <= int(step) for until in self.left.get(group, ()))
            assert int(step) > end or box in self.read or left  # nothing that counts is lost


@pytest.mark.parametrize("examples", [5, pytest.param(300, marks=pytest.mark.long)])
def test_steps_under_any_order_of_calls(valkey_config, examples):
    StepMachine.server = valkey_config
    run_state_machine_as_test(StepMachine, settings=settings(max_examples=examples, stateful_step_count=40))
