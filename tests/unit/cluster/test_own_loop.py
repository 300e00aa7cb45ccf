"""Ctrl-C ends background work at any moment; one loop serves all that share it."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ray_messaging.cluster.handles.own_loop import SharedLoop, run_in_own_loop


@pytest.fixture
def begun(monkeypatch):
    """Interrupt the caller as it hands work over, once that has set the event."""
    submit, event = ThreadPoolExecutor.submit, threading.Event()

    def interrupted(self, *args):
        submit(self, *args)
        event.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    return event


def test_ctrl_c_cancels_the_work_and_not_what_it_waits_for(begun):
    kept = []

    async def keep(ending):
        await ending.wait()
        kept.append(True)

    async def wait_for_ever():
        ending = asyncio.Event()
        keeping = asyncio.create_task(keep(ending))
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await keeping

    with pytest.raises(KeyboardInterrupt):
        run_in_own_loop(wait_for_ever)
    assert kept


async def here():
    return asyncio.get_running_loop(), threading.current_thread()


def test_all_that_enter_share_one_loop_which_ends_with_the_last():
    shared = SharedLoop("test")
    shared.enter()
    shared.enter()
    with ThreadPoolExecutor(1) as other:
        loop, thread = other.submit(shared.run, here()).result()
    assert shared.run(here()) == (loop, thread)
    shared.leave()
    assert shared.run(here()) == (loop, thread)
    shared.leave(asyncio.sleep(0))
    thread.join(timeout=10)
    assert loop.is_closed()
    shared.enter()
    again, thread = shared.run(here())
    assert again is not loop
    shared.leave()
    thread.join(timeout=10)


def test_the_last_work_runs_and_its_error_is_raised_but_in_the_loops_own_thread_nobody_waits_for_it():
    shared, ended = SharedLoop("test"), []

    async def end():
        ended.append(True)
        raise ValueError("it fails")

    async def collect():
        shared.leave(end())
        return threading.current_thread()

    shared.enter()
    thread = shared.run(collect())
    thread.join(timeout=10)
    shared.enter()
    with pytest.raises(ValueError, match="it fails"):
        shared.leave(end())
    assert ended == [True] * 2


def test_what_others_have_left_in_a_loop_ends_with_the_loop():
    loop, ended = SharedLoop("left"), []
    over = threading.Event()

    async def connection():
        try:
            yield
        finally:
            ended.append("connection")

    async def watch():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("task")
            asyncio.get_running_loop().call_soon(over.set)

    async def begin():
        found = connection()
        await anext(found)
        return found, asyncio.create_task(watch())

    loop.enter()
    kept = loop.run(begin())
    loop.run(asyncio.sleep(0))
    thread = loop._thread
    loop.leave()
    assert over.wait(10)
    thread.join(10)
    assert ended == ["task", "connection"]
    assert kept[1].cancelled()
