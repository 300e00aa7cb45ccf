"""Agents that wait for their neighbours alone: the same results as if all waited for all, with the calls made early."""

import asyncio
import random
import threading
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial

import pytest
from support.patience import WAIT_S

from ray_messaging import Calls, Count, EventLog, LocalServer, Steps, report_usage, rules, run
from ray_messaging.cluster.run.ahead_news import AheadNews, ToldMessage, ToldStep, decode_told
from ray_messaging.cluster.run.run_actor import RunActor, RunInputs
from ray_messaging.cluster.run.run_plan import RunOptions, plans_for
from ray_messaging.cluster.spec import SUBTOPICS
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.eventlog.call_rows import parent_calls
from ray_messaging.messager import GroupMessager
from ray_messaging.model.exact import decode_exactly

FEATURES = ("sends", "later", "asks", "stops", "idle", "moves", "strangers", "outcasts", "twice", "errors")
UNKNOWN = {"asks", "moves", "strangers"}  # messages on ways that the graph does not have
NEAR = {"wait_for": "neighbours", "progress": False}
OPTIONS = RunOptions(None, "agent", 100, None)
TWO_PAIRS = [(0, 1), (1, 0), (2, 3), (3, 2)]


class Oracle:
    """A language model whose answers take a while, and depend on what it was asked alone."""

    def __init__(self, seed):
        self.seed, self.asked = seed, Counter()

    async def ask(self, prompt):
        draw = random.Random(f"{self.seed} {prompt}")
        self.asked[prompt] += 1
        for _ in range(int(draw.lognormvariate(1, 1.2))):
            await asyncio.sleep(0)
        await asyncio.sleep(draw.choice([0, 0, 0, 0.001, 0.005]))
        return f"answer {draw.randrange(1000)}"


class Society:
    """A random society, whose agents do what `has` names."""

    def __init__(self, seed):
        draw = random.Random(f"look-ahead {seed}")
        self.oracle = Oracle(seed)
        self.has = {name for name in FEATURES if draw.random() < 0.5}
        count = draw.randint(4, 12)
        self.agents = agents = [*range(count), *(["ann", "bob"] if draw.random() < 0.5 else [])]
        edges = {(draw.choice(agents), draw.choice(agents)) for _ in range(draw.randint(1, 2 * count))}
        groups = {f"g{n}": [] for n in range(draw.randint(1, 4))}
        for agent in agents:
            groups[draw.choice([*groups])].append(agent)
        self.groups = {name: ids for name, ids in groups.items() if ids}
        self.given = {
            "agents": agents, "groups": self.groups, "graph": sorted(edges, key=str), "until": draw.randint(3, 10),
            "seed": seed, "only_active": "idle" in self.has, "progress": False, "concurrency": draw.choice([1, 3, 100]),
            "collect": [Count("told")] if draw.random() < 0.5 else lambda me: {"n": len(me.state["heard"])},
            "start": lambda me: {"told": f"start {me.id}", "heard": ""},
        }  # fmt: skip

    async def person(self, me, inbox):
        heard = [
            (m.from_id, m.payload["t"], m.subtopic, m.id, m.step, m.expects_answer, m.in_reply_to, m.to_id)
            for m in inbox
        ]
        me.state["heard"] = f"{me.state['heard'][-60:]} {heard}"
        if me.rng.random() < 0.6:
            await self.think(me)
        for message in inbox:
            if message.expects_answer and me.rng.random() < 0.7:
                me.reply(message, {"t": f"re {me.state['told']}"})
        self.talk(me)
        self.wander(me)

    async def think(self, me):
        told = await me.remember(self.oracle.ask, f"{me.id!r} in {me.step}: {me.state['heard']}")
        if "twice" in self.has and me.step_rng.random() < 0.5:
            told += str(await asyncio.gather(*(me.remember(self.oracle.ask, f"{me.id!r}: {told}") for _ in range(2))))
        me.state["told"] = told

    def talk(self, me):
        for friend in me.neighbours:
            if "sends" in self.has and me.rng.random() < 0.7:
                topic = str(me.rng.choice(["agent-chat", "user-chat"]))
                later = int(me.rng.integers(1, 4)) if "later" in self.has else 1
                me.send(friend, {"t": me.state["told"]}, subtopic=topic, deliver_at=me.step + later)
            if "asks" in self.has and me.rng.random() < 0.3:
                me.state["question"] = me.ask(friend, {"t": "well?"})
        if "strangers" in self.has and me.rng.random() < 0.1:
            me.send(self.agents[int(me.rng.integers(len(self.agents)))], {"t": "hello"})

    def wander(self, me):
        if "outcasts" in self.has and me.rng.random() < 0.1:
            me.send("nobody", {"t": "hello"})
        if "errors" in self.has and me.rng.random() < 0.2:
            try:
                if me.step % 2:
                    me.send(3, {"t": "when?"}, deliver_at=me.step + 1.5)
                else:
                    me.send(3, {"t": object()})
            except Exception as error:  # noqa: BLE001 - any is part of what the agent knows
                me.state["error"] = type(error).__name__
        if "moves" in self.has and me.rng.random() < 0.1:
            me.move(str(me.rng.choice([*self.groups])))
        if "stops" in self.has and me.rng.random() < 0.05:
            me.stop()
        if "idle" in self.has and me.rng.random() < 0.5:
            me.stay_active()


def seen(result):
    """Return all that must be the same."""
    return result.states, result.digests, result.fates, result.steps, result.series.to_csv(), result.calls.model


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(n, marks=[pytest.mark.long, pytest.mark.soak]) for n in range(10, 200))]
)
def test_to_wait_for_neighbours_changes_nothing_that_anybody_can_see(seed):
    found = []
    for how in ({}, {"wait_for": "neighbours", "ahead": 1 + seed % 9}):
        society = Society(seed)
        result = run(society.person, **society.given, **how)
        found.append(seen(result))
        made = sum(society.oracle.asked.values())
        if society.has.isdisjoint(UNKNOWN):  # what agents hear is known ahead, so no call is made in vain
            assert (made, result.calls.unused) == (result.calls.model, 0)
        else:
            assert made >= result.calls.model + result.calls.unused
    assert found[0] == found[1]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("ahead", [1, 5])
def test_a_slow_conversation_holds_up_nobody_else(groups, ahead):
    far, asked = threading.Event(), []  # the groups have an event loop each

    def ask(agent, step):
        asked.append((agent, step))
        if (agent, step) == (2, ahead):
            far.set()
        if (agent, step) == (0, 0):
            assert far.wait(WAIT_S)  # the other pair is so many steps ahead by then
        return step

    async def person(me, inbox):
        me.state["told"] = await me.remember(ask, me.id, me.step)
        for friend in me.neighbours:
            me.send(friend, {"heard": len(inbox)})

    result = run(person, agents=4, groups=groups, graph=TWO_PAIRS, until=8, ahead=ahead, **NEAR)
    assert result.steps == 8
    assert len(asked) == len({*asked}) == result.calls.model == 32
    before = {(agent, step) for agent, step in asked[: asked.index((2, ahead))]}
    assert {step for agent, step in before if agent < 2} <= {0}  # the pair itself waits


@pytest.mark.parametrize("ahead", [1, 5])
def test_agents_run_ahead_although_their_neighbours_are_in_other_groups(ahead):
    far, asked = threading.Event(), []

    def ask(agent, step, heard):
        asked.append((agent, step))
        if (agent, step) == (2, ahead):
            far.set()
        if (agent, step) == (0, 0):
            assert far.wait(WAIT_S)
        return f"{agent} in {step} hears {heard}"

    async def person(me, inbox):
        heard = [(message.from_id, message.payload, message.subtopic, message.expects_answer) for message in inbox]
        me.state["told"] = await me.remember(ask, me.id, me.step, heard)
        for message in inbox:
            if message.expects_answer:
                me.reply(message, {"re": me.step})
        for friend in me.neighbours:
            me.send(friend, {"heard": len(inbox)}, deliver_at=me.step + 1 + (me.id == 1))
            if me.step % 3 == 0 and me.id == 2:
                me.ask(friend, {"step": me.step})

    chain = [(1, 2), (2, 1), (2, "ann"), ("ann", 2), ("ann", 1)]
    groups = {"east": [0, 1], "north": ["ann"], "west": [2]}
    given = {"agents": [0, 1, 2, "ann"], "groups": groups, "graph": chain, "until": 9}
    near = run(person, **given, ahead=ahead, **NEAR)
    assert len(asked) == len({*asked}) == near.calls.model == 36
    assert near.calls.unused == 0
    everybody = run(person, **given, progress=False)
    assert (near.states, near.digests) == (everybody.states, everybody.digests)


def test_who_hears_everybody_makes_no_call_twice():
    asked = []

    async def person(me, inbox):
        me.state["told"] = await me.remember(asked.append, (me.id, me.step, len(inbox)))
        for friend in me.neighbours:
            me.send(friend, {})

    pairs = [(one, other) for one in range(4) for other in range(4)]
    for groups in (1, 2):
        asked.clear()
        result = run(person, agents=4, groups=groups, graph=pairs, until=5, **NEAR)
        assert len(asked) == len({*asked}) == result.calls.model == 20


def test_an_agent_that_keeps_what_nobody_can_copy_fails_as_without_look_ahead():
    async def person(me, inbox):
        await me.remember(str, me.step)
        if (me.id, me.step) == (3, 2):
            me.state["odd"] = object()

    with pytest.raises(StepFailed, match=r"me\.state\[.odd.\]") as error:
        run(person, agents=4, graph=TWO_PAIRS, until=5, **NEAR)
    assert (error.value.agent, error.value.step) == (3, 2)


def test_an_error_ahead_is_raised_by_the_step_itself():
    async def ask(step):
        if step == 3:
            raise ValueError("no answer")

    async def person(me, inbox):
        await me.remember(ask, me.step)

    with pytest.raises(StepFailed, match="no answer") as error:
        run(person, agents=4, graph=TWO_PAIRS, until=6, **NEAR)
    assert error.value.step == 3


def test_a_message_that_the_graph_does_not_have_is_heard_and_costs_a_call(tmp_path):
    far = threading.Event()

    def ask(prompt):
        if prompt == "2 in 5 hears []":
            far.set()
        if prompt.startswith("0 in 4"):
            assert far.wait(WAIT_S)  # agent 2 has begun step 5 by then, if it runs ahead
        return prompt

    async def person(me, inbox):
        heard = sorted(message.from_id for message in inbox)
        me.state["told"] = await me.remember(ask, f"{me.id} in {me.step} hears {heard}")
        if me.step == 4 and me.id == 0:
            me.send(2, {"to": "a stranger"})

    given = {"agents": 4, "graph": TWO_PAIRS, "until": 8}
    near = run(person, **given, **NEAR, log_dir=tmp_path / "log")
    everybody = run(person, **given, progress=False)
    assert near.states == everybody.states
    assert near.states[2]["told"] == everybody.states[2]["told"]
    assert near.digests == everybody.digests
    assert (near.calls.model, near.calls.unused, everybody.calls.unused) == (32, 1, 0)
    assert "1 made in vain" in str(near.calls)
    found = EventLog.open(tmp_path / "log").calls().to_pylist()
    assert Counter(row["source"] for row in found) == {"model": 32, "unused": 1}
    (vain,) = (row for row in found if row["source"] == "unused")
    assert (vain["agent"], vain["step"], vain["result"]) == (2, 5, '"2 in 5 hears []"')


class Prompt:
    """An argument that cannot be encoded."""

    def __init__(self, heard):
        self.heard = heard


@pytest.mark.parametrize("hidden", ["object", "lambda", "default"])
def test_a_call_whose_arguments_cannot_be_compared_is_made_by_its_step_alone(hidden):
    asked, far = [], threading.Event()

    def ask(prompt):
        asked.append(prompt.heard)
        return f"hears {prompt.heard}"

    async def person(me, inbox):
        if (me.id, me.step) == (0, 0):
            assert await me.remember(far.wait, WAIT_S)  # the others are ahead by then
            me.send(2, {"to": "a stranger"})
        if (me.id, me.step) == (2, 1):
            prompt = Prompt([message.from_id for message in inbox])
            calls = {
                "object": partial(ask, prompt),
                "lambda": lambda: ask(prompt),
                "default": lambda now=prompt: ask(now),
            }
            me.state["told"] = await me.remember(calls[hidden])
        if (me.id, me.step) == (3, 3):
            await me.remember(far.set)

    result = run(person, agents=4, graph=[(0, 1)], until=4, **NEAR)
    assert result.states[2] == {"told": "hears [0]"}
    assert asked == [[0]]


@pytest.mark.parametrize("fails", [False, True])
def test_a_call_that_was_made_in_vain_is_told_even_if_it_ends_after_its_step(tmp_path, fails):
    far, late, ended, tried = threading.Event(), threading.Event(), threading.Event(), Counter()

    def ask(agent, step):
        tried[agent, step] += 1
        if (agent, step) == (0, 4):
            assert far.wait(WAIT_S)  # agent 2 has begun step 5 by then, and has not heard the stranger
        if step == 7:
            late.set()  # with ahead=1, step 5 has ended by then
        if step == 9:
            assert ended.wait(WAIT_S)
        return step

    def ask_in_vain(_draw):
        far.set()
        assert late.wait(WAIT_S)
        ended.set()
        report_usage(input_tokens=5, output_tokens=6)
        if fails:
            raise ValueError("no answer")
        return "in vain"

    async def person(me, inbox):
        vain = (me.id, me.step) == (2, 5) and not inbox
        me.state["told"] = await (me.remember(ask_in_vain, 0) if vain else me.remember(ask, me.id, me.step))
        if (me.id, me.step) == (0, 4):
            me.send(2, {"to": "a stranger"})

    result = run(person, agents=4, graph=TWO_PAIRS, until=40, ahead=1, log_dir=tmp_path / "log", **NEAR)
    assert (result.calls.model, result.calls.unused, result.calls.output_tokens) == (160, not fails, 6)
    calls = EventLog.open(tmp_path / "log").calls().to_pylist()
    (vain,) = (row for row in calls if row["source"] != "model")
    assert (vain["agent"], vain["output_tokens"]) == (2, 6)
    assert (vain["source"], vain["result"]) == (("failed", "null") if fails else ("unused", '"in vain"'))


def test_a_fork_does_not_take_the_answer_of_a_call_that_an_earlier_step_made_in_vain(tmp_path):
    far, late, ended = threading.Event(), threading.Event(), threading.Event()
    step_of_call = Counter()

    def ask(agent, step):
        if (agent, step) == (0, 4):
            assert far.wait(WAIT_S)
        if step == 7:
            late.set()
        if step == 9:
            assert ended.wait(WAIT_S)
        return step

    def roll(_dice):
        step_of_call["roll"] += 1
        if step_of_call["roll"] > 1:
            return "needed"
        far.set()
        assert late.wait(WAIT_S)
        ended.set()
        return "in vain"

    async def person(me, inbox):
        rolls = me.id == 2 and me.step >= 5 and not inbox
        me.state["told"] = await (me.remember(roll, 0) if rolls else me.remember(ask, me.id, me.step))
        if (me.id, me.step) == (0, 4):
            me.send(2, {"to": "a stranger"})

    result = run(person, agents=4, graph=TWO_PAIRS, until=40, ahead=1, log_dir=tmp_path / "log", **NEAR)
    assert result.calls.unused == 1
    calls = EventLog.open(tmp_path / "log").calls().to_pylist()
    (vain,) = (row for row in calls if row["source"] == "unused")
    assert vain["step"] > 5
    found = parent_calls(str(tmp_path / "log"), vain["step"], range(4))
    assert decode_exactly(found[vain["key"]]) == "needed"


class Busy(Exception):
    """The error of a language model that has too much to do."""

    status_code = 429


def test_a_call_of_agents_that_no_longer_run_ahead_is_tried_again_for_the_step_that_waits_for_it():
    far, stranger_is_heard, tried = threading.Event(), threading.Event(), Counter()

    def ask(agent, step):
        tried[agent, step] += 1
        if (agent, step) == (2, 5):
            far.set()
        if (agent, step) == (0, 4):
            assert far.wait(WAIT_S)  # agent 2 has begun step 5 by then, and has not heard the stranger
        if (agent, step) == (0, 5) and tried[agent, step] == 1:
            assert stranger_is_heard.wait(WAIT_S)  # by then, all agents run in step 5 itself
            raise Busy
        return step

    async def person(me, inbox):
        if me.id == 2 and any(message.from_id == 0 for message in inbox):
            stranger_is_heard.set()
        me.state["told"] = await me.remember(ask, me.id, me.step)
        if (me.id, me.step) == (0, 4):
            me.send(2, {"to": "a stranger"})

    result = run(person, agents=4, graph=TWO_PAIRS, until=8, calls=Calls(retries=1), **NEAR)
    assert all(state == {"told": 7} for state in result.states.values())
    assert tried[0, 5] == 2


class Nobody(rules.Rule):
    """A rule that blocks what agent 0 says."""

    name = "nobody"

    def check(self, message):
        return rules.block("no") if message.from_id == 0 else rules.ALLOW


@pytest.mark.parametrize(
    "how", [{"rules": [Nobody()]}, {"graph": None}, {"until": lambda now: now["step"] == 5, "max_steps": 9}]
)
def test_where_it_is_not_known_what_agents_hear_calls_wait_for_their_step(how):
    order = []

    async def ask(step, heard):
        order.append(step)
        return heard

    async def person(me, inbox):
        heard = [message.from_id for message in inbox]
        me.state["told"] = await me.remember(ask, me.step, (heard, len(me.blocked)))
        me.send(me.id ^ 1, {})

    given = {"agents": 4, "graph": TWO_PAIRS, "until": 6, "collect": [Count("told", of=lambda me: 1)]} | how
    near = run(person, **given, **NEAR)
    assert order == sorted(order)
    everybody = run(person, **given, progress=False)
    assert (near.states, near.digests, near.calls) == (everybody.states, everybody.digests, everybody.calls)


def test_a_budget_counts_the_calls_that_are_made_ahead():
    made = []

    async def person(me, inbox):
        me.state["told"] = await me.remember(made.append, (me.id, me.step))

    result = run(person, agents=4, graph=TWO_PAIRS, until=20, calls=Calls(budget=30), **NEAR)
    assert result.calls.spent
    assert len(made) == len({*made}) == 30
    assert result.steps <= 7


def test_equal_calls_in_a_store_are_made_once(tmp_path):
    made = []

    async def ask(step):
        made.append(step)
        return step

    async def person(me, inbox):
        me.state["told"] = await me.remember(ask, me.step)

    calls = Calls(store=tmp_path / "store")
    result = run(person, agents=4, graph=TWO_PAIRS, until=10, calls=calls, **NEAR)
    assert sorted(made) == [*range(10)]
    assert (result.calls.model, result.calls.store) == (10, 30)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"wait_for": "senders"}, "wait_for='senders' is unknown"),
        ({"wait_for": "neighbours", "ahead": 0}, "ahead=0 must be a number of steps, from 1 to 64"),
        ({"wait_for": "neighbours", "ahead": 65}, "ahead=65"),
    ],
)
def test_wrong_settings_are_told(given, text):
    with pytest.raises(ConfigError, match=text):
        run(lambda me, inbox: None, agents=1, until=1, progress=False, **given)


def test_ahead_needs_to_wait_for_neighbours():
    assert Steps(wait_for="neighbours", ahead=3).ahead == 3
    assert Steps(**Steps().model_dump()) == Steps()  # as a fork takes the settings of its parent
    with pytest.raises(ValueError, match="ahead=3 needs wait_for='neighbours'"):
        Steps(ahead=3)


async def test_a_call_that_was_made_ahead_is_not_made_again_by_a_later_driver():
    plan = plans_for(OPTIONS, 4, 1, TWO_PAIRS, 1, near=True)[0]
    far, first, asked = asyncio.Event(), threading.Event(), Counter()
    loop = asyncio.get_running_loop()

    def ask(agent, step):
        asked[agent, step] += 1
        if (agent, step) == (2, 5):
            loop.call_soon_threadsafe(far.set)
        if (agent, step) == (0, 0) and asked[agent, step] == 1:
            assert first.wait(WAIT_S)
        return step

    async def person(me, inbox):
        me.state["told"] = await me.remember(ask, me.id, me.step)

    def inputs():
        return RunInputs(known(person), known(OPTIONS), known(None), {plan.name: known(plan)}, ahead=5)

    server = LocalServer(Steps(groups=1, digest=True))
    with server:
        async with GroupMessager(server, "driven", None, name=plan.name) as messager:
            await messager.host_agents(plan.agents, SUBTOPICS)
            killed = RunActor(messager)
            task = asyncio.create_task(killed.run(plan.name, [known((None, inputs()))], 8, 1, with_states=True))
            async with asyncio.timeout(WAIT_S):
                await far.wait()
            task.cancel()
            await asyncio.wait({task})
            later = RunActor(messager)
            running = later.run(plan.name, [known((None, inputs()))], 8, 1, with_states=True)
            found = await asyncio.wait_for(running, WAIT_S)
            first.set()
            for actor in (killed, later):
                await actor.close()
    assert found.until == 8
    assert all(state == {"told": 7} for state in found.states.values())
    assert {key for key, count in asked.items() if count > 1} <= {(0, 0), (1, 0), (2, 5), (3, 4), (3, 5)}  # in flight
    assert found.calls["kept"] >= 8
    assert found.calls["kept"] + found.calls["model"] == 32


async def hosting(stack, server, exp_id, plans):
    """Return the messagers of groups that host their agents."""
    messagers = []
    for plan in plans:
        messagers.append(await stack.enter_async_context(GroupMessager(server, exp_id, None, name=plan.name)))
        await messagers[-1].host_agents(plan.agents, SUBTOPICS)
    return messagers


async def told_again(watching, group, agent, step):
    """Wait until a group whose look-ahead has begun anew tells that an agent has ended a step."""
    place, begun = "0-0", 0
    while True:
        for entry, told in await watching.engine.transport.steps.told_ahead(place, WAIT_S):
            place, news = entry, decode_told(told)
            begun += news.anew and news.group == group
            if begun > 1 and any((each.agent, each.step) == (agent, step) for each in news.steps):
                return


async def test_a_group_that_begins_again_misleads_no_group_that_waits_for_its_agents():
    groups = {"g0": [0, 1], "g1": [2]}
    plans = plans_for(OPTIONS, 3, groups, [(1, 2), (2, 1)], 1, near=True)
    far, first, second, asked = asyncio.Event(), threading.Event(), threading.Event(), Counter()
    loop = asyncio.get_running_loop()

    def ask(agent, step, heard):
        asked[agent, step] += 1
        if (agent, step) == (2, 5):
            loop.call_soon_threadsafe(far.set)
        if (agent, step) in {(0, 0), (0, 1)}:  # so this group stays in step 1 until it has heard the other one again
            assert (second if step else first).wait(WAIT_S)
        return f"{agent} in {step} hears {heard}"[:100]

    async def person(me, inbox):
        me.state["told"] = await me.remember(ask, me.id, me.step, [message.payload["told"] for message in inbox])
        for friend in me.neighbours:
            me.send(friend, {"told": me.state["told"]}, deliver_at=me.step + 1 + me.step % 2)

    async with AsyncExitStack() as stack:
        server = stack.enter_context(LocalServer(Steps(groups=2, digest=True)))
        watching = await stack.enter_async_context(GroupMessager(server, "again", None, name="watch"))
        actors = [RunActor(messager) for messager in await hosting(stack, server, "again", plans)]
        plan_of = {plan.name: known(plan) for plan in plans}
        inputs = RunInputs(known(person), known(OPTIONS), known(None), plan_of, ahead=5)

        def begun(actor, plan):
            return asyncio.create_task(actor.run(plan.name, [known((None, inputs))], 12, 1, with_states=True))

        running, killed = map(begun, actors, plans)
        async with asyncio.timeout(WAIT_S):
            await far.wait()
            killed.cancel()
            await asyncio.wait({killed})
            await actors[1].close()  # a process that is gone tells the other groups no more
            actors += [RunActor(messager) for messager in await hosting(stack, server, "again", plans[1:])]
            again = begun(actors[2], plans[1])
            first.set()
            await told_again(watching, "g1", 2, 5)
            second.set()
            found = await asyncio.gather(running, again)
        for actor in actors:
            await actor.close()
    assert {key for key, count in asked.items() if count > 1} <= {(2, 5)}  # its call was under way
    assert sum(part.calls["unused"] for part in found) == 0
    whole = await asyncio.to_thread(
        run, person, agents=3, groups=groups, graph=[(1, 2), (2, 1)], until=12, progress=False
    )
    assert found[0].states | found[1].states == whole.states


async def test_news_that_cannot_be_read_are_in_the_log(caplog):
    async with GroupMessager(LocalServer(Steps()), "odd", None, name="g0") as messager:
        store = messager.engine.transport.steps
        await store.tell_ahead([b"odd"])
        news = AheadNews(store, "", "g0", print)
        await asyncio.wait([news._reading], timeout=WAIT_S)
        await news.close()
    assert "group 'g0' no longer exchanges news of agents that run ahead" in caplog.text


async def test_news_are_in_entries_of_bounded_size():
    def step(number, *sizes):
        return ToldStep(7, number, [ToldMessage(8, number + 1, 0, bytes(size), "chat", False, None) for size in sizes])

    told = [step(0), step(1, 40_000, 20_000), step(2, 30_000), step(3, 70_000), *(step(n) for n in range(4, 400))]
    heard, entries, all_heard = [], [], asyncio.Event()

    def hear(news):
        heard.extend(each.step for each in news.steps)
        entries.append((news.anew, len(news.steps), sum(len(sent.line) for each in news.steps for sent in each.sent)))
        if heard[-1:] == [399]:
            all_heard.set()

    async with AsyncExitStack() as stack:
        server = stack.enter_context(LocalServer(Steps(groups=2)))
        groups = [GroupMessager(server, "large", None, name=name) for name in ("g0", "g1")]
        stores = [(await stack.enter_async_context(group)).engine.transport.steps for group in groups]
        teller, other = AheadNews(stores[0], "", "g0", print), AheadNews(stores[1], "", "g1", hear)
        teller.tell(told, anew=True)
        async with asyncio.timeout(WAIT_S):
            await all_heard.wait()
        await teller.close()
        await other.close()
    assert heard == [each.step for each in told if each.step != 3]  # its messages fit into no entry
    assert entries == [(True, 2, 60_000), (False, 256, 30_000), (False, 141, 0)]


async def test_a_run_hears_no_news_of_an_earlier_run_of_its_experiment():
    groups = {"g0": [0, 1], "g1": [2]}
    plans = plans_for(OPTIONS, 3, groups, [(1, 2), (2, 1)], 1, near=True)
    far, first, second, asked = asyncio.Event(), threading.Event(), asyncio.Event(), Counter()
    tell = asyncio.get_running_loop().call_soon_threadsafe
    calls = {(1, 0, 0): (first.wait, WAIT_S), (1, 2, 5): (tell, far.set), (2, 1, 0): (tell, second.set)}

    def ask(*call, heard):
        asked[call] += 1
        act, *args = calls.get(call, (str,))
        act(*args)
        return f"{call} hears {heard}"[:100]

    def model(version):
        async def person(me, inbox):
            heard = [message.payload["told"] for message in inbox]
            me.state["told"] = await me.remember(ask, version, me.id, me.step, heard=heard)
            for friend in me.neighbours:
                me.send(friend, {"told": me.state["told"]})

        return person

    async with AsyncExitStack() as stack:
        server = stack.enter_context(LocalServer(Steps(groups=2, digest=True)))
        actors, messagers = [], await hosting(stack, server, "twice", plans)
        plan_of = {plan.name: known(plan) for plan in plans}

        def begun(place, version):
            inputs = RunInputs(known(model(version)), known(OPTIONS), known(None), plan_of, ahead=5, run=str(version))
            actors.append(RunActor(messagers[place]))
            run = actors[-1].run(plans[place].name, [known((None, inputs))], 8, 1, with_states=True)
            return asyncio.create_task(run)

        async with asyncio.timeout(WAIT_S):
            earlier = {begun(0, 1), begun(1, 1)}
            await far.wait()
            for each in earlier:
                each.cancel()
            await asyncio.wait(earlier)
            first.set()
            alone = begun(0, 2)
            await second.wait()
            found = await asyncio.gather(alone, begun(1, 2))
        for actor in actors:
            await actor.close()
    assert {count for (version, *_), count in asked.items() if version == 2} == {1}
    assert sum(part.calls["unused"] for part in found) == 0


async def test_a_run_that_is_to_end_after_the_open_step_begins_no_call_of_later_steps():
    plan = plans_for(OPTIONS, 4, 1, TWO_PAIRS, 1, near=True)[0]
    far, ended, asked = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def ask(agent, step):
        asked.append((agent, step))
        if (agent, step) == (2, 3):
            loop.call_soon_threadsafe(far.set)
        if (agent, step) in {(2, 3), (0, 0)}:
            assert ended.wait(WAIT_S)
        return step

    async def person(me, inbox):
        me.state["told"] = await me.remember(ask, me.id, me.step)
        me.state["more"] = await me.remember(ask, me.id, me.step + 100)

    inputs = RunInputs(known(person), known(OPTIONS), known(None), {plan.name: known(plan)}, ahead=16)
    with LocalServer(Steps(groups=1, digest=True)) as server:
        async with GroupMessager(server, "ended", None, name=plan.name) as messager:
            await messager.host_agents(plan.agents, SUBTOPICS)
            actor = RunActor(messager)
            running = asyncio.create_task(actor.run(plan.name, [known((None, inputs))], 8, 1, with_states=True))
            async with asyncio.timeout(WAIT_S):
                await far.wait()
                await actor.end_after(0, 1)
                ended.set()
                found = await running
            await actor.close()
    assert found.until == 1
    assert (2, 103) not in asked
    assert {step % 100 for agent, step in asked if agent < 2} == {0}
    assert max(step % 100 for _, step in asked) == 3


async def test_an_agent_that_moves_has_the_answers_of_the_run_that_was_forked_there_too(tmp_path):
    groups, asked = {"g0": [0, 1], "g1": [2, 3]}, Counter()

    async def roll(agent, step):
        asked[agent, step] += 1
        return asked[agent, step]

    async def person(me, inbox):
        me.state["told"] = await me.remember(roll, me.id, me.step)
        if (me.id, me.step) == (0, 2):
            me.move("g1")

    given = {"agents": 4, "groups": groups, "graph": TWO_PAIRS}
    await asyncio.to_thread(run, person, **given, until=8, log_dir=tmp_path / "log", progress=False)
    plans = plans_for(OPTIONS, 4, groups, TWO_PAIRS, 1, near=True)
    plan_of = {plan.name: known(plan) for plan in plans}
    inputs = RunInputs(known(person), known(OPTIONS), known(None), plan_of, str(tmp_path / "log"), ahead=5)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(LocalServer(Steps(groups=2, digest=True)))
        actors = []
        for plan in plans:
            messager = await stack.enter_async_context(GroupMessager(server, "fork", None, name=plan.name))
            await messager.host_agents(plan.agents, SUBTOPICS)
            actors.append(RunActor(messager))
            stack.push_async_callback(actors[-1].close)
        running = (
            actor.run(plan.name, [known((None, inputs))], 8, 1, with_states=True)
            for actor, plan in zip(actors, plans, strict=True)
        )
        found = await asyncio.wait_for(asyncio.gather(*running), WAIT_S)
    assert [sorted(part.states) for part in found] == [[1], [0, 2, 3]]
    assert sum((part.calls for part in found), Counter()) == {"parent": 32}
    assert {*asked.values()} == {1}


def known(value):
    found = asyncio.get_running_loop().create_future()
    found.set_result(value)
    return found
