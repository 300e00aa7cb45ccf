"""Channels: their text is built and parsed here only.

A channel is the address that users and foreign Redis clients see:

    exps:{exp_id}:agents:{agent_id}:{subtopic}      a channel of an agent
    exps:{exp_id}:user-payback                      the channel of the user, the person or program outside
    anything else without control characters        a plain channel

In a channel, the characters : * ? [ ] and backslash of an agent's id are written as %3A %2A %3F %5B %5D %5C. If the id
itself contains such a code, or a code whose % is written as %25 (once or several times), the code's % is written as
%25. So ids and their forms in channels correspond one to one.

Internally a channel is an `Address`: the agent's id (None for plain channels) and a topic. A topic is the subtopic of
an agent's channel, or `:` and the whole name of a plain channel. The two are never equal, because a subtopic has no
colon.
"""

import json
import re
import secrets
from ast import literal_eval
from contextlib import suppress
from enum import Enum
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

from ray_messaging.addressing.patterns import is_glob
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import InvalidAddress

AgentId = int | str


class Omitted(Enum):
    """The from_id of a message for which the caller gave none. It differs from None, which stands for the user."""

    OMITTED = "omitted"


OMITTED = Omitted.OMITTED
SenderId = AgentId | Omitted | None

AGENT_CHAT = "agent-chat"
USER_CHAT = "user-chat"
USER_SURVEY = "user-survey"
USER_PAYBACK = "user-payback"

NAME_LENGTH = 200
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Characters that are invalid in a subtopic: the separator, Redis's glob characters, control characters.
_UNFIT_SUBTOPIC = re.compile(r"[:*?\[\]\\\x00-\x1f\x7f]")
_CODES = "3A|2A|3F|5B|5D|5C"
_TO_ESCAPE = re.compile(rf"[:*?\[\]\\]|%(?=(?:25)*(?:{_CODES}))")
_ESCAPED = re.compile(rf"%(?:{_CODES}|25(?=(?:25)*(?:{_CODES})))")
_OURS = "rm:{"
_SURVEY = re.compile(r".*\.[0-9a-f]{16}\.survey")
_INTERNAL = re.compile(rf"{_SURVEY.pattern}|.*\.answers|anon-[0-9a-f]{{16}}")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_TUPLES = 100_000  # `id_tuple` caches its results for this many ids, because a model uses the same ids in each step
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class Address(NamedTuple):
    """The address of a message: an agent and a subtopic, or a plain channel."""

    agent_id: AgentId | None
    topic: str


def check_name(kind: str, name: object) -> str:
    """Return `name` if it is a valid name of an experiment, group or mailbox; raise InvalidAddress otherwise."""
    if isinstance(name, str) and len(name) <= NAME_LENGTH and _NAME.fullmatch(name):
        return name
    if not isinstance(name, str):
        raise InvalidAddress(f"{kind} {_shown(name)} has the type {type(name).__name__}, and must be a str", value=name)
    raise InvalidAddress(
        f"{kind} {_shown(name)} cannot be used: write 1 to {NAME_LENGTH} of the characters A-Z a-z 0-9 . _ -",
        value=name,
    )


def _shown(name: object) -> str:
    """Return a name for an error text, but only the beginning of a very long one."""
    text = repr(name)
    return text if len(text) <= 2 * NAME_LENGTH else f"{text[:NAME_LENGTH]}... of {len(text):,} characters"


def utf8_size(text: str) -> int:
    """Return the size of a text in UTF-8, or 0 if the text cannot be encoded."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def _check_text(kind: str, text: str, unfit: re.Pattern[str] = _CONTROL, remedy: str = "") -> None:
    if not 0 < utf8_size(text) <= NAME_LENGTH or unfit.search(text):
        without = " and without : * ? [ ] \\" if unfit is _UNFIT_SUBTOPIC else ""
        raise InvalidAddress(
            f"{kind} {_shown(text)} cannot be used: it must be 1 to {NAME_LENGTH} bytes of UTF-8 without control "
            f"characters{without}{remedy}",
            value=text,
        )


def escaped(agent_id: str) -> str:
    """Return the form that a str id has in channels. It differs from the id only if something must be escaped."""
    return _TO_ESCAPE.sub(lambda found: quote(found[0], safe=""), agent_id)


def check_id(agent_id: object) -> AgentId:
    """Return an id in canonical form: an int64, or a str that spells no int64; raise InvalidAddress for an invalid id.

    numpy integers become int. A str that spells an int64 becomes this int, because both have the same channel. A UUID
    becomes a str. A tuple becomes a str, which `id_tuple` turns into the tuple again.
    """
    if type(agent_id) is int and INT64_MIN <= agent_id <= INT64_MAX:
        return agent_id
    if isinstance(agent_id, str):
        if _INTEGER.fullmatch(agent_id) and INT64_MIN <= int(agent_id) <= INT64_MAX:
            return int(agent_id)
        _check_text(
            "agent id", agent_id, remedy="; or give these agents numbers as ids, and keep a table of their names"
        )
        return str(agent_id)  # a numpy str becomes a plain str, because a numpy str could not be encoded later
    if isinstance(agent_id, UUID):
        return str(agent_id)
    if type(agent_id) is tuple:  # a named tuple, such as a row of a DataFrame, is not accepted as an id
        return check_id(_tuple_text(agent_id, agent_id))
    # `operator.index` accepts a bool of numpy before version 2. So bools are found by their dtype, without numpy.
    is_bool = isinstance(agent_id, bool) or getattr(getattr(agent_id, "dtype", None), "kind", "") == "b"
    try:
        number = None if is_bool else index(agent_id)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = None
    if number is not None:
        if INT64_MIN <= number <= INT64_MAX:
            return number
        raise InvalidAddress(
            f"agent id {short_repr(agent_id)} does not fit 64 bits: use a smaller int, or a str", value=agent_id
        )
    raise InvalidAddress(
        f"agent id {short_repr(agent_id)} is a {type(agent_id).__name__}: an id must be an int or a str", value=agent_id
    )


def _tuple_text(part: object, whole: object) -> str:
    """Return `part`, an item of the tuple id `whole`, as text.

    A str is written as JSON, because that form never changes.
    """
    if type(part) is tuple and part:
        inner = [_tuple_text(each, whole) for each in part]
        return f"({', '.join(inner)}{',' * (len(inner) == 1)})"
    if isinstance(part, str):
        return json.dumps(part, ensure_ascii=False)
    is_bool = isinstance(part, bool) or getattr(getattr(part, "dtype", None), "kind", "") == "b"
    with suppress(TypeError):
        if not is_bool:
            return str(index(part))  # type: ignore[arg-type]  # others raise
    raise InvalidAddress(
        f"agent id {short_repr(whole)} has {short_repr(part)} in it: a tuple can be an id only if it holds ints (no "
        "bools), strs and such tuples, and is not empty",
        value=whole,
    )


@lru_cache(_TUPLES)
def id_tuple(agent_id: str) -> tuple[Any, ...]:
    """Return the tuple of an agent whose id was given as a tuple, such as a node of a lattice of networkx.

    An agent `(3, 4)` has the id `"(3, 4)"` wherever ids are read: as `me.id`, in `me.neighbours`, messages, results and
    the log. Where an id is passed, both forms are accepted.

    Raises: InvalidAddress if the id does not spell such a tuple.
    """
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError, InvalidAddress):
        found = literal_eval(agent_id)
        if isinstance(found, tuple) and check_id(found) == agent_id:
            return found
    raise InvalidAddress(
        f"the id {short_repr(agent_id)} is not the text of a tuple, such as '(3, 4)': pass the id of an agent whose id "
        "was given as a tuple",
        value=agent_id,
    )


def check_subtopic(subtopic: object) -> str:
    """Return `subtopic` if a channel may contain it; raise InvalidAddress otherwise."""
    if not isinstance(subtopic, str):
        raise InvalidAddress(f"a subtopic must be a str, not {subtopic!r}", value=subtopic)
    _check_text("subtopic", subtopic, _UNFIT_SUBTOPIC)
    return subtopic


def agent_channel(exp_id: str, agent_id: object, subtopic: str) -> str:
    """Build the name of an agent's channel for a subtopic."""
    return build_channel(exp_id, check_id(agent_id), check_subtopic(subtopic))


def payback_channel(exp_id: str) -> str:
    """Build the channel on which agents answer the user."""
    return f"exps:{exp_id}:{USER_PAYBACK}"


def no_channel(channel: object) -> InvalidAddress:
    """Build the error for a channel that is not a str. In most cases the caller has passed an agent's id."""
    try:
        agent = repr(check_id(channel))
        whose = f"agent {agent}"
    except InvalidAddress:
        agent, whose = "agent_id", "an agent"
    return InvalidAddress(
        f"channel {channel!r} must be a str: the channel of {whose} is messager.get_agent_chat_channel({agent}), "
        f"and Outgoing.to_agent({agent}, payload) needs no channel",
        value=channel,
    )


def parse_channel(exp_id: str, channel: object) -> Address:
    """Parse a channel. Raises InvalidAddress if it is malformed, is a pattern, or belongs to another experiment."""
    if not isinstance(channel, str):
        raise no_channel(channel)
    if len(channel) > 6 * NAME_LENGTH or not channel or _CONTROL.search(channel):
        why = f"has {len(channel):,} characters, but the limit is {6 * NAME_LENGTH:,}: use a shorter name"
        if not channel:
            why = "is empty: write the name of a channel"
        elif _CONTROL.search(channel):
            why = "has control characters: remove these characters"
        raise InvalidAddress(f"channel {channel[:80]!r} {why}", value=channel)
    if is_glob(channel):
        raise InvalidAddress(
            f"channel {channel!r} is a pattern, which is only for subscribing: send to one channel", value=channel
        )
    if not channel.startswith("exps:"):
        _check_text("channel", channel)
        # Our Lua scripts publish messages between two marks, on a channel that begins with `_OURS`. A client that may
        # send on such a channel could imitate these marks.
        if channel.startswith(_OURS):
            raise InvalidAddress(
                f"channel {channel!r} begins like the names that ray_messaging uses for its own keys: choose a name "
                f"that does not begin with {_OURS}",
                value=channel,
            )
        return Address(None, ":" + channel)
    _check_experiment(exp_id, channel)
    rest = channel[len(exp_id) + 6 :]
    if not rest.startswith("agents:"):
        _check_text(f"after 'exps:{exp_id}:' in a channel, the text", rest)
        return Address(None, ":" + channel)
    agent_id, _, subtopic = rest[7:].partition(":")
    return Address(check_id(_ESCAPED.sub(lambda found: unquote(found[0]), agent_id)), check_subtopic(subtopic))


def _check_experiment(exp_id: str, channel: str) -> None:
    parts = channel.split(":")
    if parts[1] != exp_id and _NAME.fullmatch(parts[1]):
        raise InvalidAddress(
            f"channel {channel!r} belongs to experiment {parts[1]!r}, but this messager belongs to experiment "
            f"{exp_id!r}: messages stay within their experiment, so open a messager in experiment {parts[1]!r}",
            value=channel,
        )
    if parts[1] != exp_id or len(parts) < 3 or (parts[2] == "agents" and len(parts) != 5):
        raise InvalidAddress(
            f"channel {channel!r} is malformed: write exps:{exp_id}:agents:<agent id>:<subtopic>", value=channel
        )


def build_channel(exp_id: str, agent_id: AgentId | None, topic: str) -> str:
    """Build the name of a channel from an agent's id (None: a plain channel) and a topic."""
    if topic[0] == ":":
        return topic[1:]
    return f"exps:{exp_id}:agents:{escaped(agent_id) if isinstance(agent_id, str) else agent_id}:{topic}"


def answer_mailbox(name: str) -> str:
    """Build the name of the mailbox that gets the answers to a messager's questions."""
    return f"{name[: NAME_LENGTH - 8]}.answers"


def is_internal(mailbox: str) -> bool:
    """Return whether a mailbox is internal: it only gets answers, or its messager has no name."""
    return _INTERNAL.fullmatch(mailbox) is not None


def survey_mailbox(survey_id: str) -> str:
    """Build a new name for the mailbox that keeps the answers to a survey."""
    return f"{survey_id[: NAME_LENGTH - 24]}.{secrets.token_hex(8)}.survey"


def is_survey_mailbox(name: str) -> bool:
    """Return whether a mailbox's name says that it keeps the answers to a survey."""
    return _SURVEY.fullmatch(name) is not None


def all_agents(exp_id: str) -> str:
    """Build the pattern of all channels of an experiment's agents."""
    return f"exps:{exp_id}:agents:*"


class ChannelNames:
    """The channels of one experiment. The methods have the names that AgentSociety uses."""

    def __init__(self, exp_id: str) -> None:
        self.exp_id = check_name("exp_id", exp_id)

    def get_subtopic_channel(self, agent_id: AgentId, subtopic: str) -> str:
        """Return an agent's channel for any subtopic."""
        return agent_channel(self.exp_id, agent_id, subtopic)

    def get_user_survey_channel(self, agent_id: AgentId) -> str:
        """Return the channel on which the user surveys an agent."""
        return self.get_subtopic_channel(agent_id, USER_SURVEY)

    def get_user_chat_channel(self, agent_id: AgentId) -> str:
        """Return the channel on which the user chats with an agent."""
        return self.get_subtopic_channel(agent_id, USER_CHAT)

    def get_agent_chat_channel(self, agent_id: AgentId) -> str:
        """Return the channel on which agents write to an agent."""
        return self.get_subtopic_channel(agent_id, AGENT_CHAT)

    def get_user_payback_channel(self) -> str:
        """Return the channel on which agents answer the user."""
        return payback_channel(self.exp_id)


def check_recipient(channel: str, recipient: AgentId | None, to_id: object) -> AgentId:
    """Return to_id in canonical form; raise InvalidAddress if to_id is invalid, or contradicts the channel."""
    checked = check_id(to_id)
    if recipient is not None and checked != recipient:
        raise InvalidAddress(
            f"to_id {to_id!r} contradicts the channel {channel!r}, which belongs to agent {recipient!r}: leave to_id "
            f"out, or send on a channel of agent {to_id!r}",
            value=to_id,
        )
    return checked


def mark_of_db(db: int) -> str:
    """Return the text that marks a Redis db in the names of Pub/Sub channels, such as "@3" for db 3; "" for db 0.

    The text follows the experiment's name. It is needed because Pub/Sub ignores dbs.
    """
    return f"@{db}" if db else ""
