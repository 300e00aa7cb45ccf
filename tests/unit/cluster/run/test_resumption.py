"""A run that goes on has the groups and agents that it began with: any difference is named."""

import asyncio

import pytest
from support.step_society import open_step

from ray_messaging import LocalServer, Steps
from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.cluster.run.crowd import CrowdSociety
from ray_messaging.cluster.run.run import check_same
from ray_messaging.cluster.run.run_actor import RunActor, RunInputs, RunOptions
from ray_messaging.cluster.run.run_plan import GroupPlan, plans_for
from ray_messaging.cluster.spec import SUBTOPICS
from ray_messaging.errors import ConfigError
from ray_messaging.messager import GroupMessager
from ray_messaging.model.agent_sets import AgentSet

BEFORE = {"east": AgentSet.of(range(5)), "west": AgentSet.of([10, "ann"])}


def plans(**groups):
    return [GroupPlan(name, AgentSet.of(ids), {}, {}) for name, ids in groups.items()]


def test_the_same_groups_and_agents_go_on_and_more_groups_may_come_before_the_first_step():
    check_same(plans(west=["ann", 10], east=range(5)), BEFORE, begun=True)
    check_same(plans(west=["ann", 10]), {}, begun=False)
    check_same(plans(east=range(5), west=["ann", 10], north=[20]), BEFORE, begun=False)


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (
            {"east": range(5)},
            r"groups differ: .*2 groups \(east, west\), but this run has 1 groups \(east\)",
        ),
        ({"east": range(5), "west": [10, "ann"], "north": [20]}, "this run has 3 groups"),
        ({"east": range(3), "west": [10, "ann"]}, "agents differ .*2 agents .*agent 3, which has left group 'east'"),
        (
            {"east": range(5), "west": [10, "ann", "bob"]},
            "and 1 agents are new in a group.*agent 'bob', which is new in group",
        ),
        (
            {"east": [0, 1, 2, 3, 10], "west": [4, "ann"]},
            "2 agents .*2 agents are new in a group.*agent 4, which has left",
        ),
    ],
)
def test_a_difference_is_named(groups, text):
    with pytest.raises(ConfigError, match=text):
        check_same(plans(**groups), BEFORE, begun=True)


async def test_the_state_of_another_kind_of_model_is_refused():
    crowd, agents = open_step(), open_step()
    await CrowdSociety("east", lambda group, step: None).run(crowd)
    await AgentLoop("east", lambda me, inbox: None).run(agents)
    for society, state in ((AgentLoop, crowd.state), (CrowdSociety, agents.state)):
        with pytest.raises(ConfigError, match="does not fit this model"):
            await society("east", lambda *_: None).run(open_step(1, state))


async def test_who_is_active_goes_on_in_another_process():
    def person(me, inbox):
        me.state["called"] = [*me.state.get("called", []), me.step]
        if me.id == 3 and me.step < 4:
            me.stay_active()

    async def run(*restarts):
        state, society = None, AgentLoop("east", person, only_active=True)
        for number in range(6):
            if number in restarts:
                society = AgentLoop("east", person, only_active=True)
            step = open_step(number, state)
            await society.run(step)
            state = step.state
        return state, society.states

    assert await run() == await run(1, 2, 5)
    assert (await run())[1] == {n: {"called": [0, 1, 2, 3, 4] if n == 3 else [0]} for n in range(5)}


async def test_the_states_of_agents_that_were_called_are_all_states_in_another_process():
    def person(me, inbox):
        me.state["called"] = me.step
        if me.id == me.step:
            me.stay_active()

    def known(value):
        future = asyncio.get_running_loop().create_future()
        future.set_result(value)
        return future

    options = RunOptions(None, "agent", 100, None, only_active=True)
    plan = plans_for(options, 3, 1, None, 1)[0]
    with LocalServer(Steps(groups=1)) as server:
        async with GroupMessager(server, "called", None, name=plan.name) as messager:
            await messager.host_agents(plan.agents, SUBTOPICS)

            async def run(actor, until):
                inputs = RunInputs(known(person), known(options), known(None), {plan.name: known(plan)})
                given = [known((None, inputs))]
                return (await actor.run(plan.name, given, until, until, with_states="called", stands=True)).states

            first, other = RunActor(messager), RunActor(messager)
            assert await run(first, 1) == {0: {"called": 0}, 1: {"called": 0}, 2: {"called": 0}}
            assert await run(first, 2) == {0: {"called": 1}}
            assert await run(first, 2) == {0: {"called": 1}}
            assert await run(other, 2) == {0: {"called": 1}, 1: {"called": 0}, 2: {"called": 0}}
            for actor in (first, other):
                await actor.close()


async def test_a_run_that_called_everybody_goes_on_with_everybody_active():
    step, called = open_step(), []
    await AgentLoop("east", lambda me, inbox: None).run(step)
    await AgentLoop("east", lambda me, inbox: called.append(me.id), only_active=True).run(open_step(1, step.state))
    assert called == [0, 1, 2, 3, 4]
