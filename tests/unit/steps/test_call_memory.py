"""Results of calls: kept before they are returned, several in one call of the server, found by a later attempt."""

import asyncio
import threading

import msgspec
import pytest

from ray_messaging.errors import ConnectionFailed, StepAborted
from ray_messaging.model.calls import KEPT, PARENT, KeptCall
from ray_messaging.steps import call_memory
from ray_messaging.steps.call_memory import CallMemory


class Store:
    """A step store of one group: it answers when it is let."""

    def __init__(self):
        self.kept, self.calls, self.answer = {}, [], True
        self.called, self.free = asyncio.Event(), asyncio.Event()

    async def remember(self, group, attempt, step, results):
        self.calls.append(list(results))
        self.called.set()
        await self.free.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        self.kept |= results if self.answer else {}
        return self.answer

    async def remembered(self, group, step):
        self.calls.append("all")
        return dict(self.kept)


@pytest.fixture
def store():
    return Store()


def call(result):
    return KeptCall(0.5, 2, msgspec.Raw(result))


def kept(result):
    return msgspec.msgpack.encode(call(result))


def memory_of(store, *, again=False, limit=100):
    return CallMemory(store, "east", 3, 5, limit=limit, again=again)


async def test_results_that_come_during_a_call_go_together_in_the_next_one(store):
    memory = memory_of(store)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(memory.keep("a", call(b"1")))
        await store.called.wait()
        for name in "bcd":
            tasks.create_task(memory.keep(name, call(b"2")))
        await asyncio.sleep(0)
        assert not first.done()
        store.free.set()
    assert store.calls == [["a"], ["b", "c", "d"]]
    assert store.kept == {name: kept(b"1" if name == "a" else b"2") for name in "abcd"}


@pytest.mark.parametrize("wait_s", [0.0, 3600.0])
async def test_results_of_functions_that_block_their_loop_wait_for_each_other_for_a_short_time(
    store, wait_s, monkeypatch
):
    monkeypatch.setattr(call_memory, "_WAIT_S", wait_s)
    store.free.set()
    memory, blocked, over = memory_of(store), threading.Event(), threading.Event()

    async def block():
        blocked.set()
        over.wait()

    async def callers():
        await memory.keep("a", call(b"1"))
        await asyncio.gather(memory.keep("b", call(b"1")), block(), memory.keep("c", call(b"1")))

    thread = asyncio.create_task(asyncio.to_thread(asyncio.run, callers()))
    await asyncio.to_thread(blocked.wait)
    if wait_s:
        for _ in range(9):
            await asyncio.sleep(0)
    else:
        while ["b"] not in store.calls:  # noqa: ASYNC110 - the store has no event for a certain call
            await asyncio.sleep(0)
    over.set()
    await thread
    assert store.calls == ([["a"], ["b", "c"]] if wait_s else [["a"], ["b"], ["c"]])


async def test_many_results_go_in_several_calls(store):
    store.free.set()
    memory = memory_of(store, limit=2**20)
    async with asyncio.TaskGroup() as tasks:
        for n in range(300):
            tasks.create_task(memory.keep(f"{n}", call(bytes(2**19) if n < 3 else b"x")))
    assert [len(call) for call in store.calls] == [2, 256, 42]


async def test_a_later_attempt_asks_attempts_and_an_earlier_run_once_and_the_first_one_never(store):
    def read():
        reads.append("all")
        return {"a": b"9", "c": b"3"}

    reads, store.kept = [], {"a": kept(b"1")}
    assert await memory_of(store).recall("a") is None
    memory = memory_of(store, again=True)
    memory.parent = read
    (_, first), none, (source, other) = await asyncio.gather(*(memory.recall(name) for name in "abc"))
    assert (bytes(first.result), first.seconds, first.tries, none) == (b"1", 0.5, 2, None)
    assert (source, bytes(other.result), other.tries) == (PARENT, b"3", 0)
    assert (await memory.recall("a"))[0] == KEPT
    assert (store.calls, reads) == (["all"], ["all"])


@pytest.mark.parametrize(
    ("answer", "text"),
    [(False, "another process runs this group now"), (ConnectionFailed("no server", host="h", port=1), "no server")],
)
async def test_a_result_that_cannot_be_kept_aborts_the_step(store, answer, text):
    store.answer = answer
    store.free.set()
    memory = memory_of(store)
    results = await asyncio.gather(memory.keep("a", call(b"")), memory.keep("b", call(b"")), return_exceptions=True)
    assert [type(result) for result in results] == [StepAborted, StepAborted]
    with pytest.raises(StepAborted, match=rf"step 5 of group 'east'.*{text}"):
        await memory.keep("c", call(b""))
    assert memory.broken.step == 5
    assert len(store.calls) == 1


async def test_a_caller_that_gives_up_does_not_stop_the_others(store):
    memory = memory_of(store)
    tasks = [asyncio.create_task(memory.keep(name, call(b"1"))) for name in "ab"]
    await store.called.wait()
    tasks[0].cancel()
    store.free.set()
    assert [type(result) for result in await asyncio.gather(*tasks, return_exceptions=True)] == [
        asyncio.CancelledError,
        type(None),
    ]
    assert sorted(store.kept) == ["a", "b"]
