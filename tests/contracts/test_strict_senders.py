"""A messager that may send only for its own agents: on every server, by every call; a refused call sends nothing."""

import numpy as np
import pytest
from support.contracts import fetch_all
from support.groups_without_ray import own_group

from ray_messaging import Outgoing
from ray_messaging.errors import InvalidAddress, UnknownSender

MANY = 40_000  # rows: more than a batch has


@pytest.fixture
async def group(messagers):
    """Give a messager that hosts some agents and may send only for them."""
    return await messagers(name="west", host=[1, 2, 7, "ann"], strict_senders=True)


def calls(messager, from_id):
    """Yield every call that sends for an agent, and a permitted one of the same kind."""
    channel = messager.get_agent_chat_channel(2)
    yield lambda: messager.send_message(channel, {"n": 1}, from_id)
    yield lambda: messager.send_message(channel, {"n": 1}, from_id, 2)
    yield lambda: messager.send_messages([Outgoing.to_agent(2, {"n": 1}, sender) for sender in (1, from_id)])
    yield lambda: messager.send_messages([Outgoing.to_agents([1, 2], {"n": 1}, from_id)])
    yield lambda: messager.send_columns([1, from_id, 2], [1, 1, 1], {"n": 1})
    yield lambda: messager.send_columns(from_id, [1, 1, 1], {"n": 1})


async def nothing_came(messager):
    """Check that no message of a refused call was sent: a message sent now arrives first."""
    await messager.send_message(messager.get_agent_chat_channel(1), {"last": True}, 1)
    (message,) = await messager.fetch_messages(timeout=10)
    return message.payload == {"last": True}


@pytest.mark.parametrize("from_id", [13, -1, "bob", "13"], ids=str)
async def test_a_send_for_another_groups_agent_refuses_the_whole_call(group, from_id):
    for call in calls(group, from_id):
        with pytest.raises(UnknownSender, match=r"group 'west'.*no message of this call was sent") as caught:
            await call()
        assert (caught.value.value, caught.value.group) == (int(from_id) if from_id == "13" else from_id, "west")
        assert isinstance(caught.value, InvalidAddress)
    assert await nothing_came(group)


async def test_the_agents_of_a_group_send_by_every_call(group):
    for from_id in (1, "1", 7, "ann"):
        for call in calls(group, from_id):
            await call()
    found = await fetch_all(group, 4 * (1 + 1 + 2 + 2 + 3 + 3))
    assert {message.from_id for message in found} == {1, 2, 7, "ann"}


async def test_a_send_for_the_user_must_say_so(group):
    channel = group.get_agent_chat_channel(2)
    for call in (
        lambda: group.send_message(channel, {}),
        lambda: group.send_message(channel, {}, None, 2),  # AgentSociety's signature does not distinguish these two
        lambda: group.send_messages([Outgoing(channel, {}, 1), Outgoing(channel, {})]),
        lambda: group.send_messages([Outgoing.to_agent(2, {})]),
        lambda: group.send_messages([Outgoing.to_agents([2], {})]),
    ):
        with pytest.raises(UnknownSender, match=r"no from_id.*Outgoing\(channel, payload, from_id=None\)") as caught:
            await call()
        assert (caught.value.value, caught.value.group) == (None, "west")
    await group.send_messages([Outgoing(channel, {}, from_id=None), Outgoing.to_agent(2, {}, None)])
    await group.send_columns(None, [2], {})
    await group.send_columns([None, 1], [2, 2], {})
    assert [message.from_id for message in await fetch_all(group, 5)] == [None, None, None, None, 1]


async def test_a_group_messager_distinguishes_none_from_a_missing_sender(server, exp_id, opener):
    messager = await own_group(opener, server, exp_id, "west", [1], strict_senders=True)
    channel = messager.get_agent_chat_channel(1)
    with pytest.raises(UnknownSender, match="no from_id"):
        await messager.send_message(channel, {})
    assert await messager.send_message(channel, {}, None)
    assert await messager.send_message(channel, {}, from_id=None, to_id=1)
    assert await messager.send_message(channel, {}, 1)


@pytest.mark.parametrize("spread", [1, 3, 10_000], ids=["in a row", "close", "far apart"])
async def test_one_foreign_agent_among_many_rows_is_found(messagers, spread):
    messager = await messagers(name="west", host=range(0, 1000 * spread, spread), strict_senders=True)
    from_ids = np.arange(MANY) % 1000 * spread
    for place in (0, MANY - 1):
        wrong = from_ids.copy()
        wrong[place] = 1001 * spread
        with pytest.raises(UnknownSender, match=f"agent {1001 * spread} ") as caught:
            await messager.send_columns(wrong, from_ids, {"n": 1})
        assert caught.value.value == 1001 * spread
    receipts = await messager.send_columns(from_ids[:100], from_ids[:100], {"n": 1})
    assert receipts.counts()["delivered"] == 100
    assert len(await messager.fetch_messages(timeout=10)) == 100


async def test_agents_that_are_hosted_later_send_too(group):
    channel = group.get_agent_chat_channel(2)
    with pytest.raises(UnknownSender):
        await group.send_message(channel, {}, 13)
    await group.host_agents([13], ["agent-chat"])
    for from_id in (13, 1):
        assert await group.send_message(channel, {}, from_id)


@pytest.mark.parametrize("settings", [{}, {"strict_senders": False}], ids=["by default", "told not to"])
async def test_other_messagers_may_send_for_any_agent(messagers, settings):
    messager = await messagers(name="west", host=[1], **settings)
    guest = await messagers(strict_senders=True)  # it hosts nobody
    for sender in (messager, guest):
        channel = sender.get_agent_chat_channel(1)
        assert await sender.send_message(channel, {}, 13)
        assert await sender.send_message(channel, {})
        assert all(await sender.send_messages([Outgoing(channel, {}), Outgoing(channel, {}, "bob")]))


# -- undeliverable messages ---------------------------------------------------------------------------------------


async def test_an_undeliverable_receipt_names_agent_and_subtopic(messagers):
    messager = await messagers(name="west", host=[1])
    receipt = await messager.send_message(messager.get_agent_chat_channel(13), {}, 1)
    assert (receipt.fate, bool(receipt)) == ("undeliverable", False)
    assert receipt.reason == "no group or messager listens for agent 13 on 'agent-chat', and no plain Redis client does"
    assert "for agent 13 on 'agent-chat'" in repr(receipt)
    receipts = await messager.send_columns([1] * 3, [13, 1, "bob"], {}, subtopic="gossip")
    assert [receipt.reason for receipt in receipts] == [
        f"no group or messager listens for agent {who!r} on 'gossip', and no plain Redis client does"
        for who in (13, 1, "bob")
    ]
    mixed = [Outgoing.to_agent(to, {}, 1, subtopic) for to, subtopic in ((1, "agent-chat"), (13, "news"), (14, "chat"))]
    receipts = await messager.send_messages([*mixed, Outgoing("the wide world", {}, 1)])
    assert [receipt.fate for receipt in receipts] == ["delivered", *["undeliverable"] * 3]
    assert [receipt.reason for receipt in receipts] == [
        None,
        "no group or messager listens for agent 13 on 'news', and no plain Redis client does",
        "no group or messager listens for agent 14 on 'chat', and no plain Redis client does",
        "no group or messager listens on channel 'the wide world', and no plain Redis client does",
    ]
    receipt = await messager.send_message("square", {}, 1, 1)
    assert receipt.reason == "no group or messager listens for agent 1 on 'square', and no plain Redis client does"
