"""Steps on three servers: the primary has all but bodies of large frames."""

import asyncio
import threading
from contextlib import aclosing

import pytest
from support.contracts import WAIT_S, client_of
from support.rumour import Rumour, small_world
from support.rumour_groups import RumourGroups, proves
from support.slots import ClusterService

from ray_messaging import BodyLost, ConfigError, ConnectionFailed, LogError, MailboxFull, Messager, StepAborted
from ray_messaging.addressing.channels import Keys
from ray_messaging.config import MessagingConfig, ShardsConfig
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.step_rows import HOLD
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.transports.backend import RedisStores, backend_of
from ray_messaging.transports.experiment_store import ExperimentClaim, StateWrite
from ray_messaging.transports.step_values import Closing, Driver, Opened, StepSettings, StepTag
from ray_messaging.transports.transport_values import FrameFate, FrameWrite, SendRequest

RING = Rumour(small_world(640), chance=60)
LONG_TEXT = "x" * 3_000


async def bodies_of(config, exp_id):
    """Return how many bodies each server has."""
    found = []
    for server in config.servers:
        async with client_of(server) as client:
            keys = [key async for key in client.scan_iter(Keys(exp_id).bodies + ":*", count=1000)]
            found.append(sum([await client.hlen(key) for key in keys]))
    return found


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
        config = ShardsConfig.of_cluster(service.config).model_copy(update={"body_bytes": 64})
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


# -- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(shards_config):
    """Give the server of these tests."""
    return shards_config


ROWS = 48  # so many that each of three shards has some, however their names spread them
FRAMES = [bytes([65 + n]) * 12 + LONG_TEXT.encode() for n in range(ROWS)]


async def taken(steps, group="a"):
    """Join a group, and take it; return the attempt."""
    await steps.join(group)
    return (await steps.take(group, Driver(group), 30.0)).attempt


async def sent(steps, group="a", frames=FRAMES):
    """Have a group send large frames to itself in step 0; return its attempt and the reply."""
    attempt = await taken(steps, group)
    assert isinstance(await steps.open(group, attempt, 0), Opened)
    writes = [FrameWrite(f"{group}@1", seq, 1, frame) for seq, frame in enumerate(frames, 1)]
    return attempt, await steps.send(SendRequest("w", 0, 0, -1, writes), StepTag(group, 0, attempt))


async def end_two_steps(steps, attempt):
    """Close step 0, in which a group has sent all frames, and step 1: then nobody needs them."""
    for step, rows in ((0, ROWS), (1, 0)):
        await steps.open("a", attempt, step)
        await steps.close("a", attempt, step, Closing(rows))


async def lose(config, exp_id, shard, step=1):
    """Delete the bodies of a step on a shard."""
    async with client_of(config.servers[shard]) as client:
        assert await client.delete(Keys(exp_id).bodies_of(step)) == 1


async def test_a_repeated_send_keeps_each_frame_once_and_reads_no_others_of_its_numbers(
    transport, shards_config, exp_id
):
    """A call that wrote nothing may leave bodies, also late; the next one has other frames under these numbers."""
    await transport.steps.begin(StepSettings())
    writes = [FrameWrite("a@1", n, 1, frame[::-1]) for n, frame in enumerate(FRAMES, 1)]
    other, tag = SendRequest("w", 0, 0, -1, writes), StepTag("a", 0, await taken(transport.steps))
    await transport.bodies.put(other, tag)
    attempt, reply = await sent(transport.steps)
    assert (attempt, reply.fates) == (tag.attempt, [FrameFate.WRITTEN] * ROWS)
    before = await bodies_of(shards_config, exp_id)
    _, reply = await sent(transport.steps)
    assert reply.fates == [FrameFate.DUPLICATE] * ROWS
    await transport.bodies.put(other, tag)
    assert await bodies_of(shards_config, exp_id) == before
    assert [frame.frame for frame in await transport.steps.read_box("a@1")] == FRAMES


async def test_the_limits_of_a_box_are_of_the_real_bytes(transport):
    await transport.steps.begin(StepSettings(box_bytes=5 * len(FRAMES[0])))
    _, reply = await sent(transport.steps)
    assert reply.fates == [FrameFate.WRITTEN] * 5 + [FrameFate.TOO_LARGE] * (ROWS - 5)
    assert (await transport.steps.box_size("a@1"))[:2] == (5, 5 * len(FRAMES[0]))


async def test_a_missing_body_is_an_error_until_the_box_is_dropped(transport, transports, shards_config, exp_id):
    steps = transport.steps
    await steps.begin(StepSettings())
    attempt, _ = await sent(steps)
    await lose(shards_config, exp_id, 2)
    with pytest.raises(BodyLost, match="a@1") as caught:
        await steps.read_box("a@1")
    assert (caught.value.box, caught.value.shard) == ("a@1", 2)
    with pytest.raises(BodyLost, match="a@1"):
        await steps.open_box("a@1", 16)
    stopped = await transports()
    stopped.steps.bodies = None
    stand_ins = await stopped.steps.read_box("a@1")
    await end_two_steps(steps, attempt)
    # A reader that was stopped between the box and the bodies sees what it sees of a dropped box: nothing.
    assert len(await transport.bodies.fetch("a@1", stand_ins)) < ROWS


async def test_bodies_go_with_their_steps(transport, shards_config, exp_id):
    experiment, steps = RedisStores(transport).experiment, transport.steps
    await steps.begin(StepSettings())
    await steps.hold("log", -1)
    await taken(steps, "b")
    attempt, _ = await sent(steps)
    await sent(steps, "b")  # nothing of it counts
    await steps.leave("b", at_once=True)
    await experiment.claim(None, reset=False)
    epoch = await experiment.take_interceptor_epoch()

    async def left():
        await experiment.beat(epoch)
        return sum(await bodies_of(shards_config, exp_id))

    kept = await left()
    assert kept > ROWS / 2
    await end_two_steps(steps, attempt)
    assert await left() == kept  # the hold keeps the box
    await steps.drop_hold("log")
    assert await left() == 0


async def test_a_sender_of_much_deletes_what_is_over(transport, shards_config, exp_id, monkeypatch):
    monkeypatch.setattr("ray_messaging.transports.step_bodies.BODY_ARREARS", 0)
    steps = transport.steps
    await steps.begin(StepSettings())
    await proves(RumourGroups(shards_config, f"{exp_id}-rumour", RING, 2))
    whole = sum(await bodies_of(shards_config, f"{exp_id}-rumour"))
    monkeypatch.undo()
    await proves(RumourGroups(shards_config, f"{exp_id}-other", RING, 2))
    assert 0 < 3 * whole < sum(await bodies_of(shards_config, f"{exp_id}-other"))


async def test_a_full_shard_takes_no_step_until_it_has_room(own_shards, transports):
    transport = await transports(own_shards, send_timeout_s=2.0)
    await transport.steps.begin(StepSettings())
    async with client_of(own_shards.servers[1]) as client:
        await client.config_set("maxmemory", "1mb")
        with pytest.raises(MailboxFull, match="maxmemory"):
            await sent(transport.steps, frames=[frame * 20 for frame in FRAMES])
        assert (await transport.steps.box_size("a@1")).rows == 0
        await client.config_set("maxmemory", "0")
        _, reply = await sent(transport.steps, frames=[frame * 20 for frame in FRAMES])
        assert reply.fates == [FrameFate.WRITTEN] * ROWS


# -- messagers --------------------------------------------------------------------------------------------------------


async def town(opener, config, **settings):
    """Open a group in an experiment with steps."""
    setup = await opener(config, name="setup")
    await setup.engine.transport.steps.begin(StepSettings(groups=1))
    return await opener(config, name="town", host=range(10), **settings)


async def live(group, until):
    """Drive a group with messages between its agents for the step after the next."""
    async with aclosing(group.steps(until=until)) as steps:
        async for step in steps:
            for agent in range(10):
                step.send(agent, 9 - agent, {"content": LONG_TEXT}, deliver_at=step.number + 2)


async def test_a_group_and_the_log_hear_of_a_missing_body(opener, transports, shards_config, exp_id, tmp_path):
    config = shards_config.model_copy(update={"home": 1})
    group = await town(opener, config)
    await group.engine.transport.steps.hold(HOLD, -1)
    await live(group, until=2)
    await lose(config, exp_id, 1, step=2)
    with pytest.raises(BodyLost, match="town@2"):
        await live(group, until=4)
    writer = LogWriter(await transports(config), Folder(tmp_path / "log"), exp_id)
    await writer.start()
    with pytest.raises(LogError, match="are missing on the server") as caught:
        await writer.caught_up()
    assert caught.value.lost
    await writer.close()


async def test_a_shard_that_stays_away_aborts_the_step_and_the_next_driver_goes_on(opener, own_shards, processes):
    group = await town(opener, own_shards.model_copy(update={"body_bytes": 64, "home": 1}), send_timeout_s=0.5)
    await live(group, until=2)
    processes[1].kill()
    with pytest.raises((StepAborted, ConnectionFailed)):
        await live(group, until=5)
    await asyncio.to_thread(processes[1].start)
    await live(group, until=5)
    assert (await group.engine.transport.steps.progress()).sealed == 4


async def keys_on(config, exp_id):
    """Return the keys that a server has of an experiment."""
    async with client_of(config) as client:
        return {key.decode() async for key in client.scan_iter(Keys(exp_id).prefix + "*", count=1000)}


async def test_further_servers_have_bodies_and_nothing_else(opener, transports, shards_config, exp_id, tmp_path):
    config = shards_config.model_copy(update={"home": 1})
    group, plain = await town(opener, config), await opener(config, name="plain", listen=["news"])
    writer = LogWriter(await transports(config), Folder(tmp_path / "log"), exp_id)
    await writer.start()
    await live(group, until=2)
    async with plain.transaction() as tx:
        tx.send_message("news", {"content": "hello"})
    await writer.caught_up()
    await writer.close()
    keys = await keys_on(config.servers[1], exp_id)
    assert keys
    assert all(key.startswith(Keys(exp_id).bodies) for key in keys)
    assert not await keys_on(config.servers[2], exp_id)


async def test_what_is_no_body_passes_while_a_further_server_is_away(opener, processes, own_shards):
    first, second = await opener(own_shards), await opener(own_shards, name="two", host=[2])
    processes[1].kill()
    assert (await first.send(9, 2, {"n": 1})).fate == "delivered"
    async with second.transaction() as tx:
        assert [message.payload["n"] for message in await tx.fetch_messages(timeout=WAIT_S)] == [1]
        tx.state = b"seen"
    assert await first.engine.transport.remove("two", None) == 0


async def test_a_further_server_that_is_away_at_the_start_is_named(own_shards, processes, exp_id):
    processes[2].kill()
    with pytest.raises(ConnectionFailed, match=str(own_shards.servers[2].port)):
        await Messager(own_shards, exp_id).init()


async def test_one_of_the_servers_is_no_server_of_the_experiment(opener, shards_config, exp_id):
    await opener(shards_config, host=[1])
    with pytest.raises(ConfigError, match=r"has 3 shards, and shards=1 was given here.*pass messaging\.redis"):
        await Messager(shards_config.servers[0], exp_id).init()


async def test_a_further_server_that_is_away_holds_no_heartbeat_up_and_is_swept_later(
    transports, processes, own_shards, exp_id
):
    transport = await transports(own_shards)
    experiment, steps = RedisStores(transport).experiment, transport.steps
    await steps.begin(StepSettings())
    attempt, _ = await sent(steps, frames=[frame * 20 for frame in FRAMES])
    assert min((await bodies_of(own_shards, exp_id))[1:]) > 0
    await experiment.claim(None, reset=False)
    epoch = await experiment.take_interceptor_epoch()
    await end_two_steps(steps, attempt)
    processes[1].kill()
    assert await experiment.beat(epoch) is StateWrite.DONE
    await asyncio.to_thread(processes[1].start)
    async with asyncio.timeout(WAIT_S):
        while sum(await bodies_of(own_shards, exp_id)):
            await experiment.beat(epoch)


async def test_a_reset_deletes_the_bodies_of_the_run_before(shards_config, exp_id):
    first, second = (
        backend_of(shards_config).stores(exp_id, MessagingConfig(), run=run) for run in ("first", "second")
    )
    for each in (first, second):
        await each.transport.connect()
    assert await first.experiment.claim(await first.experiment.holder(), reset=False) is ExperimentClaim.HELD
    await first.transport.steps.begin(StepSettings())
    await sent(first.transport.steps)
    assert sum(await bodies_of(shards_config, exp_id)) > 0
    assert await second.experiment.claim(await second.experiment.holder(), reset=True) is ExperimentClaim.ERASE
    await second.experiment.erase_earlier()
    assert sum(await bodies_of(shards_config, exp_id)) == 0
    await second.experiment.erase()
    assert not any([await keys_on(server, exp_id) for server in shards_config.servers])
    for each in (first, second):
        await each.transport.close()
