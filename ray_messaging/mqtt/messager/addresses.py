"""Translation of a messager's topics and filters to channels and patterns."""

from collections.abc import Sequence
from typing import Any

from ray_messaging.addressing.channels import NAME_LENGTH, Address, AgentId, check_id, check_name, parse_channel
from ray_messaging.errors import InvalidAddress
from ray_messaging.mqtt.wire.topics import (
    Filters,
    channel_of_topic,
    check_below_agents,
    check_filter,
    check_topic,
    is_filter,
    topic_of_received,
)

# The namespace of messagers without an experiment.
SHARED = "_"


class Addresses:
    """Topics of one experiment; without one, those of every experiment on the broker."""

    def __init__(self, exp_id: str | None) -> None:
        self.exp_id = None if exp_id is None else check_name("exp_id", exp_id)
        self.namespace = SHARED if exp_id is None else exp_id
        self._filters = Filters(self.namespace)

    def parse(self, topic: object) -> Address:
        """Return the address of a topic; raise InvalidAddress if it is invalid or another experiment's."""
        checked = self._own(check_topic(topic))
        agent_id, parsed = parse_channel(self.namespace, self._channel(checked), self._filters)
        return Address(agent_of(checked) if self.exp_id is None else agent_id, parsed)

    def subscription(self, wanted: object) -> str:
        """Return the channel or pattern of a topic, a filter, or a pair of one and its QoS; raise InvalidAddress.

        The QoS is checked and ignored: each message comes once anyway.
        """
        if isinstance(wanted, tuple):
            if len(wanted) != 2 or wanted[1] not in (0, 1, 2) or isinstance(wanted[1], bool):
                raise InvalidAddress(
                    f"cannot subscribe to {wanted!r}: write a topic, or a pair of a topic and a QoS of 0, 1 or 2",
                    value=wanted,
                )
            wanted = wanted[0]
        checked = self._own(check_filter(wanted))
        # Topics that begin with $ are only for subscribing: $SYS/broker/version.
        return checked if is_filter(checked) or checked[0] == "$" else self._channel(checked)

    def check_recipient(self, topic: str, recipient: AgentId | None, to_uuid: object) -> None:
        """Raise InvalidAddress if `to_uuid` is not the agent of the topic."""
        if recipient is not None and check_id(to_uuid) != recipient:
            raise InvalidAddress(
                f"to_uuid {to_uuid!r} contradicts the topic {topic!r}, which belongs to agent {recipient!r}: leave "
                "to_uuid out, or send on a topic of that agent's own",
                value=to_uuid,
            ) from None

    def _channel(self, topic: str) -> str:
        channel = channel_of_topic(self.namespace, topic)
        # An agent's channel is checked already; the experiment's prefix does not count.
        size = len(channel.removeprefix(f"exps:{self.namespace}:").encode())
        if size > NAME_LENGTH and not channel.startswith(f"exps:{self.namespace}:agents:"):
            raise InvalidAddress(
                f"topic {topic[:80]!r} has {size} bytes: here a topic has {NAME_LENGTH} at most", value=topic
            )
        check_below_agents(topic)
        if channel == topic and topic.startswith(f"exps/{self.exp_id}/agents"):
            raise InvalidAddress(
                f"topic {topic!r} is malformed: write exps/{self.exp_id}/agents/<agent id>/<subtopic>", value=topic
            )
        return channel

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of the local log with AgentSociety's names for MQTT, then ours."""
        return {
            "topic": topic_of_received(row["channel"]),
            "payload": row["payload"],
            "from_uuid": uuid_of(row["from_id"]),
            "to_uuid": uuid_of(row["to_id"]),
        } | row

    def _own(self, topic: str) -> str:
        """Return a topic or filter; raise InvalidAddress for another experiment's, or the form of Redis."""
        if topic.startswith("exps:"):
            raise InvalidAddress(
                f"topic {topic!r} is a channel of Redis: on MQTT write {topic.replace(':', '/')!r}", value=topic
            )
        levels = topic.split("/")
        if self.exp_id is None and levels[:2] == ["exps", SHARED]:
            raise InvalidAddress(
                f"topic {topic!r}: a messager without exp_id cannot distinguish experiment {SHARED!r} from none, so "
                "choose another name for it",
                value=topic,
            )
        if self.exp_id is None or levels[0] != "exps" or len(levels) < 2 or levels[1] in {self.exp_id, "+", "#"}:
            return topic
        raise InvalidAddress(
            f"topic {topic!r} belongs to experiment {levels[1]!r}, this messager to {self.exp_id!r}: nothing crosses "
            f"experiments, so make a messager with exp_id={levels[1]!r}, or one without exp_id, for all of them",
            value=topic,
        )


def subscriptions_of(topics: object) -> list[object]:
    """Return the argument of `subscribe` as a list: a tuple with a number is a pair of a topic and its QoS."""
    if isinstance(topics, tuple):
        return [*topics] if all(isinstance(each, str | tuple) for each in topics) else [topics]
    return [*topics] if isinstance(topics, Sequence) and not isinstance(topics, str | bytes) else [topics]


def agent_of(topic: str) -> AgentId | None:
    """Return a topic's agent, of any experiment; None: it is no agent's."""
    levels = topic.split("/", 3)
    if len(levels) < 4 or levels[0] != "exps" or levels[2] != "agents":
        return None
    try:
        return parse_channel(levels[1], channel_of_topic(levels[1], topic), Filters(levels[1])).agent_id
    except InvalidAddress:  # no experiment has such a name
        return None


def uuid_of(agent_id: AgentId | None) -> str | None:
    """Return an id in AgentSociety's form on MQTT."""
    return None if agent_id is None else str(agent_id)
