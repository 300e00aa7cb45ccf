"""Ids, channels and payloads: accepted forms, and the errors for others."""

import asyncio
import datetime as dt
import pickle

import msgspec
import numpy as np
import pytest
from support.contracts import fetch_all
from support.log_writing import begin_log
from support.patience import WAIT_S

from ray_messaging import EventLog, Messager, MessagingError, Outgoing, columns
from ray_messaging.errors import (
    Closed,
    ConfigError,
    InvalidAddress,
    InvalidColumns,
    InvalidPayload,
    NotListening,
    PayloadTooLarge,
)

BAD_IDS = [1.5, True, b"ann", ("a", 1.5), [1], np.array([1, 2]), int, 2**63, "", "a\x7f", "x" * 300, "\n", "\ud800"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(7, 7), (np.int32(7), 7), ("7", 7), ("-7", -7), ("007", "007"), ("ann", "ann"), ("é 1", "é 1"), (2**63 - 1,) * 2,
     (np.str_("ann"), "ann"), ("9" * 19, "9" * 19), ("+7", "+7"), ("-0", "-0")],
    ids=repr,
)  # fmt: skip
async def test_ids_are_normalized(messagers, given, kept):
    both = await messagers(host=[given])
    channel = both.get_agent_chat_channel(given)
    await both.send_message(channel, {"n": 1}, from_id=given, to_id=given)
    await both.send_messages([Outgoing.to_agent(given, {"n": 2}, from_id=given)])
    await both.send_messages([Outgoing(channel, {"n": 3}, given, given)])
    await both.send_columns([given], [given], [{"n": 4}])
    for message in await fetch_all(both, 4):
        assert (message.from_id, message.to_id, message.channel) == (kept, kept, channel)
        assert (type(message.from_id), type(message.to_id)) == (type(kept), type(kept))


HARDEST = [
    "team/1:2", "@ann:example.org", "did:web:x", "[a]", "a*", "*", "?", "a\\", ":", "::", "%3A", "%253A", "a%3Ab",
    "a:b", "%", "#+$ {x}", ":é\u0301" * 40, "agent-chat", "exps:e:agents:7:agent-chat", "\u202e:",
]  # fmt: skip


async def test_ids_of_any_text_arrive_under_their_own_names_and_are_logged_so(messagers, store, tmp_path, exp_id):
    west, east = await messagers(name="west", host=["us/1:2"]), await messagers(name="east", host=HARDEST)
    all_of_them = await messagers(name="all", listen=["exps:*:agents:*:agent-chat", f"exps:{exp_id}:agents:@ann%3A*"])
    writer = await begin_log(all_of_them, tmp_path / "log", exp_id, segment_age_s=1e9)
    for agent_id in HARDEST:
        assert await west.send_message(east.get_agent_chat_channel(agent_id), {"n": agent_id}, "us/1:2", agent_id)
    payloads = columns(n=HARDEST)  # typed: the log composes the channels that need no escape
    assert (await west.send_columns("us/1:2", HARDEST, payloads)).counts()["delivered"] == len(HARDEST)
    for messager in (east, all_of_them):
        found = await fetch_all(messager, 2 * len(HARDEST))
        assert [(each.to_id, each.payload["n"]) for each in found] == [(each, each) for each in 2 * HARDEST]
        assert {each.from_id for each in found} == {"us/1:2"}
        await messager.ack()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(west.ask("us/1:2", "did:web:x", {}, subtopic="agent-chat", timeout=WAIT_S))
        (question,) = await fetch_all(east, 1)
        await east.reply(question, {"me": question.to_id})
    assert (answer.result().from_id, answer.result().payload) == ("did:web:x", {"me": "did:web:x"})
    await store.publish(f"exps:{exp_id}:agents:did%3Aweb%3Ax:agent-chat", b'{"n": 5}')
    (foreign,) = await fetch_all(east, 1)
    assert (foreign.to_id, foreign.payload) == ("did:web:x", {"n": 5})
    await writer.close()
    log = EventLog.open(tmp_path / "log")
    channels = {east.get_agent_chat_channel(agent_id): agent_id for agent_id in HARDEST}
    assert len(channels) == len(HARDEST)
    for agent_id in HARDEST:
        rows = log.query(to_id=agent_id, from_id="us/1:2").to_pylist()
        assert {row["to_id"] for row in rows} == {agent_id}
        assert {channels[row["channel"]] for row in rows} == {agent_id}
        assert log.query(channel=east.get_agent_chat_channel(agent_id)).num_rows == len(rows) >= 2
    sql = log.sql("select distinct to_id, channel from messages where from_id = 'us/1:2'").to_pylist()
    assert {row["channel"]: row["to_id"] for row in sql} == channels


async def test_columns_of_numpy_which_may_be_changed_during_the_send(messagers):
    sender, receiver = await messagers(), await messagers(host=["ann", "bob", 1, 2, 3])
    await sender.send_columns(np.array(["ann", "bob"]), np.array(["bob", "ann"]), {"n": 1})
    await sender.send_columns(np.array([1, 2], np.uint64), np.array([3, 3], np.uint8), {"n": 2})
    await sender.send_columns([None, "ann"], (3, 3), {"n": 3})
    ids = np.array([1, 2])
    sending = asyncio.create_task(sender.send_columns(ids, ids, {}))
    await asyncio.sleep(0)
    ids[:] = 9
    await sending
    pairs = [(message.from_id, message.to_id) for message in await fetch_all(receiver, 8)]
    assert pairs == [("ann", "bob"), ("bob", "ann"), (1, 3), (2, 3), (None, 3), ("ann", 3), (1, 1), (2, 2)]


@pytest.mark.parametrize("bad", BAD_IDS, ids=repr)
async def test_invalid_ids_are_refused(bad, local):
    async with Messager(local, "exp") as messager:
        for send in (
            lambda: messager.send_message("news", {}, from_id=bad),
            lambda: messager.send_message("news", {}, to_id=bad),
            lambda: messager.send_columns([bad], [1], [{}]),
            lambda: messager.send_columns([1], [bad], [{}]),
            lambda: messager.host_agents([bad], ["agent-chat"]),
        ):
            with pytest.raises(InvalidAddress) as caught:
                await send()
            assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
        for build in (
            lambda: Outgoing.to_agent(bad, {}),
            lambda: Outgoing.to_agents([bad], {}),
            lambda: Outgoing("news", {}, from_id=bad),
            lambda: messager.get_agent_chat_channel(bad),
        ):
            with pytest.raises(InvalidAddress):
                build()
        assert messager.stats()["outbox"] == 0


@pytest.mark.parametrize(
    "bad",
    ["", "a\nb", 5, None, ["news"], "x" * 700, "exps:", "exps:exp", "exps:exp:agents", "exps:exp:agents:1",
     "exps:exp:agents:1:chat:more", "exps:exp:agents::chat", "exps:exp:agents:1:", "news*", "n?", "exps:exp:x\ud800",
     "news\ud800"],
    ids=repr,
)  # fmt: skip
async def test_invalid_channels_are_refused(bad, local):
    async with Messager(local, "exp") as messager:
        with pytest.raises(InvalidAddress):
            await messager.send_message(bad, {})
        if bad is not None:
            with pytest.raises(InvalidAddress):
                await messager.send_messages([Outgoing(bad, {})])
        if not isinstance(bad, str) or not set(bad) & set("*?"):
            with pytest.raises(InvalidAddress):
                await messager.subscribe_and_start_listening([bad])
        with pytest.raises(NotListening):
            await messager.fetch_messages(timeout=1.0)
        assert (await messager.send_message("news", {})).fate == "undeliverable"


@pytest.mark.parametrize("agent_id", [13, np.int64(13)], ids=repr)
async def test_an_id_given_as_channel_gets_an_error_that_names_the_right_call(agent_id, local):
    async with Messager(local, "e", name="all") as messager:
        calls = [
            lambda: messager.send_message(agent_id, {}),
            lambda: messager.send_messages([Outgoing(agent_id, {})]),
            lambda: messager.subscribe_and_start_listening([agent_id]),
        ]
        for call in calls:
            with pytest.raises(InvalidAddress, match=r"must be a str: .* messager\.get_agent_chat_channel\(13\)"):
                await call()
        await messager.subscribe_and_start_listening([messager.get_agent_chat_channel(1)])
        async with messager.transaction() as tx:
            with pytest.raises(InvalidAddress, match=r"Outgoing\.to_agent\(13, payload\)"):
                tx.send_message(agent_id, {})
        with pytest.raises(InvalidAddress, match=r"get_agent_chat_channel\(agent_id\)"):
            await messager.send_message(None, {})


async def test_experiments_are_separate(messagers, exp_id):
    other = f"{exp_id}-other"
    here, there = await messagers(), await messagers(exp_id=other, host=[1], listen=["news"])
    with pytest.raises(InvalidAddress, match=other):
        await here.send_message(there.get_agent_chat_channel(1), {})
    with pytest.raises(InvalidAddress):
        await here.subscribe_and_start_listening([there.get_agent_chat_channel(1)])
    assert (await here.send_message(here.get_agent_chat_channel(1), {})).fate == "undeliverable"


@pytest.mark.parametrize("to_id", [2, "2", "ann", 1.0, True], ids=repr)
async def test_a_to_id_that_contradicts_the_channel_is_refused(to_id, local):
    async with Messager(local, "exp") as messager:
        channel = messager.get_agent_chat_channel(1)
        with pytest.raises(InvalidAddress):
            await messager.send_message(channel, {}, to_id=to_id)
        with pytest.raises(InvalidAddress):
            await messager.send_messages([Outgoing(channel, {}, to_id=to_id)])
        await messager.subscribe_and_start_listening(["news"])
        await messager.send_message("news", {}, from_id=1, to_id="5")  # a plain channel may name any recipient
        assert [(message.from_id, message.to_id) for message in await fetch_all(messager, 1)] == [(1, 5)]


def circle():
    found = {}
    found["self"] = found
    return found


@pytest.mark.parametrize(
    "payload",
    ["text", b"text", None, 5, [1], {"a": object()}, {"a": 1j}, circle(), {"a": "\ud800"}, {("a",): 1}],
    ids=lambda payload: str(payload)[:20].encode("ascii", "replace").decode(),
)
async def test_payloads_that_are_not_json_are_refused(payload, local):
    async with Messager(local, "exp") as messager:
        with pytest.raises(InvalidPayload):
            await messager.send_message("news", payload)
        with pytest.raises(InvalidPayload):
            await messager.send_messages([Outgoing("news", {}), Outgoing("news", payload)])
        with pytest.raises((InvalidPayload, InvalidColumns)):
            await messager.send_columns([1, 1], [1, 1], [{}, payload])
        assert messager.get_log_list() == []  # all is checked before anything is sent


async def test_raw_json_with_a_line_break_is_refused(messagers):
    sender, receiver = await messagers(), await messagers(host=[1])
    channel = sender.get_agent_chat_channel(1)
    bad = {"raw": msgspec.Raw(b"[1,\n2]")}
    for send in (
        lambda: sender.send_message(channel, bad),
        lambda: sender.send_messages([Outgoing(channel, {"n": 1}), Outgoing(channel, bad)]),
        lambda: sender.send_columns([1, 1], [1, 1], [{"n": 1}, bad]),
        lambda: sender.send_columns([1, 1], [1, 1], bad),
    ):
        with pytest.raises(InvalidPayload, match="newline"):
            await send()
    assert sender.get_log_list() == []  # nothing of these was sent
    good = {"raw": msgspec.Raw(b'[1,"a\\n"]')}
    await sender.send_message(channel, good)
    await sender.send_columns([1, 1], [1, 1], [good, {"n": 2}])
    found = await fetch_all(receiver, 3)
    assert [message.payload for message in found] == [{"raw": [1, "a\n"]}] * 2 + [{"n": 2}]


async def test_payloads_up_to_the_limit_and_the_row_of_a_bad_one(messagers):
    sender, receiver = await messagers(payload_bytes=100), await messagers(host=[1])
    channel = sender.get_agent_chat_channel(1)
    await sender.send_message(channel, {"a": "x" * 92})
    with pytest.raises(PayloadTooLarge) as caught:
        await sender.send_message(channel, {"a": "x" * 93})
    assert (caught.value.size, caught.value.limit) == (101, 100)
    assert pickle.loads(pickle.dumps(caught.value)).size == 101
    with pytest.raises(PayloadTooLarge, match="row 2") as caught:
        await sender.send_columns([1] * 3, [1] * 3, [{}, {}, {"a": "x" * 100}])
    assert (caught.value.size, caught.value.limit) == (108, 100)
    with pytest.raises(InvalidPayload, match="row 1"):
        await sender.send_columns([1, 1], [1, 1], [{}, {"a": object()}])
    assert (await fetch_all(receiver, 1))[0].payload == {"a": "x" * 92}


async def test_payloads_arrive_unchanged(messagers):
    both = await messagers(host=[1])
    payload = {"text": 'é\u2028\n"\\\x00', "list": [1, -2.5, True, None, {}], "": {"deep": [[[]]]}, "big": 2**63}
    await both.send_message(both.get_agent_chat_channel(1), payload)
    await both.send_columns([1] * 2, [1] * 2, [payload, {"when": dt.date(2026, 1, 1).isoformat()}])
    messages = await fetch_all(both, 3)
    assert messages[0].payload == messages[1].payload == payload


async def test_invalid_subtopics_are_refused(local):
    async with Messager(local, "exp") as messager:
        for bad in ("", "a:b", None, 5, "x*"):
            with pytest.raises(InvalidAddress):
                await messager.send_columns([1], [1], [{}], subtopic=bad)
            with pytest.raises(InvalidAddress):
                Outgoing.to_agent(1, {}, subtopic=bad)
            with pytest.raises(InvalidAddress):
                await messager.host_agents([1], [bad])


async def test_arguments_of_other_types_and_lengths_are_refused(local):
    async with Messager(local, "exp") as messager:
        for given in (([1], [1, 2], [{}, {}]), ([1, 2], [1, 2], [{}]), *(([1], [1], bad) for bad in ("text", 5, None))):
            with pytest.raises(InvalidColumns):
                await messager.send_columns(*given)
        for bad in (True, None, 1.5, np.array(5)):
            with pytest.raises(InvalidAddress):
                await messager.send_columns([1], bad, [{}])
        for bad in ("news", b"news", 5, None):
            with pytest.raises(InvalidAddress, match="list"):
                await messager.subscribe_and_start_listening(bad)
        with pytest.raises(InvalidPayload, match="Outgoing"):
            await messager.send_messages([{"channel": "news"}])


@pytest.mark.parametrize("bad", ["", "a b", "a:b", "x" * 201, 5, None, "a/b", "é"], ids=repr)
def test_names_that_cannot_be_used(bad, local):
    with pytest.raises(InvalidAddress):
        Messager(local, bad)
    if bad is not None:
        with pytest.raises(InvalidAddress):
            Messager(local, "exp", name=bad)


@pytest.mark.parametrize("bad", [None, 5, "http://host", "host:6379", "redis://host:99999", "redis://host/x"], ids=repr)
def test_invalid_server_arguments_are_refused(bad):
    with pytest.raises(ConfigError):
        Messager(bad, "exp")


async def test_invalid_interceptors_are_refused(local):
    with pytest.raises(ConfigError, match="forward"):
        await Messager(local, "exp", object()).init()
    async with Messager(local, "exp") as messager:
        with pytest.raises(ConfigError):
            messager.set_message_interceptor(5)
        assert await messager.send_message("news", {}) is not None
        assert messager.message_interceptor is None


@pytest.mark.parametrize("bad", ["soon", 2**70, 1.5, [1]], ids=repr)
async def test_a_step_that_is_not_an_int_is_refused(bad, local):
    async with Messager(local, "exp") as messager:
        with pytest.raises((ConfigError, TypeError, ValueError)):
            messager.step = bad
        assert messager.step is None
        await messager.send_message("news", {})


async def test_calls_before_init_and_after_close_raise(messagers, server, exp_id):
    fresh = Messager(server, exp_id)
    with pytest.raises(Closed, match="init"):
        await fresh.send_message("news", {})
    with pytest.raises(Closed):
        await fresh.send_messages([])
    with pytest.raises(NotListening):
        await fresh.fetch_messages()
    assert fresh.stats()["outbox"] == 0
    await fresh.close()
    messager = await messagers(host=[1])
    await messager.init()
    await messager.close()
    await messager.close()
    for call in (
        lambda: messager.send_message("news", {}),
        lambda: messager.send_messages([]),
        lambda: messager.send_columns([], [], []),
        lambda: messager.subscribe_and_start_listening(["news"]),
        messager.flush,
        messager.init,
        messager.fetch_messages,
        messager.ack,
        lambda: anext(aiter(messager)),
    ):
        with pytest.raises(Closed, match="closed") as caught:
            await call()
        assert isinstance(caught.value, MessagingError)
    assert messager.get_log_list() == []


@pytest.mark.parametrize("bad", ["5", True, -1, float("nan"), float("inf"), [5]], ids=repr)
async def test_a_timeout_that_is_no_number_of_seconds_is_refused(bad, local):
    async with Messager(local, "exp", name="north") as messager:
        await messager.host_agents([1], ["agent-chat"])
        calls = [
            lambda: messager.fetch_messages(timeout=bad),
            lambda: messager.ask(1, 1, {}, timeout=bad),
            lambda: messager.ask_columns([1], [1], {}, timeout=bad),
            lambda: messager.remove_agents([1], timeout=bad),
            lambda: messager.move_agents([1], to="west", timeout=bad),
        ]
        for call in calls:
            with pytest.raises(ConfigError, match="must be a number of seconds, 0 or more") as caught:
                await call()
            assert repr(bad) in str(caught.value)
        with pytest.raises(ConfigError, match="timeout=None"):
            await messager.remove_agents([1], timeout=None)
        async with messager.transaction() as tx:
            with pytest.raises(ConfigError, match="timeout="):
                await tx.fetch_messages(timeout=bad)
        assert len(await messager.fetch_messages(timeout=np.float32(0.01))) == 0
