"""What travels when an interceptor grants its rules to a messager: those that look at nothing but ids, as data."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ray_messaging.addressing.channels import INT64_MAX, INT64_MIN, AgentId
from ray_messaging.errors import FrameError, InvalidAddress, RuleError
from ray_messaging.interception.rules.allow_graph import AllowGraph, Joined
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.interception.server.state.table import Table

LEAST_NUMBER = 2**32  # no code in an epoch's place, nor a small number, may pass for what is granted
MOST_ENTRIES = 20_000  # pairs, edges and members of all rules together: every messager holds a copy
# Attributes of instances beyond which a rule may be another one than its class: somebody has changed it by hand.
_OWN = {
    BlackList: {"name", "state", "_index", "context", "on_error"},
    AllowGraph: {
        "name", "user", "channels", "context", "on_error", "_public", "_names", "_edges", "_memberships",
        "_networks_of", "_layers", "_open", "_open_ints",
    },
}  # fmt: skip

_Int = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
_Id = _Int | str


class Listed(msgspec.Struct, array_like=True, frozen=True, tag="black_list"):
    """Be a BlackList."""

    name: str
    pairs: Sequence[tuple[_Id | None, _Id | None]]


class Drawn(msgspec.Struct, array_like=True, frozen=True, tag="allow_graph"):
    """Be an AllowGraph (see `Joined`)."""

    name: str
    edges: Sequence[tuple[_Id, _Id]]
    memberships: Sequence[tuple[_Id, _Int]]
    open: Sequence[_Id]
    user: bool
    channels: bool


class SnapshotState(msgspec.Struct, array_like=True, frozen=True):
    """Ask for the rules, or whether those of number `held` (0: none) still count; append-only.

    `passed` tells how many messages have passed by them since the last time; some that did may be asked about after
    all, and are taken off again.
    """

    held: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    passed: Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)] = 0


class RuleSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """Answer: under which number verdicts by the rules count now (0: under none); append-only.

    No other state of rules, of no other interceptor, has that number. `rules` are there where the asker does not hold
    those of that number.
    """

    number: int
    rules: tuple[Listed | Drawn, ...] | None = None

    @property
    def entries(self) -> int:
        """Return how many pairs, edges and members the rules hold."""
        return sum(_entries(rule) for rule in self.rules or ())

    def make(self) -> tuple[Rule, ...]:
        """Return the rules; raise FrameError."""
        try:
            return tuple(map(_made, self.rules or ()))
        except (RuleError, InvalidAddress) as error:
            raise FrameError(f"the rules that the interceptor grants cannot be made: {error}") from error


def _entries(rule: Listed | Drawn) -> int:
    return len(rule.pairs) if isinstance(rule, Listed) else len(rule.edges) + len(rule.memberships) + len(rule.open)


def _made(rule: Listed | Drawn) -> Rule:
    if isinstance(rule, Listed):
        return BlackList(list(rule.pairs), name=rule.name)
    return AllowGraph.of(rule.name, Joined(rule.edges, rule.memberships, rule.open, rule.user, rule.channels))


def can_grant(rules: Sequence[Rule]) -> bool:
    """Tell whether all rules are functions of the ids that nothing but a change of the rules can alter."""
    return all(type(rule) in _OWN and vars(rule).keys() <= _OWN[type(rule)] and _plain(rule) for rule in rules)


def _plain(rule: Rule) -> bool:
    return not isinstance(rule, BlackList) or type(rule.state) is Table


def size_of(rules: Sequence[Rule]) -> int:
    """Return how many entries rules hold that can be granted."""
    return sum(len(rule.state) if isinstance(rule, BlackList) else _drawn_size(rule) for rule in rules)


def _drawn_size(rule: Rule) -> int:
    assert isinstance(rule, AllowGraph)
    return rule.size


def grant_of(number: int, rules: Sequence[Rule]) -> RuleSnapshot:
    """Build the grant of rules of which `can_grant` says yes."""
    return RuleSnapshot(number, tuple(map(_data, rules)))


def _data(rule: Rule) -> Listed | Drawn:
    if isinstance(rule, BlackList):
        return Listed(rule.name, list(rule.state))
    assert isinstance(rule, AllowGraph)
    joined = rule.joined
    edges: list[tuple[AgentId, AgentId]] = list(joined.edges)
    return Drawn(rule.name, edges, list(joined.memberships), list(joined.open), joined.user, joined.channels)


_encoder = msgspec.msgpack.Encoder()
_standing = msgspec.msgpack.Decoder(SnapshotState)
_grant = msgspec.msgpack.Decoder(RuleSnapshot)
encode_standing = encode_grant = _encoder.encode


def decode_standing(data: bytes) -> SnapshotState:
    """Decode a request; raise FrameError."""
    try:
        return _standing.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a request for standing verdicts cannot be read: {error}") from error


def decode_grant(data: bytes) -> RuleSnapshot:
    """Decode an answer; raise FrameError."""
    try:
        grant = _grant.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"the interceptor's grant cannot be read: {error}") from error
    if grant.number and not LEAST_NUMBER <= grant.number < 2**62:
        raise FrameError(f"the interceptor's grant cannot be read: it has number {grant.number}")
    if grant.entries > MOST_ENTRIES:
        raise FrameError(f"the interceptor grants rules of {grant.entries} entries, the limit is {MOST_ENTRIES}")
    return grant
