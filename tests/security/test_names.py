"""Names from users become parts of keys and channels: no name leaves its place there."""

import asyncio
import contextlib
import re
import uuid

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ray_messaging import Messager, Outgoing, RedisConfig
from ray_messaging.addressing.channels import (
    ChannelNames,
    agent_channel,
    build_channel,
    check_id,
    check_name,
    check_subtopic,
    parse_channel,
)
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.errors import InvalidAddress, MessagingError
from ray_messaging.model.columns import IdColumn

PIECES = [
    ":", "::", "*", "?", "[", "]", "\\", "{", "}", "{}", "\n", "\r\n", "\0", "\x7f", "\ud800", "\udfff", " ", "", ".",
    "..", "/", "#", "+", "$", "exps", "agents", "rm", "user-payback", "\u202e", "\uff1a", "\u2024", "\u0430", "\u200b",
    "é", "e\u0301", "-", "-0", "007", "9" * 30, "a" * 201, "\U0001f600" * 60, "%s", "';--",
]  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES) | st.text(max_size=4) | st.characters(), max_size=6).map("".join)
SEPARATORS = set(":*?[]\\{}") | set(map(chr, range(32))) | {"\x7f"}


@given(TEXT)
@example("exp}:meta{")
def test_names_of_experiments_groups_and_mailboxes(text):
    try:
        name = check_name("exp_id", text)
    except InvalidAddress:
        return
    assert name == text
    assert name.isascii()
    assert not set(name) & (SEPARATORS | set(" /#+$%"))
    assert 0 < len(name) <= 200
    keys = Keys(name)
    # The hash tag of each key is the whole name, and no key of one experiment is a prefix of another's.
    for key in (keys.meta, keys.stream("m:1"), keys.state("m"), keys.sender("m"), keys.table("rule"), keys.own):
        assert re.match(r"[^{]*\{([^}]*)\}", key)[1] == name
        assert key.startswith(f"rm:{{{name}}}:")


@given(TEXT | st.integers() | st.floats() | st.none() | st.binary() | st.booleans())
def test_ids(value):
    try:
        agent_id = check_id(value)
    except InvalidAddress:
        return
    assert parse_channel("exp", agent_channel("exp", value, "agent-chat")) == (agent_id, "agent-chat")
    if isinstance(agent_id, str):
        assert agent_channel("exp", value, "agent-chat").count(":") == 4
        assert not set(agent_channel("exp", value, "agent-chat")) & (SEPARATORS - set(":{}"))
        assert 0 < len(agent_id.encode()) <= 200


@given(TEXT)
def test_subtopics(text):
    try:
        subtopic = check_subtopic(text)
    except InvalidAddress:
        return
    channel = agent_channel("exp", 7, subtopic)
    assert channel.count(":") == 4
    assert parse_channel("exp", channel) == (7, subtopic)


@given(TEXT, st.sampled_from(["", "exps:", "exps:exp:", "exps:exp:agents:", "exps:exp:agents:7:", "rm:", "rm:{exp}:"]))
def test_channels(text, before):
    channel = before + text
    try:
        address = parse_channel("exp", channel)
    except InvalidAddress:
        return
    assert parse_channel("exp", build_channel("exp", *address)) == address
    assert "\n" not in channel
    assert not channel.startswith("exps:") or channel.startswith("exps:exp:")


def test_our_internal_channel_is_refused():
    """A publisher there could silence subscriptions."""
    for channel in (Keys("exp").own, "rm:{exp}:own", "rm:{other}:own"):
        with pytest.raises(InvalidAddress):
            parse_channel("exp", channel)


@given(TEXT)
def test_every_call_refuses_invalid_names(text):
    """Each call raises one of our errors, before anything is sent."""
    config = RedisConfig(server="127.0.0.1", port=1)
    names = ChannelNames("exp")
    entries = [
        lambda: Messager(config, text),
        lambda: Messager(config, "exp", name=text),
        lambda: Outgoing(channel=text, payload={}, from_id=text),
        lambda: Outgoing.to_agent(text, {}, from_id=text, subtopic=text),
        lambda: Outgoing.to_agents([text], {}, subtopic=text),
        lambda: names.get_subtopic_channel(text, text),
        lambda: names.get_user_survey_channel(text),
        lambda: names.get_user_chat_channel(text),
        lambda: names.get_agent_chat_channel(text),
        lambda: IdColumn.checked([text, 1]),
        lambda: IdColumn.checked(np.array([text], dtype=object)),
    ]
    for entry in entries:
        with contextlib.suppress(MessagingError):
            entry()


@given(st.lists(TEXT, min_size=1, max_size=5))
@example(["\ud800["])
def test_subscriptions(valkey_config, texts):
    """Any subscription, send or claim works, or is refused by one of our errors; none leaves the experiment's keys."""

    async def live():
        async with Messager(valkey_config, f"test-{uuid.uuid4().hex}", name="a") as messager:
            await messager.host_agents([1], ["agent-chat"])
            for text in texts:
                with contextlib.suppress(MessagingError):
                    await messager.subscribe_and_start_listening([text])
                with contextlib.suppress(MessagingError):
                    await messager.host_agents([text], [text])
                with contextlib.suppress(MessagingError):
                    await messager.send_message(text, {}, text, text)
                with contextlib.suppress(MessagingError):
                    await messager.send_columns([text], [text], [{}], subtopic=text)
            keys = await messager.engine.transport.link.command("KEYS", f"*{messager.exp_id}*")
            assert keys
            assert all(key.startswith(b"rm:{%s}:" % messager.exp_id.encode()) for key in keys)

    asyncio.run(live())
