"""Health names the handle of a group that forgets to commit what it has fetched."""

import asyncio
import os
import re

import pytest
from support.contracts import WAIT_S, numbers, until
from support.groups_without_ray import groups_without_ray

from ray_messaging.errors import CommitFailed


@pytest.mark.one_server("health asks the host")
async def test_health_names_the_handle_that_forgets_to_commit(monkeypatch, server, exp_id):
    hosted = {"east": [1, 2]}
    async with groups_without_ray(monkeypatch, server, exp_id, hosted, loan_s=0.2, strict_senders=False) as groups:
        east = groups["east"]
        forgetful, thief = east.handle(), east.handle()

        def told():
            return [(each.value, each.remedy) for each in east.findings() if each.what == "group 'east': commits"]

        await forgetful.send_columns([1] * 3, [2] * 3, [{"n": n} for n in range(3)])
        assert len(await forgetful.fetch_messages(timeout=WAIT_S, commit="acked")) == 3
        assert not told()
        await until(told)
        [(value, remedy)] = told()
        assert f"of process {os.getpid()}" in value
        assert "holds messages, 3 for 0 s, which" in value
        assert "ack()" in remedy
        async with await thief.fetch_messages(timeout=WAIT_S) as again:
            assert numbers(again) == [0, 1, 2]
        [(value, _)] = told()
        assert re.match(rf"handle \w+ of process {os.getpid()} on \S+: 3 messages were delivered again", value)
        assert value.endswith("for over loan_s")
        with pytest.raises(CommitFailed):
            await forgetful.ack()
        assert told()
        async with asyncio.timeout(WAIT_S):
            while told():  # until it commits in time, which a slow machine may miss
                await forgetful.send_columns([1], [2], [{"n": 3}])
                await forgetful.fetch_messages(timeout=WAIT_S)
                await forgetful.ack()
