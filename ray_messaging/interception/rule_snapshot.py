"""Rule snapshots: copies, as data, of rules that judge by ids alone. An interceptor sends them to messagers."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from ray_messaging.errors import FrameError, InvalidAddress, RuleError
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.rules.allow_graph import AllowGraph, AllowGraphSnapshot, Int64
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Rule

MIN_SNAPSHOT_NUMBER = 2**32  # no snapshot has a lower number; special values of an epoch, such as FOREIGN, are lower
MAX_ENTRIES = 20_000  # the most pairs, edges and members of all rules together, because every messager has a copy
MOST_STRETCH = 20.0
# The instance attributes of each class. If a rule has other attributes, code from outside of this library has changed
# the rule, and the rule may decide differently.
_ATTRIBUTES = {
    BlackList: {"name", "state", "_index", "_listed", "context", "on_error"},
    AllowGraph: {
        "name", "user", "channels", "context", "on_error", "_public", "_names", "_edges", "_memberships",
        "_networks_of", "_layers", "_open", "_open_ints",
    },
}  # fmt: skip


class BlackListSnapshot(msgspec.Struct, array_like=True, frozen=True, tag="black_list"):
    """The data of a `BlackList` rule, with which a sender can judge its own messages."""

    name: str
    pairs: Sequence[tuple[Int64 | str | None, Int64 | str | None]]


class SnapshotRequest(msgspec.Struct, array_like=True, frozen=True):
    """A messager's request for a rule snapshot.

    `held` is the number of the snapshot that the messager has (0: none). `passed` is how many messages the messager
    has let pass by its snapshot since its last request. If the server refuses such messages, the interceptor judges
    them instead. They are then subtracted from `passed`, which may thus be negative.
    """

    held: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    passed: Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)] = 0


class RuleSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The interceptor's answer to a request for a rule snapshot.

    `number` is the number of the present rules (0: the messager must not apply rules itself). No other version of the
    rules, and no other interceptor, uses this number. `rules` is None if the messager already has the rules, or must
    not apply any. The messager's requests also report how many messages have passed. `stretch` is the factor by which
    the messager makes the interval between these requests longer. If there are many messagers, `stretch` is above 1.
    """

    number: int
    rules: tuple[BlackListSnapshot | AllowGraphSnapshot, ...] | None = None
    stretch: Annotated[float, msgspec.Meta(ge=1.0, le=MOST_STRETCH)] = 1.0

    @property
    def entries(self) -> int:
        """Return the number of pairs, edges and members in the rules."""
        return sum(_entries(rule) for rule in self.rules or ())

    def build(self) -> tuple[Rule, ...]:
        """Build the rules of this snapshot; raise FrameError if its data are invalid."""
        try:
            return tuple(map(_build, self.rules or ()))
        except (RuleError, InvalidAddress) as error:
            raise FrameError(
                "the rules that the interceptor sent are invalid: use one version of ray_messaging in all processes"
            ) from error


def _entries(rule: BlackListSnapshot | AllowGraphSnapshot) -> int:
    if isinstance(rule, BlackListSnapshot):
        return len(rule.pairs)
    return len(rule.edges) + len(rule.memberships) + len(rule.open)


def _build(rule: BlackListSnapshot | AllowGraphSnapshot) -> Rule:
    if isinstance(rule, BlackListSnapshot):
        return BlackList(list(rule.pairs), name=rule.name)
    return AllowGraph.of(rule)


def can_delegate(rules: Sequence[Rule]) -> bool:
    """Return whether the verdicts of all rules depend on ids alone, and change only when the rules are changed."""
    return all(
        type(rule) in _ATTRIBUTES
        and vars(rule).keys() <= _ATTRIBUTES[type(rule)]
        and (rule.state is None or type(rule.state) is Table)
        for rule in rules
    )


def entry_count(rules: Sequence[Rule]) -> int:
    """Return the number of pairs, edges and members in rules for which `can_delegate` is True."""
    return sum(rule.size if isinstance(rule, AllowGraph) else len(rule.state or ()) for rule in rules)


def snapshot_of(number: int, rules: Sequence[Rule], stretch: float = 1.0) -> RuleSnapshot:
    """Build a snapshot of rules for which `can_delegate` is True."""
    return RuleSnapshot(number, tuple(map(_data, rules)), stretch)


def _data(rule: Rule) -> BlackListSnapshot | AllowGraphSnapshot:
    if isinstance(rule, BlackList):
        return BlackListSnapshot(rule.name, list(rule.state))
    assert isinstance(rule, AllowGraph)
    return rule.snapshot


_encoder = msgspec.msgpack.Encoder()
_request = msgspec.msgpack.Decoder(SnapshotRequest)
_snapshot = msgspec.msgpack.Decoder(RuleSnapshot)
encode_snapshot_request = encode_snapshot = _encoder.encode


def decode_snapshot_request(data: bytes | memoryview) -> SnapshotRequest:
    """Decode a `SnapshotRequest`; raise FrameError if it is not valid."""
    try:
        return _request.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(
            f"a request for the interceptor's rules cannot be read ({error}): use one version of ray_messaging in all "
            "processes"
        ) from error


def decode_snapshot(data: bytes) -> RuleSnapshot:
    """Decode a `RuleSnapshot`; raise FrameError if it is not valid, or has too many entries."""
    try:
        snapshot = _snapshot.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(
            f"the rules that the interceptor sent cannot be read ({error}): use one version of ray_messaging in all "
            "processes"
        ) from error
    if snapshot.number and not MIN_SNAPSHOT_NUMBER <= snapshot.number < 2**62:
        raise FrameError(
            f"the rules that the interceptor sent cannot be read, because their version number {snapshot.number} is "
            "not valid: use one version of ray_messaging in all processes"
        )
    if snapshot.entries > MAX_ENTRIES:
        raise FrameError(
            f"the rules that the interceptor sent have {snapshot.entries} entries, but the limit is {MAX_ENTRIES}: "
            "use one version of ray_messaging in all processes"
        )
    return snapshot
