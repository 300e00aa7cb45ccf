"""Topics and filters in the MQTT Messager, with an experiment and without."""

import pytest

from ray_messaging.addressing.channels import Address, build_channel
from ray_messaging.errors import InvalidAddress
from ray_messaging.mqtt.messager.addresses import SHARED, Addresses, agent_of
from ray_messaging.mqtt.wire.topics import Filters, topic_of_received


@pytest.mark.parametrize(
    ("topic", "joined", "shared"),
    [
        ("exps/e/agents/7/agent-chat", (7, "agent-chat"), 7),
        ("exps/e/agents/ann/gather", (ann := "ann", "gather"), ann),
        ("exps/e/agents/a%2Fb/x", ("a/b", "x"), "a/b"),
        ("exps/e/user_payback", (None, ":exps:e:user_payback"), None),
        ("exps/e", (None, ":exps/e"), None),
        ("news", (None, ":news"), None),
        ("/exps/e/agents/7/x", (None, ":/exps/e/agents/7/x"), None),
    ],
)
def test_topics_to_publish_to(topic, joined, shared):
    in_e, anywhere = Addresses("e"), Addresses(None)
    assert in_e.parse(topic) == Address(*joined)
    assert anywhere.parse(topic) == Address(shared, ":" + topic)
    assert topic_of_received(build_channel("e", *joined)) == topic
    assert topic_of_received(build_channel(SHARED, shared, ":" + topic)) == topic
    assert in_e.subscription(topic) == build_channel("e", *joined)
    assert anywhere.subscription((topic, 1)) == topic


@pytest.mark.parametrize(
    ("topic", "word"),
    [
        ("exps/other/agents/7/x", "'other'"),
        ("exps/other/said", "'other'"),
        ("exps/e/agents/7", "malformed"),
        ("exps/e/agents/7/", "malformed"),
        ("exps/e/agents/a:b/x", "malformed"),
        ("exps/e/agents", "malformed"),
        ("exps:e:agents:7:x", "exps/e/agents/7/x"),
    ],
)
def test_topics_that_are_none_of_an_experiments(topic, word):
    for take in (Addresses("e").parse, Addresses("e").subscription):
        with pytest.raises(InvalidAddress, match=word) as caught:
            take(topic)
        assert caught.value.value == topic


@pytest.mark.parametrize("subtopic", ["a:b", "time 10:30", "a%2Fb", "a*b", "why?", ""])
def test_no_topic_below_an_agent_is_without_a_recipient(subtopic):
    """A filter of the agent's listener would match it, and no rule on ids would judge it."""
    topic = f"exps/e/agents/7/{subtopic}"
    for check in (Addresses("e").parse, Addresses(None).parse, Filters("e").check, Filters("other").check):
        with pytest.raises(InvalidAddress, match="is malformed: write exps/e/agents/<agent id>/<subtopic>"):
            check(topic)


def test_filters():
    in_e, anywhere = Addresses("e"), Addresses(None)
    for text in ("exps/e/agents/7/#", "exps/+/agents/7/x", "exps/#", "#", "a/+"):
        assert in_e.subscription(text) == anywhere.subscription((text, 2)) == text
    assert anywhere.subscription("exps/other/#") == "exps/other/#"
    for text in ("exps/other/#", "exps/other/agents/+/x"):
        with pytest.raises(InvalidAddress, match="'other'"):
            in_e.subscription(text)


def test_no_experiment_has_the_name_of_none():
    with pytest.raises(InvalidAddress, match="'_'"):
        Addresses(None).parse(f"exps/{SHARED}/agents/7/x")
    with pytest.raises(InvalidAddress, match="exp_id"):
        Addresses("no/name")


@pytest.mark.parametrize(
    ("topic", "agent"),
    [
        ("exps/any/agents/7/x", 7),
        ("exps/any/agents/007/x", "007"),
        ("exps/any/agents/7/x/y", 7),
        ("exps/any/agents/7", None),
        ("exps/any/groups/7/x", None),
        ("exps/a:b/agents/7/x", None),
        ("exps/any/agents/a:b/x", None),
        ("exps", None),
    ],
)
def test_the_agent_of_a_topic_is_found(topic, agent):
    assert agent_of(topic) == agent
