"""Each refusal that the server may repeat for ever: what asks ends by its timeout, with pauses between its attempts."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all

from ray_messaging.errors import ConnectionFailed, MoveFailed, TransitError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.receiving.agent_mover import AgentMover
from ray_messaging.sending import frame_sender
from ray_messaging.transports.agent_moves import Attempted, MoveOutcome
from ray_messaging.transports.transport_values import FrameFate, SendReply, SendStatus

TIMEOUT_S = 0.5
# Pauses of 2, 4, 8, 16, 32 and then 50 ms fit into the timeout a dozen times, and each attempt has a few calls.
FEW = 60


def counted(messager):
    """Count the scripts and commands that a messager sends to its server."""
    link, calls = messager.engine.transport.link, []
    over = link._over

    def noted(wire, args, *rest):
        calls.append(args)
        return over(wire, args, *rest)

    link._over = noted
    return calls


async def transact(messager, channel):
    async with messager.transaction() as tx:
        tx.send_message(channel, {"n": 1})


async def plainly(messager, channel):
    await messager.send_message(channel, {"n": 1})


@pytest.mark.parametrize(
    "refusal",
    [SendStatus.STALE_DIRECTORY, SendStatus.RESTORED, FrameFate.GAP, FrameFate.GONE],
    ids=lambda why: why.name,
)
@pytest.mark.parametrize("send", [plainly, transact])
async def test_a_refusal_that_stays_ends_by_the_timeout(server, opener, refusal, send):
    await opener(server, name="group", host=[1])
    sender = await opener(server, name="sender", host=[3], send_timeout_s=TIMEOUT_S)
    channel = sender.get_agent_chat_channel(1)
    assert (await sender.send_message(channel, {"n": 0})).fate == "delivered"
    transport, real, calls = sender.engine.transport, sender.engine.transport.send, counted(sender)

    async def refused(request):
        fates = [refusal if isinstance(refusal, FrameFate) else FrameFate.FULL for _ in request.writes]
        calls.append(request)
        return SendReply(refusal if isinstance(refusal, SendStatus) else SendStatus.OK, fates)

    transport.send = refused
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(Exception, match=r"not written|restored from a backup"):
            await send(sender, channel)
    assert len(calls) < FEW
    transport.send = real
    assert (await sender.send_message(channel, {"n": 2})).fate == "delivered"


@pytest.mark.parametrize("send", [plainly, transact])
async def test_an_epoch_whose_answer_was_lost_fences_nobody(server, opener, send, monkeypatch):
    monkeypatch.setattr(frame_sender, "_GONE", 1)
    sender = await opener(server, name="sender", host=[3], send_timeout_s=TIMEOUT_S)
    gone = await opener(server, host=[1])  # without a name: its mailbox goes with it
    assert (await sender.send_message(sender.get_agent_chat_channel(1), {"n": 0})).fate == "delivered"
    await gone.close()
    receiver = await opener(server, name="group", host=[2])
    transport, real = sender.engine.transport, sender.engine.transport.take_sender_epoch
    lost = []

    async def answer_lost(*args, **options):
        transport.take_sender_epoch = real
        await real(*args, **options)
        lost.append(True)
        raise ConnectionFailed("cut by the test", host="", port=0)

    transport.take_sender_epoch = answer_lost
    channel = sender.get_agent_chat_channel(2)
    with pytest.raises(ConnectionFailed, match="cut by the test"):
        await send(sender, channel)
    assert lost
    assert (await sender.send_message(channel, {"n": 2})).fate == "delivered"
    await transact(sender, channel)
    assert [message.payload["n"] for message in await fetch_all(receiver, 2)] == [2, 1]


@pytest.mark.parametrize("call", ["listen", "move", "move in steps"])
async def test_a_directory_that_changes_at_each_attempt_ends_what_changes_it(server, opener, call, monkeypatch):
    messager = await opener(server, name="group", host=[1, 2], send_timeout_s=TIMEOUT_S)
    transport, attempts = messager.engine.transport, []

    async def stale(*_args, **_options):
        attempts.append(call)
        return None if call == "listen" else Attempted(MoveOutcome.STALE_DIRECTORY)

    monkeypatch.setattr(*((transport, "listen") if call == "listen" else (transport.moves, "move")), stale)
    changes = {
        "listen": lambda: messager.host_agents([3], ["agent-chat"]),
        "move": lambda: messager.remove_agents([2], timeout=TIMEOUT_S),
        "move in steps": lambda: AgentMover(transport, messager.directory, AgentSet.of([2]), "group", None).run(
            TIMEOUT_S
        ),
    }
    async with asyncio.timeout(WAIT_S):
        with pytest.raises((TransitError, MoveFailed), match=r"changed at each attempt|nothing has changed"):
            await changes[call]()
    assert 1 < len(attempts) < FEW
