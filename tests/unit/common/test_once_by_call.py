"""Calls that come again: they get the outcome of the first one, for as long as it is remembered."""

import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.patience import WAIT_S

from ray_messaging.common import once_by_call as module
from ray_messaging.common.once_by_call import OnceByCall

KEYS = st.sampled_from("abcde")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 6)),
        st.tuples(st.sampled_from(["pop", "begin", "ask", "return", "fail", "cancel", "release"]), KEYS),
        st.tuples(st.just("wait"), st.integers(1, 6)),
    ),
    max_size=40,
)


async def turns():
    """Let all that can go on do so."""
    for _ in range(4):
        await asyncio.sleep(0)


class Model:
    """A memory of calls, beside plain dicts that say what it must know."""

    def __init__(self, held, most, most_bytes, keep_s):
        self.held, self.bounds = held, (most, most_bytes, keep_s)
        self.now = self.ran = 0
        self.gates, self.waiters = {}, []
        self.known = {}  # key -> value or error, bytes, time
        self.once = OnceByCall(
            most=most, most_bytes=most_bytes, keep_s=keep_s, held=lambda key, value, full: key in self.held
        )

    def enter(self, key, outcome, nbytes=0):
        """Remember an outcome; return what goes for it."""
        most, most_bytes, keep_s = self.bounds
        self.known.pop(key, None)
        self.known[key] = outcome, nbytes, self.now
        gone = []
        for old, (kept, size, ended_at) in [*self.known.items()]:
            full = len(self.known) > most or sum(each[1] for each in self.known.values()) > most_bytes
            if old == key or not (full or ended_at + keep_s <= self.now):
                break
            del self.known[old]
            if old in self.held and not isinstance(kept, Exception):
                self.known[old] = kept, size, self.now
            else:
                gone.append(old)
        return gone

    async def _call(self, gate):
        self.ran += 1
        return await gate

    async def step(self, what, *args):
        await getattr(self, what)(*args)
        await turns()
        assert list(self.once.items()) == [
            (key, each[0]) for key, each in self.known.items() if not isinstance(each[0], Exception)
        ]
        for key in "abcde":
            assert (key in self.once) == (key in self.known or key in self.gates)
        assert len(self.once) == len(self.known) + len(self.gates)
        assert self.once.nbytes == sum(each[1] for each in self.known.values())

    async def put(self, key, nbytes):
        if key not in self.gates:
            value = object()
            assert self.once.put(key, value, nbytes) == self.enter(key, value, nbytes)
            assert self.once.get(key) is value

    async def pop(self, key):
        value, *_ = self.known.pop(key, (None,))
        assert self.once.pop(key) is (None if isinstance(value, Exception) else value)
        if (gate := self.gates.pop(key, None)) is not None:
            gate.set_result("an outcome that is not remembered")

    async def begin(self, key):
        known, ran = key in self.known or key in self.gates, self.ran
        gate = asyncio.get_running_loop().create_future()
        self.once.begin(key, lambda: self._call(gate))
        await turns()
        assert self.ran == ran + (not known)
        if not known:
            self.gates[key] = gate

    async def ask(self, key):
        """Call again: wait if the first call is running."""
        if key in self.gates:
            self.waiters.append((self.gates[key], asyncio.create_task(self.once.run(key, pytest.fail))))
        elif key in self.known:
            [found] = await asyncio.gather(self.once.run(key, pytest.fail), return_exceptions=True)
            assert found is self.known[key][0]
        else:
            with pytest.raises(KeyError):
                await self.once.outcome(key)

    async def _end(self, key, outcome):
        await self.begin(key)
        if (gate := self.gates.pop(key, None)) is not None:
            gate.set_exception(outcome) if isinstance(outcome, Exception) else gate.set_result(outcome)
            self.enter(key, outcome)

    async def fail(self, key):
        await self._end(key, ValueError(key))

    async def cancel(self, key):
        """Cancel one that waits: the call goes on."""
        for gate, waiter in self.waiters:
            if gate is self.gates.get(key):
                waiter.cancel()

    async def release(self, key):
        self.held.discard(key)

    async def wait(self, seconds):
        self.now += seconds

    async def end(self):
        for key in [*self.gates]:
            await self._end(key, key)
        for gate, waiter in self.waiters:
            [found] = await asyncio.gather(waiter, return_exceptions=True)
            assert isinstance(found, asyncio.CancelledError) or found is (gate.exception() or gate.result())


setattr(Model, "return", lambda self, key: self._end(key, object()))


@settings(max_examples=200, deadline=None)
@given(STEPS, st.sets(KEYS), st.integers(1, 4), st.integers(1, 10), st.integers(2, 10))
def test_a_repeated_call_gets_the_outcome_of_the_first_within_all_bounds(steps, held, most, most_bytes, keep_s):
    async def run():
        model = Model(held, most, most_bytes, keep_s)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: model.now))
        for step in steps:
            await model.step(*step)
        await model.end()

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(run())


def test_what_an_earlier_process_knew_is_known_until_the_next_call():
    once = OnceByCall(most=2, most_bytes=30)
    once.load([("a", 1, 10), ("b", 2, 10), ("c", 3, 10)])
    assert (dict(once.items()), once.nbytes) == ({"a": 1, "b": 2, "c": 3}, 30)
    assert once.put("d", 4) == ["a", "b"]


async def test_a_call_goes_on_without_the_one_that_began_it_and_is_not_run_again():
    async def call():
        ran.append(1)
        await gate.wait()
        return "done"

    ran, gate, once = [], asyncio.Event(), OnceByCall()
    first = asyncio.create_task(once.run("key", call))
    await turns()
    first.cancel()
    again = asyncio.create_task(once.run("key", call))
    await turns()
    gate.set()
    assert (await asyncio.wait_for(again, WAIT_S), first.cancelled(), ran) == ("done", True, [1])


async def test_an_outcome_is_forgotten_after_its_time_even_if_no_call_follows():
    async def call():
        return "done"

    once = OnceByCall(keep_s=0.01)
    assert await once.run("key", call) == "done"
    async with asyncio.timeout(WAIT_S):
        while once:  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.001)


async def test_a_call_that_was_cancelled_has_no_outcome():
    async def call():
        asyncio.current_task().cancel()
        await asyncio.sleep(WAIT_S)

    once = OnceByCall()
    with pytest.raises(asyncio.CancelledError):
        await once.run("key", call)
    assert "key" not in once


def test_what_is_held_while_there_is_room_goes_when_there_is_none():
    once = OnceByCall(most=2, keep_s=-1.0, held=lambda key, value, full: not full)
    assert [once.put(key, key) for key in "abcd"] == [[], [], ["a"], ["b"]]


def test_many_held_outcomes_do_not_slow_the_next_call():
    once = OnceByCall(most=10, held=lambda key, value, full: asked.append(key) or True)
    asked = []
    for number in range(1000):
        asked.clear()
        once.put(number, number)
        assert len(asked) <= module._MOST_RENEWED
    assert len(once) == 1000
