"""Checks of MQTT topics and filters, and the agents that topics name."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

from ray_messaging.addressing.channels import AgentId, check_id, check_name, check_subtopic, utf8_size
from ray_messaging.errors import InvalidAddress

TOPIC_BYTES = 65_535
# A broker disconnects a client that uses a topic with too many levels. EMQX allows 128 levels, and Mosquitto 200.
TOPIC_LEVELS = 128

# MQTT forbids NUL, and allows brokers to disconnect a client for control characters and Unicode noncharacters, as
# Mosquitto does. The client would then connect and send the message again and again, and all later messages would wait.
_UNFIT = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
    + "]"
)

Wanted = str | tuple[str, int]


def check_topic(topic: object) -> str:
    """Return `topic` if messages can be published on it; raise InvalidAddress otherwise."""
    checked = _check("topic", topic)
    if "+" in checked or "#" in checked:
        raise InvalidAddress(
            f"topic {topic!r} contains a wildcard, + or #, which is only for subscribing: write one topic", value=topic
        )
    if checked[0] == "$":
        raise InvalidAddress(
            f"topic {topic!r} begins with $, and such topics are the broker's own: choose another topic", value=topic
        )
    return checked


def agent_of(topic: str) -> tuple[AgentId | None, str]:
    """Return the agent and the subtopic of a topic `exps/<exp_id>/agents/<agent id>/<subtopic>`.

    For any other topic, return (None, ":<topic>"). In an agent's id the characters % / + # are percent-encoded.

    Raises: InvalidAddress for a topic that begins with exps/<exp_id>/agents/ but does not have the form above. Such a
    topic names no agent, so rules about agents' ids would pass its messages. But a filter could bring them to an agent.
    """
    levels = topic.split("/", 4)
    if len(levels) < 3 or levels[0] != "exps" or levels[2] != "agents":
        return None, f":{topic}"
    try:
        check_name("exp_id", levels[1])
        agent_id = check_id(unquote(levels[3], errors="strict"))
        return agent_id, check_subtopic(unquote(levels[4], errors="strict"))
    except (InvalidAddress, UnicodeDecodeError, IndexError):
        raise InvalidAddress(
            f"topic {topic!r} is malformed: write exps/<exp_id>/agents/<agent id>/<subtopic>. In the id, "
            "percent-encode the characters '%', '/', '+' and '#'",
            value=topic,
        ) from None


def recipient_of(topic: str, to_uuid: object) -> tuple[AgentId | None, str]:
    """Return the recipient and the subtopic of a send on a topic.

    Raises: InvalidAddress if the topic belongs to another agent than `to_uuid`.
    """
    agent_id, subtopic = agent_of(topic)
    if to_uuid is None:
        return agent_id, subtopic
    to_id = check_id(to_uuid)
    if agent_id is not None and to_id != agent_id:
        raise InvalidAddress(
            f"to_uuid {to_uuid!r} contradicts the topic {topic!r}, which belongs to agent {agent_id!r}: leave to_uuid "
            "out, or send on a topic of that agent's own",
            value=to_uuid,
        )
    return to_id, subtopic


def subscriptions_of(topics: object) -> list[str]:
    """Return the filters that the argument of `subscribe` contains.

    The argument is a topic or filter, a pair of a topic or filter and its QoS, or a sequence of these. The QoS is
    checked but not used, because each message is received with QoS 2.

    Raises: InvalidAddress for an invalid filter or QoS.
    """
    if isinstance(topics, tuple) and not all(isinstance(each, str | tuple) for each in topics):
        topics = [topics]  # the argument is one pair of a topic and its QoS
    listed = topics if isinstance(topics, Sequence) and not isinstance(topics, str | bytes) else [topics]
    return [_filter_of(wanted) for wanted in listed]


def _filter_of(wanted: object) -> str:
    if isinstance(wanted, tuple):
        if len(wanted) != 2 or wanted[1] not in (0, 1, 2) or isinstance(wanted[1], bool):
            raise InvalidAddress(
                f"cannot subscribe to {wanted!r}: write a topic, or a pair of a topic and a QoS of 0, 1 or 2",
                value=wanted,
            )
        wanted = wanted[0]
    checked = _check("filter", wanted)
    levels = checked.split("/")
    if any(len(level) > 1 and ("+" in level or "#" in level) for level in levels) or "#" in levels[:-1]:
        raise InvalidAddress(
            f"filter {wanted!r} is malformed: + and # must each stand alone between slashes, and # at the end, as in "
            "exps/my_exp/agents/+/agent-chat and exps/my_exp/#",
            value=wanted,
        )
    if levels[0] == "$share":
        raise InvalidAddress(
            f"filter {wanted!r} is a shared subscription, which is not supported: each listening messager gets each "
            "message, so leave $share/<group>/ out",
            value=wanted,
        )
    return checked


def _check(kind: str, text: object) -> str:
    if not isinstance(text, str):
        agent_id = text if isinstance(text, int) else "<agent id>"
        raise InvalidAddress(
            f"{kind} {text!r} must be a str, such as 'exps/<exp_id>/agents/{agent_id}/agent-chat' for an agent",
            value=text,
        )
    if text.startswith("exps:"):
        raise InvalidAddress(
            f"{kind} {text!r} is a channel of Redis: on MQTT write {text.replace(':', '/')!r}", value=text
        )
    if not 0 < utf8_size(text) <= TOPIC_BYTES or _UNFIT.search(text):
        raise InvalidAddress(
            f"{kind} {text[:80]!r} cannot be used: it must be 1 to {TOPIC_BYTES} bytes of UTF-8 without control "
            "characters and Unicode noncharacters",
            value=text,
        )
    if text.count("/") >= TOPIC_LEVELS:
        raise InvalidAddress(
            f"{kind} {text[:80]!r} has {text.count('/') + 1} levels: write at most {TOPIC_LEVELS}", value=text
        )
    return text
