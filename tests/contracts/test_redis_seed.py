"""Code written for AgentSociety's Messager on Redis runs after a change of its import: each member of its API."""

import asyncio
import json
import time

import pydantic
import pytest
from support.patience import WAIT_S

from ray_messaging import ConfigError, Messager, NotListening, RedisConfig

SEED_KEYS = ["channel", "payload", "from_id", "to_id", "start_time", "consumption", "sent"]


@pytest.fixture(params=["valkey", "redis"])
def config(request):
    """Give a config of the test's own, which it may change."""
    return request.getfixturevalue(f"{request.param}_config").model_copy()


@pytest.fixture
async def opened(config, exp_id):
    """Open messagers as AgentSociety's users do."""
    made = []

    async def open_one(*channels, **options):
        messager = Messager(config, exp_id, **options)
        made.append(messager)
        await messager.init()
        if channels:
            await messager.subscribe_and_start_listening(list(channels))
        return messager

    yield open_one
    for messager in made:
        await messager.close()


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


class Asked:
    """A handle of an actor that answers `forward`, and records the questions."""

    def __init__(self, answer):
        self.answer, self.questions = answer, []
        self.forward = self

    async def remote(self, from_id, to_id, msg):
        self.questions.append((from_id, to_id, msg))
        return self.answer(from_id, to_id, msg)


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


async def test_polling_before_subscribing_finds_nothing(opened):
    messager, sender = await opened(), await opened()
    polling = asyncio.create_task(poll(messager, 1))
    await asyncio.sleep(0)  # so that it polls
    await messager.subscribe_and_start_listening(["news"])
    await sender.send_message("news", {"n": 1})
    assert await polling == [("news", '{"n":1}')]


async def test_init_and_close_may_come_twice_and_a_subscription_needs_init(config, exp_id):
    for messager in (Messager(config, exp_id, None), Messager(config=config, exp_id=exp_id, message_interceptor=None)):
        assert (messager.exp_id, messager.message_interceptor) == (exp_id, None)
        with pytest.raises(NotListening, match="init"):
            await messager.subscribe_and_start_listening(["news"])
        assert [await messager.init() for _ in range(2)] == [None, None]
        assert [await messager.close() for _ in range(2)] == [None, None]


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


# -- the log list -----------------------------------------------------------------------------------------------------


async def test_the_log_list_has_agentsocietys_keys_and_types(opened, exp_id):
    blocking = Asked(lambda from_id, to_id, msg: to_id != 2)
    messager = await opened("exps:*", message_interceptor=blocking)
    before = time.time()
    for agent in (1, 2):
        await messager.send_message(messager.get_agent_chat_channel(agent), {"content": "hi"}, 3, agent)
    await messager.send_message(messager.get_user_payback_channel(), {"count": 1})
    rows = messager.get_log_list()
    assert [list(row)[: len(SEED_KEYS)] for row in rows] == [SEED_KEYS] * 3
    first = rows[0]
    assert (first["channel"], first["payload"]) == (channel_of(exp_id, 1, "agent-chat"), {"content": "hi"})
    assert [(row["from_id"], row["to_id"], row["sent"]) for row in rows] == [
        (3, 1, True),
        (3, 2, False),
        (None,) * 2 + (True,),
    ]
    assert [(type(row["start_time"]), type(row["consumption"]), type(row["sent"])) for row in rows] == [
        (float, float, bool)
    ] * 3
    assert all(before <= row["start_time"] <= time.time() and 0 <= row["consumption"] < WAIT_S for row in rows)
    assert messager.clear_log_list() is None
    assert (len(rows), messager.get_log_list()) == (3, [])


# -- the interceptor --------------------------------------------------------------------------------------------------


async def test_the_interceptor_gets_agents_messages_as_text(opened):
    first = Asked(lambda *_: False)
    receiver, messager = await opened("exps:*"), await opened(message_interceptor=first)
    assert messager.message_interceptor is first
    chat = messager.get_agent_chat_channel(2)
    assert not (await messager.send_message(chat, {"content": "hi"}, 1, 2)).sent
    asked = Asked(lambda from_id, to_id, msg: json.loads(msg)["content"] != "rude")
    assert messager.set_message_interceptor(message_interceptor=asked) is None
    assert messager.message_interceptor is asked
    assert (await messager.send_message(chat, {"content": "hi"}, 1, 2)).sent
    assert not (await messager.send_message(chat, {"content": "rude"}, 1, 2)).sent
    assert (await messager.send_message(messager.get_user_chat_channel(2), {"content": "rude"})).sent
    assert (await messager.send_message(messager.get_user_payback_channel(), {"content": "rude"}, 1)).sent
    said = [(from_id, to_id, json.loads(msg)) for from_id, to_id, msg in asked.questions]
    assert said == [(1, 2, {"content": "hi"}), (1, 2, {"content": "rude"})]
    assert {type(msg) for _, _, msg in asked.questions} == {str}
    assert (len(first.questions), len(await poll(receiver, 3))) == (1, 3)


# -- channels ---------------------------------------------------------------------------------------------------------


def test_the_five_channels(config):
    messager = Messager(config, "exp-1")
    assert messager.get_subtopic_channel(1, "gather") == "exps:exp-1:agents:1:gather"
    assert messager.get_subtopic_channel(agent_id=1, subtopic="gather") == "exps:exp-1:agents:1:gather"
    assert messager.get_user_survey_channel(agent_id=1) == "exps:exp-1:agents:1:user-survey"
    assert messager.get_user_chat_channel(2) == "exps:exp-1:agents:2:user-chat"
    assert messager.get_agent_chat_channel(3) == "exps:exp-1:agents:3:agent-chat"
    assert messager.get_user_payback_channel() == "exps:exp-1:user-payback"
