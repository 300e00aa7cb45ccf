"""Replicas: with `wait_replicas` a call returns only once they have all that it shows; both traps of WAIT."""

import asyncio
import re

import msgspec
import pytest
from support.contracts import fetch_all, numbers, refused
from support.patience import WAIT_S
from support.replicated import ReplicatedService
from support.schemas import set_schema
from support.survey_records import ask_survey, surveys_of

from ray_messaging.errors import ConnectionFailed, NotReplicated, OutcomeUnknown

ALONE = {"sentinels": 0, "appendonly": "no"}


# The second trap is one of Valkey: Redis counts whatever a connection has seen as its own write.
@pytest.fixture(scope="module", params=["valkey", pytest.param("redis-server", marks=pytest.mark.long)])
def pair(request, tmp_path_factory):
    with ReplicatedService(tmp_path_factory.mktemp("pair"), binary=request.param, **ALONE) as service:
        yield service


@pytest.fixture
def trio(tmp_path):
    """Start a primary with two replicas."""
    with ReplicatedService(tmp_path, binary="valkey", replicas=2, **ALONE) as service:
        yield service


@pytest.mark.parametrize(("rows", "text"), [(1, ""), (8, "x" * 2**15)], ids=["small", "large"])
async def test_a_frame_is_delivered_once_a_replica_has_it(opener, pair, rows, text):
    receiver = await opener(pair.config, name="b", host=[2], wait_replicas=1)
    sender = await opener(pair.config, name="a", wait_replicas=1)
    with pair.replicas[0].client() as client:
        for calls in range(1, 4):
            receipts = await sender.send_columns([1] * rows, [2] * rows, [{"text": text}] * rows)
            assert receipts.counts()["delivered"] == rows
            assert client.xlen(next(iter(client.scan_iter(match=f"rm:{{{sender.exp_id}}}:mailbox:b:*")))) == calls
    assert len(await fetch_all(receiver, 3 * rows)) == 3 * rows


async def test_a_repeated_send_is_no_receipt_while_no_replica_has_it(opener, pair):
    """WAIT covers its connection's last write only: the repetition, answered as a duplicate, must write too."""
    receiver = await opener(pair.config, name="b", host=[2])
    sender = await opener(pair.config, name="a", wait_replicas=1, send_timeout_s=1.2)
    assert (await sender.send(1, 2, {"n": 0})).fate == "delivered"
    with pair.replicas[0].paused():
        with pytest.raises(NotReplicated, match=r"0 of 1 replicas.*wait_replicas is 1") as caught:
            await sender.send(1, 2, {"n": 1})
        assert isinstance(caught.value, OutcomeUnknown)
        assert (caught.value.replicas, caught.value.wanted) == (0, 1)
        assert caught.value.port == pair.config.port
        # The primary has it: it was a repetition that failed.
        assert [message.payload["n"] for message in await receiver.fetch_messages(limit=2, timeout=30)] == [0, 1]


async def test_a_message_that_no_replica_has_is_not_handed_out(opener, pair):
    """WAIT covers its connection's last write only: a reader must write before it waits."""
    receiver = await opener(pair.config, name="b", host=[2], wait_replicas=1)
    sender = await opener(pair.config, name="a")
    with pair.replicas[0].paused():
        receipt = await sender.send_message(sender.get_agent_chat_channel(2), {"n": 1}, from_id=1)
        assert receipt.fate == "delivered"  # this one waits for no replica
        assert list(await receiver.fetch_messages(timeout=1.0)) == []
        pair.replicas[0].resume()
        assert [message.payload["n"] for message in await receiver.fetch_messages(timeout=30)] == [1]


@pytest.mark.long
@pytest.mark.parametrize("dead", [False, True], ids=["stands still", "is dead"])
async def test_of_two_replicas_both_must_confirm(trio, opener, dead):  # the servers end last
    receiver = await opener(trio.config, name="b", host=[2], wait_replicas=2, send_timeout_s=WAIT_S)
    hasty = await opener(trio.config, name="a", wait_replicas=2, send_timeout_s=3.0)
    patient = await opener(trio.config, name="c", wait_replicas=2, send_timeout_s=WAIT_S)
    channel, other = hasty.get_agent_chat_channel(2), trio.replicas[1]
    assert (await hasty.send_message(channel, {"n": 0}, from_id=1)).fate == "delivered"
    await asyncio.to_thread(other.kill if dead else other.pause)
    try:
        sending = asyncio.create_task(patient.send_message(channel, {"n": 1}, from_id=3))
        with pytest.raises(NotReplicated, match=r"1 of 2 replicas .* start the replicas, look at their logs") as caught:
            await hasty.send_message(channel, {"n": 2}, from_id=1)
        assert (caught.value.replicas, caught.value.wanted) == (1, 2)
        assert not sending.done()
    finally:
        await asyncio.to_thread(other.start if dead else other.resume)
    assert (await sending).fate == "delivered"
    assert (await hasty.send_message(channel, {"n": 3}, from_id=1)).fate == "delivered"
    found = numbers(await fetch_all(receiver, 4))  # that of the failed call is one of them: it was unknown
    assert sorted(found) == [0, 1, 2, 3]


class Mood(msgspec.Struct):
    mood: int


async def test_other_calls_wait_for_replicas_too(opener, pair):
    messager = await opener(pair.config, name="a", wait_replicas=1, send_timeout_s=1)  # the replica is slow, too
    with pair.replicas[0].paused():
        for call in (
            ask_survey(surveys_of(messager), Mood, [1], {"text": "How?"}, subtopic="user-chat"),
            set_schema(messager, "news", Mood),
            messager.host_agents([1], ["agent-chat"]),
        ):
            with pytest.raises(NotReplicated, match="0 of 1"):
                await call


async def test_a_server_without_replicas_is_refused_at_once(valkey_config, exp_id):
    error = await refused(valkey_config, exp_id, NotReplicated, wait_replicas=2)
    assert isinstance(error, ConnectionFailed)
    assert re.search(r"0 of 2 replicas .* are connected", str(error))
