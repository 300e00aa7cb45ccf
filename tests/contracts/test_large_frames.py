"""Large frames, which do not come into a script: cuts, kills, full memory, missing rights, forgotten scripts."""

import asyncio
from contextlib import suppress

import pytest
from faults.proxy import Proxy
from support.contracts import client_of, fetch_all
from support.servers import RedisProcess

from ray_messaging import Fenced, MailboxFull
from ray_messaging.addressing.channels import Keys
from ray_messaging.transports.redis.write_arguments import _APART

pytestmark = pytest.mark.some_layouts("it looks into one server; the other suites send large frames over all layouts")

ROWS = 8
TEXT = "x" * (_APART // ROWS)


@pytest.fixture(params=["valkey", "redis"])
def server(request):
    return request.getfixturevalue(f"{request.param}_config")


@pytest.fixture(params=["valkey", "redis-server"])
def owned(request, tmp_path):
    """Start a server of the test's own."""
    process = RedisProcess(tmp_path, binary=request.param)
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture
async def client(server):
    client = client_of(server)
    yield client
    await client.aclose()


async def send(sender, number, to_ids=(1,)):
    """Send a large frame to each of some mailboxes, with its number."""
    receivers = [to for to in to_ids for _ in range(ROWS)]
    payloads = [{"call": number, "row": row, "text": TEXT} for row in range(len(receivers))]
    return await sender.send_columns([9] * len(receivers), receivers, payloads)


async def fill(sender):
    """Send until the server's memory is full; return the number of the refused call, and its error."""
    for number in range(1, 100):
        try:
            await send(sender, number)
        except MailboxFull as error:
            return number, error
    raise AssertionError("the server's memory was never full")


async def received(messager, calls):
    """Fetch the messages of calls that sent to one mailbox; return which calls, each of them whole."""
    messages = await fetch_all(messager, calls * ROWS)
    assert len({message.id for message in messages}) == len(messages)
    found = [message.payload["call"] for message in messages]
    assert found == [call for call in dict.fromkeys(found) for _ in range(ROWS)]
    return found[::ROWS]


async def check_mailbox(client, exp_id, name="group"):
    """Check that a mailbox has its stream, and the id of its last entry."""
    keys = Keys(exp_id)
    assert not await client.exists(keys.open_stream(name))
    [stream] = [key async for key in client.scan_iter(match=f"{keys.prefix}mailbox:{name}:*")]
    [(last, _)] = await client.xrevrange(stream, count=1)
    assert await client.hget(keys.state(name), "last") == last


async def written_apart(client):
    """Return how many transactions the server has run."""
    return (await client.info("commandstats")).get("cmdstat_exec", {}).get("calls", 0)


async def test_large_frames_go_to_several_mailboxes_in_one_transaction(server, client, opener, exp_id):
    receivers = [await opener(server, name=f"group-{n}", host=[n]) for n in (1, 2, 3)]
    sender = await opener(server)
    await send(sender, 0, (1, 2, 3))  # the first one makes the streams
    before = await written_apart(client)
    for number in range(1, 4):
        receipts = await send(sender, number, (1, 2, 3))
        assert receipts.counts()["delivered"] == 3 * ROWS
    assert await written_apart(client) == before + 3
    for receiver in receivers:
        await check_mailbox(client, exp_id, receiver.name)
        assert await received(receiver, 4) == [0, 1, 2, 3]
        await receiver.ack()
        assert (await client.hmget(Keys(exp_id).state(receiver.name), "messages", "bytes")) == [b"0", b"0"]


async def test_a_reader_that_waits_gets_a_large_frame(server, opener):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    await send(sender, 0)
    assert await received(receiver, 1) == [0]
    for number in range(1, 4):
        waiting = asyncio.create_task(received(receiver, 1))
        await send(sender, number)
        assert await waiting == [number]


@pytest.mark.parametrize("up", [True, False], ids=["request", "reply"])
async def test_each_piece_of_a_large_call_may_be_lost(server, opener, up):
    receiver = await opener(server, name="group", host=[1])
    with Proxy(server) as proxy:
        sender = await opener(proxy.config)
        await send(sender, 0)
        number = lost = 0
        while lost == number:
            number += 1
            proxy.lose(number, up=up)
            receipts = await send(sender, number)
            assert receipts.counts()["delivered"] == ROWS
            lost += proxy.spare()
    assert number >= 3 if up else number >= 2
    assert await received(receiver, number + 1) == [*range(number + 1)]


async def test_large_frames_survive_a_killed_server(owned, opener, exp_id):
    receiver = await opener(owned.config, name="group", host=[1])
    with Proxy(owned.config) as proxy:
        sender = await opener(proxy.config)
        await send(sender, 0)

        def restart():
            owned.kill()
            owned.start()

        for number in range(1, 7):
            proxy.lose((number + 1) // 2, up=number % 2 == 1, then=restart)
            assert (await send(sender, number)).counts()["delivered"] == ROWS
        assert await received(receiver, 7) == [*range(7)]
        await sender.close()
    client = client_of(owned.config)
    await check_mailbox(client, exp_id)
    await client.aclose()


async def test_memory_that_becomes_full_leaves_mailboxes_whole(owned, opener, exp_id):
    receiver = await opener(owned.config, name="group", host=[1])
    sender = await opener(owned.config, send_timeout_s=1)
    await send(sender, 0)
    client = client_of(owned.config)
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory", used + 4 * _APART)
    number, error = await fill(sender)
    assert number > 1
    assert "maxmemory" in str(error)
    await check_mailbox(client, exp_id)
    await client.config_set("maxmemory", 0)
    assert await received(receiver, number) == [*range(number)]
    await send(sender, number)
    assert await received(receiver, 1) == [number]
    await receiver.ack()
    assert (await client.hmget(Keys(exp_id).state("group"), "messages", "bytes")) == [b"0", b"0"]
    await client.aclose()


@pytest.mark.parametrize(
    "right", ["multi", "exec", "xadd", "xgroup|create", "xgroup|destroy", "xgroup", "xinfo|groups", "rename"]
)
async def test_a_missing_right_only_makes_it_slower(server, client, opener, exp_id, right):
    user = f"user-{exp_id}"
    await client.execute_command("ACL", "SETUSER", user, "on", f">{server.password}", "~*", "&*", "+@all", f"-{right}")
    try:
        receiver = await opener(server, name="group", host=[1])
        sender = await opener(server.model_copy(update={"username": user}))
        if right == "xadd":  # without this one nothing can be sent
            with suppress(Exception):
                await send(sender, 0)
            await client.execute_command("ACL", "SETUSER", user, "+xadd")
        for number in range(3):
            assert (await send(sender, number)).counts()["delivered"] == ROWS
        assert await received(receiver, 3) == [0, 1, 2]
        assert (await sender.send_message(sender.get_agent_chat_channel(1), {"call": 3})).fate == "delivered"
        assert [message.payload for message in await fetch_all(receiver, 1)] == [{"call": 3}]
        await check_mailbox(client, exp_id)
    finally:
        await client.execute_command("ACL", "DELUSER", user)


async def test_forgotten_scripts_are_loaded_again(server, client, opener):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    for number in range(6):
        if number in {2, 4}:
            await client.script_flush()
        assert (await send(sender, number)).counts()["delivered"] == ROWS
    assert await received(receiver, 6) == [*range(6)]


async def test_a_successor_of_the_sender_fences_its_large_frames(server, opener):
    receiver = await opener(server, name="group", host=[1])
    old = await opener(server, name="sender")
    await send(old, 0)
    new = await opener(server, name="sender")
    await send(new, 1)
    with pytest.raises(Fenced):
        await send(old, 2)
    await send(new, 3)
    assert await received(receiver, 3) == [0, 1, 3]
