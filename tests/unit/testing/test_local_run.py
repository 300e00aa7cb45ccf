"""A run in this process: the result of one loop without messaging, rules and all, on any number of groups."""

import asyncio
import copy
import gc
import json
import os
import pickle
import signal
import threading
import weakref

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patience import WAIT_S
from support.ripple import ripple, ripple_start
from support.rumour import Rumour, blocks, sequential, small_world

from ray_messaging import run
from ray_messaging.errors import ConfigError, RuleError, StepFailed
from ray_messaging.interception.rules import (
    ALLOW,
    BlackList,
    MaxLength,
    RateLimit,
    Rule,
    SenderBan,
    StepRule,
    StepVerdicts,
    Table,
    block,
)
from ray_messaging.messager import GroupMessager

RUMOUR = Rumour(small_world(24), steps=4, chance=110)


class Words(Rule):
    """The rule of the rumour, which blocks some words."""

    name = "words"
    needs_payload = True

    def check(self, message):
        return block("") if blocks(message.payload["word"]) else ALLOW


def live(me, inbox):
    heard = [(message.from_id, message.payload["word"]) for message in inbox]
    me.state["kept"] = RUMOUR.hear(me.id, me.step, me.state["kept"], heard)
    for to, word, read in RUMOUR.tell(me.id, me.step, me.state["kept"]):
        me.send(to, {"word": word}, deliver_at=read)


def tell_next(me, inbox):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.send((me.id + 1) % 6, {"n": me.step})


@pytest.mark.parametrize("ruled", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_states_and_digests_are_those_of_one_loop(groups, ruled):
    states, digests = sequential(RUMOUR, ruled)
    result = run(
        live,
        agents=RUMOUR.agents,
        until=RUMOUR.steps,
        groups=groups,
        start=lambda me: {"kept": RUMOUR.begin(me.id)},
        rules=[Words()] if ruled else [],
    )
    assert {agent: state["kept"] for agent, state in result.states.items()} == states
    assert result.digests == {step: digest.hex() for step, digest in enumerate(digests)}
    assert (result.fates["blocked"] > 0) is ruled


def test_agents_with_ids_of_any_text():
    ids = ["team/1:2", "@ann:example.org", "did:web:x", "a%3Ab", "a:b", "[*?\\]"]

    async def person(me, inbox):
        me.state["heard"] = [message.from_id for message in inbox]
        me.state["mood"] = (await me.remember(str.upper, me.id), me.rng.integers(10**9))
        me.send(ids[ids.index(me.id) - 1], {})

    one, two = (run(person, agents=ids, until=2, groups=groups) for groups in (1, 2))
    assert one.states == two.states
    assert [one.states[ids[place - 1]]["heard"] for place in range(len(ids))] == [[agent_id] for agent_id in ids]
    assert len({state["mood"] for state in one.states.values()}) == len(ids)


def test_remembered_calls_data_and_moves():
    asked = []

    def mood_of(agent, mood):
        asked.append(agent)
        return mood

    async def person(me, inbox):
        me.state["mood"] = await me.remember(mood_of, me.id, me.data["mood"])
        me.state["heard"] = len(inbox)
        if me.step == 0:
            me.move("group1")
        me.send(1, {"step": me.step})

    frame = pd.DataFrame({"mood": [0.5, 0.25, 1.0, 0.0]}, index=[3, 1, 7, 9])
    result = run(person, agents=frame, until=3, groups=2)
    assert result.to_pandas()["mood"].to_dict() == frame["mood"].to_dict()
    assert result.states[1]["heard"] == 4
    assert sorted(asked) == [1, 1, 1, 3, 3, 3, 7, 7, 7, 9, 9, 9]


def test_an_agent_keeps_its_data_and_neighbours_in_a_group_that_began_without_agents():
    def person(me, inbox):
        me.state |= {"mood": me.data["mood"], "friends": [*me.neighbours]}
        me.move("empty")

    frame = pd.DataFrame({"mood": [0.5, 0.25]})
    result = run(person, agents=frame, graph=[(0, 1), (1, 0)], groups={"full": [0, 1], "empty": []}, until=3)
    assert result.states == {0: {"mood": 0.5, "friends": [1]}, 1: {"mood": 0.25, "friends": [0]}}


@pytest.mark.parametrize(
    "change",
    [
        lambda me: me.data.update(age=1),
        lambda me: me.data.__setitem__("age", 1),
        lambda me: me.neighbours.append(1),
    ],
)
def test_data_and_neighbours_cannot_be_changed(change):
    frame = pd.DataFrame({"age": [20, 30]})
    with pytest.raises(StepFailed, match=r"an agent's data cannot be changed|AttributeError"):
        run(lambda me, inbox: change(me), agents=frame, graph=[(0, 1)], until=1)


def test_an_undeliverable_message_to_an_agent_of_the_run_names_the_subtopic():
    def model(me, inbox):
        me.send(1, {}, subtopic="news")
        me.send(1, {}, subtopic="user-chat")
        me.send(2, {})

    result = run(model, agents=[1], until=2, progress=False)
    assert result.undeliverable == {"subtopic 'news' of agent 1": 2, "agent 2": 2}
    assert repr(result).endswith("undeliverable, as nobody listens there: subtopic 'news' of agent 1 (2), agent 2 (2)")


@pytest.mark.parametrize("by", ["agent", "group"])
@pytest.mark.parametrize("name", ["id", "kind", "data", "neighbours", "shared", "ids", "name", "mine"])
def test_what_no_run_keeps_cannot_be_set(by, name):
    def model(me, inbox):
        setattr(me, name, [1])

    with pytest.raises(StepFailed, match=rf"AttributeError: .*{name}"):
        run(model, agents=2, by=by, until=1, progress=False)


def test_an_attribute_that_cannot_be_set_says_where_to_keep_its_value():
    def rewired(me, inbox):
        me.neighbours = [*me.neighbours, 0]

    with pytest.raises(StepFailed, match=r"me\.neighbours cannot be set.* keep the value in me\.state"):
        run(rewired, agents=2, graph=[(0, 1)], until=1, progress=False)


def test_data_are_a_dict_wherever_they_are_used():
    def person(me, inbox):
        me.send(me.id, me.data)
        me.send(me.id, {"data": me.data})
        me.state["data"] = me.data
        copied = copy.deepcopy(me.data)
        copied["age"] += 1
        me.state["others"] = [copied, json.loads(json.dumps(me.data)), pickle.loads(pickle.dumps(me.data))]

    data = {"age": 20, "name": "Ann"}
    result = run(person, agents=pd.DataFrame([data]), until=1, collect=lambda me: me.data)
    assert result.states == {0: {"data": data, "others": [data | {"age": 21}, data, data]}}
    assert result.series.to_dict("records") == [data]


ONE = {"x": [0]}
ROWS = pd.DataFrame({"x": [ONE["x"]] * 4, "y": [(ONE["x"], 5)] * 4})


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("agents", "start"),
    [
        (4, lambda me: ONE),
        (4, lambda me: me.shared),
        (4, lambda me: {"x": me.shared["x"]}),
        (ROWS, lambda me: {"x": me.data["x"]}),
        (ROWS, lambda me: me.data),
        (ROWS, lambda me: {"x": me.data["y"][0]}),
    ],
)
def test_what_agents_get_is_their_own_from_the_first_step_on(agents, start, groups):
    def person(me, inbox):
        me.state["x"].append(me.id)
        me.state["n"] = len(me.state["x"])
        if me.data:
            me.data["x"].append(me.id)
            me.state["n"] = max(me.state["n"], len(me.data["x"]))

    result = run(person, agents=agents, until=1, groups=groups, start=start, shared={"x": [0]})
    assert [(state["x"], state["n"]) for state in result.states.values()] == [([0, agent], 2) for agent in range(4)]
    assert ONE == {"x": [0]}
    assert ROWS["x"].tolist() == [[0]] * 4


def test_what_a_crowd_gets_is_its_own_from_the_first_step_on():
    def crowd(group, step):
        group.state["x"] += 1
        group.state["seen"] = group.shared + group.state["y"]

    def start(group):
        return {"x": group.shared, "y": group.shared}

    result = run(crowd, agents=4, until=1, groups=1, by="group", start=start, shared=np.zeros(4))
    assert result.states["group0"]["x"].tolist() == [1] * 4
    assert result.states["group0"]["seen"].tolist() == [0] * 4


def test_a_sender_that_is_changed_in_place_is_looked_up_again():
    def crowd(group, step):
        sender = np.array(0)
        for agent in group.ids.tolist():
            sender[...] = agent
            step.send(sender, 0, {"from": agent})
        found = [(message.from_id, message.payload["from"]) for message in step.messages]
        group.state["found"] = np.array(found, np.int64).reshape(-1, 2)

    result = run(crowd, agents=3, until=2, groups=1, by="group")
    assert result.states["group0"]["found"].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_a_crowd_has_the_same_random_numbers_on_any_number_of_groups_also_in_a_running_event_loop():
    def crowd(group, step):
        assert group.uniform(2).tolist() == step.uniform(2).tolist()
        group.state["x"] = group.state["x"] + step.uniform(1)[:, 0]
        step.send_columns(group.ids, (group.ids + 1) % 10, [{"x": x} for x in group.state["x"].tolist()])

    async def in_a_notebook(groups):
        start = {"start": lambda group: {"x": group.uniform(2)[:, 1]}}
        return run(crowd, agents=10, until=3, groups=groups, by="group", seed=4, **start).to_pandas()

    one, three = (asyncio.run(in_a_notebook(groups)) for groups in (1, 3))
    assert one.equals(three)
    assert one["x"].nunique() == 10


def test_what_a_model_says_wrong_is_an_error_at_once():
    def fails(me, inbox):
        if me.id == "ann" and me.step == 1:
            raise ValueError("no such mood")

    with pytest.raises(StepFailed, match=r"agent 'ann' of group .* in step 1, .*ValueError: no such mood") as caught:
        run(fails, agents=[*range(5), "ann"], until=3, groups=2)
    assert (caught.value.agent, caught.value.step) == ("ann", 1)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"until": -1}, ConfigError, "until=-1"),
        ({"until": None}, ConfigError, "until=None"),
        ({"graph": [(0, 1)], "by": "group"}, ConfigError, "shared="),
        ({"only_active": True, "by": "group"}, ConfigError, "only for models that are called for each agent"),
        ({"rules": BlackList([(1, 2)])}, RuleError, "rules must be a list: write rules="),
        ({"rules": 7}, RuleError, "rules must be a list of rules, not 7"),
    ],
)
def test_options_that_cannot_be(options, error, text):
    with pytest.raises(error, match=text):
        run(lambda group, step: None, **{"agents": 6, "until": 1} | options)


def test_a_run_leaves_rules_and_what_agents_share_as_they_are():
    def person(me, inbox):
        me.shared["steps"] += 1
        tell_next(me, inbox)

    shared, banned = {"steps": 0}, [SenderBan(MaxLength(5), after=1)]
    results = [run(person, agents=6, until=3, groups=groups, shared=shared, rules=banned) for groups in (1, 3, 1)]
    assert results[0].fates == results[1].fates == results[2].fates
    assert shared == {"steps": 0}


def test_the_models_of_all_groups_end_when_one_fails():
    waiting, ended = threading.Event(), []

    async def person(me, inbox):
        if me.id == 0:
            await asyncio.to_thread(waiting.wait)
            raise ValueError("no such mood")
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(me.id)

    with pytest.raises(StepFailed, match="no such mood"):
        run(person, agents=2, until=3, groups=2)
    assert ended == [1]


class Shared:
    pass


@pytest.mark.parametrize("by", ["agent", "group"])
def test_what_a_run_has_made_goes_with_its_end(by):
    kept, threads = [], {*threading.enumerate()}

    def person(me, inbox):
        kept.append(weakref.ref(me.shared))

    gc.collect()
    gc.disable()  # in a large process a collection takes longer than a small run
    try:
        run(person, agents=3, until=2, by=by, shared=Shared())
        assert kept
        assert {reference() for reference in kept} == {None}
    finally:
        gc.enable()
    for thread in {*threading.enumerate()} - threads:
        thread.join(10)
        assert not thread.is_alive()


def test_ctrl_c_ends_a_run():
    steps = []

    def person(me, inbox):
        steps.append(me.step)
        if me.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(person, agents=1, until=10**6)
    assert len(steps) < 10**6


def test_rules_that_cannot_go_on_end_a_run():
    class Forgets(StepRule):
        def __init__(self):
            self.state = Table()

        def restored(self):
            raise ValueError("no memory")

        async def check_step(self, number, batch, exp_id):
            return StepVerdicts({})

    with pytest.raises(ValueError, match="no memory"):
        run(tell_next, agents=6, until=3, groups=2, rules=[Forgets()])


def test_no_steps_are_a_result_too():
    assert (run(tell_next, agents=6, until=0).steps, run(tell_next, agents=6, until=0).digests) == (0, {})


def test_no_rules_judge_when_the_connection_is_closed(monkeypatch):
    """A line on stderr said that rules will judge a step again, of a run that had ended well."""
    judging = []
    close = GroupMessager.close

    async def closed(messager):
        judging.extend(task for task in asyncio.all_tasks() if task.get_name() == "ray_messaging step rules")
        await close(messager)

    monkeypatch.setattr(GroupMessager, "close", closed)
    run(tell_next, agents=6, groups=2, until=3, rules=[RateLimit(per_round=3)], progress=False)
    assert judging == []


@pytest.mark.parametrize("rules", [[], [BlackList([(10, 33), (1, 10)])], [RateLimit(per_round=3)]])
@pytest.mark.parametrize("groups", [1, 3])
def test_only_active_agents_are_called_with_the_result_of_calling_all(groups, rules):
    options = {"agents": 40, "until": 9, "start": ripple_start, "rules": rules}
    every = run(ripple, **options, groups=1)
    active = run(ripple, **options, groups=groups, only_active=True)
    assert active.states == every.states
    assert active.digests == every.digests
    assert active.fates == every.fates
    assert every.states[5]["called"][:6] == [0, 1, 2, 3, 4, 5]  # it asked to stay active


def test_the_digests_of_the_last_steps_do_not_depend_on_where_a_run_ends():
    long = run(tell_next, agents=6, until=70, progress=False)
    short = run(tell_next, agents=6, until=64, groups=2, progress=False)
    assert [*long.digests] == [*range(6, 70)]
    assert {step: long.digests[step] for step in range(6, 64)} == {step: short.digests[step] for step in range(6, 64)}


def test_a_plain_model_that_never_returns_does_not_keep_the_run_from_its_error_after_an_async_step():
    gate, waited = threading.Event(), []

    async def later():
        pass

    def model(me, _inbox):
        if me.step == 0:
            return later()
        waited.append(gate.wait(WAIT_S))
        return None

    try:
        with pytest.raises(StepFailed, match="not ended after timeout"):
            run(model, agents=1, until=2, timeout=0.1, progress=False)
        assert not waited
    finally:
        gate.set()


@pytest.mark.parametrize("groups", [1, 2])
def test_an_agent_that_stops_in_start_or_in_a_step_runs_that_step_and_no_other(groups):
    def start(me):
        if me.id == 1:
            me.stop()
        return {"steps": 0}

    def model(me, _inbox):
        me.state["steps"] += 1
        if me.id == 2 and me.step == 1:
            me.stop()

    states = run(model, agents=4, groups=groups, until=4, start=start, progress=False).states
    assert {agent: state["steps"] for agent, state in states.items()} == {0: 4, 1: 1, 2: 2, 3: 4}


def test_an_agent_that_sets_stopped_in_place_of_a_call_of_stop_is_told():
    def model(me, _inbox):
        me.stopped = True

    with pytest.raises(StepFailed, match=r"stopped.* no setter"):
        run(model, agents=2, until=2, progress=False)


COMMON = st.sampled_from(["list", "dict", "array", "tuple", "bytes", "state"])
CHANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), COMMON), max_size=12)  # step, agent, what


def changing(changes, common):
    """Return a model whose agents put objects that others have, too, into their states, and change what they have."""

    def model(me, inbox):
        for value in me.state.values():
            if type(value) is list:
                value.append(me.step)
            elif type(value) is dict:
                value.setdefault("by", []).append(me.id)
            elif type(value) is np.ndarray:
                value += 1
        for step, agent, what in changes:
            if (step, agent) == (me.step, me.id):
                me.state[what] = common[what]
                me.send((me.id + 1) % 6, {"n": me.step})

    return model


@settings(max_examples=40, deadline=None)
@given(CHANGES, st.sampled_from([(1, False), (2, False), (1, True)]))
def test_states_share_no_object_whether_or_not_anybody_stores_them(changes, layout):
    groups, only_active = layout
    common = {"list": [0], "dict": {"n": 1}, "array": np.zeros(2), "tuple": (1, 2), "bytes": b"b"}
    common["state"] = {"list": common["list"]}
    first = []
    model, alone = changing(changes, copy.deepcopy(common)), {each: {"first": []} for each in range(6)}
    sent = set()
    for step in range(4):
        for agent, state in alone.items():
            if step == 0 or not only_active or (step - 1, (agent - 1) % 6) in sent:
                me = SimpleAgent(agent, step, state)
                model(me, [])
                sent |= {(step, agent)} if me.sends else set()
        alone = {agent: {key: copy.deepcopy(each) for key, each in state.items()} for agent, state in alone.items()}
    found = run(
        changing(changes, common),
        agents=6,
        groups=groups,
        until=4,
        start=lambda me: {"first": first},
        only_active=only_active,
        progress=False,
    )
    assert repr(dict(found.states)) == repr(alone)


class SimpleAgent:
    """An agent of the plain loop."""

    def __init__(self, agent, step, state):
        self.id, self.step, self.state, self.sends = agent, step, state, 0

    def send(self, to, payload):
        self.sends += 1


def test_a_value_that_no_run_keeps_is_refused_in_a_run_that_stores_none_too():
    looped = []
    looped.append(looped)
    for value, text in (
        (object(), "of type 'object' cannot be stored"),
        (looped, "contain themselves"),
        (bytearray(b"a"), "keep bytes"),
    ):

        def model(me, inbox, value=value):
            if (me.id, me.step) == (2, 1):
                me.state["x"] = {"y": [value]}

        with pytest.raises(StepFailed, match=text) as caught:
            run(model, agents=5, until=3, progress=False)
        assert (caught.value.agent, caught.value.step) == (2, 1)
        assert "me.state" in str(caught.value)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("value", "text"), [("half \ud800", "lone surrogate"), (20_000, "nested too deeply")])
def test_a_state_that_cannot_be_encoded_is_refused_at_the_latest_with_the_result(groups, value, text):
    def model(me, inbox):
        if (me.id, me.step) == (3, 1):
            for _ in range(value if isinstance(value, int) else 0):
                me.state["x"] = [me.state.get("x")]
            me.state.setdefault("x", value)

    with pytest.raises(StepFailed, match=text) as caught:
        run(model, agents=5, groups=groups, until=2, progress=False)
    assert (caught.value.agent, caught.value.step) == (3, 1)


def test_an_agent_can_be_copied_and_its_copy_refuses_the_same():
    def model(me, inbox):
        other = copy.copy(me)
        assert (other.id, other.state, other.step) == (me.id, me.state, me.step)
        other.state = {}
        me.state["kept"] = other.id
        with pytest.raises(AttributeError, match=r"me\.id cannot be set"):
            other.id = 99

    assert run(model, agents=2, until=1, progress=False).states == {0: {"kept": 0}, 1: {"kept": 1}}


@pytest.mark.parametrize("step", [0, 1])
def test_an_inbox_in_a_payload_is_refused_with_and_without_messages(step):
    def model(me, inbox):
        assert len(inbox) == me.step
        if me.step == step:
            me.send(me.id, {"heard": [inbox]})
        me.send(me.id, {})

    with pytest.raises(StepFailed, match=r'payload\["heard"\]\[0\] is an inbox: send .*message\.payload'):
        run(model, agents=2, until=2, progress=False)
