"""A task that drives a group gets its connection while the link to the server fails."""

from functools import partial

import pytest
from faults.proxy import Proxy

from ray_messaging.cluster.handles.group.group_steps import connected
from ray_messaging.errors import ConnectionFailed
from ray_messaging.messager import GroupMessager


async def test_a_driver_connects_while_replies_are_cut(redis_process, exp_id):
    with Proxy(redis_process.config) as proxy:
        proxy.cut_replies = 0.3
        for _ in range(3):
            messager = await connected(partial(GroupMessager, proxy.config, exp_id, name="group"), 60.0)
            await messager.close()
        assert proxy.cuts > 0


async def test_a_driver_without_a_server_gives_up_after_its_patience(redis_process, exp_id):
    redis_process.kill()
    with pytest.raises(ConnectionFailed):
        await connected(partial(GroupMessager, redis_process.config, exp_id, name="group"), 0.2)
