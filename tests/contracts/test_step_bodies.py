"""Steps on three servers: the primary has all but bodies of large frames."""

import asyncio
import threading
from contextlib import aclosing

import pytest
from support.bodies import bodies_of, bodies_on_each_primary, keys_on, lose_bodies
from support.contracts import WAIT_S
from support.rumour import Rumour, small_world
from support.rumour_groups import RumourGroups, proves
from support.server_side import remove_mailbox
from support.slots import ClusterService
from support.step_society import LoggedGroups, sealed
from support.stepped import begin_steps, steps_of
from support.steps_on_the_server import hold_for_the_log

from ray_messaging import Messager, MessagingConfig
from ray_messaging.errors import BodyLost, ConfigError, ConnectionFailed, LogError, StepAborted

RING = Rumour(small_world(640), chance=60)
LONG_TEXT = "x" * 3_000


@pytest.mark.parametrize("home", [0, 1, 2, None])
async def test_a_shard_of_the_senders_node_takes_its_bodies(shards_config, exp_id, home):
    config = shards_config.model_copy(update={"home": home})
    await proves(RumourGroups(config, exp_id, RING, 2))
    primary, *others = await bodies_of(shards_config, exp_id)
    assert primary == 0
    assert [count > 0 for count in others] == [home in (shard, None) for shard in (1, 2)]


@pytest.mark.long
@pytest.mark.parametrize("shard", [0, 1], ids=["the one that orders", "one with bodies alone"])
async def test_a_primary_of_a_cluster_is_lost(tmp_path, exp_id, shard):
    """It comes back as a replica, without which nothing is confirmed."""
    with ClusterService(tmp_path, exp_id=exp_id, shards=3) as service:
        service.serve(exp_id, shard)
        config = bodies_on_each_primary(service.config)
        waiting = MessagingConfig(wait_replicas=1, send_timeout_s=60.0)
        groups = RumourGroups(config, exp_id, RING, 3, senders=shard > 0, messaging=waiting)
        ended, losing = threading.Event(), []

        def lose():
            old = service.primary
            old.kill()
            in_time = not ended.is_set()
            service.failed_over()
            service.join(old)
            return in_time

        def begins():
            losing.append(asyncio.ensure_future(asyncio.to_thread(lose)))

        await proves(groups, begins=begins, ends=ended.set, within_s=120)
        assert await losing[0]


# -- messagers --------------------------------------------------------------------------------------------------------


async def town(opener, config, **settings):
    """Open a group in an experiment with steps."""
    setup = await opener(config, name="setup")
    await begin_steps(setup, groups=1)
    return await opener(config, name="town", host=range(10), **settings)


async def live(group, until):
    """Drive a group with messages between its agents for the step after the next."""
    async with aclosing(group.steps(until=until)) as steps:
        async for step in steps:
            for agent in range(10):
                step.send(agent, 9 - agent, {"content": LONG_TEXT}, deliver_at=step.number + 2)


async def test_a_group_and_the_log_hear_of_a_missing_body(opener, shards_config, exp_id, tmp_path):
    config = shards_config.model_copy(update={"home": 1})
    group = await town(opener, config)
    await hold_for_the_log(group)
    await live(group, until=2)
    await lose_bodies(config.servers[1], exp_id, step=2)
    with pytest.raises(BodyLost, match="messages of step 2 in mailbox 'town'"):
        await live(group, until=4)
    async with LoggedGroups(config, exp_id, tmp_path / "log") as society:
        writer = await society.writer()
        with pytest.raises(LogError, match="are lost, because the server was flushed") as caught:
            await writer.caught_up()
        assert caught.value.lost
        await writer.close()


async def test_a_shard_that_stays_away_aborts_the_step_and_the_next_driver_goes_on(opener, own_shards, processes):
    group = await town(
        opener, own_shards.model_copy(update={"body_bytes": 64, "home": 1}), cut_timeout_s=0.5, send_timeout_s=0.5
    )
    await live(group, until=2)
    processes[1].kill()
    with pytest.raises((StepAborted, ConnectionFailed)):
        await live(group, until=5)
    await asyncio.to_thread(processes[1].start)
    await live(group, until=5)
    await asyncio.wait_for(sealed(await steps_of(group), 4), WAIT_S)


async def test_further_servers_have_bodies_and_nothing_else(opener, shards_config, exp_id, tmp_path):
    config = shards_config.model_copy(update={"home": 1})
    group, plain = await town(opener, config), await opener(config, name="plain", listen=["news"])
    async with LoggedGroups(config, exp_id, tmp_path / "log") as society:
        writer = await society.writer()
        await live(group, until=2)
        async with plain.transaction() as tx:
            tx.send_message("news", {"content": "hello"})
        await writer.caught_up()
        await writer.close()
    keys = await keys_on(config.servers[1], exp_id)
    assert keys
    assert all(keys.values())
    assert not await keys_on(config.servers[2], exp_id)


async def test_what_is_no_body_passes_while_a_further_server_is_away(opener, processes, own_shards):
    first, second = await opener(own_shards), await opener(own_shards, name="two", host=[2])
    processes[1].kill()
    assert (await first.send(9, 2, {"n": 1})).fate == "delivered"
    async with second.transaction() as tx:
        assert [message.payload["n"] for message in await tx.fetch_messages(timeout=WAIT_S)] == [1]
        tx.state = b"seen"
    await remove_mailbox(first, "two")


async def test_a_further_server_that_is_away_at_the_start_is_named(own_shards, processes, exp_id):
    processes[2].kill()
    with pytest.raises(ConnectionFailed, match=str(own_shards.servers[2].port)):
        await Messager(own_shards, exp_id).init()


async def test_one_of_the_servers_is_no_server_of_the_experiment(opener, shards_config, exp_id):
    await opener(shards_config, host=[1])
    with pytest.raises(ConfigError, match=r"has 3 shards, but .* has shards=1,.*pass messaging\.redis"):
        await Messager(shards_config.servers[0], exp_id).init()
