"""Forks without Ray: a twin of random groups, in which one agent may no longer write to another."""

import asyncio
import uuid

import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.forked_towns import HEARD, STEPS, Crier, Growing, Town

from ray_messaging import rules
from ray_messaging.errors import NotRepeatable


@st.composite
def towns(draw):
    """Return the edges of a graph of some agents, the number of its groups, and how often a checkpoint is taken."""
    agents = draw(st.integers(3, 12))
    some = st.integers(0, agents - 1)
    edges = draw(st.lists(st.tuples(some, some), min_size=2, max_size=2 * agents, unique=True))
    return agents, edges, draw(st.integers(1, 3)), draw(st.integers(1, 3))


def cone(log, banned):
    """Return {agent: the first step in which a banned message could have moved it}."""
    since = {}
    for message_id in banned:
        for row in log.effects(message_id, depth=STEPS).agents.to_pylist():
            since[row["agent"]] = min(row["step"], since.get(row["agent"], STEPS))
    return since


async def moves_its_light_cone(server, folder, town, seed, at):
    name = uuid.uuid4().hex
    async with Town(server, name, folder / name, town, seed) as parent:
        log, digests = await parent.run()
        checkpoints = parent.checkpoints()
        step = checkpoints[at % (len(checkpoints) - 1)]  # not the last one, after which there is no step
        edge = parent.edges[0]
        async with Town(server, f"{name}-twin", folder / f"{name}-twin", town, seed) as twin:
            assert (await twin.run(fork=(parent, step)))[1] == digests
            assert twin.states.items() <= parent.states.items()
        banned = [rules.BlackList([edge], name="ban")]
        async with Town(server, f"{name}-ban", folder / f"{name}-ban", town, seed) as ban:
            other, changed = await ban.run(banned, fork=(parent, step))
        table = log.query(from_id=edge[0], to_id=edge[1])
        to_be_banned = table.filter(pc.greater(table["step"], step))["message_id"].to_pylist()
        first = log.diff(other)
        if not to_be_banned:
            assert first is None
            return 0, 0
        assert first.message_id == to_be_banned[0]
        assert (first.theirs.fate, first.theirs.rule) == ("blocked", "ban")
        assert changed[: first.step] == digests[: first.step]
        since = cone(log, to_be_banned)
        differ = {place for place, state in ban.states.items() if parent.states[place] != state}
        assert differ == {(a, s) for a, s in ban.states if since.get(a, STEPS) <= s}
        return len(differ), len(ban.states)


async def test_a_twin_hears_the_broadcasts_of_its_parent_and_causes_lead_to_them(valkey_config, exp_id, tmp_path):
    town = 10, [(0, agent) for agent in range(1, 10)], 2, 2
    async with Crier(valkey_config, exp_id, tmp_path / "parent", town, 7) as parent:
        log, digests = await parent.run()
        async with Crier(valkey_config, f"{exp_id}-twin", tmp_path / "twin", town, 7) as twin:
            mine, again = await twin.run(fork=(parent, parent.checkpoints()[1]))
    assert again == digests == [mine.digest(step) for step in range(STEPS)]
    assert [log.digest(step) for step in range(STEPS)] == digests
    assert log.diff(mine) is None
    assert log.balance(expand=True) == mine.balance(expand=True)
    assert [cause.message.message_id for cause in mine.why("7-0-3", depth=1).causes] == ["4-2-0", "5-1-0", "6-0-0"]


@pytest.mark.parametrize("examples", [2, pytest.param(15, marks=pytest.mark.long)])
def test_a_ban_moves_its_light_cone_and_nobody_else(valkey_config, tmp_path, examples):
    found = []

    @settings(max_examples=examples, derandomize=examples < 100, deadline=None, database=None,
              suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # fmt: skip
    @given(towns(), st.integers(0, 2**32), st.integers(0, 99))
    def asks(town, seed, at):
        found.append(asyncio.run(moves_its_light_cone(valkey_config, tmp_path, town, seed, at)))

    asks()
    differ, states = map(sum, zip(*found, strict=True))
    assert 0 < differ < states


async def test_a_broadcast_to_an_audience_that_a_fork_lacks_is_named_with_the_step_that_has_it(valkey_config, tmp_path):
    name, town = uuid.uuid4().hex, (4, [(0, 1), (1, 2), (2, 3)], 1, 2)
    async with Growing(valkey_config, name, tmp_path / name, town, 1) as parent:
        await parent.run()
        async with Town(valkey_config, f"{name}-twin", tmp_path / f"{name}-twin", town, 1) as twin:
            says = r"audience 'friends' then had version 2.* version 1.*fork at step 4 or later"
            with pytest.raises(NotRepeatable, match=says) as caught:
                await twin.run(fork=(parent, 1))
        assert (caught.value.step, caught.value.agent) == (HEARD, 1)
