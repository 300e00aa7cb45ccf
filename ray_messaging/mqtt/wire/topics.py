"""MQTT topics and filters; the only module that builds and parses them.

A channel is a topic:

    exps:{exp_id}:agents:{agent_id}:{subtopic}      exps/{exp_id}/agents/{agent_id}/{subtopic}
    exps:{exp_id}:{rest}                            exps/{exp_id}/{rest}
    any other channel                               the topic of that very name
    exps%3A{rest}, exps%25{rest}                    exps:{rest}, exps%{rest}: topics that look like channels

In an agent's id, % / + # and characters that MQTT forbids are percent-encoded; in a subtopic the same without the
slash. Our own topics lie below `ray_messaging/{exp_id}/`; they are no channels.
"""

import re
from collections.abc import Callable
from itertools import takewhile
from urllib.parse import quote, unquote

from ray_messaging.addressing.channels import check_id, check_name, check_subtopic
from ray_messaging.errors import InvalidAddress

OWN = "ray_messaging/"
TOPIC_BYTES = 65_535
TOPIC_LEVELS = 128  # brokers disconnect above their own limit: EMQX takes 128, Mosquitto 200

# MQTT forbids NUL, and lets a broker disconnect for control characters and Unicode noncharacters. Mosquitto does, and
# such a topic, sent again after each reconnect, would block everything behind it.
_FORBIDDEN = "\x00-\x1f\x7f-\x9f\ufdd0-\ufdef" + "".join(
    f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17)
)
_UNFIT = re.compile(f"[{_FORBIDDEN}]")
_IN_ID = re.compile(f"[%/+#{_FORBIDDEN}]")
_IN_SUBTOPIC = re.compile(f"[%+#{_FORBIDDEN}]")


class Topics:
    """Our own topics of one experiment."""

    def __init__(self, exp_id: str) -> None:
        self.prefix = prefix = f"{OWN}{check_name('exp_id', exp_id)}/"
        self.all_entries = prefix + "directory/+"
        self.all_owners = prefix + "owner/+"

    def directory(self, mailbox: str) -> str:
        """Return the topic of a mailbox's directory entry."""
        return f"{self.prefix}directory/{mailbox}"

    def mailbox(self, mailbox: str) -> str:
        """Return the topic of a mailbox's frames."""
        return f"{self.prefix}mailbox/{mailbox}"

    def sender(self, sender: str) -> str:
        """Return the topic of receivers' signals to a sender."""
        return f"{self.prefix}sender/{sender}"

    def epoch(self, sender: str) -> str:
        """Return the topic of a named sender's newest epoch."""
        return f"{self.prefix}epoch/{sender}"

    def cursor(self, mailbox: str, generation: int, page: int) -> str:
        """Return the topic of one page of a named mailbox's cursor, as written by one of its readers."""
        return f"{self.prefix}cursor/{mailbox}/{generation}/{page}"

    def cursors(self, mailbox: str) -> str:
        """Return the filter for all pages of a mailbox's cursor."""
        return f"{self.prefix}cursor/{mailbox}/+/+"

    def owner(self, mailbox: str) -> str:
        """Return the topic of a named mailbox's owner."""
        return f"{self.prefix}owner/{mailbox}"

    def dead(self, mailbox: str) -> str:
        """Return the topic of a mailbox's dead letters."""
        return f"{self.prefix}dead/{mailbox}"

    def barrier(self, client: str) -> str:
        """Return the topic of a client's markers: when one comes back, all earlier messages have come."""
        return f"{self.prefix}barrier/{client}"

    def kind_of(self, topic: str) -> tuple[str, str] | None:
        """Return a topic's kind (directory, mailbox, sender ...) and name; None: it is none of ours."""
        if not topic.startswith(self.prefix):
            return None
        kind, _, name = topic[len(self.prefix) :].partition("/")
        return kind, name


def is_own(topic: str) -> bool:
    """Return whether a topic is one of ours, of any experiment, and so no channel."""
    return topic.startswith(OWN)


# -- channels ---------------------------------------------------------------------------------------------------------


def topic_of_channel(exp_id: str, channel: str) -> str:
    """Return a channel's topic; raise InvalidAddress if it has none, or another channel has the same."""
    topic = check_topic(topic_of_received(channel))
    meant = channel_of_topic(exp_id, topic)
    if meant != channel:
        raise InvalidAddress(
            f"channel {channel!r} has the MQTT topic of channel {meant!r}: write {meant!r} instead", value=channel
        )
    return topic


def topic_of_received(channel: str) -> str:
    """Return a received channel's topic, which need not be valid for publishing."""
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
    """Return a topic's channel: one of the experiment's, else a plain one of the same name."""
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
    """Return a foreign topic as a channel that cannot be mistaken for one of ours."""
    return f"exps{quote(topic[4], safe='')}{topic[5:]}" if topic.startswith(("exps:", "exps%")) else topic


def check_below_agents(topic: str) -> None:
    """Raise InvalidAddress for a topic below an experiment's agents that is no agent's.

    It has no recipient, so that no rule on ids would apply, and yet a filter of an agent's listener matches it.
    """
    levels = topic.split("/", 3)
    if levels[0] != "exps" or levels[2:3] != ["agents"]:
        return
    try:
        exp_id = check_name("exp_id", levels[1])
    except InvalidAddress:
        return  # no experiment has such a name
    if channel_of_topic(exp_id, topic) == topic:
        raise InvalidAddress(
            f"topic {topic!r} is malformed: write exps/{exp_id}/agents/<agent id>/<subtopic>", value=topic
        )


# -- topics and filters -----------------------------------------------------------------------------------------------


def check_topic(topic: object) -> str:
    """Return a valid topic to publish to; raise InvalidAddress otherwise."""
    checked = _check("topic", topic)
    if is_filter(checked):
        raise InvalidAddress(f"topic {topic!r} holds a wildcard, + or #, which is only for subscribing", value=topic)
    if checked[0] == "$":
        raise InvalidAddress(f"topic {topic!r} begins with $: such topics are the broker's own", value=topic)
    return checked


def check_filter(text: object) -> str:
    """Return a valid filter or topic to subscribe to; raise InvalidAddress otherwise."""
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
            f"filter {text!r} is a shared subscription, which is not supported: each listening messager gets each "
            "message, so leave $share/<group>/ out",
            value=text,
        )
    return checked


def _check(kind: str, text: object) -> str:
    if not isinstance(text, str):
        agent_id = text if isinstance(text, int) else "<agent id>"
        raise InvalidAddress(
            f"{kind} {text!r} must be a str; for an agent: exps/<exp_id>/agents/{agent_id}/agent-chat", value=text
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
            f"{kind} {text!r} lies below {OWN}, which is reserved for messagers: choose another one", value=text
        )
    return text


def is_filter(text: str) -> bool:
    """Return whether a subscription has a wildcard."""
    return "+" in text or "#" in text


def compile_filter(text: str) -> Callable[[str], bool]:
    """Return a predicate that matches channels by their topic; raise InvalidAddress."""
    levels = check_filter(text).split("/")
    hidden = levels[0] in {"+", "#"}  # a wildcard on the first level does not match topics that begin with $
    deeper = levels[-1] == "#"  # a/# matches a, too
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
    """Patterns of one experiment on MQTT (see `patterns.Patterns`): filters, written as topics."""

    def __init__(self, exp_id: str) -> None:
        self.exp_id = exp_id

    def is_pattern(self, channel: str) -> bool:
        """Return whether a subscription is a filter rather than one channel; an agent's id may hold + and #.

        Topics that begin with $ count as filters, because they are only for subscribing.
        """
        return (is_filter(channel) or channel.startswith("$")) and not channel.startswith("exps:")

    def compile(self, pattern: str) -> Callable[[str], bool]:
        """Return a predicate that matches channels by their topic; raise InvalidAddress."""
        return compile_filter(pattern)

    def check(self, channel: str) -> None:
        """Raise InvalidAddress for a plain channel that is no valid topic, or has another channel's topic."""
        check_below_agents(topic_of_channel(self.exp_id, channel))

    def prefix(self, pattern: str) -> str:
        """Return the common prefix of all channels that a filter matches."""
        levels = list(takewhile(lambda level: not is_filter(level), pattern.split("/")))
        if levels[:2] != ["exps", self.exp_id]:
            return _not_a_channel("/".join(levels))
        if levels[2:3] != ["agents"]:
            return ":".join(["exps", self.exp_id, *(["/".join(levels[2:])] if levels[2:] else [])])
        subtopic = [unquote("/".join(levels[4:]))] if levels[4:] else []
        return ":".join([*levels[:3], *map(unquote, levels[3:4]), *subtopic])
