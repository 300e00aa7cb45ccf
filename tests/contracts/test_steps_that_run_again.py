"""A step that runs again is judged by what it says now: all counts are those of a step that said it at once."""

import asyncio
import random
import uuid

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.judged_steps import (
    Deaths,
    Hearers,
    Kv,
    Model,
    OncePerRound,
    Seen,
    Shout,
    Town,
    say,
)
from support.step_faults import Abort

from ray_messaging import rules

LANES = pytest.mark.parametrize("lane", [False, True], ids=["in process", "lane"])


@pytest.fixture
def town(valkey_config, exp_id, monkeypatch):
    """Return a function that makes a town on Valkey."""
    Kv(monkeypatch)
    return lambda *given, name="", **more: Town(valkey_config, exp_id + name, *given, **more)


async def result_of(town):
    async with town:
        return await town.run()


def hello(step, agent, attempt):
    """Return what agent 0 says to agent 1 in each step, and the others to nobody."""
    return [(1, "hello")] if agent == 0 else []


async def dies_in_vain(town, rules, death, **more):
    """Fail unless the death of an interceptor at a call changes nothing; return the result."""
    calm = await result_of(town(rules, hello, lane=True, name="-", **more))
    deaths = Deaths([f"interceptor {death}"])
    found = town(rules, hello, lane=True, deaths=deaths, **more)
    assert await result_of(found) == calm
    assert deaths.met == [f"interceptor {death}"]
    assert found.restarts == 1
    return calm


def dies_once(first, second, step=0):
    """Return what agent 0 says to agent 1 in a step, in the first attempt and in later ones."""

    def says(number, agent, attempt):
        return [(1, text) for text in (first if attempt == 1 else second)] if (number, agent) == (step, 0) else []

    return says


@LANES
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
async def test_a_verdict_belongs_to_the_attempt_that_it_judged(town, lane, in_parts):
    at = ["group0 close 1 before"] if in_parts else ["group0 commit 1 before"]
    model = Model()
    deaths = Deaths(at, in_parts=in_parts)
    found = town(lambda: [model], dies_once(["hello"], ["insult"]), lane=lane, steps=1, deaths=deaths)
    _, violations, _ = await result_of(found)
    assert deaths.met == at
    assert found.attempts[0, 0] == 2
    assert violations == {0: 1}


@LANES
async def test_a_rewrite_belongs_to_the_attempt_that_said_it(town, lane):
    deaths = Deaths(["group0 commit 1 before"])
    says = dies_once(["odd one"], ["odd two"])
    found = await result_of(town(lambda: [Model(), Hearers()], says, lane=lane, steps=2, deaths=deaths))
    assert deaths.met
    calm = await result_of(town(lambda: [Model(), Hearers()], dies_once(["odd two"], []), lane=lane, steps=2, name="-"))
    assert found == calm
    assert found[2]["hearers"] == {1: 1}


@LANES
async def test_an_attempt_that_says_nothing_leaves_nothing_of_the_one_before(town, lane):
    deaths = Deaths(["group0 commit 1 before"])
    says = dies_once(["insult", "hello"], [])
    found = await result_of(town(lambda: [Hearers(), Model()], says, lane=lane, steps=3, deaths=deaths))
    assert deaths.met
    assert found[1:] == ({}, {"hearers": {}})


@LANES
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
async def test_rules_around_a_slow_one_count_each_message_once(town, lane, in_parts):
    def around():
        return [
            rules.RateLimit(per_round=2, name="before"),
            Model(),
            rules.RateLimit(per_round=2, name="behind"),
            Hearers(),
        ]

    says = dies_once(["hello", "hi"], [])
    found = await result_of(town(around, says, lane=lane, steps=1, deaths=Deaths(in_parts=in_parts)))
    assert found[1] == {}
    assert found[2]["hearers"] == {1: 2}


@LANES
async def test_rules_behind_a_slow_one_see_messages_in_the_order_of_sends(town, lane):
    class Late(Model):
        async def judge(self, message):
            for _ in range(50 if message.to_id == 1 else 0):
                await asyncio.sleep(0)
            return await super().judge(message)

    def says(step, agent, attempt):
        return [(1, "first"), (2, "second"), (1, "first again")] if agent == 0 else []

    found = await result_of(town(lambda: [Late("late"), rules.RoundQuota(contacts=1)], says, lane=lane, steps=1))
    assert found[2]["round_quota"] == {}  # the round is over
    assert found[1] == {0: 1}
    found = await result_of(
        town(lambda: [Late("late"), rules.EdgeBan(rules.Pattern(["second"]), 1)], says, lane=lane, steps=1, name="-")
    )
    assert found[2]["edge_ban"] == {(0, 2): 1}


SUPERVISED = ["close 2 before", "close 2 after", "open 3 before"]
MORE = ["take 1", "open 3", "covered_boxes 3", "read_box 3", "send 3", "close 3"]


@pytest.mark.parametrize("death", SUPERVISED)
async def test_a_step_is_judged_by_the_rules_of_its_own(town, death):
    changes = [(2, "insert", None, OncePerRound("later")), (2, "remove", "seen", None), (2, "insert", 0, Shout())]
    calm = await dies_in_vain(town, lambda: [Seen()], death, steps=4, changes=changes)
    assert set(calm[2]) == {"later"}


@pytest.mark.parametrize(
    "death",
    [
        *SUPERVISED,
        *(pytest.param(f"{at} {side}", marks=pytest.mark.long) for at in MORE for side in ("before", "after")),
    ],
)
async def test_a_rule_on_whole_steps_goes_on_from_the_state_after_the_round(town, death):
    calm = await dies_in_vain(town, lambda: [OncePerRound(), Seen()], death, steps=4)
    assert calm[1] == {}


async def test_what_a_rule_says_of_a_step_that_is_not_closed_is_not_counted(town):
    """The rule blocks all at first, and nothing when it is asked again."""
    asked = []

    class Fickle(Seen):
        async def check_step(self, number, batch, exp_id):
            asked.append(number)
            found = await super().check_step(number, batch, exp_id)
            first = asked.count(number) == 1 and number == 1
            return rules.StepVerdicts({row: rules.block("no") for row in range(len(batch))}) if first else found

    fickle = Fickle()
    aborts = Abort("close", "before", [False, True])
    _, violations, tables = await result_of(town(lambda: [fickle], hello, lane=False, steps=3, faults=aborts))
    assert asked == [0, 1, 1, 2]
    assert violations == {}
    assert tables["seen"] == {"seen": 3}


@pytest.mark.parametrize("death", ["close 2 before", "covered_boxes 2 after"])
async def test_a_rule_that_came_in_a_run_begins_anew_after_a_failed_attempt(town, death):
    calm = await dies_in_vain(town, lambda: [Seen()], death, steps=3, changes=[(1, "replace", "seen", Seen())])
    assert calm[2]["seen"] == {"seen": 2}


# -- any program, and any deaths --------------------------------------------------------------------------------------

RULES = {
    "model": lambda: Model(),
    "second model": lambda: Model("second model", turns=3),
    "shout": Shout,
    "hearers": Hearers,
    "rate": lambda: rules.RateLimit(per_round=3),
    "quota": lambda: rules.RoundQuota(contacts=2),
    "silenced": lambda: rules.RoundQuota(blocked=2, name="silenced"),
    "sender ban": lambda: rules.SenderBan(rules.Pattern(["casino"], field="t"), after=2),
    "edge ban": lambda: rules.EdgeBan(rules.Pattern(["bad"], field="t"), after=1),
    "seen": Seen,
    "once": OncePerRound,
}
NAMES = {name: make().name for name, make in RULES.items()}
some_rules = st.lists(st.sampled_from(sorted(RULES)), min_size=1, max_size=5, unique=True)


@st.composite
def programs(draw):
    """Return rules, and changes of them: each is there at most once in each step."""
    first = draw(some_rules)
    there, changes, step = list(first), [], 0
    for _ in range(draw(st.integers(0, 2))):
        step = draw(st.integers(step + 1, step + 2))
        absent = sorted(set(RULES) - set(there))
        kind = draw(st.sampled_from(["insert", "remove", "replace"] if len(there) > 1 else ["insert", "replace"]))
        which, name = draw(st.sampled_from(there)), draw(st.sampled_from(absent))
        if kind == "insert":
            changes.append((step, kind, draw(st.sampled_from([None, 0])), name))
        else:
            there.remove(which)
            name = draw(st.sampled_from([which, name])) if kind == "replace" else None
            changes.append((step, kind, NAMES[which], name))
        there += [] if name is None else [name]
    return first, changes


async def keeps_its_promise(town, program, seed, *, lane, in_parts, rate=0.1):
    first, changes = program
    changes = [(*each, None if name is None else RULES[name]()) for *each, name in changes] if lane else []
    make = lambda: [RULES[name]() for name in first]  # noqa: E731
    deaths = Deaths(chance=random.Random(seed), rate=rate, in_parts=in_parts)
    stormy = town(make, say(seed), lane=lane, changes=changes, deaths=deaths, name=uuid.uuid4().hex)
    found = await result_of(stormy)
    calm = town(
        make, lambda step, agent, _: stormy.said[step, agent], lane=lane, changes=changes, name=uuid.uuid4().hex
    )
    assert found == await result_of(calm), deaths.met
    assert stormy.blocked == calm.blocked, deaths.met
    assert sum(map(len, stormy.blocked.values())) <= sum(found[1].values())  # those of the last step, nobody learns
    return len(deaths.met), stormy.restarts


@LANES
@pytest.mark.parametrize("examples", [3, pytest.param(15, marks=pytest.mark.long)])
def test_any_program_counts_once_whoever_dies(valkey_config, monkeypatch, lane, examples):
    Kv(monkeypatch)
    deaths = []

    @settings(max_examples=examples, derandomize=examples < 100, database=None,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # fmt: skip
    @given(programs(), st.integers(0, 2**32), st.booleans())
    def asks(program, seed, in_parts):
        make = lambda *given, name="", **more: Town(valkey_config, f"any-{name}", *given, **more)  # noqa: E731
        deaths.append(asyncio.run(keeps_its_promise(make, program, seed, lane=lane, in_parts=in_parts)))

    asks()
    assert sum(died for died, _ in deaths) >= examples // 2
