"""Promises of a group's handle: order, sends that happen once, delivery leases until messages are handled."""

import socket
import struct
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
from support.cluster import drain, kill_and_wait, new_handle, numbered, numbers, wait_for
from support.frames import frames_of_columns

from ray_messaging import Outgoing
from ray_messaging.cluster.handles.group import group_lane
from ray_messaging.cluster.handles.group.group_lane import LaneReply
from ray_messaging.cluster.lane_calls import FetchCall, RelayCall
from ray_messaging.common.awaitables import finish
from ray_messaging.errors import ConfigError, OutcomeUnknown, UnknownSender
from ray_messaging.interception.lane import LaneAddress
from ray_messaging.receiving.delivery_leases import NEXT
from ray_messaging.sending.bulk_input import columns_of

LIMIT = 2**20


@pytest.fixture
def caller():
    return uuid.uuid4().hex


def frames(group, start, count):
    sender, receiver = group.agents[:2]
    return frames_of_columns(
        columns_of([sender] * count, [receiver] * count, numbered(count, start), LIMIT), "agent-chat", None
    )


# -- sending ------------------------------------------------------------------------------------------------------


def test_one_handle_in_many_threads_keeps_each_ones_order(pair):
    west, east = pair
    receiver, threads, count = east.agents[0], 8, 40

    def chat(thread):
        for n in range(count):
            assert west.send(west.agents[thread % 4], receiver, {"thread": thread, "n": n})

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(chat, range(threads)))
    found = drain(east, threads * count)
    assert len(found) == threads * count
    for thread in range(threads):
        assert [m.payload["n"] for m in found if m.payload["thread"] == thread] == list(range(count))


def test_calls_that_are_not_awaited_keep_their_order(pair, caller):
    """Ray's async actors do not keep one caller's order; ours admits calls by their numbers."""
    west, east = pair
    sender, receiver = west.agents[0], east.agents[0]
    calls = [
        frames_of_columns(columns_of([sender], [receiver], numbered(1, n), LIMIT), "agent-chat", None)
        for n in range(100)
    ]
    order = [*range(1, 100), 0]  # the first one comes last
    ray.get([west.actor.answer.remote(RelayCall(caller, n, 0), calls[n]) for n in order])
    assert numbers(drain(east, 100)) == list(range(100))


def test_a_repeated_call_sends_once_and_gets_the_same_receipts(pair, caller):
    west, _ = pair
    call = (RelayCall(caller, 0, 0), frames(west, 0, 5))
    first, again = ray.get([west.actor.answer.remote(*call), west.actor.answer.remote(*call)])
    later = ray.get(west.actor.answer.remote(*call))
    assert first.message_ids == again.message_ids == later.message_ids
    assert first.counts()["delivered"] == 5
    assert numbers(drain(west, 5)) == list(range(5))


def test_a_failed_call_does_not_hold_up_the_next(pair, monkeypatch):
    west, east = pair

    class Actor:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(west._calls, "actor", Actor())
        with pytest.raises(KeyboardInterrupt):
            west.send(west.agents[0], east.agents[0], {"n": -1})
    assert west.send(west.agents[0], east.agents[0], {"n": 0})
    assert numbers(drain(east, 1)) == [0]


class Cut:
    """A handle's lane on which each answer is lost; `before` the actor has the call, or after it."""

    def __init__(self, lane, *, before):
        self.lane, self.before, self.release = lane, before, lane.release

    async def connection(self):
        found = await self.lane.connection()
        assert found is not None
        ask = found.ask

        async def lost(*call):
            if self.before:
                found.close()
            reply = await ask(*call)
            assert (reply.answer is None) == self.before
            found.close()
            return LaneReply(reply.begun, None)

        found.ask = lost
        return found


@pytest.mark.parametrize("before", [True, False])
def test_a_call_whose_answer_is_lost_is_made_again_by_ray_and_happens_once(pair, before):
    west, _ = pair
    sender, receiver = west.agents[:2]
    cut = Cut(west._calls._lane(), before=before)
    west._calls._lane = lambda: cut
    for n in range(3):
        receipts = west.send_columns([sender] * 2, [receiver] * 2, numbered(2, 2 * n))
        assert receipts.counts()["delivered"] == 2
    with west.fetch_messages(timeout=60) as messages:
        assert numbers(messages) == list(range(6))
        assert [message.id for message in messages][-2:] == receipts.message_ids
    assert len(west.fetch_messages()) == 0


def test_a_call_that_a_dead_process_may_have_begun_is_not_made_by_its_successor(pair):
    west, _ = pair
    sender, receiver = west.agents[:2]
    assert west.send(sender, receiver, {"n": 0})
    connection = finish(west._calls._lane().connection())
    kill_and_wait(west.actor)
    with pytest.raises(OutcomeUnknown, match="went down before or during this send"):
        ray.get(west.actor.answer.remote(RelayCall(west._calls._caller, 1, 1), frames(west, 1, 1), connection.process))
    assert not connection.alive()
    assert west.send(sender, receiver, {"n": 1})
    with pytest.raises(UnknownSender):  # it knows its agents
        west.send(-77, receiver, {"n": 2})
    drain(west, 2)


@pytest.mark.parametrize(("setting", "value"), [("_ENCRYPTED", True), ("FRAME_LIMIT", 2_000)], ids=["no lane", "large"])
def test_calls_go_by_ray_where_a_handle_cannot_reach_its_lane_and_where_they_are_too_large(
    pair, monkeypatch, setting, value
):
    sender, receiver = pair[0].agents[:2]
    monkeypatch.setattr(group_lane, setting, value)
    west = new_handle(pair[0])
    assert west.send(sender, receiver, {"n": 0})
    receipts = west.send_columns([sender] * 30, [receiver] * 30, [{"n": n, "text": "x" * 100} for n in range(1, 31)])
    assert receipts.counts()["delivered"] == 30
    assert numbers(drain(west, 31)) == list(range(31))


def test_a_stranger_on_the_lane_is_refused_and_garbage_harms_nobody(pair):
    west, _ = pair
    sender, receiver = west.agents[:2]
    address = LaneAddress(*ray.get(west.actor.lane.remote()))
    with pytest.raises(ConnectionError):
        group_lane.LaneConnection(address._replace(token="x" * len(address.token)))
    with socket.create_connection(address[:2]) as stranger:
        token = address.token.encode()
        stranger.sendall(struct.pack("<I", len(token)) + token)
        garbage = struct.pack("<IB", 0, 0) + b"\xff" * 40
        stranger.sendall(struct.pack("<I", len(garbage)) + garbage)
        assert stranger.recv(4) == bytes(4)
        assert stranger.recv(1) == b""
    assert west.send(sender, receiver, {"n": 0})
    assert numbers(drain(west, 1)) == [0]


def test_a_waiting_fetch_does_not_hold_up_sends(pair):
    west, _ = pair
    found = []
    thread = threading.Thread(target=lambda: found.extend(west.fetch_messages(timeout=60)))
    thread.start()
    wait_for(west._calls._fetching._lock.locked, "the fetch")
    assert west.send(west.agents[0], west.agents[1], {"n": 7})
    thread.join(20)
    assert numbers(found) == [7]


def test_sends_of_every_form(pair):
    west, east = pair
    west.step = 12
    a, b = east.agents[:2]
    receipts = west.send_messages(
        [Outgoing.to_agents([a, b], {"n": 0}, west.agents[0]), Outgoing.to_agent(a, {"n": 1}, None, "user-chat")]
    )
    assert [receipt.fate for receipt in receipts] == ["delivered"] * 3
    assert len(west.send_columns([], [], [])) == 0
    found = drain(east, 3)
    assert [(m.to_id, m.from_id, m.payload["n"], m.step, m.subtopic) for m in found] == [
        (a, west.agents[0], 0, 12, "agent-chat"),
        (b, west.agents[0], 0, 12, "agent-chat"),
        (a, None, 1, 12, "user-chat"),
    ]
    assert [m.id for m in found] == receipts.message_ids


# -- fetching -----------------------------------------------------------------------------------------------------


def ids(messages):
    return [message.id for message in messages]


def fill(group, count):
    sender, receiver = group.agents[:2]
    return group.send_columns([sender] * count, [receiver] * count, numbered(count)).message_ids


def test_fetch_commits_what_the_last_one_returned(messaging, pair):
    west, _ = pair
    sent = fill(west, 9)
    found = [ids(west.fetch_messages(limit=3, timeout=60)) for _ in range(3)]
    assert found == [sent[:3], sent[3:6], sent[6:]]
    waiting = lambda: messaging.stats()["waiting"][west.name]  # noqa: E731
    assert waiting() == 3
    west.ack()
    assert waiting() == 0
    assert len(west.fetch_messages()) == 0


@pytest.mark.parametrize("whose", ["the same handle", "another handle"])
def test_a_with_block_that_fails_hands_its_messages_back(messaging, pair, whose):
    west, _ = pair
    sent = fill(west, 3)
    with pytest.raises(RuntimeError, match="mine"), west.fetch_messages(timeout=60) as messages:  # noqa: PT012
        assert ids(messages) == sent
        raise RuntimeError("mine")
    handle = west if whose == "the same handle" else new_handle(west)
    with handle.fetch_messages(timeout=60) as messages:
        assert ids(messages) == sent
    assert messaging.stats()["waiting"][west.name] == 0


def test_two_handles_get_different_messages(messaging, pair):
    west, _ = pair
    other = new_handle(west)
    sent = fill(west, 90)
    found = [ids(handle.fetch_messages(limit=30, timeout=60)) for handle in (west, other, west)]
    assert found == [sent[:30], sent[30:60], sent[60:]]
    assert west.stats()["lent"] == 60
    west.ack()
    # Acknowledged messages free their room, although the cursor waits for earlier ones.
    assert messaging.stats()["waiting"][west.name] == 30
    other.ack()
    assert messaging.stats()["waiting"][west.name] == 0


def test_a_group_without_steps_says_so(pair):
    group, _ = pair
    for call in (lambda: next(group.steps(until=3)), lambda: group.state, lambda: group.fates(0)):
        with pytest.raises(ConfigError, match="has no steps"):
            call()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 0}, "limit must be at least 1, not 0"),
        ({"limit": -1}, "limit must be at least 1, not -1"),
        ({"limit": "3"}, "limit must be an int, not '3'"),
        ({"limit": 1.5}, "limit must be an int, not 1.5"),
        ({"limit": True}, "limit must be an int, not True"),
        ({"limit": 1, "complete": True}, "leave out limit="),
        ({"commit": "soon"}, "commit must be"),
    ],
    ids=str,
)
def test_a_fetch_that_cannot_be_is_refused(pair, options, words):
    with pytest.raises(ConfigError, match=words):
        pair[0].fetch_messages(**options)


@pytest.mark.long
def test_a_waiting_fetch_gets_the_messages_of_a_dead_caller(hasty, make_group):
    group = make_group(hasty)
    sent = fill(group, 3)
    call = FetchCall("dead", None, None, 10.0, NEXT)
    assert ids(ray.get(group.actor.answer.remote(call))[1]) == sent
    assert ids(group.fetch_messages(timeout=None)) == sent


def test_a_copy_of_a_handle_is_a_separate_handle(pair):
    west, _ = pair
    fill(west, 4)

    @ray.remote(num_cpus=0)
    def take(group):
        with group.fetch_messages(limit=2, timeout=60) as messages:
            return numbers(messages)

    found = sorted(ray.get([take.remote(west), take.remote(west)]))
    assert found == [[0, 1], [2, 3]]


# -- agents that a group may send for -----------------------------------------------------------------------------


def test_a_group_sends_only_for_its_own_agents(pair):
    west, east = pair
    (a, *_), (b, *_) = west.agents, east.agents
    for who in (b, "nobody", -77):
        for call in (
            lambda who=who: west.send(who, b, {"n": 0}),
            lambda who=who: west.send_messages([Outgoing.to_agent(b, {"n": 0}, from_id) for from_id in (a, who)]),
            lambda who=who: west.send_columns([a, who], [b, b], {"n": 0}),
            lambda who=who: west.send_columns(who, [b, b], {"n": 0}),
        ):
            with pytest.raises(UnknownSender, match=f"{who!r} is not in group {west.name!r}.*group_of") as caught:
                call()
            assert (caught.value.value, caught.value.group) == (who, west.name)
    with pytest.raises(UnknownSender, match="no from_id"):
        west.send_messages([Outgoing.to_agent(b, {"n": 0}, a), Outgoing.to_agent(b, {"n": 0})])
    for send in (
        lambda: west.send(None, b, {"n": 1}),  # the user, explicitly
        lambda: west.send_messages([Outgoing.to_agent(b, {"n": 2}, None)])[0],
        lambda: west.send_columns([None], [b], {"n": 3})[0],
        lambda: west.send(a, b, {"n": 4}),
    ):
        assert send().fate == "delivered"
    found = drain(east, 4)
    assert [(message.from_id, message.payload["n"]) for message in found] == [(None, 1), (None, 2), (None, 3), (a, 4)]


@pytest.mark.long
def test_a_group_without_strict_senders_sends_for_any_agent(hasty, make_group):
    group = make_group(hasty)
    to_id, stranger = group.agents[0], group.agents[-1] + 1
    assert group.send(stranger, to_id, {"n": 0}).fate == "delivered"
    assert all(group.send_messages([Outgoing.to_agent(to_id, {"n": 1}), Outgoing.to_agent(to_id, {"n": 2}, "bob")]))
    assert [message.from_id for message in drain(group, 3)] == [stranger, None, "bob"]
