"""Rules that an interceptor may delegate; the senders' copies decide alike."""

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.interceptors import batch

from ray_messaging.errors import Fenced, FrameError
from ray_messaging.interception import rule_snapshot
from ray_messaging.interception.interceptor import rule_delegation as delegation
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rule_snapshot import (
    RuleSnapshot,
    SnapshotRequest,
    can_delegate,
    decode_snapshot,
    decode_snapshot_request,
    encode_snapshot,
    encode_snapshot_request,
    entry_count,
    snapshot_of,
)
from ray_messaging.interception.rules import (
    AllowGraph,
    BlackList,
    EdgeBan,
    MaxLength,
    Pattern,
    RateLimit,
    Rule,
    Sample,
)
from ray_messaging.interception.verdicts import decode_verdicts
from ray_messaging.wire.frames import encode

NUMBER = 2**32
ids = st.one_of(st.integers(-3, 12), st.sampled_from(["ann", "bob", "eve"]), st.just(2**63 - 1), st.just(-(2**63)))
sides = st.one_of(st.none(), ids)
pairs = st.lists(st.tuples(sides, sides), max_size=30)
edges = st.lists(st.tuples(ids, ids), max_size=20)


def delegated(*rules):
    """Return the delegated copies of rules, as a messager makes them."""
    return decode_snapshot(encode_snapshot(snapshot_of(NUMBER, rules))).build()


def of(pairs):
    return batch([{}] * len(pairs), pairs=pairs)


def decided(rule, asked):
    return {row: (verdict.blocked, verdict.reason) for row, verdict in rule.check_batch(asked, "x").items()}


@given(
    listed=pairs,
    drawn=edges,
    members=st.lists(st.lists(ids, max_size=6), max_size=3),
    asked=pairs,
    user=st.booleans(),
    channels=st.booleans(),
)
def test_delegated_rules_decide_as_the_originals(listed, drawn, members, asked, user, channels):
    networks = {f"n{number}": found for number, found in enumerate(members)}
    graph = AllowGraph(drawn, networks=networks, public=list(networks)[:1], user=user, channels=channels)
    rules = [BlackList(listed), graph]
    made = delegated(*rules)
    assert [type(rule) for rule in made] == [BlackList, AllowGraph]
    assert entry_count(made) == entry_count(rules)
    asked = of(asked or [(1, 2)])
    assert [decided(rule, asked) for rule in made] == [decided(rule, asked) for rule in rules]


class Own(BlackList):
    """A user's subclass of the black list."""


def by_hand():
    rule = BlackList()
    rule.check_batch = lambda _batch, _exp_id: {}
    return rule


@pytest.mark.parametrize(
    "rule",
    [
        Own([(1, 2)]), by_hand(), MaxLength(10), Pattern(["x"]), Sample(0.5), RateLimit(3.0),
        EdgeBan(BlackList([(1, 2)])), Rule(),
    ],
    ids=lambda rule: type(rule).__name__,
)  # fmt: skip
def test_rules_that_are_never_delegated(rule):
    assert not can_delegate([BlackList(), rule])


def test_rules_that_are_delegated():
    assert can_delegate([])
    rules = [BlackList([(1, 2)]), BlackList(name="second"), AllowGraph([(1, 2)])]
    Interceptor("x", rules)
    rules[0].on_error = "allow"
    assert can_delegate(rules)


RULES = [
    [["black_list", "name", [[1, 2**63]]]], [["black_list", "name", [[1, 1.5]]]], [["black_list", "name", [[1]]]],
    [["black_list", "name", [["", 1]]]], [["words", "name", []]], 7,
    [["allow_graph", "n", [[None, 1]], [], [], True, True]],
    [["allow_graph", "n", [], [[1, 2**64 - 1]], [], True, True]],
]  # fmt: skip
SNAPSHOTS = [
    *([number, []] for number in (-2, -1, 1, 2**32 - 1, 2**62, 2**64 - 1)),  # taken for something else
    *([NUMBER, rules] for rules in RULES),
    *([NUMBER, None, stretch] for stretch in (0.5, 21.0, float("nan"))),
]


@pytest.mark.parametrize("fields", SNAPSHOTS, ids=repr)
def test_snapshots_that_cannot_be_are_refused(fields):
    with pytest.raises(FrameError):
        decode_snapshot(msgspec.msgpack.encode(fields)).build()


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x91\xff", b"\x92\x00\xcb" + b"\x00" * 8])
def test_requests_that_cannot_be_read(data):
    with pytest.raises(FrameError):
        decode_snapshot_request(data)


def test_too_many_entries_are_neither_delegated_nor_accepted(monkeypatch):
    monkeypatch.setattr(rule_snapshot, "MAX_ENTRIES", 3)
    with pytest.raises(FrameError, match="3"):
        delegated(BlackList([(number, 1) for number in range(4)]))
    assert delegated(BlackList([(number, 1) for number in range(3)]))


# -- the interceptor's side -------------------------------------------------------------------------------------------


async def write(number):
    pass


async def ask(interceptor, held=0, passed=0, messagers=1):
    answer = interceptor.snapshot(encode_snapshot_request(SnapshotRequest(held, passed)), messagers)
    return decode_snapshot(answer if isinstance(answer, bytes) else await answer)


def offered(interceptor):
    return decode_verdicts(interceptor.answer(encode(of([(1, 2)])))).snapshot


async def test_rules_are_offered_only_once_they_are_calm(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(delegation.time, "monotonic", lambda: clock[0])
    interceptor = Interceptor("x", [BlackList()], epoch=3, publish_snapshot=write)
    assert (await ask(interceptor)).number == 0
    clock[0] += delegation.CALM_S
    grant = await ask(interceptor)
    assert grant.number == interceptor.delegation.number
    assert grant.rules is not None
    assert await ask(interceptor, grant.number, 5) == RuleSnapshot(grant.number)
    assert interceptor.judged == 5
    await interceptor.change(lambda: interceptor.black_list.add((1, 1)))
    assert await ask(interceptor, grant.number) == RuleSnapshot(0)
    clock[0] += delegation.CALM_S
    later = await ask(interceptor, grant.number)
    assert later.number > grant.number
    assert [rule.pairs for rule in later.rules] == [[(1, 1)]]
    await interceptor.close()


async def test_loaded_rules_are_checked_again(monkeypatch):
    monkeypatch.setattr(delegation, "CALM_S", 0.0)
    monkeypatch.setattr(delegation, "MAX_ENTRIES", 2)
    interceptor = Interceptor("x", [BlackList()], epoch=3, publish_snapshot=write)
    assert (await ask(interceptor)).number
    interceptor.load({"black_list": {b"[%d,1]" % number: b"1" for number in range(3)}}, {}, merge=False)
    assert (await ask(interceptor)).number == 0
    await interceptor.close()


@pytest.mark.parametrize(("epoch", "publish"), [(-1, write), (0, write), (3, None)])
async def test_an_interceptor_without_a_publisher_offers_nothing(monkeypatch, epoch, publish):
    monkeypatch.setattr(delegation, "CALM_S", 0.0)
    interceptor = Interceptor("x", epoch=epoch, publish_snapshot=publish)
    assert await ask(interceptor) == RuleSnapshot(0)
    assert offered(interceptor) == 0
    await interceptor.close()


async def test_a_server_that_refuses_the_number(monkeypatch, caplog):
    monkeypatch.setattr(delegation, "CALM_S", 0.0)

    async def refuse(_number):
        raise Fenced("newer", name="interceptor", epoch=3)

    interceptor = Interceptor("x", epoch=3, publish_snapshot=refuse)
    with caplog.at_level(logging.INFO):
        assert await ask(interceptor) == RuleSnapshot(0)
    assert "does not accept their number" in caplog.text
    with pytest.raises(Fenced):
        await interceptor.change(lambda: interceptor.black_list.add((1, 1)))
    await interceptor.close()
