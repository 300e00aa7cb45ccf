"""Random numbers of agents in a step."""

from hashlib import blake2b
from struct import pack

import numpy as np

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.digests import id_bytes
from ray_messaging.steps.random_numbers import agent_generator, uniform_rows


def test_an_agent_s_numbers_depend_on_seed_step_and_agent_alone():
    drawn = {
        (seed, step, agent): tuple(agent_generator(seed, step, agent).random(3))
        for seed in (0, 7, -1)
        for step in (0, 1, 2**40)
        for agent in (0, 1, -1, "1", "ä")
    }
    assert len(set(drawn.values())) == len(drawn)
    assert drawn[7, 1, "ä"] == tuple(agent_generator(7, 1, "ä").random(3))


def test_rows_of_uniform_numbers_do_not_depend_on_the_other_agents():
    agents = [3, 5, "x", -8]
    rows = uniform_rows(7, 2, agents, 4)
    assert rows.shape == (4, 4)
    for place, agent in enumerate(agents):
        assert np.array_equal(uniform_rows(7, 2, [agent], 4)[0], rows[place])
    assert not np.array_equal(uniform_rows(7, 3, agents, 4), rows)
    assert not np.array_equal(uniform_rows(8, 2, agents, 4), rows)
    assert np.array_equal(uniform_rows(7, 2, agents, 2), rows[:, :2])


def test_rows_of_uniform_numbers_are_the_same_for_places_and_for_a_list():
    agents = AgentPlaces(AgentSet.of([3, 5, "x", -8, 2**63 - 1, "ä"]))
    assert np.array_equal(uniform_rows(7, 2, agents, 3), uniform_rows(7, 2, list(agents), 3))


def test_an_agent_s_numbers_are_those_of_philox_with_its_key():
    key = blake2b(id_bytes(5), digest_size=16, key=(7).to_bytes(32, "little"), salt=pack("<q8x", 3)).digest()
    expected = np.random.Generator(np.random.Philox(key=np.frombuffer(key, np.uint64)))
    found = agent_generator(7, 3, 5)
    for count in (1, 9):
        assert np.array_equal(found.normal(size=count), expected.normal(size=count))
        assert np.array_equal(found.integers(0, 2**31, count), expected.integers(0, 2**31, count))


def test_uniform_numbers_are_uniform():
    drawn = uniform_rows(1, 1, range(20_000), 5)
    assert drawn.min() >= 0.0
    assert drawn.max() < 1.0
    counts = np.histogram(drawn, 20, (0, 1))[0]
    assert abs(counts - drawn.size / 20).max() < 5 * (drawn.size / 20) ** 0.5
    assert abs(np.corrcoef(drawn.T) - np.eye(5)).max() < 0.05
