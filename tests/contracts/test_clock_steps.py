"""Servers with a wrong clock: acknowledged messages are delivered, and live owners keep their mailboxes."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import pytest
from support.contracts import WAIT_S, fetch_all, numbers, send_numbers, until, vanish
from support.log_writing import begin_log
from support.server_side import entries_after, remove_mailbox, see_a_lease_over

from ray_messaging import EventLog
from ray_messaging.errors import AlreadyExists

sys.path.append(str(Path(__file__).parents[1]))
from faults.injector import aof_files, tear

pytestmark = pytest.mark.one_server("it steps the clock of one server")


class Torn:
    """A server that loses its writes after `mark`, and restarts with a clock that is behind."""

    def __init__(self, server, clock):
        self.server = server
        self.clock = clock

    def mark(self):
        """Remember how much of the append-only file is kept."""
        self.kept = self._size()

    def _size(self):
        return aof_files(self.server.folder)[-1].stat().st_size

    async def restart(self, seconds_back):
        with self.server.client() as client:
            self.clock.step(client, -seconds_back)
        self.server.kill()
        assert tear(self.server, self._size() - self.kept)
        await asyncio.to_thread(self.server.start)


@pytest.fixture
def torn(clocked_server, server_clock):
    return Torn(clocked_server, server_clock)


@pytest.fixture
def start_log(clocked_server, opener, exp_id, tmp_path):
    """Start a writer of the event log."""

    async def start(**settings):
        return await begin_log(await opener(clocked_server.config), tmp_path / "log", exp_id, **settings)

    return start


# -- acknowledged messages are delivered ------------------------------------------------------------------------------


async def test_messages_acknowledged_after_a_data_loss_and_a_clock_step_back_are_delivered_and_logged(
    torn, opener, start_log, tmp_path
):
    writer = await start_log()
    receiver, sender = await opener(torn.server.config, host=[1]), await opener(torn.server.config)
    await send_numbers(sender, 0)
    assert numbers(await fetch_all(receiver, 1)) == [0]
    torn.mark()
    await send_numbers(sender, *range(1, 500))
    assert numbers(await fetch_all(receiver, 499)) == list(range(1, 500))
    await writer.close()  # its cursors are in files now
    await torn.restart(30)
    writer = await start_log()
    for low in range(1000, 1500, 100):
        await send_numbers(sender, *range(low, low + 100))
    assert numbers(await fetch_all(receiver, 500)) == list(range(1000, 1500))
    await receiver.ack()
    await send_numbers(sender, 2000)
    assert numbers(await fetch_all(receiver, 1)) == [2000]
    await writer.close()
    assert len(EventLog.open(str(tmp_path / "log")).query(fate="delivered")) == 1001


async def test_a_commit_of_lost_messages_does_not_remove_new_ones(torn, opener):
    receiver, sender = await opener(torn.server.config, name="group", host=[1]), await opener(torn.server.config)
    await send_numbers(sender, 0)
    torn.mark()
    await send_numbers(sender, *range(1, 500))
    assert len(await fetch_all(receiver, 500)) == 500  # and it is not committed yet
    await torn.restart(30)
    await send_numbers(await opener(torn.server.config), *range(1000, 1500))
    await receiver.ack()
    await receiver.__aexit__(RuntimeError, RuntimeError("died"), None)  # without a commit
    successor = await opener(torn.server.config, name="group", host=[1])
    assert numbers(await fetch_all(successor, 500)) == list(range(1000, 1500))


async def test_stream_ids_keep_rising_after_a_data_loss(clocked_server, opener, caplog):
    receiver, sender = await opener(clocked_server.config, host=[1]), await opener(clocked_server.config)
    await send_numbers(sender, 0)
    ahead = f"{int(time.time() * 1000) + 3_600_000}-7"
    assert await entries_after(sender, receiver.name, ahead, 0.01) == []
    assert "lost entries" in caplog.text
    await send_numbers(sender, 1)
    assert len(await entries_after(sender, receiver.name, ahead, WAIT_S)) == 1
    assert numbers(await fetch_all(receiver, 2)) == [0, 1]


async def test_the_log_catches_up_with_a_restored_server_without_new_messages(torn, opener, start_log):
    writer = await start_log(segment_rows=1)
    receiver, other, sender = [await opener(torn.server.config, host=agents) for agents in ([1], [2], [])]
    await send_numbers(sender, *range(100))
    assert len(await fetch_all(receiver, 100)) == 100
    await receiver.ack()
    await writer.caught_up()
    for _ in range(2):
        torn.mark()
        await send_numbers(sender, 100)
        await torn.restart(30)
        async with asyncio.timeout(WAIT_S):
            await writer.caught_up()
    await other.close()
    await receiver.close()
    async with asyncio.timeout(WAIT_S):
        await writer.caught_up()
        await writer.close()


# -- live owners keep their mailboxes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [80_000, -35])
async def test_a_clock_step_of_the_server_ends_no_mailbox_and_admits_no_second_owner(
    clocked_server, server_clock, opener, seconds
):
    receiver, sender = await opener(clocked_server.config, host=[1]), await opener(clocked_server.config, lease_s=0.3)
    owner = await opener(clocked_server.config, name="group", host=[3], owner="one", lease_s=1.5)
    await send_numbers(sender, 0)
    with clocked_server.client() as client:
        server_clock.step(client, seconds)
    with pytest.raises(AlreadyExists, match="belongs to 'one', which was alive less than"):
        await opener(clocked_server.config, name="group", host=[3], owner="two", lease_s=1.5)
    for low in range(1, 101, 10):
        await send_numbers(sender, *range(low, low + 10))
    await opener(clocked_server.config, host=[2])  # loads the directory
    await send_numbers(sender, 101)
    assert numbers(await fetch_all(receiver, 102)) == list(range(102))
    await sender.send_message(sender.get_agent_chat_channel(3), {"n": 1})
    assert numbers(await fetch_all(owner, 1)) == [1]


async def test_a_dead_owner_is_succeeded_although_the_clock_was_set_back(clocked_server, server_clock, opener):
    first = await opener(clocked_server.config, name="group", host=[1], owner="one", lease_s=0.3)
    await vanish(first)
    with clocked_server.client() as client:
        server_clock.step(client, -3600)

    async def succeeded():
        try:
            await opener(clocked_server.config, name="group", host=[1], owner="two", lease_s=0.3)
        except AlreadyExists:
            return False
        return True

    await until(succeeded)


# -- stopped receivers ------------------------------------------------------------------------------------------------

RECEIVER = """
import asyncio, sys
from ray_messaging import Messager, MessagingConfig, RedisConfig

async def main(url, exp_id):
    async with Messager(RedisConfig.from_url(url), exp_id, settings=MessagingConfig(lease_s=0.3)) as messager:
        await messager.host_agents([1], ["agent-chat"])
        print("listens", flush=True)
        while True:
            for message in await messager.fetch_messages(timeout=None):
                print(message.payload["n"], flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def process(server, exp_id):
    """Run a receiver without a name in a process of its own."""
    config = server
    url = f"redis://:{config.password}@{config.server}:{config.port}/{config.db}"
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RECEIVER, url, exp_id, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WAIT_S):
        assert await running.stdout.readline() == b"listens\n"
    yield running
    if running.returncode is None:
        running.kill()
        await running.wait()


async def test_a_receiver_stopped_for_longer_than_its_lease_still_gets_its_messages(process, messagers):
    sender = await messagers(lease_s=0.3)
    process.send_signal(signal.SIGSTOP)
    await see_a_lease_over(sender)
    for n in range(20):
        await send_numbers(sender, n)
    await see_a_lease_over(sender)
    process.send_signal(signal.SIGCONT)
    async with asyncio.timeout(WAIT_S):
        assert [int(await process.stdout.readline()) for _ in range(20)] == list(range(20))


async def test_no_message_is_published_to_a_messager_with_a_removed_mailbox(messagers, store):
    sender, receiver = await messagers(), await messagers(host=[1])
    await store.heard_by(1, receiver.get_user_chat_channel(1))
    await remove_mailbox(receiver, receiver.name)
    await store.heard_by(0, receiver.get_user_chat_channel(1))  # long before its lease expires
    assert (await sender.send_message(sender.get_agent_chat_channel(1), {})).fate == "undeliverable"
