"""Listeners for blocked messages: from now on, from a cursor, across processes and crashes."""

import asyncio
import queue

import pytest
import ray
from support.cluster import PATIENCE_S, kill, numbered, wait_for

from ray_messaging import Messaging
from ray_messaging.errors import Closed, ConfigError

BANNED = 0  # see conftest.logged


def block(west, count, start=0):
    """Send blocked messages, with as many passing ones between them."""
    receipts = west.send_columns(
        [BANNED, 1] * count, [11] * 2 * count, [p for p in numbered(count, start) for _ in "ab"]
    )
    assert receipts.counts()["blocked"] == count


async def take(events, count):
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(events) for _ in range(count)]


def seen(events):
    return [event.payload["n"] for event in events]


async def test_a_new_listener_gets_later_blocked_messages(logged):
    messaging, west, _ = logged
    await asyncio.to_thread(block, west, 3)
    events = messaging.blocked()
    await asyncio.to_thread(block, west, 2, 10)
    first = await take(events, 2)
    assert seen(first) == [10, 11]
    waiting = asyncio.create_task(take(events, 3))
    await asyncio.to_thread(block, west, 3, 20)
    found = await waiting
    assert seen(found) == [20, 21, 22]
    event = found[0]
    assert (event.from_id, event.to_id, event.fate, event.rule) == (BANNED, 11, "blocked", "black_list")
    assert event.reason == "agent 0 may not write to any agent"
    assert [each.cursor for each in first + found] == list(range(first[0].cursor, first[0].cursor + 5))


async def test_a_cancelled_wait_misses_no_blocked_message(logged):
    messaging, west, _ = logged
    events = messaging.blocked()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(events)
    await asyncio.to_thread(block, west, 2)
    assert seen(await take(events, 2)) == [0, 1]


@ray.remote(num_cpus=0)
def listen(messaging, after, count):
    async def some():
        events = messaging.blocked(after=after)
        async with asyncio.timeout(PATIENCE_S):
            return [await anext(events) for _ in range(count)]

    return [(event.payload["n"], event.cursor) for event in asyncio.run(some())]


@pytest.mark.parametrize(
    "crash",
    [pytest.param(False, id="the log lives"), pytest.param(True, id="the log dies", marks=pytest.mark.long)],
)
def test_another_process_continues_at_a_cursor(logged, crash):
    messaging, west, _ = logged
    start = ray.get(messaging.log_actor.count_blocked.remote())
    block(west, 30)
    found = ray.get(listen.remote(messaging, start, 12), timeout=PATIENCE_S)
    if crash:
        kill(messaging.log_actor)
    block(west, 10, 30)
    while len(found) < 40:
        if crash and len(found) == 20:
            kill(messaging.log_actor)
        found += ray.get(listen.remote(messaging, found[-1][1], min(8, 40 - len(found))), timeout=PATIENCE_S)
    assert found == [(n, start + n + 1) for n in range(40)]


@pytest.mark.long
def test_a_callback_that_raises_is_called_again(logged, caplog):
    messaging, west, _ = logged
    called = queue.Queue()

    def callback(event):
        called.put(event)
        if event.payload["n"] == 1:
            raise KeyError("mine")

    with messaging.on_blocked(callback) as listener:
        block(west, 3)
        assert [called.get(timeout=PATIENCE_S).payload["n"] for _ in range(3)] == [0, 1, 2]
        kill(messaging.log_actor)
        block(west, 2, 3)
        events = [called.get(timeout=PATIENCE_S) for _ in range(2)]
        assert seen(events) == [3, 4]
        wait_for(lambda: listener.cursor == events[-1].cursor, "the cursor")
    block(west, 2, 5)
    assert called.empty()
    assert ["callback failed" in record.message for record in caplog.records] == [True]
    assert "KeyError: 'mine'" in caplog.text
    # It continues where it stopped.
    with messaging.on_blocked(callback, after=listener.cursor):
        assert [called.get(timeout=PATIENCE_S).payload["n"] for _ in range(2)] == [5, 6]


def test_a_callback_may_close_its_listener(logged):
    messaging, west, _ = logged
    called = queue.Queue()

    def callback(event):
        listener.close()
        called.put(event.payload["n"])

    listener = messaging.on_blocked(callback)
    block(west, 3)
    assert called.get(timeout=PATIENCE_S) == 0
    listener._thread.join(PATIENCE_S)
    assert not listener._thread.is_alive()
    assert called.empty()


def test_listening_without_a_log_raises(messaging):
    for ask in (messaging.blocked, lambda: messaging.on_blocked(print)):
        with pytest.raises(ConfigError, match="log_dir="):
            ask()
    with pytest.raises(ConfigError, match="log_dir="):
        ray.get(messaging.interceptor.get_log_list.remote())


@pytest.mark.long
async def test_shutdown_ends_listeners_and_prints_nothing_of_closed_ones(ray_cluster, tmp_path, monkeypatch, exp_id):
    unhandled = []  # Ray's report of errors without a reader
    monkeypatch.setattr(ray._private.worker.logger, "error", lambda *args: unhandled.append(args))
    messaging = await asyncio.to_thread(Messaging.start, exp_id, log_dir=tmp_path)
    log, cancelled, events = messaging.log_actor, messaging.blocked(), messaging.blocked()
    closed, listener = messaging.on_blocked(print), messaging.on_blocked(print)

    def waiting():
        return ray.get(log.__ray_call__.remote(lambda self: len(self._host._writer._waiters._event._waiters)))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(cancelled)
    await asyncio.to_thread(wait_for, lambda: waiting() == 3, "three questions that wait")
    closed.close()
    waits = asyncio.create_task(anext(events))
    last = log.blocked.remote(0, None, PATIENCE_S)  # answered behind the others
    await asyncio.to_thread(wait_for, lambda: waiting() == 5, "the others")
    await asyncio.to_thread(messaging.shutdown)
    assert isinstance(await last, Closed)
    with pytest.raises(Closed, match="event log"):
        await waits
    await asyncio.to_thread(listener._thread.join, PATIENCE_S)
    assert not listener._thread.is_alive()
    with pytest.raises(Closed, match=r"EventLog\.open"):
        messaging.blocked()
    assert not unhandled
