"""Random numbers of agents in a step."""

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ray_messaging import run
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.random_numbers import StepGenerators, agent_generator, step_generator, uniform_rows


def test_an_agent_s_numbers_depend_on_seed_step_and_agent_alone():
    drawn = {
        (seed, step, agent): tuple(agent_generator(seed, step, agent).random(3))
        for seed in (0, 7, -1)
        for step in (0, 1, 2**40)
        for agent in (0, 1, -1, "x", "ä")
    }
    assert len(set(drawn.values())) == len(drawn)
    assert drawn[7, 1, "ä"] == tuple(agent_generator(7, 1, "ä").random(3))


def test_a_step_s_own_numbers_depend_on_seed_and_step_alone():
    drawn = {
        (seed, step): tuple(step_generator(seed, step).random(3)) for seed in (0, 7, -1) for step in (-1, 0, 2**40)
    }
    agents = {tuple(agent_generator(seed, step, 0).random(3)) for seed, step in drawn}
    assert len({*drawn.values()} | agents) == 2 * len(drawn)
    assert drawn[7, 0] == tuple(step_generator(7, 0).random(3))


def test_all_agents_and_groups_draw_the_same_numbers_of_the_step():
    def by_agent(me, inbox):
        me.state |= {"own": me.rng.random(), "weather": [me.step_rng.random(), me.step_rng.random()]}

    def by_group(group, step):
        assert step.rng(group.ids[0]).random() == agent_generator(7, step.number, int(group.ids[0])).random()
        group.state["weather"] = np.tile(step.rng().random(2), (len(group.ids), 1))

    for groups in (1, 3):
        start = lambda me: {"start": me.step_rng.random()}  # noqa: E731
        states = run(by_agent, agents=6, until=3, groups=groups, seed=7, start=start, progress=False).states
        drawn = step_generator(7, 2).random(2).tolist()
        assert all(state["weather"] == drawn for state in states.values())
        assert len({state["own"] for state in states.values()}) == 6
        crowds = run(by_group, agents=6, by="group", until=3, groups=groups, seed=7, progress=False).states
        assert all((state["weather"] == drawn).all() for state in crowds.values())
    begun = run(lambda me, inbox: None, agents=2, until=1, seed=7, start=start, progress=False).states
    assert {state["start"] for state in begun.values()} == {step_generator(7, -1).random()}


def places_of(agents):
    return AgentPlaces(AgentSet.of(agents))


def test_rows_of_uniform_numbers_do_not_depend_on_the_other_agents():
    agents = places_of([3, 5, "x", -8])
    rows = uniform_rows(7, 2, agents, 4)
    assert rows.shape == (4, 4)
    for place, agent in enumerate(agents):
        assert np.array_equal(uniform_rows(7, 2, places_of([agent]), 4)[0], rows[place])
    assert not np.array_equal(uniform_rows(7, 3, agents, 4), rows)
    assert not np.array_equal(uniform_rows(8, 2, agents, 4), rows)
    assert np.array_equal(uniform_rows(7, 2, agents, 2), rows[:, :2])


def test_a_generator_does_not_depend_on_the_other_agents_nor_on_the_order_of_calls():
    agents = places_of([*range(-3000, 3000), "x", "ä", 2**63 - 1])
    generators = StepGenerators(7, 2, agents)
    for place in (0, 6002, 1023, 1024, 3000, 6000, 6001, 1023):
        assert generators.at(place).random() == agent_generator(7, 2, agents[place]).random()


def test_threads_that_draw_at_once_get_each_agent_s_own_numbers():
    agents = places_of(range(8192))
    alone = [StepGenerators(7, 2, agents).at(place).random() for place in range(0, 8192, 512)]
    together = StepGenerators(7, 2, agents)

    def draw(_):
        return [together.at(place).random() for place in range(0, 8192, 512)]

    with ThreadPoolExecutor(8) as threads:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            assert all(drawn == alone for drawn in threads.map(draw, range(64)))
        finally:
            sys.setswitchinterval(interval)


def test_a_generator_goes_on_after_pickling():
    generator = agent_generator(7, 2, "x")
    generator.normal(size=3)
    assert pickle.loads(pickle.dumps(generator)).normal() == generator.normal()


def assert_uniform(drawn):
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    counts = np.histogram(drawn, 20, (0, 1))[0]
    assert abs(counts - drawn.size / 20).max() < 5 * (drawn.size / 20) ** 0.5
    assert abs(np.corrcoef(drawn.T) - np.eye(drawn.shape[1])).max() < 0.05


def test_uniform_numbers_are_uniform():
    assert_uniform(uniform_rows(1, 1, places_of(range(20_000)), 5))


def test_the_generators_of_neighbouring_agents_and_steps_are_independent():
    generators = [StepGenerators(1, step, places_of(range(10_000))) for step in range(2)]
    drawn = np.array([[*generators[0].at(at).random(2), *generators[1].at(at).random(2)] for at in range(10_000)])
    assert_uniform(drawn)
    assert abs(np.corrcoef(drawn[1:, 0], drawn[:-1, 0])[0, 1]) < 0.05
