"""Changes of rules whose calls Ray repeats."""

import asyncio

import pytest
from support.judged_steps import WAIT_S, Kv, Town, say

from ray_messaging import rules
from ray_messaging.cluster.actors.rule_editor import RuleRequest
from ray_messaging.cluster.rule_store import pickled


@pytest.mark.parametrize("at_step", [None, 2], ids=["at once", "from a step on"])
async def test_a_repeated_call_changes_nothing_even_after_a_restart(valkey_config, exp_id, monkeypatch, at_step):
    Kv(monkeypatch)
    async with Town(valkey_config, exp_id, lambda: [rules.MaxLength(9)], say, lane=True) as town:
        first = RuleRequest("call 1", "insert", 0, pickled(rules.Sample(1.0, action="label", name="all")), at_step)
        again = RuleRequest("call 2", "remove", "all", at_step=at_step)
        found = [await town.host.editor.edit(request) for request in (first, again)]
        assert [await town.host.editor.edit(request) for request in (again, first)] == found[::-1]
        changes = town.host.editor.changes()
        assert [(change.change, change.rule["name"]) for change in changes] == [("insert", "all"), ("remove", "all")]
        town.alive.clear()
        town.process.die()
        await asyncio.wait_for(town.alive.wait(), WAIT_S)  # until its successor lives
        assert [await town.host.editor.edit(request) for request in (first, again)] == found
        assert town.host.editor.changes() == changes
        await town.host.interceptor.in_force(2)
        assert [rule.name for rule in town.host.interceptor.rules.now] == ["max_length"]
