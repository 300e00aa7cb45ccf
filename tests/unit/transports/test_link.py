"""A link's patience: temporary errors are awaited, permanent ones raise at once."""

import asyncio
import contextlib
from unittest.mock import AsyncMock

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from support.patience import WAIT_S

from ray_messaging import RedisConfig
from ray_messaging.errors import ConfigError, ConnectionFailed, ServerRefused
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.outage import Outage
from ray_messaging.transports.connection.protocol import reply_error
from ray_messaging.transports.connection.replica_guard import (
    ReplicaGuard,
    TooFewReplicasError,
    UnconfirmedError,
)
from ray_messaging.transports.transport import RedisTransport

PASSING = [
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "LOADING Redis is loading the dataset in memory",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "READONLY You can't write against a read only replica.",
    "CLUSTERDOWN The cluster is down",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "NOREPLICAS Not enough good replicas to write.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
]
REFUSED = [
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOPERM this user has no permissions to run the 'xadd' command",
    "ERR DB index is out of range",
    "MOVED 866 10.0.0.1:6379",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
]


def by_redis_py(text):
    """Make the error that redis-py makes of a reply: it connects, and it subscribes."""
    from redis._parsers.base import BaseParser

    return BaseParser.parse_error(text)


@pytest.fixture
def link():
    return RedisLink(RedisConfig(server="host", port=7), 30.0)


@pytest.mark.parametrize("make", [reply_error, by_redis_py])
@pytest.mark.parametrize("text", PASSING, ids=lambda text: text.split()[0])
async def test_a_temporary_error_is_awaited_and_beyond_the_timeout_no_refusal(link, make, text):
    attempt = AsyncMock(side_effect=[make(text), make(text), "done"])
    assert await asyncio.wait_for(link.persist(attempt, cut=lambda: pytest.fail("it was answered")), WAIT_S) == "done"
    assert attempt.await_count == 3
    link.patience_s = 0.01
    with pytest.raises(ConnectionFailed) as caught:
        await link.persist(AsyncMock(side_effect=make(text)))
    assert not isinstance(caught.value, ConfigError)
    assert (caught.value.host, caught.value.port) == ("host", 7)
    assert type(link.translated(make(text))) is ConnectionFailed


@pytest.mark.parametrize("make", [reply_error, by_redis_py])
@pytest.mark.parametrize(
    ("sign", "remedy"),
    [
        ("BUSY", "a client's script blocks it: find that client"),
        ("LOADING", "wait until the server has loaded its data"),
        ("READONLY", "it is a replica: give the address of the primary"),
        ("CLUSTERDOWN", "check that all nodes of its cluster run"),
        ("MASTERDOWN", "check that all nodes of its cluster run"),
        ("TRYAGAIN", "its cluster is moving keys between nodes: wait until that ends"),
        ("MISCONF", "look at its log, its disk and its replicas"),
    ],
)
async def test_a_server_that_waits_gets_the_remedy_for_its_own_cause(link, make, sign, remedy):
    text = next(text for text in PASSING if text.startswith(sign))
    assert str(link.translated(make(text))).endswith(f"; {remedy}")


@pytest.mark.parametrize("make", [reply_error, by_redis_py])
@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text.split()[0])
async def test_permanent_errors_raise_at_once(link, make, text):
    attempt = AsyncMock(side_effect=make(text))
    with pytest.raises(ServerRefused) as caught:
        await link.persist(attempt)
    assert attempt.await_count == 1
    assert ("give redis+cluster://host:port" in str(caught.value)) == text.startswith("MOVED")


@pytest.mark.parametrize("make", [reply_error, by_redis_py])
@pytest.mark.parametrize("text", ["MOVED 866 10.0.0.1:6379", "ASK 866 10.0.0.1:6379"], ids=lambda text: text.split()[0])
async def test_a_slot_that_is_elsewhere_is_awaited_in_a_cluster(make, text):
    link = RedisLink(RedisConfig(cluster=["host:7"]), 30.0, home="rm:{town}:")
    attempt = AsyncMock(side_effect=[make(text), make(text), "done"])
    assert await asyncio.wait_for(link.persist(attempt), WAIT_S) == "done"
    assert type(link.translated(make(text))) is ConnectionFailed


@pytest.mark.parametrize(
    ("error", "cut"),
    [
        (RedisConnectionError("the connection was cut"), 1),
        (RedisTimeoutError("no reply in time"), 1),
        (ConnectionResetError(), 1),
        (EOFError(), 1),
        (reply_error("OOM command not allowed"), 0),
    ],
    ids=repr,
)
async def test_only_an_attempt_without_an_answer_may_still_be_on_its_way(link, error, cut):
    cuts = []
    assert await link.persist(AsyncMock(side_effect=[error, "done"]), cut=lambda: cuts.append(1)) == "done"
    assert len(cuts) == cut


def test_other_errors_stay_what_they_are(link):
    error = KeyError("x")
    assert link.translated(error) is error
    assert isinstance(link.translated(ResponseError("odd")), ServerRefused)


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ([1, 1], None),
        ([1, 0], TooFewReplicasError),
        ([reply_error("ASK 866 10.0.0.1:6379"), 0], UnconfirmedError),
        ([1, reply_error("ERR WAIT cannot be used with replica instances.")], UnconfirmedError),
        ([1, reply_error("NOPERM this user has no permissions to run the 'wait' command")], NoPermissionError),
    ],
    ids=["confirmed", "too few", "mark is on its way", "a replica by now", "no right"],
)
def test_a_call_whose_confirmation_failed_may_have_had_its_effect(replies, error):
    guard, all_replies = ReplicaGuard(1, marker="", key="k", patience_s=1.0), ["done", *replies]
    with pytest.raises(error) if error else contextlib.nullcontext():
        guard.check(all_replies)
    assert all_replies == ["done"]


def in_steps(link, seconds, patience_s):
    link.guard = ReplicaGuard(1, marker="", key="k", patience_s=patience_s)
    link.patience_s, link.outage = patience_s, Outage("group 'east'", seconds)
    return link


STANDS = ["MISCONF Errors writing to the AOF file: No space left on device", "NOREPLICAS Not enough good replicas"]


@pytest.mark.parametrize(
    "error", [*map(reply_error, STANDS), *map(by_redis_py, STANDS), TooFewReplicasError(0, 1, 1.0)], ids=repr
)
async def test_a_step_waits_no_longer_than_a_send_for_a_server_that_answers_and_stores_nothing(link, error):
    with pytest.raises(ConnectionFailed):
        await asyncio.wait_for(in_steps(link, 10 * WAIT_S, 0.01).persist(AsyncMock(side_effect=error)), WAIT_S)


@pytest.mark.parametrize(
    "error", [reply_error("OOM"), reply_error(STANDS[1]), TooFewReplicasError(0, 1, 1.0)], ids=repr
)
async def test_after_a_cut_a_step_still_waits_for_memory_and_replicas_as_long_as_a_send(link, error):
    calls = [RedisConnectionError("the connection was cut"), error, error, "done"]

    async def attempt():
        found = calls.pop(0)
        if isinstance(found, RedisConnectionError) and not isinstance(found, TooFewReplicasError):
            await asyncio.sleep(0.3)  # the cut lasts longer than a send may
        if isinstance(found, Exception):
            raise found
        return found

    assert await in_steps(link, WAIT_S, 0.2).persist(attempt) == "done"


@pytest.mark.parametrize(("cut_s", "waits_s"), [(0.05, 0.2), (0.4, 0.4)], ids=["a shorter one", "a longer one"])
async def test_the_error_of_a_step_tells_for_how_long_it_has_waited(cut_s, waits_s):
    transport = RedisTransport(RedisConfig(server="host", port=7), "town", patience_s=0.2)
    transport.called_by("'east'")
    transport.begin_steps(cut_s)
    with pytest.raises(ConnectionFailed, match=rf"host:7 for {waits_s} s \(MessagingConfig.cut_timeout_s\) from group"):
        await transport.link.persist(AsyncMock(side_effect=RedisTimeoutError("no reply in time")))
    transport.end_steps()
    assert transport.link.outage is None
