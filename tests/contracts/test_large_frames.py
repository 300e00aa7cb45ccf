"""Large frames, which do not come into a script: cuts, kills, full memory, missing rights, forgotten scripts."""

import asyncio
from contextlib import ExitStack

import pytest
from faults.proxy import Proxy
from support.contracts import client_of, fetch_all, until
from support.server_side import ask_when_cut, keys_of
from support.servers import RedisProcess

from ray_messaging.errors import Closed, Fenced, MailboxFull, OutcomeUnknown

pytestmark = pytest.mark.one_server("it looks into one server; the other suites send large frames over all layouts")

ROWS = 8
LARGE_BYTES = 128 * 2**10  # of a frame that does not come into a script
TEXT = "x" * (LARGE_BYTES // ROWS)


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a server of the test's own; a test asks for it before it asks for messagers."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(RedisProcess(tmp_path, **options))


@pytest.fixture
def client(store):
    return store.client


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
    keys = keys_of(exp_id)
    assert not await client.exists(keys.open_stream(name))
    [stream] = [key async for key in client.scan_iter(match=f"{keys.prefix}mailbox:{name}:*")]
    [(last, _)] = await client.xrevrange(stream, count=1)
    assert await client.hget(keys.state(name), "last") == last


async def transactions(client):
    """Return how many transactions the server has run."""
    return (await client.info("commandstats")).get("cmdstat_exec", {}).get("calls", 0)


async def attempts(client):
    """Return how often transactions were tried, in vain too."""
    stats = await client.info("commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {}).get(count, 0)
        for name in ("multi", "exec")
        for count in ("calls", "rejected_calls")
    )


async def test_large_frames_go_to_several_mailboxes_in_one_transaction(server, client, opener, exp_id):
    receivers = [await opener(server, name=f"group-{n}", host=[n]) for n in (1, 2, 3)]
    sender = await opener(server)
    await send(sender, 0, (1, 2, 3))  # the first one makes the streams
    before = await transactions(client)
    for number in range(1, 4):
        receipts = await send(sender, number, (1, 2, 3))
        assert receipts.counts()["delivered"] == 3 * ROWS
    assert await transactions(client) == before + 3
    for receiver in receivers:
        await check_mailbox(client, exp_id, receiver.name)
        assert await received(receiver, 4) == [0, 1, 2, 3]
        await receiver.ack()
        assert (await client.hmget(keys_of(exp_id).state(receiver.name), "messages", "bytes")) == [b"0", b"0"]


async def test_a_reader_that_waits_gets_a_large_frame(server, opener):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    for number in range(4):
        waiting = asyncio.create_task(received(receiver, 1))
        await send(sender, number)
        assert await waiting == [number]


@pytest.mark.parametrize(
    "up", [pytest.param(True, id="request", marks=pytest.mark.long), pytest.param(False, id="reply")]
)
async def test_each_piece_of_a_large_call_may_be_lost(server, client, opener, up):
    receiver = await opener(server, name="group", host=[1])
    with Proxy(server) as proxy:
        sender = await opener(proxy.config)
        await send(sender, 0)
        number = lost = 0
        before = await transactions(client)
        while lost == number:
            number += 1
            proxy.lose(number, up=up)
            receipts = await send(sender, number)
            assert receipts.counts()["delivered"] == ROWS
            lost += proxy.spare()
    assert await transactions(client) > before
    assert number >= 3 if up else number >= 2
    assert await received(receiver, number + 1) == [*range(number + 1)]


async def test_large_frames_survive_a_killed_server(own_server, opener, exp_id):
    receiver = await opener(own_server.config, name="group", host=[1])
    with Proxy(own_server.config) as proxy:
        sender = await opener(proxy.config)
        await send(sender, 0)

        def restart():
            own_server.kill()
            own_server.start()

        for number in range(1, 7):
            proxy.lose((number + 1) // 2, up=number % 2 == 1, then=restart)
            assert (await send(sender, number)).counts()["delivered"] == ROWS
        assert await received(receiver, 7) == [*range(7)]
        await sender.close()
    async with client_of(own_server.config) as client:
        await check_mailbox(client, exp_id)


async def test_memory_that_becomes_full_leaves_mailboxes_whole(own_server, opener, exp_id):
    receiver = await opener(own_server.config, name="group", host=[1])
    sender = await opener(own_server.config, send_timeout_s=1)
    await send(sender, 0)
    client = client_of(own_server.config)
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory", used + 4 * LARGE_BYTES)
    number, error = await fill(sender)
    assert number > 1
    assert "maxmemory" in str(error)
    await check_mailbox(client, exp_id)
    await client.config_set("maxmemory", 0)
    assert await received(receiver, number) == [*range(number)]
    await send(sender, number)
    assert await received(receiver, 1) == [number]
    await receiver.ack()
    assert (await client.hmget(keys_of(exp_id).state("group"), "messages", "bytes")) == [b"0", b"0"]
    await client.aclose()


async def check_that_it_only_is_slower(server, client, opener, exp_id, sender):
    """Check that large frames arrive, and that no second transaction is tried."""
    receiver = await opener(server, name="group", host=[1])
    for number in range(2):
        assert (await send(sender, number)).counts()["delivered"] == ROWS
    before = await attempts(client)
    for number in range(2, 5):
        assert (await send(sender, number)).counts()["delivered"] == ROWS
    assert await attempts(client) == before
    assert await received(receiver, 5) == [*range(5)]
    assert (await sender.send_message(sender.get_agent_chat_channel(1), {"call": 5})).fate == "delivered"
    assert [message.payload for message in await fetch_all(receiver, 1)] == [{"call": 5}]
    await check_mailbox(client, exp_id)


ONLY_ADDS = "%W~{prefix}mailbox:*", "~{prefix}[^m]*", "~{prefix}meta", "&*", "+@all"
RIGHTS = {"only adds to mailboxes": ONLY_ADDS} | {
    f"-{right}": ("~*", "&*", "+@all", f"-{right}")
    for right in ("multi", "exec", "xgroup", "xgroup|create", "xgroup|destroy", "xinfo|groups", "rename")
}


@pytest.mark.parametrize("rights", RIGHTS.values(), ids=RIGHTS)
async def test_a_missing_right_only_makes_it_slower(server, client, opener, exp_id, rights):
    user, prefix = f"user-{exp_id}", keys_of(exp_id).prefix
    rights = [right.replace("{prefix}", prefix) for right in rights]
    await client.execute_command("ACL", "SETUSER", user, "on", f">{server.password}", *rights)
    try:
        sender = await opener(server.model_copy(update={"username": user}))
        await check_that_it_only_is_slower(server, client, opener, exp_id, sender)
    finally:
        await client.execute_command("ACL", "DELUSER", user)


@pytest.mark.parametrize("command", ["MULTI", "EXEC", "XINFO"])
async def test_a_server_without_a_command_only_is_slower(start, opener, exp_id, command):
    server = start(**{"rename-command": f'{command} ""'})
    sender = await opener(server.config)
    async with client_of(server.config) as client:
        await check_that_it_only_is_slower(server.config, client, opener, exp_id, sender)


async def test_consumer_groups_of_others_change_nothing(server, client, opener, exp_id):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    await send(sender, 0)
    [stream] = [key async for key in client.scan_iter(match=f"{keys_of(exp_id).prefix}mailbox:group:*")]
    await client.xgroup_create(stream, "audit", "0")
    await send(sender, 1)
    await check_mailbox(client, exp_id)
    assert [group["name"] for group in await client.xinfo_groups(stream)] == [b"audit"]
    assert await received(receiver, 2) == [0, 1]


async def test_a_full_mailbox_keeps_nothing_from_the_others(server, client, opener, exp_id):
    names = {1: "roomy", 2: "narrow", 3: "new"}
    sender = await opener(server, send_timeout_s=1)
    receivers = {
        to: await opener(server, name=name, host=[to], mailbox_messages=2 * ROWS if name == "narrow" else 1_000)
        for to, name in names.items()
    }
    await send(sender, 0, (1, 2))
    await send(sender, 1, (1, 2))
    with pytest.raises(MailboxFull) as caught:
        await send(sender, 2, (1, 2, 3))
    assert caught.value.mailbox == "narrow"
    fates = [None if receipt is None else receipt.fate for receipt in caught.value.receipts]
    assert fates == ["delivered"] * ROWS + [None] * ROWS + ["delivered"] * ROWS
    assert await received(receivers[2], 2) == [0, 1]
    await receivers[2].ack()
    await send(sender, 3, (1, 2, 3))
    for to, calls in {1: [0, 1, 2, 3], 2: [3], 3: [2, 3]}.items():
        assert await received(receivers[to], len(calls)) == calls
        await check_mailbox(client, exp_id, names[to])
    for number in range(4, 8):  # the first call of a connection, which may be a new one, is no transaction
        before = await transactions(client)
        await send(sender, number, (1, 3))
        if await transactions(client) == before + 1:
            return
    raise AssertionError("large frames are no longer written in a transaction")


async def test_a_large_frame_is_not_sent_again_and_again_to_a_mailbox_that_is_full(server, client, opener):
    sender, receiver = await opener(server), await opener(server, host=[1], mailbox_messages=2 * ROWS)
    await send(sender, 0)
    await send(sender, 1)

    async def asked():
        return (await client.info("commandstats")).get("cmdstat_hmget", {}).get("calls", 0)

    async def asked_often():
        return await asked() > begun + 15

    waiting = asyncio.create_task(send(sender, 2))
    await until(lambda: sender.stats()["outbox"] == ROWS)
    came, begun = (await client.info("stats"))["total_net_input_bytes"], await asked()
    await until(asked_often)
    assert (await client.info("stats"))["total_net_input_bytes"] - came < 3 * ROWS * len(TEXT)
    assert not waiting.done()
    assert await received(receiver, 3) == [0, 1, 2]
    assert (await waiting).sent.all()


async def test_a_large_frame_whose_reply_was_lost_is_not_said_to_be_unsent(server, opener):
    receiver = await opener(server, name="group", host=[1])
    with Proxy(server) as proxy:
        sender = await opener(proxy.config, send_timeout_s=5)
        await send(sender, 0)
        await send(sender, 1)

        async def ended():
            return Closed("the experiment has ended")

        def vanish():
            proxy.black_hole = True

        ask_when_cut(sender, ended)
        proxy.lose(1, up=False, then=vanish)
        with pytest.raises(OutcomeUnknown):
            await send(sender, 2)
        assert await received(receiver, 3) == [0, 1, 2]


async def test_forgotten_scripts_are_loaded_again(server, client, opener):
    receiver, sender = await opener(server, name="group", host=[1]), await opener(server)
    for number in range(6):
        if number in {2, 4}:
            await client.script_flush()
        assert (await send(sender, number)).counts()["delivered"] == ROWS
    before = await transactions(client)
    await send(sender, 6)
    assert await transactions(client) == before + 1
    assert await received(receiver, 7) == [*range(7)]


async def test_a_script_that_valkey_forgets_alone_is_loaded_again(start, opener):
    server = start(binary="valkey")
    client = client_of(server.config)
    receiver, sender = await opener(server.config, name="group", host=[1]), await opener(server.config)
    await send(sender, 0)
    await send(sender, 1)
    for other in range(600):  # it keeps the 500 that ran last
        await client.eval(f"return {other}", 0)
        if other % 100 == 0:
            await sender.send_message(sender.get_agent_chat_channel(1), {"call": 0})
    before = (await client.info("commandstats"))["cmdstat_xadd"]["calls"]
    for number in range(2, 5):
        await send(sender, number)
    added = (await client.info("commandstats"))["cmdstat_xadd"]["calls"] - before
    assert added == 4  # the first one added nothing, and send wrote its frame
    assert (await client.info("stats"))["evicted_scripts"] > 0
    large = [message for message in await fetch_all(receiver, 5 * ROWS + 6) if "text" in message.payload]
    assert [message.payload["call"] for message in large[::ROWS]] == [*range(5)]
    await client.aclose()


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
