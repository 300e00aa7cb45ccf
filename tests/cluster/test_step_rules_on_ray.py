"""Rules that judge whole steps, in the interceptor's actor."""

import asyncio
import os
import uuid
from pathlib import Path

import numpy as np
import pytest
import ray
from support.cluster import PATIENCE_S, die_once, kill, wait_for

from ray_messaging import EventLog, Messaging, rules
from ray_messaging.config import Steps
from ray_messaging.errors import ConfigError, RuleError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import read_rule_changes

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]

AGENTS, STEPS = 40, 6
EDGES = np.array([(n, (n + k) % AGENTS) for n in range(AGENTS) for k in (1, 7)])


def talk(me, inbox):
    me.state["heard"] = [*me.state.get("heard", []), *(f"{m.from_id}: {m.payload['say']}" for m in inbox)]
    for friend in me.neighbours:
        me.send(friend, {"say": f"{me.step} {me.id}"})


class Warden(rules.StepRule):
    """A rule that blocks one agent in each step and warns it; it may end its process once."""

    def __init__(self, mark=None):
        self.state = rules.Table()
        self.mark = mark

    async def check_step(self, number, batch, exp_id):
        count = self.state["steps"] = self.state.get("steps", 0) + 1
        if number == 3:
            self.die_once()
        worst = (number * 11) % AGENTS
        blocks = {row: rules.block("enough") for row, agent in enumerate(batch.from_ids.tolist()) if agent == worst}
        return rules.StepVerdicts(blocks, [rules.Added(worst, {"say": f"warning {count}"}, from_id="warden")])

    def die_once(self):
        if self.mark is not None and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), 9)


def start(*given, **more):
    return Messaging.start(f"rules-{uuid.uuid4().hex[:8]}", rules=given, **more)


def run(log_dir, rule, groups):
    with start(rule, steps=Steps(seed=3, digest=True), log_dir=log_dir) as town:
        return town.run(talk, agents=AGENTS, groups=groups, until=STEPS, graph=EDGES, progress=False)


def expected():
    heard = {agent: [] for agent in range(AGENTS)}
    for step in range(STEPS - 1):
        blocked = (step * 11) % AGENTS
        for agent in range(AGENTS):
            sent = sorted(int(a) for a, b in EDGES if b == agent)
            heard[agent] += [f"{other}: {step} {other}" for other in sent if other != blocked]
        heard[blocked].append(f"warden: warning {step + 1}")
    return heard


def test_a_rule_judges_whole_steps_and_a_killed_interceptor_changes_nothing(tmp_path):
    calm = run(tmp_path / "calm", Warden(), 1)
    stormy = run(tmp_path / "stormy", Warden(str(tmp_path / "mark")), 3)
    assert (tmp_path / "mark").exists()
    assert stormy.states == calm.states
    assert stormy.fates == calm.fates
    assert stormy.digests == calm.digests
    assert {agent: state["heard"] for agent, state in calm.states.items()} == expected()
    assert dict(calm.fates) == {"delivered": 2 * AGENTS * STEPS - STEPS, "blocked": 2 * STEPS}
    log = EventLog.open(tmp_path / "calm")
    assert {step: log.digest(step).hex() for step in range(STEPS)} == calm.digests
    assert log.diff(EventLog.open(tmp_path / "stormy")) is None


class Slow(Warden):
    """The same rule, which takes longer than a driver needs to see that all groups have run a step."""

    async def check_step(self, number, batch, exp_id):
        await asyncio.sleep(0.3)
        return await super().check_step(number, batch, exp_id)


def test_a_step_has_run_when_the_rules_have_judged_it(tmp_path):
    steps, given = Steps(seed=3, digest=True, checkpoint=2), {"agents": AGENTS, "groups": 2, "graph": EDGES}
    with start(Slow(), steps=steps, log_dir=tmp_path / "log") as town:
        with town.start_run(talk, **given) as standing:
            assert standing.advance(STEPS - 1) == town.steps.now
            assert town.log.digest(STEPS - 2) == town.steps.digest(STEPS - 2)
            standing.advance()
        parent = town.log.digest(STEPS - 1)
    with Messaging.fork(tmp_path / "log", "rules-fork", at_step=5, log_dir=tmp_path / "fork", rules=[Slow()]) as town:
        assert town.run(talk, **given, until=STEPS, progress=False).digests[STEPS - 1] == parent.hex()


class Stuck(rules.StepRule):
    async def check_step(self, number, batch, exp_id):
        await asyncio.Event().wait()


def test_a_barrier_that_waits_for_a_rule_names_it():
    with start(Stuck(), steps=Steps()) as town:
        group = town.create_group("all", range(4))

        @ray.remote(num_cpus=0)
        def live(group):
            for _ in group.steps(until=2):
                pass

        def named():
            with pytest.raises(TimeoutError) as caught:
                town.steps.wait(1, timeout=0.5)
            return "wait for rule 'stuck' (step 0)" in str(caught.value)

        live.remote(group)
        wait_for(named, "an error that names the rule")
        assert town.steps.groups == ["all"]
        ray.get(town.interceptor.pop_rule.remote("stuck"))
        town.steps.wait(2, timeout=PATIENCE_S)


def test_a_rule_that_cannot_judge_steps_is_refused():
    with pytest.raises(RuleError, match="this experiment has no steps"):
        start(Warden())
    with pytest.raises(RuleError, match="mirror=True"):
        start(Warden(), steps=Steps(), mirror=True)


# -- changes of the rules in a run ------------------------------------------------------------------------------------


def labels_by_step(log):
    return {(row["step"], *row["labels"]) for row in log.query().to_pylist()}


@pytest.mark.parametrize("dies", [False, True])
def test_a_change_applies_to_whole_steps(tmp_path, dies):
    first, second = rules.Sample(1.0, action="label", name="first"), rules.Sample(1.0, action="label", name="second")
    with start(first, steps=Steps(seed=3, digest=True), log_dir=tmp_path / "log") as town:
        town.steps.advance(2)
        interceptor = town.interceptor
        ray.get(interceptor.insert_rule.remote(second, at_step=4))
        ray.get(interceptor.pop_rule.remote("first", at_step=5))
        with pytest.raises(RuleError, match="in step 6 there is no rule 'first'"):
            ray.get(interceptor.pop_rule.remote("first", at_step=6))
        if dies:
            kill(interceptor)
        town.steps.resume()
        town.run(talk, agents=AGENTS, groups=3, until=8, graph=EDGES, progress=False)
        assert [rule["name"] for rule in ray.get(interceptor.rules.remote())] == ["second"]
    log = EventLog.open(tmp_path / "log")
    early, both, late = {("first",)}, {("first", "second")}, {("second",)}
    wanted = [early] * 4 + [both] + [late] * 3
    assert labels_by_step(log) == {(step, *labels) for step, found in enumerate(wanted) for labels in found}
    changes = [(each.change, each.step, each.exact) for each in read_rule_changes(Folder(tmp_path / "log"))]
    assert changes == [("insert", 4, True), ("remove", 5, True)]


def test_the_first_step_that_nobody_has_begun_is_early_enough(tmp_path):
    def insert(step):
        rule = rules.Sample(1.0, action="label", name=f"since {step}")
        ray.get(town.interceptor.insert_rule.remote(rule, at_step=step))

    def refused(step, earliest):
        with pytest.raises(ConfigError, match=f"step {earliest} at the earliest"):
            insert(step)

    def live(until):
        for step in group.steps(until=until):
            if step.number == 1:
                refused(1, 2)
                insert(2)
            step.send(0, 1, {"step": step.number})
        town.steps.wait(until)

    with start(steps=Steps(), log_dir=tmp_path / "log") as town:
        group = town.create_group("all", range(4))
        insert(0)
        live(4)
        refused(3, 4)
        insert(5)
        insert(4)
        live(7)
        assert town.steps.progress().holds.keys() == {"event log"}
    names, counts = ["since 0", "since 2", "since 4", "since 5"], [1, 1, 2, 2, 3, 4, 4]
    found = {row["step"]: set(row["labels"]) for row in EventLog.open(tmp_path / "log").query().to_pylist()}
    assert found == {step: set(names[:count]) for step, count in enumerate(counts)}
    changes = [(each.change, each.step, each.exact) for each in read_rule_changes(Folder(tmp_path / "log"))]
    assert changes == [("insert", step, True) for step in (0, 2, 5, 4)]


def test_a_change_in_the_middle_of_a_step_is_recorded_as_that(tmp_path):
    with start(steps=Steps(), log_dir=tmp_path / "log") as town:
        town.run(talk, agents=AGENTS, groups=2, until=2, graph=EDGES, progress=False)
        ray.get(town.interceptor.insert_rule.remote(rules.MaxLength(500)))
        ray.get(town.interceptor.add_to_black_set.remote([(1, 2)]))
        found = ray.get(town.interceptor.rule_changes.remote())
        kill(town.interceptor)
        assert ray.get(town.interceptor.rule_changes.remote()) == found
    assert [(each.change, each.rule["name"], each.exact) for each in found] == [
        ("insert", "max_length", False),
        ("add pairs", "black_list", False),
    ]
    assert read_rule_changes(Folder(tmp_path / "log")) == found


def tell(me, inbox):
    me.state["heard"] = [*me.state.get("heard", []), *sorted(f"{m.from_id}: {m.payload['say']}" for m in inbox)]
    me.broadcast("friends", {"say": f"{me.step} {me.id}"})
    if me.step == 5 and me.id == 0 and me.shared is not None:
        die_once(me.shared)


class Even(rules.StepRule):
    """A rule that blocks what even agents hear."""

    async def check_step(self, number, batch, exp_id):
        return rules.StepVerdicts({row: rules.block("even") for row, to in enumerate(batch.to_ids) if to % 2 == 0})


@pytest.mark.parametrize(("calls", "dies"), [([6], False), ([1] * 6, False), ([2, 4], True)], ids=str)
def test_a_rule_that_comes_at_a_step_judges_the_broadcasts_from_that_step_on(tmp_path, calls, dies):
    with start(steps=Steps(seed=3, digest=True), log_dir=tmp_path / "log") as town:
        town.create_audience("friends", graph=EDGES)
        with town.start_run(tell, agents=AGENTS, groups=2, shared=tmp_path / "died" if dies else None) as live:
            live.advance(1)
            town.rules.insert(Even(), at_step=4)
            for steps in calls:
                live.advance(steps)
        assert (tmp_path / "died").exists() == dies
        heard = town.log.query(expand=True).to_pylist()
        assert town.steps.digest(5) == town.log.digest(5)
    fates = {(row["step"], int(row["to_id"]), row["fate"]) for row in heard}
    fate = lambda step, to_id: "blocked" if step >= 4 and to_id % 2 == 0 else "delivered"  # noqa: E731
    assert fates == {(step, to_id, fate(step, to_id)) for step in range(7) for to_id in range(AGENTS)}
    assert len(heard) == 7 * len(EDGES)
