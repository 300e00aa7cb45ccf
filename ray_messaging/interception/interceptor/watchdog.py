"""The watchdog, which interrupts rules that hang, because a rule that hangs stops all other rules.

The module also has `RuleCalls`, which makes the calls of rules' coroutines.
"""

import asyncio
import ctypes
import faulthandler
import logging
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import coroutine
from typing import Any, TypeVar

from ray_messaging.common.awaitables import RAISED
from ray_messaging.common.texts import short_repr
from ray_messaging.default_limits_and_leases import RULE_TIMEOUT_S
from ray_messaging.interception.rules.rule import Rule

logger = logging.getLogger(__name__)

T = TypeVar("T")

# A rule is interrupted when this many successive checks of the watchdog find it in the same call. Checks are counted
# instead of seconds, because a process may be suspended for a while although no rule hangs.
_CHECKS = 4
_MAX_ABANDONED = 1_000  # if this many cancelled calls of a rule still run, further calls of the rule fail at once

_interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
_interrupt.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class Stuck(BaseException):
    """Raised in a rule that runs for too long. It is no Exception, so that the rule's own handlers do not catch it."""


FAILURES = (*RAISED, Stuck)


def explained(error: BaseException) -> BaseException:
    """Return the error of a rule, but in place of a Stuck, which has no text, a TimeoutError with a text."""
    if not isinstance(error, Stuck):
        return error
    return TimeoutError("the rule ran for too long, and was interrupted").with_traceback(error.__traceback__)


class RunningRule:
    """The rule that is running now in the thread of the event loop."""

    __slots__ = ("_lock", "calls", "rule", "spent", "struck")

    def __init__(self) -> None:
        self.rule: Rule | None = None
        self.calls = 0
        self.spent: defaultdict[str, float] = defaultdict(float)  # for each rule, by name, the seconds that it has run
        self.struck = False
        self._lock = threading.Lock()

    def run(self, rule: Rule, call: Callable[..., T], *arguments: object) -> T:
        """Return the result of a rule's call, during which `rule` is the running rule.

        An interrupt can come only when Python code calls something. Therefore the `finally` block clears `rule` before
        it calls anything.
        """
        try:
            self.calls += 1
            self.rule = rule
            return call(*arguments)
        finally:
            self.rule = None
            if self.struck:
                try:
                    self.take_back()
                except Stuck:  # the interrupt came during the call of take_back, and another one may follow
                    self.take_back()

    def take_back(self) -> None:
        """End an interrupt that came too late, when the rule had already ended.

        The interrupt is raised here and caught. If it were cancelled instead, Python would go on checking for an
        interrupt for ever. This slows all functions of the process, and in Python 3.11 hangs a profiler.
        """
        while self.struck:
            try:
                with self._lock:
                    self.struck = False
                    _interrupt(threading.get_ident(), id(Stuck))  # replaces an interrupt that has not been raised yet
                    while True:  # until Python raises the interrupt
                        pass
            except Stuck:
                continue  # the interrupt may have come before `struck` was cleared

    def strike(self, thread: int, calls: int) -> None:
        """Interrupt the rule that runs in another thread, if it is still in the call with the number `calls`."""
        with self._lock:
            # This thread sets `struck` before it reads `rule`. When a rule ends, the thread of the rule clears `rule`
            # before it reads `struck`. So at least one of the two threads sees what the other thread has done.
            self.struck = True
            if self.rule is not None and self.calls == calls:
                _interrupt(thread, id(Stuck))
            else:
                self.struck = False


@coroutine
def watched(watch: RunningRule, rule: Rule, begin: Callable[[], Awaitable[T]]) -> Generator[Any, Any, T]:
    """Call a rule's async function `begin`, and return what its coroutine returns.

    Whenever code of the coroutine runs, `rule` is the running rule in `watch`, so that the watchdog can interrupt it.
    """
    steps = watch.run(rule, lambda: _awaited(begin()))
    step: Callable[[], Any] = partial(next, steps)
    while True:
        try:
            wanted = watch.run(rule, step)
        except StopIteration as done:
            found: T = done.value
            return found
        try:
            yield wanted
        except BaseException as error:  # noqa: BLE001 - the rule gets the error, and may handle it or pass it on
            step = partial(steps.throw, error)
        else:
            step = partial(next, steps)


def _awaited(answer: object) -> Generator[Any, Any, Any]:
    """Return the iterator that runs an async rule's coroutine; raise TypeError if the rule's function is not async."""
    if not isinstance(answer, Awaitable):
        raise TypeError(f"the rule's function returned {short_repr(answer)} and is not async: write async def")
    return answer.__await__()


class RuleCalls:
    """Calls of rules' coroutines. If a call ignores its cancellation, it is abandoned, and delays no other call."""

    def __init__(self) -> None:
        self.abandoned: dict[asyncio.Task[object], Rule] = {}
        self.abandoned_at = 0.0  # the time of the event loop at which a call was last abandoned

    async def run(self, rule: Rule, call: Callable[[], Awaitable[T]], limit_s: float, result: str) -> T | BaseException:
        """Return the result of a call, or the error that the call has raised.

        If the call takes longer than `limit_s`, cancel it, and return a TimeoutError whose text names the missing
        `result`, such as "verdict". Return a TimeoutError, too, if too many cancelled calls of the rule still run.
        """
        if self.abandoned and sum(other is rule for other in self.abandoned.values()) >= _MAX_ABANDONED:
            return TimeoutError(
                f"the rule was not called, because {_MAX_ABANDONED} earlier calls of the rule still run, although "
                "they were cancelled: let the rule's function end when it is cancelled"
            )
        task = asyncio.create_task(_ended(rule, call), name=f"ray_messaging rule {rule.name}")
        try:
            await asyncio.wait((task,), timeout=limit_s)
        finally:
            if not task.done():
                task.cancel()
                self.abandoned[task] = rule
                self.abandoned_at = asyncio.get_running_loop().time()
                task.add_done_callback(self.abandoned.pop)
        return task.result() if task.done() else TimeoutError(f"no {result} within {limit_s:g} s")

    async def close(self, limit_s: float) -> None:
        """Wait up to `limit_s` for cancelled calls to end."""
        if self.abandoned:
            await asyncio.wait(self.abandoned, timeout=limit_s)


async def _ended(rule: Rule, call: Callable[[], Awaitable[T]]) -> T | BaseException:
    try:
        found = await watched(RunningRule() if rule.context is None else rule.context.watch, rule, call)
    except FAILURES as error:  # the error is returned, because a SystemExit that a task raises would end the event loop
        return explained(error)
    return found


class Watchdog:
    """A thread that interrupts, and logs, each rule that runs for longer than `rule_timeout_s`.

    An interrupt is an exception, which reaches only Python code. If a rule still blocks the event loop about
    `exit_after_s` seconds after the interrupt, the process ends with a traceback on stderr, and Ray restarts the actor.
    The process also ends if no Python code has run for `exit_after_s` seconds, such as during a runaway regular
    expression. For this the watchdog uses the timer of `faulthandler`. A process has only one such timer. If
    `exit_after_s` is None, the process goes on.
    """

    def __init__(
        self, watch: RunningRule, *, rule_timeout_s: float = RULE_TIMEOUT_S, exit_after_s: float | None = None
    ) -> None:
        self._watch = watch
        self._timeout_s = rule_timeout_s
        self._exit_after_s = exit_after_s
        self._loop_thread = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start watching the current thread, which must be the one in which the rules run."""
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="ray_messaging rule watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; a second call does nothing."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        watch, known, checks = self._watch, -1, 0
        while True:
            calls = watch.calls
            checks = checks + 1 if watch.rule is not None and calls == known else 0
            known = calls
            if checks == _CHECKS:
                self._strike(calls)
            elif checks < _CHECKS and self._exit_after_s is not None:
                faulthandler.dump_traceback_later(self._exit_after_s, exit=True)
            if self._stopping.wait(self._timeout_s / _CHECKS):
                break
        if self._exit_after_s is not None:
            faulthandler.cancel_dump_traceback_later()

    def _strike(self, calls: int) -> None:
        rule = self._watch.rule
        frame = sys._current_frames().get(self._loop_thread)
        logger.error(
            "rule %r has run for more than %g s, and all messages wait for it. It is interrupted, and counts as "
            "failed on the messages that it was judging\n%s",
            None if rule is None else rule.name,
            self._timeout_s,
            "".join(traceback.format_stack(frame)) if frame is not None else "",
        )
        self._watch.strike(self._loop_thread, calls)
