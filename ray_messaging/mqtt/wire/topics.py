"""Build and parse MQTT topics and filters; no other module writes either down.

A channel is a topic:

    exps:{exp_id}:agents:{agent_id}:{subtopic}      exps/{exp_id}/agents/{agent_id}/{subtopic}
    exps:{exp_id}:{rest}                            exps/{exp_id}/{rest}
    any other channel                               the topic of that very name
    exps%3A{rest}, exps%25{rest}                    exps:{rest}, exps%{rest}: topics that would pass for channels

In an agent's id % / + # and what MQTT forbids stand as % and the hexadecimal digits of their UTF-8 bytes, in a subtopic
all of these but the slash. Below `ray_messaging/{exp_id}/` are our own topics, which are no channels.
"""

import re
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple
from urllib.parse import quote, unquote

from ray_messaging.addressing.channels import check_id, check_name, check_subtopic
from ray_messaging.errors import InvalidAddress

OWN = "ray_messaging/"
TOPIC_BYTES = 65_535
TOPIC_LEVELS = 128  # brokers cut the connection above their own limit: EMQX takes 128, Mosquitto 200

# MQTT forbids NUL, and lets a broker cut the connection for control characters and what Unicode calls noncharacters:
# Mosquitto does, and a topic that is sent again after each reconnect would then never let anything else through.
_FORBIDDEN = "\x00-\x1f\x7f-\x9f\ufdd0-\ufdef" + "".join(
    f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17)
)
_UNFIT = re.compile(f"[{_FORBIDDEN}]")
_IN_ID = re.compile(f"[%/+#{_FORBIDDEN}]")
_IN_SUBTOPIC = re.compile(f"[%+#{_FORBIDDEN}]")


class Topics:
    """Name our own topics of one experiment."""

    def __init__(self, exp_id: str) -> None:
        self.prefix = prefix = f"{OWN}{check_name('exp_id', exp_id)}/"
        self.all_cards = prefix + "directory/+"
        self.all_epochs = prefix + "epoch/+"
        self.all_owners = prefix + "owner/+"

    def directory(self, mailbox: str) -> str:
        """Build the topic of a mailbox's card: who listens where."""
        return f"{self.prefix}directory/{mailbox}"

    def mailbox(self, mailbox: str) -> str:
        """Build the topic on which frames go to a mailbox."""
        return f"{self.prefix}mailbox/{mailbox}"

    def sender(self, sender: str) -> str:
        """Build the topic on which a sender is told what was handled, and what is missing."""
        return f"{self.prefix}sender/{sender}"

    def epoch(self, sender: str) -> str:
        """Build the topic of a named sender's newest incarnation."""
        return f"{self.prefix}epoch/{sender}"

    def cursor(self, mailbox: str, generation: int, page: int) -> str:
        """Build the topic of a page of what a named mailbox has handled, as one of its readers says."""
        return f"{self.prefix}cursor/{mailbox}/{generation}/{page}"

    def cursors(self, mailbox: str) -> str:
        """Build the filter of all these pages."""
        return f"{self.prefix}cursor/{mailbox}/+/+"

    def owner(self, mailbox: str) -> str:
        """Build the topic that says who holds a named mailbox."""
        return f"{self.prefix}owner/{mailbox}"

    def dead(self, mailbox: str) -> str:
        """Build the topic of frames that could not be read."""
        return f"{self.prefix}dead/{mailbox}"

    def barrier(self, client: str) -> str:
        """Build the topic of a marker to oneself: when it comes back, what was there before has come."""
        return f"{self.prefix}barrier/{client}"

    def kind_of(self, topic: str) -> "Kind | None":
        """Tell which topic of this experiment one is; None: none of ours."""
        if not topic.startswith(self.prefix):
            return None
        kind, _, name = topic[len(self.prefix) :].partition("/")
        return Kind(kind, name)


class Kind(NamedTuple):
    """What one of our own topics is for (directory, mailbox, sender ...), and of whom it speaks."""

    kind: str
    name: str


def is_own(topic: str) -> bool:
    """Tell whether a topic is one of ours, of any experiment, and so no channel."""
    return topic.startswith(OWN)


# -- channels ---------------------------------------------------------------------------------------------------------


def topic_of_channel(exp_id: str, channel: str) -> str:
    """Return a channel's topic; raise InvalidAddress where it has none, or another channel has it."""
    topic = check_topic(topic_of_received(channel))
    meant = channel_of_topic(exp_id, topic)
    if meant != channel:
        raise InvalidAddress(
            f"channel {channel!r} has the MQTT topic of the channel {meant!r}: write that instead", value=channel
        )
    return topic


def topic_of_received(channel: str) -> str:
    """Return the topic of what came by a channel, whether or not one may publish there."""
    if not channel.startswith("exps:"):
        return f"exps{unquote(channel[4:7])}{channel[7:]}" if channel.startswith(("exps%3A", "exps%25")) else channel
    _, exp_id, rest = channel.split(":", 2) if channel.count(":") > 1 else ("", channel[5:], "")
    parts = rest.split(":")
    if parts[0] != "agents" or len(parts) != 3:
        return f"exps/{exp_id}/{rest}"
    return f"exps/{exp_id}/agents/{_IN_ID.sub(_quoted, parts[1])}/{_IN_SUBTOPIC.sub(_quoted, parts[2])}"


def _quoted(found: re.Match[str]) -> str:
    return quote(found[0], safe="")


def channel_of_topic(exp_id: str, topic: str) -> str:
    """Return a topic's channel: one of the experiment's, else a plain one of that very name."""
    prefix = f"exps/{exp_id}/"
    if not topic.startswith(prefix):
        return _not_a_channel(topic)
    rest = topic[len(prefix) :]
    if rest.partition("/")[0] != "agents":
        return f"exps:{exp_id}:{rest}" if rest and not rest.startswith("agents:") else topic
    parts = rest.split("/", 2)
    if len(parts) < 3:
        return topic
    try:
        agent_id, subtopic = str(check_id(unquote(parts[1], errors="strict"))), unquote(parts[2], errors="strict")
        channel = f"exps:{exp_id}:agents:{agent_id}:{check_subtopic(subtopic)}"
    except (InvalidAddress, UnicodeDecodeError):
        return topic
    return channel if topic_of_received(channel) == topic else topic


def _not_a_channel(topic: str) -> str:
    """Write a topic so that no foreign client's passes for a channel of ours."""
    return f"exps{quote(topic[4], safe='')}{topic[5:]}" if topic.startswith(("exps:", "exps%")) else topic


# -- topics and filters -----------------------------------------------------------------------------------------------


def check_topic(topic: object) -> str:
    """Return `topic` if one may publish to it; raise InvalidAddress otherwise."""
    checked = _check("topic", topic)
    if is_filter(checked):
        raise InvalidAddress(
            f"topic {topic!r} holds a wildcard, + or #: one can subscribe to it, not publish to it", value=topic
        )
    if checked[0] == "$":
        raise InvalidAddress(f"topic {topic!r} begins with $: those are the broker's own", value=topic)
    return checked


def check_filter(text: object) -> str:
    """Return `text` if one may subscribe to it: a filter, or a topic; raise InvalidAddress otherwise."""
    checked = _check("filter", text)
    levels = checked.split("/")
    if any(len(level) > 1 and is_filter(level) for level in levels) or "#" in levels[:-1]:
        raise InvalidAddress(
            f"filter {text!r} is malformed: + and # must each stand alone between slashes, and # at the end: "
            "exps/my_exp/agents/+/agent-chat, exps/my_exp/#",
            value=text,
        )
    if levels[0] == "$share":
        raise InvalidAddress(
            f"filter {text!r} is a shared subscription: here each messager that listens gets each message, so leave "
            "$share/<group>/ out",
            value=text,
        )
    return checked


def _check(kind: str, text: object) -> str:
    if not isinstance(text, str):
        whose = text if isinstance(text, int) else "<agent id>"
        raise InvalidAddress(
            f"{kind} {text!r} must be a str: that of an agent is exps/<exp_id>/agents/{whose}/agent-chat", value=text
        )
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= TOPIC_BYTES or _UNFIT.search(text):
        raise InvalidAddress(
            f"{kind} {text[:80]!r} cannot be used: it must be 1 to {TOPIC_BYTES} bytes of UTF-8 without control "
            "characters",
            value=text,
        )
    if text.count("/") >= TOPIC_LEVELS:
        raise InvalidAddress(
            f"{kind} {text[:80]!r} has {text.count('/') + 1} levels: brokers take {TOPIC_LEVELS}", value=text
        )
    if is_own(text):
        raise InvalidAddress(
            f"{kind} {text!r} lies below {OWN}, where messagers talk among themselves: choose another one", value=text
        )
    return text


def is_filter(text: str) -> bool:
    """Tell whether a subscription is a filter rather than one topic."""
    return "+" in text or "#" in text


def compile_filter(text: str) -> Callable[[str], bool]:
    """Return a function that tells whether a filter matches a channel's topic; raise InvalidAddress."""
    levels = check_filter(text).split("/")
    hidden = levels[0] in {"+", "#"}  # what begins with $ is not matched by a wildcard there
    deeper = levels[-1] == "#"  # matches what lies below, and what stands before it: a/# matches a, too
    if deeper:
        levels.pop()
    count = len(levels)

    def matches(channel: str) -> bool:
        topic = topic_of_received(channel)
        found = topic.split("/")
        return (
            (len(found) == count or (deeper and len(found) > count))
            and all(level in ("+", there) for level, there in zip(levels, found, strict=False))
            and not (hidden and topic[0] == "$")
        )

    return matches


class Filters:
    """Be MQTT's patterns in one experiment (see `channels.Patterns`): filters, written as topics."""

    def __init__(self, exp_id: str) -> None:
        self.exp_id = exp_id

    def is_pattern(self, channel: str) -> bool:
        """Tell whether a subscription is a filter rather than one channel: an agent's id may hold + and #.

        What begins with $ is one, too: one can subscribe to it, and nobody can send there.
        """
        return (is_filter(channel) or channel.startswith("$")) and not channel.startswith("exps:")

    def compile(self, pattern: str) -> Callable[[str], bool]:
        """Return a function that tells whether a filter matches a channel's topic; raise InvalidAddress."""
        return compile_filter(pattern)

    def check(self, channel: str) -> None:
        """Raise InvalidAddress for a plain channel that is no topic, or another channel's."""
        topic_of_channel(self.exp_id, channel)

    def prefix(self, pattern: str) -> str:
        """Return what every channel begins with that a filter matches, as the experiment's own are written."""
        levels = list(takewhile(lambda level: not is_filter(level), pattern.split("/")))
        if levels[:2] != ["exps", self.exp_id]:
            return _not_a_channel("/".join(levels))
        if levels[2:3] != ["agents"]:
            return ":".join(["exps", self.exp_id, *(["/".join(levels[2:])] if levels[2:] else [])])
        subtopic = [unquote("/".join(levels[4:]))] if levels[4:] else []
        return ":".join([*levels[:3], *map(unquote, levels[3:4]), *subtopic])
