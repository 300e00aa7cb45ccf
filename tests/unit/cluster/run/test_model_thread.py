"""The thread of a model: short and long calls, and their exceptions."""

import asyncio
import contextvars
import threading

import pytest
from support.patience import WAIT_S

from ray_messaging.cluster.run.model_thread import ModelThread

HERE = contextvars.ContextVar("here")


async def test_all_calls_run_in_one_other_thread():
    thread = ModelThread()
    idents = {await thread.call(threading.get_ident) for _ in range(20)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents


async def test_calls_see_the_context_of_their_caller():
    HERE.set("town")
    assert await ModelThread().call(HERE.get) == "town"


async def test_the_event_loop_goes_on_while_a_call_is_long():
    thread = ModelThread()
    for _ in range(3):
        begun, may_end = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def think(begun=begun, may_end=may_end, loop=loop):
            loop.call_soon_threadsafe(begun.set)
            return may_end.wait(WAIT_S)

        call = asyncio.create_task(thread.call(think))
        await begun.wait()  # the loop runs, although the call has not ended
        assert not call.done()
        may_end.set()
        assert await call
        assert await thread.call(int, "5") == 5


@pytest.mark.parametrize("error", [TimeoutError("mine"), asyncio.CancelledError(), SystemExit(3), ValueError("no")])
@pytest.mark.parametrize("long", [False, True])
async def test_a_call_raises_the_exception_of_its_function(error, long):
    thread, loop, may_end = ModelThread(), asyncio.get_running_loop(), threading.Event()

    def think():
        if long:
            loop.call_soon_threadsafe(may_end.set)  # which the loop does once it waits no more
            assert may_end.wait(WAIT_S)
        raise error

    for _ in range(2):
        may_end.clear()
        with pytest.raises(type(error)) as caught:
            await thread.call(think)
        assert caught.value.args == error.args
