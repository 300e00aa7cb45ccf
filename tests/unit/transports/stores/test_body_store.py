"""The bodies of large frames on further servers: kept once, found until nobody needs them, and named where missing."""

import asyncio

import pytest
from support.bodies import bodies_of, keys_on, lose_bodies
from support.contracts import WAIT_S, client_of
from support.rumour import Rumour, small_world
from support.rumour_groups import RumourGroups, proves

from ray_messaging import MessagingConfig
from ray_messaging.errors import BodyLost, MailboxFull
from ray_messaging.transports.backend import RedisStores, backend_of
from ray_messaging.transports.experiment_store import ExperimentClaim, StateWrite
from ray_messaging.transports.step_values import Closing, Driver, Opened, StepSettings, StepTag
from ray_messaging.transports.transport_values import FrameFate, FrameWrite, SendRequest

RING = Rumour(small_world(640), chance=60)


@pytest.fixture
def server(shards_config):
    """Give the server of these tests."""
    return shards_config


ROWS = 48  # so many that each of three shards has some, however their names spread them
FRAMES = [bytes([65 + n]) * 12 + b"x" * 3_000 for n in range(ROWS)]


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
    await lose_bodies(shards_config.servers[2], exp_id, step=1)
    with pytest.raises(BodyLost, match="messages of step 1 in mailbox 'a' are lost, because shard ") as caught:
        await steps.read_box("a@1")
    assert (caught.value.box, caught.value.shard) == ("a@1", 2)
    with pytest.raises(BodyLost, match="messages of step 1 in mailbox 'a' are lost, because shard "):
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
