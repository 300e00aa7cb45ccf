"""Code written for AgentSociety's Messager on Redis runs after a change of its import: each member of its API."""

import asyncio
import json
import time
from datetime import UTC, datetime

import pydantic
import pytest
from support.interceptors import Foreign
from support.patience import WAIT_S

from ray_messaging import Messager, MessagingError, RedisConfig
from ray_messaging.errors import ConfigError, NotListening

SEED_KEYS = ["channel", "payload", "from_id", "to_id", "start_time", "consumption", "sent"]


@pytest.fixture(params=["valkey", "redis"])
def config(request):
    """Give a config of the test's own, which it may change."""
    return request.getfixturevalue(f"{request.param}_config").model_copy()


@pytest.fixture
def opened(config, opener):
    """Open messagers as AgentSociety's users do."""

    async def open_one(*channels, message_interceptor=None):
        return await opener(config, message_interceptor, listen=channels)

    return open_one


async def poll(messager, count):
    """Fetch as AgentSociety's dispatch loops do: repeatedly, without arguments."""
    found = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            messages = await messager.fetch_messages()
            if len(messages) > 0:
                found += [(message["channel"].decode("utf-8"), message["data"].decode("utf-8")) for message in messages]
            await asyncio.sleep(0.005)
    return found


def channel_of(exp_id, agent_id, subtopic):
    return f"exps:{exp_id}:agents:{agent_id}:{subtopic}"


# -- RedisConfig ------------------------------------------------------------------------------------------------------


def test_the_fields_of_a_config_and_their_defaults():
    config = RedisConfig(server="localhost")
    assert (config.server, config.port, config.password, config.db, config.timeout) == ("localhost", 6379, None, 0, 60)
    fields = {"server": "host", "port": 6380, "password": "secret", "db": 2, "timeout": 5}
    config = RedisConfig(**fields)
    assert {name: getattr(config, name) for name in fields} == fields
    assert fields.items() <= config.model_dump().items()
    assert RedisConfig.model_validate(config.model_dump()) == config
    assert RedisConfig.model_validate_json(config.model_dump_json()) == config
    assert RedisConfig(server="host", port="6380", db="2", timeout="5").port == 6380


@pytest.mark.parametrize("fields", [{}, {"port": 6379}, {"server": "x", "port": 65_536}, {"server": "x", "port": -1},
                                    {"server": "x", "timeout": -1}, {"server": None}], ids=repr)  # fmt: skip
def test_a_config_refuses_the_values_that_agentsociety_refuses(fields):
    with pytest.raises(ValueError, match=next(reversed(fields), "server") if "server" in fields else "server"):
        RedisConfig(**fields)


def test_unknown_keys_are_ignored_with_a_warning_without_values():
    with pytest.warns(UserWarning, match="has no passwd, pool, and ignores it") as caught:
        config = RedisConfig(server="x", port=6380, pool=5, passwd="s3cret")
    assert config == RedisConfig(server="x", port=6380)
    assert "s3cret" not in str(caught[0].message)
    assert caught[0].filename == __file__


async def test_fields_may_be_assigned(config, exp_id):
    changed = RedisConfig(server="nowhere.invalid", port=1)
    changed.server, changed.port, changed.password = config.server, config.port, config.password
    changed.db, changed.timeout = 1, 30
    async with Messager(changed, exp_id) as messager:
        assert (await messager.send_message("news", {})).fate == "undeliverable"
    with pytest.raises(ValueError, match="no field"):
        changed.host = "x"


# -- life -------------------------------------------------------------------------------------------------------------


async def test_a_config_of_agentsociety_is_accepted(config, exp_id):
    class SeedConfig(pydantic.BaseModel):
        server: str
        port: int = 6379
        password: str | None = None
        db: int = 0
        timeout: float = 60

    theirs = SeedConfig(server=config.server, port=config.port, password=config.password)
    async with Messager(theirs, exp_id) as messager:
        assert (await messager.send_message("news", {})).fate == "undeliverable"
    config.port = "many"
    with pytest.raises(ConfigError, match="port"):
        Messager(config, exp_id)


async def test_positional_and_named_arguments_are_accepted(config, exp_id):
    first, second = Messager(config, exp_id, None), Messager(config=config, exp_id=exp_id, message_interceptor=None)
    for messager in (first, second):
        assert messager.exp_id == exp_id
        assert messager.message_interceptor is None
        await messager.init()
        await messager.close()


async def test_init_and_close_twice(config, exp_id):
    messager = Messager(config, exp_id)
    assert await messager.init() is None
    await messager.init()
    await messager.subscribe_and_start_listening([messager.get_user_payback_channel()])
    await messager.send_message(messager.get_user_payback_channel(), {"count": 1})
    assert len(await poll(messager, 1)) == 1
    assert await messager.close() is None
    await messager.close()


async def test_close_before_init(config, exp_id):
    messager = Messager(config, exp_id)
    await messager.close()
    await messager.close()


async def test_subscribing_needs_init(config, exp_id):
    messager = Messager(config, exp_id)
    with pytest.raises(NotListening, match="init"):
        await messager.subscribe_and_start_listening(["news"])
    await messager.close()


async def test_a_missing_server_raises(exp_id):
    messager = Messager(RedisConfig(server="127.0.0.1", port=1), exp_id)
    with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:1"):
        await messager.init()
    await messager.close()


async def test_a_refused_password_raises(config, exp_id):
    config.password = "wrong"
    messager = Messager(config, exp_id)
    with pytest.raises(ConfigError, match="password") as caught:
        await messager.init()
    assert isinstance(caught.value, ConnectionError)
    await messager.close()


# -- messages ---------------------------------------------------------------------------------------------------------


async def test_fetched_messages_have_the_keys_of_redis_dicts(opened, exp_id):
    chat, survey = channel_of(exp_id, 1, "agent-chat"), channel_of(exp_id, 2, "user-survey")
    group, user = await opened(chat, survey), await opened()
    payload = {"from": 7, "content": "héllo\n", "type": "social", "day": 1, "t": 28_800, "nested": [{"a": None}]}
    await user.send_message(chat, payload, 7, 1)
    await user.send_message(channel=survey, payload={"data": {"id": "s1"}})
    async with asyncio.timeout(WAIT_S):
        found = []
        while len(found) < 2:
            found += await group.fetch_messages()
    first, second = found
    assert [type(first[key]) for key in ("channel", "data")] == [bytes, bytes]
    assert first["type"] in {"message", "pmessage"}
    _, _, _, agent_id, topic_type = first["channel"].decode("utf-8").strip(":").split(":")
    assert (int(agent_id), topic_type) == (1, "agent-chat")
    assert json.loads(first["data"].decode("utf-8")) == payload
    assert (second["channel"].decode(), json.loads(second["data"].decode())) == (survey, {"data": {"id": "s1"}})
    assert len(await group.fetch_messages()) == 0


async def test_a_pattern_for_each_agent_receives_its_messages(opened, exp_id):
    group, others = await opened(*[f"exps:{exp_id}:agents:{agent}:*" for agent in (1, 2)]), await opened()
    for subtopic in ("agent-chat", "user-chat", "user-survey", "gather"):
        await others.send_message(others.get_subtopic_channel(1, subtopic), {}, 3, 1)
        await others.send_message(others.get_subtopic_channel(12, subtopic), {}, 3, 12)
    await others.send_message(others.get_agent_chat_channel(2), {}, 3, 2)
    expected = [channel_of(exp_id, 1, each) for each in ("agent-chat", "user-chat", "user-survey", "gather")]
    assert [channel for channel, _ in await poll(group, 5)] == [*expected, channel_of(exp_id, 2, "agent-chat")]
    assert len(await group.fetch_messages()) == 0


async def test_two_groups_talk_and_answer(opened):
    west = await opened()
    east = await opened()
    for messager, agents in ((west, range(3)), (east, range(3, 6))):
        channels = [messager.get_agent_chat_channel(agent) for agent in agents]
        await messager.subscribe_and_start_listening(channels)
    for agent in range(3):
        payload = {"from": agent, "content": f"I am {agent}"}
        assert await west.send_message(west.get_agent_chat_channel(agent + 3), payload, agent, agent + 3)
    for channel, data in await poll(east, 3):
        to, asker = int(channel.split(":")[3]), json.loads(data)["from"]
        await east.send_message(east.get_agent_chat_channel(asker), {"from": to, "content": data}, to, asker)
    answers = [json.loads(data) for _, data in await poll(west, 3)]
    assert [(each["from"], json.loads(each["content"])["from"]) for each in answers] == [(3, 0), (4, 1), (5, 2)]


async def test_paybacks_are_counted(opened):
    user = await opened()
    await user.subscribe_and_start_listening([user.get_user_payback_channel()])
    agents = await opened()
    await asyncio.gather(*[agents.send_message(agents.get_user_payback_channel(), {"count": 1}) for _ in range(5)])
    assert await poll(user, 5) == [(user.get_user_payback_channel(), '{"count":1}')] * 5


async def test_times_travel_as_text(opened):
    receiver, sender = await opened("news"), await opened()
    now = datetime.now(UTC)
    await sender.send_message("news", {"timestamp": int(now.timestamp() * 1000), "_date_time": now})
    [(_, data)] = await poll(receiver, 1)
    assert datetime.fromisoformat(json.loads(data)["_date_time"]) == now


async def test_every_subscriber_gets_each_message_once(opened):
    first, second, sender = await opened("news"), await opened("news", "n?ws"), await opened()
    await first.subscribe_and_start_listening(["news", "more"])
    await sender.send_message("news", {"n": 1})
    await sender.send_message("more", {"n": 2})
    assert [channel for channel, _ in await poll(first, 2)] == ["news", "more"]
    assert [channel for channel, _ in await poll(second, 1)] == ["news"]
    for messager in (first, second):
        assert len(await messager.fetch_messages()) == 0


# -- the log list -----------------------------------------------------------------------------------------------------


async def test_the_log_list_has_agentsocietys_keys_and_types(opened, exp_id):
    blocking = Foreign(lambda from_id, to_id, msg: to_id != 2)
    messager = await opened("exps:*", message_interceptor=blocking)
    before = time.time()
    for agent in (1, 2):
        await messager.send_message(messager.get_agent_chat_channel(agent), {"content": "hi"}, 3, agent)
    await messager.send_message(messager.get_user_payback_channel(), {"count": 1})
    rows = messager.get_log_list()
    assert [list(row)[: len(SEED_KEYS)] for row in rows] == [SEED_KEYS] * 3
    first = rows[0]
    assert (first["channel"], first["payload"]) == (channel_of(exp_id, 1, "agent-chat"), {"content": "hi"})
    told = [(row["from_id"], row["to_id"], row["sent"]) for row in rows]
    assert told == [(3, 1, True), (3, 2, False), (None, None, True)]
    kinds = {(type(row["start_time"]), type(row["consumption"]), type(row["sent"])) for row in rows}
    assert kinds == {(float, float, bool)}
    assert all(before <= row["start_time"] <= time.time() and 0 <= row["consumption"] < WAIT_S for row in rows)


async def test_the_log_list_is_cleared(opened):
    messager = await opened("news")
    assert messager.get_log_list() == []
    await messager.send_message("news", {"n": 1})
    seen = messager.get_log_list()
    assert messager.clear_log_list() is None
    assert (len(seen), messager.get_log_list()) == (1, [])
    await messager.send_message("news", {"n": 2})
    assert [row["payload"] for row in messager.get_log_list()] == [{"n": 2}]


# -- the interceptor --------------------------------------------------------------------------------------------------


async def test_the_interceptor_gets_agents_messages_as_text(opened):
    receiver, messager = await opened("exps:*"), await opened()
    assert messager.message_interceptor is None
    asked = Foreign(lambda from_id, to_id, msg: json.loads(msg)["content"] != "rude")
    assert messager.set_message_interceptor(asked) is None
    assert messager.message_interceptor is asked
    chat = messager.get_agent_chat_channel(2)
    assert (await messager.send_message(chat, {"content": "hi"}, 1, 2)).sent
    assert not (await messager.send_message(chat, {"content": "rude"}, 1, 2)).sent
    assert (await messager.send_message(messager.get_user_chat_channel(2), {"content": "rude"})).sent
    assert (await messager.send_message(messager.get_user_payback_channel(), {"content": "rude"}, 1)).sent
    said = [(from_id, to_id, json.loads(msg)) for from_id, to_id, msg in asked.calls]
    assert said == [(1, 2, {"content": "hi"}), (1, 2, {"content": "rude"})]
    assert {type(msg) for _, _, msg in asked.calls} == {str}
    assert len(await poll(receiver, 3)) == 3


async def test_the_interceptor_given_to_the_constructor_is_replaced(opened):
    first, second = Foreign(lambda *_: False), Foreign(lambda *_: True)
    messager = await opened("exps:*", message_interceptor=first)
    assert messager.message_interceptor is first
    chat = messager.get_agent_chat_channel(2)
    await messager.send_message(chat, {}, 1, 2)
    messager.set_message_interceptor(message_interceptor=second)
    await messager.send_message(chat, {}, 1, 2)
    assert [row["sent"] for row in messager.get_log_list()] == [False, True]
    assert (len(first.calls), len(second.calls)) == (1, 1)


# -- channels ---------------------------------------------------------------------------------------------------------


def test_the_five_channels(config):
    messager = Messager(config, "exp-1")
    assert messager.get_subtopic_channel(1, "gather") == "exps:exp-1:agents:1:gather"
    assert messager.get_subtopic_channel(agent_id=1, subtopic="gather") == "exps:exp-1:agents:1:gather"
    assert messager.get_user_survey_channel(agent_id=1) == "exps:exp-1:agents:1:user-survey"
    assert messager.get_user_chat_channel(2) == "exps:exp-1:agents:2:user-chat"
    assert messager.get_agent_chat_channel(3) == "exps:exp-1:agents:3:agent-chat"
    assert messager.get_user_payback_channel() == "exps:exp-1:user-payback"


async def test_errors_derive_from_messaging_error(opened):
    messager = await opened()
    for bad in ({"channel": "exps:other:user-payback", "payload": {}}, {"channel": "news", "payload": "text"}):
        with pytest.raises(MessagingError):
            await messager.send_message(**bad)
