"""Topics: each channel has one of its own, and filters match as MQTT says."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ray_messaging.addressing.channels import agent_channel, parse_channel, payback_channel
from ray_messaging.errors import InvalidAddress
from ray_messaging.mqtt.receiving.subscriptions import cover
from ray_messaging.mqtt.wire.topics import (
    Filters,
    Topics,
    channel_of_topic,
    check_filter,
    check_topic,
    compile_filter,
    is_filter,
    is_own,
    topic_of_channel,
    topic_of_received,
)

EXP = "e-1"
ID = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.text(st.sampled_from("aZ5/+#%$ é\x85\ufffe\U0001f600F2-"), min_size=1, max_size=6),
)
SUBTOPIC = st.text(st.sampled_from("ab/+#%$2F\x85é"), min_size=1, max_size=5)
LEVEL = st.sampled_from(
    [
        *("a", "b", "", "$x", "exps", EXP, "agents", "5", "x%2Fy", "x%2fy", "user-payback", "a:b"),
        *(f"exps:{EXP}:agents:5:chat", f"exps:{EXP}:user-payback", "exps:", "exps%3Ax", "exps%3ax", "exps%", "exps%25"),
    ]
)
TOPIC = st.lists(LEVEL, min_size=1, max_size=6).map("/".join)
FILTER = st.tuples(st.lists(st.one_of(LEVEL, st.just("+")), max_size=5), st.booleans()).map(
    lambda made: "/".join([*made[0], *(["#"] if made[1] else [])])
)


def usable(text):
    try:
        check_topic(text)
    except InvalidAddress:
        return False
    return True


def test_channels_are_topics_as_foreign_clients_write_them():
    topics = {
        f"exps:{EXP}:agents:5:agent-chat": f"exps/{EXP}/agents/5/agent-chat",
        f"exps:{EXP}:agents:ann:user-survey": f"exps/{EXP}/agents/ann/user-survey",
        f"exps:{EXP}:agents:a/b+#%:x/y": f"exps/{EXP}/agents/a%2Fb%2B%23%25/x/y",
        payback_channel(EXP): f"exps/{EXP}/user-payback",
        "news/of the day": "news/of the day",
        "exps/other/agents/5/agent-chat": "exps/other/agents/5/agent-chat",
        f"exps/{EXP}/agents/5": f"exps/{EXP}/agents/5",
    }
    for channel, topic in topics.items():
        assert topic_of_channel(EXP, channel) == topic
        assert channel_of_topic(EXP, topic) == channel


@given(ID, SUBTOPIC)
def test_each_agents_channel_has_a_topic_of_its_own(agent_id, subtopic):
    channel = agent_channel(EXP, agent_id, subtopic)
    topic = topic_of_channel(EXP, channel)
    assert check_topic(topic) == topic
    assert channel_of_topic(EXP, topic) == channel
    assert topic.startswith(f"exps/{EXP}/agents/")
    assert "/" not in topic.split("/", 4)[3]


@given(TOPIC)
def test_each_topic_has_a_channel_of_its_own(topic):
    assume(usable(topic))
    channel = channel_of_topic(EXP, topic)
    assert topic_of_channel(EXP, channel) == topic
    if channel != topic:
        parse_channel(EXP, channel)


@given(st.one_of(TOPIC, st.text(min_size=1)))
def test_any_topic_is_reported_unchanged(topic):
    assert topic_of_received(channel_of_topic(EXP, topic)) == topic


def test_a_topic_that_looks_like_a_channel_is_none_of_ours():
    for topic in (f"exps:{EXP}:agents:5:agent-chat", payback_channel(EXP)):
        channel = channel_of_topic(EXP, topic)
        assert parse_channel(EXP, channel, Filters(EXP)) == (None, ":" + channel)


@pytest.mark.parametrize(
    "channel",
    [
        f"exps/{EXP}/agents/5/agent-chat",  # an agent's topic: the rules would not see whose
        f"exps/{EXP}/user-payback",
        f"exps:{EXP}:agents/5/agent-chat",
        f"exps:{EXP}:agents",
        f"exps:{EXP}:agents:5",
        f"exps:{EXP}",
        "exps:",
        "exps:other:agents:5:agent-chat",
    ],
)
def test_a_channel_with_the_topic_of_another_is_refused(channel):
    with pytest.raises(InvalidAddress) as raised:
        topic_of_channel(EXP, channel)
    assert raised.value.value == channel


BAD = ["", "a\0b", "a\nb", "a\x85b", "\ufffe", "\ufdd0", "\U0010ffff", "\ud800", "x" * 65_536, "/" * 128, 5, None, b"a"]


@pytest.mark.parametrize("text", [*BAD, "a/+", "#", "c++", "$SYS/x", "ray_messaging/e/mailbox/m"])
def test_invalid_topics_to_publish_to_are_refused(text):
    with pytest.raises(InvalidAddress) as raised:
        check_topic(text)
    assert raised.value.value == text


@pytest.mark.parametrize(
    "text", [*BAD, "a+", "a/b#", "#/a", "a/#/b", "+a/b", "exps:e:agents:+:chat", "$share/g/a", "ray_messaging/#"]
)
def test_invalid_topics_to_subscribe_to_are_refused(text):
    for check in (check_filter, compile_filter) if isinstance(text, str) else (check_filter,):
        with pytest.raises(InvalidAddress) as raised:
            check(text)
        assert raised.value.value == text


@pytest.mark.parametrize("text", ["a", "/", "a//b", "é/\U0001f600", "x" * 65_535, "/" * 127, "a$b"])
def test_all_topics_that_mqtt_allows_are_accepted(text):
    assert check_topic(text) == check_filter(text) == text


@pytest.mark.parametrize("text", ["+", "#", "a/+/b", "+/+/#", "/+", "$SYS/#", "plain"])
def test_filters_are_allowed(text):
    assert check_filter(text) == text
    assert is_filter(text) == (text != "plain")


@pytest.mark.parametrize(
    ("text", "matched", "missed"),
    [
        ("a/+", ["a/b", "a/"], ["a", "a/b/c", "b/b"]),
        ("a/#", ["a", "a/", "a/b", "a/b/c"], ["ab", "b"]),
        ("#", ["a", "a/b", "/", f"exps:{EXP}:agents:5:chat"], ["$SYS/a", "$SYS"]),
        ("+/#", ["a", "a/b", "/"], ["$SYS/a"]),
        ("+/a", ["b/a", "/a"], ["$x/a", "a"]),
        ("$SYS/#", ["$SYS", "$SYS/a"], ["a"]),
        ("+", ["a"], ["a/b", "/a"]),
        (f"exps/{EXP}/agents/+/chat", [f"exps:{EXP}:agents:5:chat", f"exps:{EXP}:agents:a/b:chat"], ["exps:other"]),
        (f"exps/{EXP}/+", [payback_channel(EXP)], [f"exps:{EXP}:agents:5:chat"]),
        ("exps/+/agents/5/#", [f"exps:{EXP}:agents:5:chat", "exps/x/agents/5/chat"], [f"exps:{EXP}:agents:6:chat"]),
        ("a.c", ["a.c"], ["abc"]),
    ],
)
def test_a_filter_matches_topics_as_mqtt_says(text, matched, missed):
    matches = compile_filter(text)
    assert [channel for channel in [*matched, *missed] if matches(channel)] == matched


def naive(levels, topic):
    """Match level by level, as the specification describes it."""
    if not levels or not topic:
        return levels == topic or levels == ["#"]
    if levels[0] == "#":
        return True
    return levels[0] in ("+", topic[0]) and naive(levels[1:], topic[1:])


@given(FILTER, TOPIC)
def test_filters_match_as_a_naive_reading_does(text, topic):
    assume(text and usable(topic))
    hidden = text[0] in "+#" and topic[0] == "$"
    expected = naive(text.split("/"), topic.split("/")) and not hidden
    assert compile_filter(text)(channel_of_topic(EXP, topic)) == expected


@given(FILTER, TOPIC)
def test_topics_that_a_filter_matches_begin_with_its_prefix(text, topic):
    filters = Filters(EXP)
    channel = channel_of_topic(EXP, topic)
    assume(text and is_filter(text) and usable(topic))
    # A topic below the experiment's own that is no channel of it is not routed: the broker brings it.
    assume(channel != topic or not topic.startswith(f"exps/{EXP}"))
    if filters.compile(text)(channel):
        assert channel.startswith(filters.prefix(text))


def test_prefixes_are_as_long_as_they_can_be():
    prefix = Filters(EXP).prefix
    assert prefix(f"exps/{EXP}/agents/5/#") == f"exps:{EXP}:agents:5"
    assert prefix(f"exps/{EXP}/agents/a%2Fb/x/+") == f"exps:{EXP}:agents:a/b:x"
    assert prefix(f"exps/{EXP}/agents/+/chat") == f"exps:{EXP}:agents"
    assert prefix(f"exps/{EXP}/news/+") == f"exps:{EXP}:news"
    assert prefix(f"exps/{EXP}/#") == f"exps:{EXP}"
    assert prefix("exps/other/agents/5/#") == "exps/other/agents/5"
    assert prefix("exps/+/agents/5/#") == "exps"
    assert prefix("#") == ""


def test_an_agents_channel_is_no_filter_for_any_id():
    filters = Filters(EXP)
    assert filters.is_pattern("a/+")
    assert not filters.is_pattern(agent_channel(EXP, "+7", "agent-chat"))
    assert not filters.is_pattern("plain")
    assert filters.is_pattern("$SYS/broker/version")  # one can subscribe to it, not send to it


@given(st.lists(TOPIC, max_size=8), st.lists(FILTER.filter(bool), max_size=6))
def test_reduced_filters_match_the_same_topics(exact, filters):
    kept, wide = cover(exact, filters)
    assert set(kept) <= set(exact)
    assert set(wide) <= set(filters)
    assert len(set(kept)) == len(kept)

    def matched(topics, texts, topic):
        matchers = [(text, naive(text.split("/"), topic.split("/"))) for text in texts]
        return topic in topics or any(found and not (text[0] in "+#" and topic[:1] == "$") for text, found in matchers)

    samples = [*exact, *(text.replace("+", "p").replace("#", "q/r") for text in filters)]
    samples += [text.removesuffix("/#").replace("+", "") for text in filters if text != "#"]
    for topic in filter(None, samples):
        assert matched(kept, wide, topic) == matched(exact, filters, topic)
    for topic in kept:
        assert not matched([], wide, topic)


def test_filters_that_others_cover_are_left_out():
    assert cover(["a/b", "c", "a/b"], ["a/+", "a/#", "a/b/+", "#"]) == ([], ["#"])
    assert cover(["a/b", "c", "a/b", "$x/b"], ["a/+", "a/#", "+/b"]) == (["c", "$x/b"], ["a/#", "+/b"])
    assert cover(["$SYS/a"], ["#", "$SYS/+", "+/#"]) == ([], ["+/#", "$SYS/+"])
    assert cover(["b", "a", "b"], []) == (["b", "a"], [])


def test_our_internal_topics_have_a_common_prefix_and_are_parsed_back():
    topics = Topics(EXP)
    for kind in ("directory", "mailbox", "sender", "epoch", "owner", "dead", "barrier"):
        topic = getattr(topics, kind)("west")
        assert topic == f"ray_messaging/{EXP}/{kind}/west"
        assert is_own(topic)
        assert topics.kind_of(topic) == (kind, "west")
    assert topics.kind_of(topics.cursor("west", 2, 7)) == ("cursor", "west/2/7")
    for text, topic in [
        (topics.all_entries, topics.directory("m")),
        (topics.cursors("m"), topics.cursor("m", 2, 7)),
        (topics.all_owners, topics.owner("m")),
    ]:
        assert naive(text.split("/"), topic.split("/"))
    assert topics.kind_of("ray_messaging/other/mailbox/west") is None
    assert not is_own("exps/e/agents/5/agent-chat")
    with pytest.raises(InvalidAddress):
        Topics("a/b")
