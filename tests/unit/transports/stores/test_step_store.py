"""The promises of every step store: one barrier, boxes that only closed steps fill, drivers that follow one another."""

import asyncio
from types import SimpleNamespace

import pytest
from support.contracts import Post, until
from support.patience import WAIT_S

from ray_messaging import MessagingConfig
from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.errors import Closed, ConfigError, Fenced, FrameError, UnknownName
from ray_messaging.transports import box_reader
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.box_reader import BoxReader
from ray_messaging.transports.step_values import (
    NOTES,
    OUTSIDE,
    PUBLICATIONS,
    SUPERVISOR,
    Closing,
    Committed,
    Cover,
    Done,
    Driven,
    DrivenGroup,
    Driver,
    News,
    Opened,
    Reason,
    Refused,
    StepSettings,
    StepTag,
    WaitFor,
    Waiting,
    box_name,
    counted,
)
from ray_messaging.transports.transport_values import (
    LOG,
    FrameFate,
    FrameWrite,
    Limits,
    LoggedFrame,
    Published,
    SendRequest,
    SendStatus,
)


@pytest.fixture
async def another(transports):
    """Open a second transport, as another process would."""
    return await transports()


@pytest.fixture
def steps(transport):
    return transport.steps


class Actor:
    """One attempt of a group: it numbers its frames, counts their rows and closes with that count."""

    def __init__(self, steps, group, attempt, name="writer"):
        self.steps, self.group, self.attempt, self.name = steps, group, attempt, name
        self.numbers, self.rows, self.step = {}, 0, None

    async def open(self, step):
        answer = await self.steps.open(self.group, self.attempt, step)
        if isinstance(answer, Opened):
            self.begin(step)
        return answer

    def begin(self, step):
        self.numbers, self.rows, self.step = {}, 0, step

    def write(self, box, frame, rows=1, **more):
        self.numbers[box] = self.numbers.get(box, 0) + 1
        return FrameWrite(box, self.numbers[box], rows, frame, **more)

    def request(self, *writes, epoch=-1):
        return SendRequest(self.name, 0, 0, epoch, writes)

    async def call(self, request):
        return await self.steps.send(request, StepTag(self.group, self.step, self.attempt))

    async def send(self, box, frame, rows=1):
        reply = await self.call(self.request(self.write(box, frame, rows)))
        assert reply.status is SendStatus.OK
        if reply.fates == [FrameFate.WRITTEN]:
            self.rows += rows
        else:
            self.numbers[box] -= 1
        return reply.fates[0]

    async def commit(self, *writes, **more):
        request, tag = self.request(*writes), StepTag(self.group, self.step, self.attempt)
        rows = self.rows + sum(write.rows for write in writes)
        return await self.steps.commit(request, tag, Closing(rows, **more))

    async def close(self, *, go_on=False, **more):
        return await self.steps.close(self.group, self.attempt, self.step, Closing(self.rows, **more), go_on=go_on)

    async def inbox(self, step):
        answer = await self.steps.open(self.group, self.attempt, step)
        assert isinstance(answer, Opened)
        return await frames_of(self.steps, box_name(self.group, step), answer.covers)


async def frames_of(steps, box, covers):
    found = []
    while more := await steps.read_box(box, found[-1].entry if found else "0-0", 2):
        found += more
    frames = counted(found, covers)
    assert frames is not None
    return sorted(frame.frame for frame in frames)


async def member(steps, group, hears=None, task=None):
    """Have a group join, and take it."""
    await steps.declare({group: hears})
    await steps.join(group)
    return await taken(steps, group, task or group)


async def taken(steps, group, task, start=0, **more):
    found = await steps.take(group, Driver(task, start), 30.0, **more)
    assert isinstance(found, DrivenGroup)
    return Actor(steps, group, found.attempt)


async def pair(steps, **settings):
    await steps.begin(StepSettings(**settings))
    return await member(steps, "a"), await member(steps, "b")


async def open_pair(steps, **settings):
    """Return two groups in step 0."""
    actors = await pair(steps, **settings)
    for actor in actors:
        assert isinstance(await actor.open(0), Opened)
    return actors


async def run(*actors, step):
    """Let groups open and close a step in which they send nothing."""
    for actor in actors:
        assert isinstance(await actor.open(step), Opened)
    for actor in actors:
        assert isinstance(await actor.close(), Committed)


# -- settings and members -------------------------------------------------------------------------------------------


async def test_an_experiment_without_steps(steps):
    go_on = steps.go_on(0, 1, ["a"], 0.0)
    for call in (steps.join("a"), steps.pause(), steps.resume(), steps.progress(), steps.hold("log", 0), go_on):
        with pytest.raises(ConfigError, match="has no steps"):
            await call


async def test_a_group_that_has_not_joined(steps):
    await steps.begin(StepSettings())
    with pytest.raises(UnknownName, match="'a' has not joined"):
        await steps.take("a", Driver("t"), 1.0)
    with pytest.raises(UnknownName):
        await steps.leave("a")
    with pytest.raises(Fenced, match="the server has lost the steps of group 'a'"):
        await steps.open("a", 1, 0)


async def test_step_0_waits_until_so_many_have_joined(steps):
    await steps.begin(StepSettings(groups=2))
    a = await member(steps, "a")
    waiting = await a.open(0)
    assert (waiting.reason, waiting.total) == (Reason.MISSING, 1)
    await steps.join("b")
    assert (await steps.wait(waiting.news, WAIT_S)).place != waiting.news
    assert isinstance(await a.open(0), Opened)


async def test_a_dead_group_leaves_at_once_and_its_open_step_never_was(steps):
    a, b = await open_pair(steps)
    await b.send("a@1", b"never")
    await a.close()
    waiting = await a.open(1)
    assert waiting.names == ("b",)
    assert await steps.leave("b", at_once=True) == 0
    assert (await steps.wait(waiting.news, WAIT_S)).place != waiting.news
    assert await a.inbox(1) == []
    assert (await b.call(b.request(b.write("a@1", b"late")))).status is SendStatus.STEP_OVER
    with pytest.raises(Closed, match="group 'b' was removed"):
        await b.close()


async def test_the_next_driver_may_have_the_group_stay(steps):
    await steps.begin(StepSettings())
    for name in "ab":
        await steps.join(name)
    await taken(steps, "a", "a", until=2)
    a = await taken(steps, "a", "a", 1)
    b = await taken(steps, "b", "b")
    assert [(await steps.progress()).groups[name].until for name in "ab"] == [None, None]
    for step in range(3):
        for actor in (a, b):
            await run(actor, step=step)
    assert (await steps.progress()).sealed == 2


async def test_news_that_one_messager_knows_already_wake_another(steps, another):
    await pair(steps)
    before = (await steps.progress()).news
    await steps.resume()
    after = (await steps.progress()).news
    assert before != after
    first = asyncio.create_task(steps.wait(after, WAIT_S))
    await asyncio.sleep(0)
    assert (await asyncio.wait_for(another.steps.wait(before, WAIT_S), WAIT_S / 2)).place == after
    await steps.resume()
    assert (await asyncio.wait_for(first, WAIT_S)).place != after


async def test_news_bring_the_beginning_of_a_box_with_them(steps, another):
    a, b = await open_pair(steps)
    await b.send("a@1", b"one")
    await b.send("a@1", b"two")
    waiting = (await a.close(go_on=True)).following
    assert await steps.wait(waiting.news, 0.01, box="a@1", count=1) == News(waiting.news)
    waits = [store.wait(waiting.news, WAIT_S, box="a@1", count=1) for store in (steps, steps, another.steps)]
    waiters = [asyncio.create_task(wait) for wait in waits]
    await b.close(go_on=True)
    starts = [news.start for news in await asyncio.wait_for(asyncio.gather(*waiters), WAIT_S)]
    covers, frames = await steps.open_box("a@1", 1)
    assert [frame.frame for frame in frames] == [b"one"]
    found = [(list(start.covers), list(start.frames)) for start in starts if start is not None]  # None: read by another
    assert found
    assert all(each == (covers, frames) for each in found)


async def test_a_wait_for_news_goes_on_when_that_of_another_messager_ends(steps, another):
    a, b = await pair(steps)
    await a.open(0)
    await a.close()
    await b.open(0)
    waiting = await a.open(1)
    first, second = (asyncio.create_task(store.wait(waiting.news, WAIT_S)) for store in (another.steps, steps))
    assert await steps.wait(waiting.news, 0.05) == News(waiting.news)
    first.cancel()
    await asyncio.wait([first])
    await b.close()
    assert (await asyncio.wait_for(second, WAIT_S)).place != waiting.news


async def test_a_seal_opens_the_next_step_to_all_that_asked_for_it(steps):
    a, b = await open_pair(steps)
    await b.send("a@1", b"x")
    waiting = (await a.close(go_on=True)).following
    assert (waiting.reason, waiting.names) == (Reason.GROUPS, ())
    a.begin(1)
    assert (await a.call(a.request(a.write("b@2", b"early")))).status is SendStatus.STEP_OVER
    await b.close(go_on=True)
    news = await steps.wait(waiting.news, WAIT_S)
    assert (news.opened, news.boxes) == (1, 1)
    assert (await steps.progress()).groups["a"].open == 1
    a.begin(1)
    assert await a.send("b@2", b"y") is FrameFate.WRITTEN
    b.begin(1)
    await b.close()
    await a.close()
    assert (await steps.progress()).latest == 1  # nobody asked for step 2


async def test_a_paused_step_opens_to_all_that_asked_for_it_at_the_resume(steps):
    a, b = await open_pair(steps)
    await steps.pause()
    waiting = (await a.close(go_on=True)).following
    await b.close(go_on=True)
    news = await steps.wait(waiting.news, WAIT_S)
    assert news.opened == 0
    await steps.resume()
    assert (await steps.wait(news.place, WAIT_S)).opened == 1
    a.begin(1)
    assert isinstance(await a.close(), Committed)


async def test_a_run_opens_a_step_for_groups_that_have_not_asked_for_it(steps, another, monkeypatch):
    a, b = await open_pair(steps)
    b.steps = another.steps
    place = (await steps.progress()).news
    reader = BoxReader(steps, "a@1", with_news=True, filled=True)
    reader.expect_opening(place, 1, WAIT_S)
    await b.send("a@1", b"from b")
    for actor in (a, b):
        await actor.close()
    monkeypatch.setattr(box_reader, "_TOLD_S", WAIT_S)  # the news come before the question
    told = asyncio.create_task(reader.ask(lambda: steps.open("a", a.attempt, 1)))
    await steps.pause()  # these news open nothing, and are not waited for
    await steps.resume()
    assert await another.steps.go_on(1, 1, ["a", "b"], 0.0) == 0
    no_more_calls(steps, monkeypatch)
    news = await asyncio.wait_for(told, WAIT_S)
    assert (news.opened, news.boxes, news.place) == (1, 1, (await steps.progress()).news)
    assert [frame.frame for frame in await reader.covered(await reader.covers(news))] == [b"from b"]
    await reader.end()
    for actor in (a, b):
        actor.begin(1)
        assert await actor.send("b@2", b"more") is FrameFate.WRITTEN
    going = asyncio.create_task(another.steps.go_on(1, 2, [], WAIT_S))
    assert await steps.go_on(1, 2, [], 0.0) == 0
    for actor in (a, b):
        assert (await actor.close()).sealed == (1 if actor is b else 0)
    assert await asyncio.wait_for(going, WAIT_S) == 1
    assert (await steps.progress()).latest == 1


@pytest.mark.parametrize("step", [0, 2])
async def test_a_run_opens_only_the_step_after_the_last_sealed_one(steps, step):
    a, b = await open_pair(steps)
    for actor in (a, b):
        await actor.close()
    assert await steps.go_on(step, step, ["a", "b"], 0.0) == 0
    assert (await steps.progress()).latest == 0


async def test_a_group_without_a_driver_has_no_step_opened_for_it(steps):
    a, b = await open_pair(steps)
    for actor in (a, b):
        await actor.close()
    await steps.let_go("b", b.attempt)
    await steps.go_on(1, 1, ["a", "b"], 0.0)
    groups = (await steps.progress()).groups
    assert (groups["a"].open, groups["b"].open) == (1, None)
    assert isinstance(await (await taken(steps, "b", "later")).open(1), Opened)


async def test_a_pause_holds_up_a_step_that_a_run_opens(steps):
    a, b = await open_pair(steps)
    for actor in (a, b):
        await actor.close()
    await steps.pause()
    await steps.go_on(1, 1, ["a", "b"], 0.0)
    assert (await steps.progress()).latest == 0
    waiting = await a.open(1)
    assert waiting.reason is Reason.PAUSED
    await steps.resume()
    assert (await steps.wait(waiting.news, WAIT_S)).opened == 1
    for actor in (a, b):
        actor.begin(1)
        assert isinstance(await actor.close(), Committed)


async def test_only_groups_that_it_hears_hold_a_group_up(steps):
    await steps.begin(StepSettings(wait_for=WaitFor.SENDERS, window=3))
    a, b, c = await member(steps, "a", ["b"]), await member(steps, "b", []), await member(steps, "c")
    await run(b, step=0)
    await run(a, step=0)
    assert (await c.open(0)).covers == ()
    await b.open(1)
    await b.send("a@2", b"early")
    assert await a.inbox(1) == []
    await b.close()
    a.begin(1)
    await a.close()
    assert await a.inbox(2) == [b"early"]
    await run(b, step=2)
    waiting = await b.open(3)
    assert (waiting.reason, waiting.names) == (Reason.WINDOW, ("c",))
    await c.close()
    waiting = await c.open(1)
    assert isinstance(waiting, Opened)


async def test_another_graph_of_groups_holds_from_a_step_that_nobody_has_sent_for(steps):
    await steps.begin(StepSettings(wait_for=WaitFor.SENDERS))
    a, b = await member(steps, "a", []), await member(steps, "b", ["a"])
    await steps.declare({"a": ["b"]})  # nobody has begun
    await steps.declare({"a": []})
    await a.open(0)
    for at_step in (None, 0, 1):
        with pytest.raises(ConfigError, match="at_step=2"):
            await steps.declare({"a": ["b"]}, at_step)
    await steps.declare({"a": []})  # it holds already
    await steps.declare({"a": ["b"]}, 2)
    await a.close()
    assert isinstance(await a.open(1), Opened)
    await a.close()
    waiting = await a.open(2)
    assert (waiting.reason, waiting.names) == (Reason.GROUPS, ("b",))
    await b.open(0)
    await b.send("a@1", b"too early")
    assert (await b.close()).deaf == ("a",)
    assert isinstance(await b.steps.open("b", (await taken(steps, "b", "b", 1)).attempt, 0), Opened)


async def test_all_may_be_waited_for_in_spite_of_the_settings(steps):
    await steps.begin(StepSettings(wait_for=WaitFor.SENDERS))
    a, b = await member(steps, "a", []), await member(steps, "b", [])
    assert (await steps.progress()).wait_for == WaitFor.SENDERS
    await a.open(0)
    await a.send("b@1", b"to all")
    await steps.set_wait_for(WaitFor.ALL)
    assert (await steps.progress()).wait_for == WaitFor.ALL
    assert await steps.begin(StepSettings()) == StepSettings(wait_for=WaitFor.SENDERS)
    assert isinstance(await a.close(), Committed)
    assert (await a.open(1)).names == ("b",)
    await run(b, step=0)
    assert isinstance(await a.open(1), Opened)
    await a.close()
    waiting = await a.open(2)
    assert waiting.names == ("b",)
    await steps.set_wait_for(WaitFor.SENDERS)
    assert await steps.wait(waiting.news, 5.0) != News(waiting.news)  # it wakes those that wait
    assert (await steps.progress()).wait_for == WaitFor.SENDERS
    assert isinstance(await a.open(2), Opened)


async def test_pause_and_advance(steps):
    a, b = await pair(steps)
    await a.open(0)
    assert await steps.pause() == 0
    assert isinstance(await b.open(0), Opened)  # as somebody has opened it
    await a.close()
    await b.close()
    waiting = await a.open(1)
    assert waiting.reason is Reason.PAUSED
    assert await steps.pause() == 0
    await steps.resume(1)
    assert (await steps.wait(waiting.news, WAIT_S)).place != waiting.news
    await run(a, b, step=1)
    assert (await steps.progress()).target == 1
    assert (await a.open(2)).reason is Reason.PAUSED
    await steps.resume()
    assert isinstance(await a.open(2), Opened)


async def test_holds_keep_boxes_and_hold_groups_up_that_are_too_far_ahead(steps):
    a, b = await pair(steps, lag=2)
    await steps.hold("log", -1)
    for step in range(2):
        await a.open(step)
        await b.open(step)
        await a.send(f"b@{step + 1}", b"%d" % step)
        await a.close()
        await b.close()
    waiting = await a.open(2)
    assert (waiting.reason, waiting.names) == (Reason.HOLD, ("log",))
    assert sorted(await steps.covered_boxes(1, 1)) == ["b@1"]
    assert await frames_of(steps, "b@1", await steps.covers("b@1")) == [b"0"]
    await steps.hold("log", 1)
    await steps.hold("log", 0)
    assert (await steps.wait(waiting.news, WAIT_S)).place != waiting.news
    assert sorted(await steps.covered_boxes(1, 1)) == []
    assert await steps.read_box("b@1") == []
    assert isinstance(await a.open(2), Opened)
    assert sorted(await steps.covered_boxes(2, 2)) == ["b@2"]
    await steps.drop_hold("log")
    assert (await steps.progress()).holds == {}


async def test_a_hold_may_be_less_far_behind_where_it_keeps_large_boxes(steps):
    a, b = await pair(steps, lag=3, lag_large=1, lag_bytes=10)
    await steps.hold("log", -1)
    for step, frame in enumerate([b"x" * 10, b"x"]):
        await a.open(step)
        await b.open(step)
        await a.send(f"b@{step + 1}", frame)
        await a.close()
        await b.close()
    assert (await a.open(2)).reason is Reason.HOLD
    await steps.hold("log", 0)
    assert (await a.open(2)).reason is Reason.HOLD
    await steps.hold("log", 1)
    assert isinstance(await a.open(2), Opened)


async def test_who_is_being_waited_for(steps):
    a, _ = await pair(steps)
    await steps.join("c")
    await run(a, step=0)
    await a.open(1)
    c = await taken(steps, "c", "task", start=2)
    await c.open(0)
    progress = await steps.progress()
    assert (progress.sealed, progress.latest, progress.target) == (-1, 0, None)
    assert progress.waiting_for() == {"b": 0, "c": 0}
    assert (progress.groups["a"].closed, progress.groups["a"].open) == (0, None)
    assert (progress.groups["c"].open, progress.groups["c"].driver) == (0, Driver("task", 2))
    assert progress.groups["b"].open is None
    assert 0 <= progress.groups["c"].idle_ms < 60_000


# -- drivers --------------------------------------------------------------------------------------------------------


async def test_a_close_that_counted_is_told_to_a_driver_that_was_overtaken(steps):
    a, _ = await open_pair(steps)
    await a.send("b@1", b"x")
    await a.close()
    again = await taken(steps, "a", "a", start=1)
    assert await a.close() == Committed(0, -1)
    assert await a.close(go_on=True) == Committed(0, -1)
    assert await steps.covers("b@1") == [Cover("a", 0, a.attempt, 1)]
    assert await again.open(0) == Done(0)


async def test_drivers_do_not_fence_each_other_for_ever(steps):
    await steps.begin(StepSettings())
    await steps.join("a")
    first = await steps.take("a", Driver("x"), 5.0)
    assert await steps.take("a", Driver("x"), 5.0) == first
    held = await steps.take("a", Driver("y"), 5.0)
    assert (held.driver, held.lease_s) == (Driver("x"), 5.0)
    await steps.renew("a", first.attempt)
    changed = await steps.take("a", Driver("y"), 5.0, over=held.lease)
    assert isinstance(changed, Driven)
    assert changed.lease != held.lease
    second = await steps.take("a", Driver("y"), 5.0, over=changed.lease)
    assert second.attempt > first.attempt
    third = await steps.take("a", Driver("y", 1), 5.0)
    assert third.attempt > second.attempt
    with pytest.raises(Fenced):
        await steps.take("a", Driver("y", 0), 5.0)
    await steps.let_go("a", second.attempt)
    assert isinstance(await steps.take("a", Driver("z"), 5.0), Driven)
    await steps.let_go("a", third.attempt)
    await steps.let_go("a", third.attempt)
    with pytest.raises(Fenced):
        await steps.open("a", third.attempt, 0)
    assert (await steps.take("a", Driver("z"), 5.0)).attempt > third.attempt


async def test_opening_and_closing_are_signs_of_life(steps):
    a, _ = await pair(steps)
    leases = [(await steps.take("a", Driver("other"), 1.0)).lease]
    for call in (a.open(0), a.close(), a.open(1)):
        await call
        leases.append((await steps.take("a", Driver("other"), 1.0)).lease)
    assert len(set(leases)) == 4


async def test_the_state_stays_is_replaced_and_goes(steps):
    await steps.begin(StepSettings())
    a = await member(steps, "a")
    states = []
    for step, more in enumerate(({}, {"state": b"1"}, {}, {"state": b""}, {"state": None})):
        await a.open(step)
        await a.close(state_changed=bool(more), **more)
        states.append((await steps.take("a", Driver("a"), 1.0)).state)
        assert await steps.state("a") == states[-1]
    with pytest.raises(UnknownName, match="has not joined"):
        await steps.state("b")
    assert states == [None, b"1", b"1", b"", None]


async def test_steps_in_the_wrong_order(steps):
    a, _ = await pair(steps)
    with pytest.raises(Fenced, match=r"cannot open step 1.*has lost steps"):
        await a.open(1)
    a.begin(0)
    with pytest.raises(Fenced, match=r"cannot close step 0.*has lost steps"):
        await a.close()
    await run(a, step=0)
    assert await a.open(0) == Done(0)


# -- frames ---------------------------------------------------------------------------------------------------------


async def test_results_of_calls_are_there_for_later_attempts_until_the_step_is_closed(steps):
    await steps.begin(StepSettings())
    first = await member(steps, "a")
    await first.open(0)
    assert await steps.remember("a", first.attempt, 0, {"1:7": b"yes", "2:7": b""})
    assert await steps.remember("a", first.attempt, 0, {"1:'x'": b"no" * 20_000})
    second = await taken(steps, "a", "a", start=1)
    await second.open(0)
    assert not await steps.remember("a", first.attempt, 0, {"3:7": b"late"})
    assert await steps.remembered("a", 0) == {"1:7": b"yes", "2:7": b"", "1:'x'": b"no" * 20_000}
    assert await steps.remembered("a", 1) == {}
    assert isinstance(await second.close(go_on=True), Committed)
    assert not await steps.remember("a", second.attempt, 0, {"4:7": b"late"})
    assert await steps.remembered("a", 0) == await steps.remembered("a", 1) == {}
    many = {f"1:{agent}": b"%d" % agent for agent in range(600)}  # more than one reply holds
    assert await steps.remember("a", second.attempt, 1, many)
    assert await steps.remembered("a", 1) == many
    await steps.leave("a", at_once=True)
    assert await steps.remembered("a", 1) == {}
    assert await steps.remembered("nobody", 0) == {}


async def test_results_of_calls_for_later_steps_stay_until_these_are_closed(steps):
    await steps.begin(StepSettings())
    group = await member(steps, "a")
    assert await steps.remember("a", group.attempt, 2, {"1:7": b"two"})  # no step is open yet
    await group.open(0)
    assert await steps.remember("a", group.attempt, 0, {"1:7": b"none"})
    assert await steps.remember("a", group.attempt, 12, {f"1:{n}": b"%d" % n for n in range(2500)})
    await group.close(go_on=True)
    assert await steps.remembered("a", 0) == {}
    assert await steps.remembered("a", 2) == {"1:7": b"two"}
    assert not await steps.remember("a", group.attempt, 0, {"1:7": b"late"})
    for step in (1, 2):
        group.step = step
        await group.close(go_on=True)
    assert await steps.remembered("a", 2) == {}
    assert len(await steps.remembered("a", 12)) == 2500
    later = await taken(steps, "a", "a", start=1)
    assert not await steps.remember("a", group.attempt, 12, {"2:7": b"late"})
    assert await steps.remember("a", later.attempt, 12, {"2:7": b"again"})
    assert len(await steps.remembered("a", 12)) == 2501
    await steps.leave("a", at_once=True)
    assert await steps.remembered("a", 12) == {}


async def test_a_frame_with_a_gap_before_it_is_not_written(steps):
    a, _ = await open_pair(steps)
    one, two = a.write("b@1", b"1"), a.write("b@1", b"2")
    other = a.write("a@1", b"3")
    assert (await a.call(a.request(two, other, one))).fates == [FrameFate.GAP, FrameFate.WRITTEN, FrameFate.GAP]
    assert (await a.call(a.request(one, two))).fates == [FrameFate.WRITTEN] * 2


@pytest.mark.parametrize("box", ["b@3", "b@2", "b@8", "b", "@4", "b@x", ":other@4", "b@4@4"])
async def test_there_is_no_box_but_for_later_steps_within_the_horizon(steps, box):
    a, b = await pair(steps, horizon=4)
    for step in range(3):
        await run(a, b, step=step)
    await a.open(3)
    assert await a.send(box, b"x") is FrameFate.GONE
    assert await a.send("b@7", b"x") is FrameFate.WRITTEN


async def test_a_full_box_is_too_large_at_once(steps):
    a, b = await open_pair(steps, box_rows=10, box_bytes=100)
    assert await a.send("b@1", b"x" * 60, 6) is FrameFate.WRITTEN
    assert await b.send("b@1", b"x", 5) is FrameFate.TOO_LARGE
    b.begin(0)
    assert await b.send("b@1", b"x" * 41) is FrameFate.TOO_LARGE
    assert await steps.box_size("b@1") == (6, 60, 10, 100)
    b.begin(0)
    small, large, after = b.write("b@1", b"y" * 40, 4), b.write("b@1", b"z"), b.write("b@1", b"")
    fates = [FrameFate.WRITTEN, FrameFate.TOO_LARGE, FrameFate.TOO_LARGE]
    assert (await b.call(b.request(small, large, after))).fates == fates
    b.rows = 4
    assert isinstance(await b.close(), Committed)


async def test_rows_that_the_server_lost_close_no_step(steps):
    a, _ = await open_pair(steps)
    await a.send("b@1", b"x", 4)
    a.rows = 5
    assert await a.close() == Refused(0, 4)
    assert (await steps.progress()).groups["a"].closed == -1
    frames, cover = await steps.read_box("b@1"), Cover("a", 0, a.attempt, 4)
    assert counted(frames, []) == []
    assert counted([], [cover]) is None
    assert counted(frames, [cover]) == frames


@pytest.mark.parametrize("before", [False, True], ids=["", "and what was sent before it"])
async def test_one_call_writes_and_closes(steps, before):
    a, b = await open_pair(steps)
    writes = a.write("b@1", b"1", 2), a.write("a@1", b"2"), a.write("b@1", b"3")
    if before:
        assert (await a.call(a.request(*writes[:2]))).fates == [FrameFate.WRITTEN] * 2
        a.rows = 3
    assert isinstance(await a.commit(*writes[2 * before :]), Committed)
    assert await steps.covers("b@1") == [Cover("a", 0, a.attempt, 3)]
    assert await steps.covers("a@1") == [Cover("a", 0, a.attempt, 1)]
    assert (await steps.box_size("b@1"))[:2] == (3, 2)
    assert isinstance(await b.commit(b.write("b@1", b"4"), b.write("b@2", b"5")), Committed)
    assert (await steps.box_size("b@1"))[:2] == (4, 3)
    assert await b.inbox(1) == [b"1", b"3", b"4"]
    assert sorted(await steps.covered_boxes(1, 1)) == ["a@1", "b@1"]
    assert sorted(await steps.covered_boxes(2, 2)) == ["b@2"]


async def test_what_a_refused_call_wrote_counts_until_the_attempt_is_given_up(steps):
    a, b = await open_pair(steps, box_rows=5)
    await a.send("b@1", b"1")
    a.rows += 1
    assert await a.commit(a.write("b@1", b"2", 3)) == Refused(0, 4)
    assert (await steps.box_size("b@1"))[:2] == (4, 2)
    assert await b.send("b@1", b"x", 2) is FrameFate.TOO_LARGE
    again = await taken(steps, "a", "a", 1)
    assert (await steps.box_size("b@1"))[:2] == (0, 0)
    assert isinstance(await again.open(0), Opened)
    assert isinstance(await again.commit(again.write("b@1", b"3")), Committed)
    await b.close()
    assert await b.inbox(1) == [b"3"]


async def test_a_call_that_cannot_write_all_writes_nothing(steps):
    a, _ = await open_pair(steps, box_rows=5)
    assert await a.commit(a.write("a@1", b"1"), a.write("b@1", b"2", 6)) is None
    assert await steps.read_box("a@1") == []
    assert (await steps.box_size("a@1"))[:2] == (0, 0)
    a.begin(0)
    assert isinstance(await a.commit(a.write("a@1", b"1")), Committed)


async def test_a_box_is_read_ahead_while_its_step_waits(steps):
    a, b = await pair(steps)
    reader = BoxReader(steps, "b@1")
    await a.open(0)
    for number in range(70):
        await a.send("b@1", b"%d" % number)
    await reader.read_ahead()
    await b.open(0)
    await b.send("b@1", b"dead")
    b = await taken(steps, "b", "b", start=1)
    await b.open(0)
    await b.send("b@1", b"last")
    await a.close()
    await b.close()
    covers = (await b.open(1)).covers
    frames = [frame.frame for frame in await reader.covered(covers)]
    assert frames == [*(b"%d" % number for number in range(70)), b"last"]
    assert await BoxReader(steps, "b@1").covered(()) == []


async def test_the_settings_come_back_as_they_were_given(steps):
    given = StepSettings(seed=3, wait_for=WaitFor.SENDERS, groups=2)
    assert await steps.begin(given) == given == await steps.settings()
    assert (await steps.settings()).wait_for is WaitFor.SENDERS  # not a text that is equal to it


def no_more_calls(steps, monkeypatch):
    """Let no box be read by a call of its own, however long the call beside takes on a busy machine."""
    monkeypatch.setattr("ray_messaging.transports.box_reader._BESIDE_S", WAIT_S)
    for name in ("read_box", "open_box", "covers"):
        monkeypatch.setattr(steps, name, None)


@pytest.mark.parametrize("last", ["a", "b"])
async def test_a_box_comes_with_the_news_that_are_awaited_from_the_close_on(steps, another, monkeypatch, last):
    await steps.begin(StepSettings(groups=2))
    a, b = await member(steps, "a"), await member(steps, "b")
    b.steps = another.steps
    opened, _ = [await actor.open(0) for actor in (a, b)]
    await a.send("b@1", b"from a")
    await b.send("a@1", b"from b")
    reader = BoxReader(steps, "a@1", with_news=True, filled=True)
    reader.expect(opened.news, WAIT_S)
    if last == "a":
        await b.close(go_on=True)
    following = (await a.close(go_on=True)).following
    no_more_calls(steps, monkeypatch)
    if last == "b":
        assert isinstance(following, Waiting)
        await b.close(go_on=True)
        news = await reader.wait(following.news, WAIT_S)
        assert (news.opened, news.boxes) == (1, 2)
        covers = await reader.covers(news)
    else:
        covers = following.covers
    assert [frame.frame for frame in await reader.covered(covers)] == [b"from b"]
    await reader.end()


async def test_frames_that_this_process_has_written_are_not_read_again(steps, monkeypatch):
    await steps.begin(StepSettings(groups=1))
    a = await member(steps, "a")
    await a.open(0)
    await a.send("a@1", b"one")
    await a.send("a@1", b"two")
    covers = (await a.close(go_on=True)).following.covers
    read = await BoxReader(steps, "a@1").covered(covers)
    no_more_calls(steps, monkeypatch)
    reader = BoxReader(steps, "a@1")
    reader.hand_over([frame._replace(entry="") for frame in read])
    assert [frame.frame for frame in await reader.covered(covers)] == [b"one", b"two"]


async def test_frames_of_others_are_read_with_those_that_this_process_has_written(steps):
    a, b = await open_pair(steps)
    await a.send("a@1", b"one")
    own = await steps.read_box("a@1")
    await b.send("a@1", b"two")
    for actor in (b, a):
        closed = await actor.close(go_on=True)
    reader = BoxReader(steps, "a@1")
    reader.hand_over(own)
    assert [frame.frame for frame in await reader.covered(closed.following.covers)] == [b"one", b"two"]
    dead = [own[0]._replace(tag=own[0].tag._replace(attempt=a.attempt + 1), frame=b"dead")]
    reader = BoxReader(steps, "a@1")
    reader.hand_over(dead)
    assert [frame.frame for frame in await reader.covered(closed.following.covers)] == [b"one", b"two"]


async def test_news_of_something_else_do_not_make_a_part_of_a_box_pass_for_all(steps, another):
    a, b = await open_pair(steps)
    b.steps = another.steps
    place = (await steps.progress()).news
    await b.send("a@1", b"one")
    reader = BoxReader(steps, "a@1", with_news=True, filled=True)
    reader.expect(place, WAIT_S)
    await steps.resume()  # wakes who waits
    await until(lambda: reader._awaited.done())
    await b.send("a@1", b"two")
    waiting = (await a.close(go_on=True)).following
    await b.close(go_on=True)
    news = await reader.wait(waiting.news, WAIT_S)
    assert news.opened == 1
    frames = await reader.covered(await reader.covers(news))
    assert [frame.frame for frame in frames] == [b"one", b"two"]


async def test_a_box_is_read_beside_the_call_that_opens_its_step(steps, monkeypatch):
    a, b = await open_pair(steps)
    await b.send("a@1", b"one")
    for actor in (a, b):
        await actor.close()
    reader = BoxReader(steps, "a@1")
    opened = await reader.ask(lambda: steps.open("a", a.attempt, 1))
    no_more_calls(steps, monkeypatch)
    assert [frame.frame for frame in await reader.covered(opened.covers)] == [b"one"]


async def test_a_beginning_that_was_read_before_the_news_does_not_say_what_counts(steps, another):
    a, b = await open_pair(steps)
    b.steps = another.steps
    place = (await steps.progress()).news
    await a.send("a@1", b"one")
    waiting = (await a.close(go_on=True)).following
    reader = BoxReader(steps, "a@1", with_news=True, filled=True)
    reader.expect(place, WAIT_S)
    begun = await steps.open_box("a@1", 16)
    late = asyncio.Event()

    async def begin(*_):
        return begun

    async def answer_late():
        await late.wait()
        return waiting

    reader._store = SimpleNamespace(open_box=begin, read_box=steps.read_box, wait=steps.wait)
    opening = asyncio.create_task(reader.ask(answer_late))
    await b.send("a@1", b"two")
    await b.close(go_on=True)
    await until(lambda: reader._awaited.done())
    late.set()
    assert await opening == waiting
    news = await reader.wait(waiting.news, WAIT_S)
    frames = await reader.covered(await reader.covers(news))
    assert [frame.frame for frame in frames] == [b"one", b"two"]


async def test_a_box_without_rows_that_counted_is_an_error(steps):
    a, _ = await open_pair(steps)
    await a.send("b@1", b"x")
    lost = [Cover("a", 0, a.attempt, 2)]
    with pytest.raises(FrameError, match="messages of step 1 in mailbox 'b' are lost, because"):
        await BoxReader(steps, "b@1").covered(lost)
    assert [frame.frame for frame in await BoxReader(steps, "b@1").covered([lost[0]._replace(rows=1)])] == [b"x"]


async def test_notes_and_publications_have_boxes_of_their_own(steps):
    a, b = await pair(steps)
    await a.open(0)
    noted, published = LoggedFrame(b"blocked", b"why", 2), [Published(f"news:{n}", b"%d" % n) for n in range(1001)]
    writes = [
        a.write("b@1", b"x", noted=noted),
        a.write(LOG, b"", 0, noted=noted),
        a.write("", b"", 1001, publish=published, noted=noted),
    ]
    assert (await a.call(a.request(*writes))).fates == [FrameFate.WRITTEN] * 3
    assert (await a.call(a.request(*writes))).fates == [FrameFate.DUPLICATE] * 3
    a.rows = 1
    assert isinstance(await a.close(), Committed)
    await run(b, step=0)
    assert sorted(await steps.covered_boxes(1, 1)) == [box_name(NOTES, 1), box_name(PUBLICATIONS, 1), "b@1"]
    notes = await steps.read_box(box_name(NOTES, 1))
    assert [(note.frame, note.note, note.rows) for note in notes] == [(b"blocked", b"why", 2)] * 3
    assert await steps.covers(box_name(NOTES, 1)) == [Cover("a", 0, a.attempt, 6)]
    out = [part for frame in await steps.read_box(box_name(PUBLICATIONS, 1)) for part in frame.publish]
    assert out == [part for channel, data in published for part in (channel.encode(), data)]
    assert await a.inbox(1) == []


async def test_verdicts_that_do_not_count_write_nothing(steps, transport, store, exp_id):
    a, _ = await open_pair(steps)
    await store.set_interceptor(5)
    write = a.write("b@1", b"x")
    for epoch, status in ((-2, SendStatus.UNJUDGED), (4, SendStatus.STALE_VERDICTS)):
        reply = await a.call(a.request(write, epoch=epoch))
        assert (reply.status, reply.fates) == (status, [FrameFate.FULL])
    assert (await a.call(a.request(write, epoch=5))).fates == [FrameFate.WRITTEN]


# -- from outside ---------------------------------------------------------------------------------------------------


class Outsider(Post):
    """A plain messager's transport: it hosts the groups' mailboxes, and sends to them by their plain names."""

    async def host(self, *names):
        for name in names:
            version = (await self.transport.load_directory(-1)).version
            limits = Limits(1000, 10_000, 60.0, leased=False)
            assert await self.transport.listen(MailboxRecord(name, [], [], []), version, limits, owner="", epoch=None)
        await self.begin()


async def test_what_comes_from_outside_is_in_the_step_after_the_latest_open_one(steps, transport):
    await steps.begin(StepSettings())
    user = Outsider(transport)
    await user.host("a", "b", "plain")
    a, b = await pair(steps)
    assert await user.send("b", b"before", 2) is FrameFate.WRITTEN
    opened = await a.open(0)
    assert opened.covers == ()
    request = await user.request(user.part("b", b"in 0", 3))
    assert (await transport.send(request)).fates == [FrameFate.WRITTEN]
    assert (await transport.send(request)).fates == [FrameFate.DUPLICATE]
    assert await user.send("a", b"to a") is FrameFate.WRITTEN
    assert await user.send("plain", b"as ever") is FrameFate.WRITTEN
    assert await b.inbox(0) == [b"before"]
    b.begin(0)
    await b.send("b@1", b"own")
    await a.close()
    await b.close()
    assert set((await b.open(1)).covers) == {Cover(OUTSIDE, 0, 0, 3), Cover("b", 0, b.attempt, 1)}
    assert await b.inbox(1) == [b"in 0", b"own"]
    assert [frame.first for frame in await steps.read_box("b@1")] == [0, 0]
    assert [frame.first for frame in await steps.read_box("a@1")] == [3]
    assert await user.send("a", b"next") is FrameFate.WRITTEN
    assert await a.inbox(1) == [b"to a"]
    assert await transport.read("b", "0-0", 10, 0.01) == []
    assert [frame for _, frame in await transport.read("plain", "0-0", 10, 0.01)] == [b"as ever"]


async def test_a_copy_lists_a_box_whose_list_was_read_before_its_first_message_came(server, exp_id, steps, transport):
    await steps.begin(StepSettings())
    user = Outsider(transport)
    await user.host("a")
    a = await member(steps, "a")
    await a.open(0)
    await a.close()
    assert await user.send("a", b"to the parent") is FrameFate.WRITTEN
    copied = [each for each in await transport.checkpoints.read(0) if each.key != "boxes@1"]
    fork = open_transport(server, f"{exp_id}-fork", MessagingConfig())
    await fork.connect()
    try:
        await fork.checkpoints.write(copied)
        user = Outsider(fork, "the user of the fork")
        await user.host("a")
        assert await user.send("a", b"to the fork") is FrameFate.WRITTEN
        assert await fork.steps.covered_boxes(1, 1) == {"a@1": [Cover(OUTSIDE, 0, 0, 1)]}
        assert [each.frame for each in await fork.steps.read_box("a@1")] == [b"to the fork"]
    finally:
        await fork.close()


async def test_names_of_keys_and_fields_say_whether_a_checkpoint_has_them(steps, transport):
    await steps.begin(StepSettings())
    a = await member(steps, "a")
    await a.open(0)
    await a.close()
    link, prefix = transport.link, transport.keys.prefix
    names = ["of:the:run", "of@0", "box-of:x@1"]
    for name in (*names, "start:of", "box-of:x@0"):
        await link.command("HSET", prefix + name, "field", 1, "start:field", 2)
    copied = {each.key: each.content for each in await transport.checkpoints.read(0)}
    assert {name: copied[name] for name in copied if "of" in name} == {name: [(b"field", b"1")] for name in names}
    assert not [name for name in copied if name.startswith("start:")]


async def test_a_mailbox_that_is_made_anew_is_stepped_as_before(steps, transport):
    await steps.begin(StepSettings())
    user = Outsider(transport)
    await user.host("a")
    a = await member(steps, "a")
    await transport.remove("a", None)
    await user.host("a")
    assert await user.send("a", b"x") is FrameFate.WRITTEN
    assert await a.inbox(0) == [b"x"]


async def test_a_call_that_writes_to_stepped_and_plain_mailboxes(steps, transport):
    await steps.begin(StepSettings(box_rows=5))
    user = Outsider(transport)
    await user.host("a", "plain")
    a = await member(steps, "a")
    writes = [FrameWrite(name, seq, 2, b"x") for name, seq in (("a", 1), ("plain", 1), ("a", 2), ("a", 3))]
    reply = await transport.send(await user.request(*writes))
    assert reply.fates == [FrameFate.WRITTEN] * 3 + [FrameFate.TOO_LARGE]
    assert (await steps.box_size("a@0"))[:2] == (4, 2)
    assert (await a.open(0)).covers == (Cover(OUTSIDE, -1, 0, 4),)


# -- the supervisor -------------------------------------------------------------------------------------------------


async def test_the_supervisor_closes_a_step_after_all_groups(steps, another):
    await steps.begin(StepSettings(groups=2))
    supervisor, first = await member(steps, SUPERVISOR), await member(steps, "a")
    waiting = await first.open(0)
    assert (waiting.reason, waiting.total) == (Reason.MISSING, 1)  # the supervisor is no group
    second = await member(steps, "b")
    assert isinstance(await supervisor.open(0), Waiting)
    await first.open(0)
    await second.open(0)
    await first.close()
    waiting = await supervisor.open(0)
    assert isinstance(waiting, Waiting)
    assert waiting.names == ("b",)
    told = asyncio.create_task(another.steps.wait(waiting.news, WAIT_S))
    await second.close()
    assert await told != waiting.news
    late = await first.open(1)
    assert isinstance(late, Waiting)
    assert late.names == (SUPERVISOR,)
    progress = await steps.progress()
    assert (progress.sealed, sorted(progress.groups), progress.waiting_for()) == (-1, ["a", "b"], {SUPERVISOR: 0})
    assert isinstance(await supervisor.open(0), Opened)
    await supervisor.send("a@1", b"a word")
    await supervisor.close(counts=b"its counts")
    assert await first.inbox(1) == [b"a word"]
    assert (await steps.closed_step(0))[SUPERVISOR].counts == b"its counts"


async def test_groups_go_on_when_the_supervisor_leaves(steps):
    first, second = await pair(steps)
    supervisor = await member(steps, SUPERVISOR)
    await run(first, second, step=0)
    await supervisor.open(0)
    assert await steps.leave(SUPERVISOR, at_once=True) == 0
    assert isinstance(await first.open(1), Opened)


async def test_a_supervisor_that_comes_later_closes_the_open_step(steps):
    first, second = await pair(steps)
    await run(first, second, step=0)
    await first.open(1)
    assert await steps.join(SUPERVISOR) == 1
    supervisor = await taken(steps, SUPERVISOR, "rules")
    await first.close()
    await run(second, step=1)
    assert isinstance(await first.open(2), Waiting)
    assert (await steps.progress()).sealed == 0
    await supervisor.open(1)
    await supervisor.close()
    assert isinstance(await first.open(2), Opened)


async def test_a_sign_of_life_is_no_progress(steps):
    await steps.begin(StepSettings())
    await steps.join("east")
    taken = await steps.take("east", Driver("task", 1), 10.0)

    async def now():
        return (await steps.progress()).groups["east"]

    while (before := await now()).idle_ms < 5:
        pass
    assert before.silent_ms >= 5
    await steps.renew("east", taken.attempt)
    after = await now()
    assert after.idle_ms >= after.silent_ms + 5
    assert not after.cut_off
    assert after._replace(silent_ms=11_000).cut_off
    assert not after._replace(silent_ms=11_000, driver=None).cut_off
