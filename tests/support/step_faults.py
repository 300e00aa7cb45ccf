"""Faults at the calls of the step protocol: a process that dies, calls that fail, come twice, or come late."""

import asyncio
import random
from contextlib import suppress
from functools import partial

from ray_messaging.errors import ConnectionFailed, InterceptorUnavailable, MessagingError, StepAborted
from ray_messaging.steps import attempt_sender

_REPEATED = ("take", "renew", "let_go", "open", "commit", "send", "close", "open_box", "read_box", "covered_boxes")
PROTOCOL = (*_REPEATED, "wait")


class Killed(ConnectionFailed):
    """A call that a dead process would have made."""


class Process:
    """A process that drives a group, or judges."""

    def __init__(self, name=""):
        self.name, self.died = name, asyncio.Event()

    @property
    def dead(self):
        return self.died.is_set()

    def die(self):
        self.died.set()


class FaultyStore:
    """A store of the server's as one process sees it, with faults at some calls, those of the step protocol mostly."""

    def __init__(self, store, process, faults, names=PROTOCOL):
        self._store, self._process, self._faults, self._names = store, process, faults, names

    def __getattr__(self, name):
        call = getattr(self._store, name)
        return partial(self._call, name, call) if name in self._names else call

    async def _call(self, name, call, *args, **more):
        if self._process.dead:
            raise Killed("the process is dead")
        if name == "commit" and self._faults.in_parts:
            return None
        return await self._faults.call(self._process, name, partial(call, *args, **more))


def disturb(messager, faults, names=PROTOCOL):
    """Let calls of a messager to the store of steps fail; return its process, which may die."""
    process, transport = Process(), messager.engine.transport
    transport.steps = FaultyStore(transport.steps, process, faults, names)
    return process


class FailAt:
    """The n-th call, or the n-th with a name, fails before or after the server executed it; `deadly`: its process dies.

    `names` has the names of all calls that came. With `in_parts` no step is committed in one call.
    """

    def __init__(self, nth, side, *, deadly, in_parts=False, name=None):
        self.in_parts = in_parts
        self.nth, self.side, self.deadly, self.name = nth, side, deadly, name
        self.count, self.names, self.met = 0, set(), None

    def end(self):
        """Let no call fail any more."""
        self.nth = 0

    async def call(self, process, name, call):
        self.names.add(name)
        counts = self.name in {name, None}
        self.count += counts
        if not counts or self.count != self.nth:
            return await call()
        self.met = name
        if self.deadly:
            process.die()
        if self.side == "after":
            await call()
        raise Killed(f"{name} failed")


class Abort:
    """Calls of a kind abort the step, before or after the server executed them; `which` says for each if it does."""

    in_parts = False

    def __init__(self, name, side, which):
        self.name, self.side, self.which = name, side, iter(which)

    async def call(self, process, name, call):
        aborts = name == self.name and next(self.which, False)
        result = None if aborts and self.side == "before" else await call()
        if aborts:
            raise StepAborted(f"{name} was cut", step=0, group=process.name)
        return result


class Repeat:
    """Each call comes twice, and the last call of each kind comes again after each later one; until `end`."""

    def __init__(self, *, in_parts=False):
        self.in_parts = in_parts
        self.earlier, self.met = {}, 0
        self.ended = False

    def end(self):
        """Let calls come as they are made: one that comes late to a closed connection would open it again."""
        self.ended = True

    async def call(self, _process, name, call):
        result = await call()
        if name in _REPEATED and not self.ended:
            self.met += 1
            result = await call()
            await self.come_late()
            self.earlier[name] = call
        return result

    async def come_late(self):
        for late in list(self.earlier.values()):
            if self.ended:
                return
            with suppress(MessagingError, ValueError):  # a refusal is an answer, too
                await late()


class Chaos(Repeat):
    """Any call may fail, kill its process, come twice, or let earlier ones come late."""

    def __init__(self, seed, rate=0.08):
        super().__init__(in_parts=seed % 2 == 1)
        self.random, self.rate, self.deaths, self.met = random.Random(seed), rate, 0, 0

    def happens(self):
        return not self.ended and self.random.random() < self.rate

    async def call(self, process, name, call):
        if self.happens():
            if self.random.random() < 0.5:
                process.die()
                self.deaths += 1
            self.met += 1
            if self.random.random() < 0.5:
                await call()
            raise Killed(f"{name} failed")
        result = await call()
        if name in _REPEATED:
            if self.happens():
                result = await call()
            if self.happens():
                await self.come_late()
            self.earlier[name] = call
        return result


def commit_in_parts(monkeypatch):
    """Let each frame of a step be a call of its own, as large frames are."""
    monkeypatch.setattr(attempt_sender, "CALL_BYTES", 0)


def without_verdicts(messager, call):
    """Let the interceptor give a messager no verdict from now on, when it is asked by one of its client's calls."""

    async def unavailable(_batch):
        raise InterceptorUnavailable("the interceptor gave no verdict")

    setattr(messager.engine.verdict_client, call, unavailable)
