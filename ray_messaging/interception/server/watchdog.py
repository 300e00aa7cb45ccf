"""Notice a rule that hangs: it would hold every message up, as rules share one loop."""

import ctypes
import faulthandler
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from ray_messaging.common.limits import RULE_TIMEOUT_S

if TYPE_CHECKING:
    from ray_messaging.interception.rules.rule import Rule

logger = logging.getLogger(__name__)

# So often it is looked at a rule before its time is over: looks are counted, not seconds, as a process that was stopped
# for a while is no rule that hangs.
_LOOKS = 4

_interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
_interrupt.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class Stuck(BaseException):
    """Is raised in a rule that is at work for too long; no Exception, so that the rule's own handlers pass it by."""


class Watch:
    """Know which rule is at work in the loop's thread."""

    __slots__ = ("_lock", "_struck", "calls", "rule")

    def __init__(self) -> None:
        self.rule: Rule | None = None
        self.calls = 0
        self._struck = False
        self._lock = threading.Lock()

    def enter(self, rule: "Rule") -> None:
        """Note that a rule begins to work."""
        self.calls += 1
        self.rule = rule

    def leave(self) -> None:
        """Note that it is done; from here on it cannot be interrupted any more."""
        self.rule = None
        if self._struck:
            self._take_back()

    def _take_back(self) -> None:
        while self._struck:
            try:
                with self._lock:
                    _interrupt(threading.get_ident(), None)
                    self._struck = False
            except Stuck:  # it came just now
                continue

    def strike(self, thread: int, calls: int) -> None:
        """Interrupt the rule that works in a thread, if it is still the same call; another thread does that."""
        with self._lock:
            # Set before it is looked whether the rule is done: `leave` does both the other way round.
            self._struck = True
            if self.rule is not None and self.calls == calls:
                _interrupt(thread, id(Stuck))
            else:
                self._struck = False


class Steps:
    """Await what a rule's `judge` gives, watched whenever it is at work itself."""

    def __init__(self, watch: Watch, rule: "Rule", begin: Callable[[], Any]) -> None:
        self._watch = watch
        self._rule = rule
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        watch = self._watch
        watch.enter(self._rule)
        try:
            steps = self._begin().__await__()
        finally:
            watch.leave()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            watch.enter(self._rule)
            try:
                wanted = step()
            except StopIteration as done:
                return done.value
            finally:
                watch.leave()
            try:
                yield wanted
            except BaseException as error:  # noqa: BLE001 - it is the rule's to handle, or to let through
                step = partial(steps.throw, error)
            else:
                step = partial(next, steps)


class Watchdog:
    """Interrupt a rule that is at work for longer than `rule_timeout_s`, and say so.

    An exception reaches only Python code. With `exit_after_s` the process ends, with a traceback on stderr, where a
    rule still holds the loop that long after: Ray starts the actor again. So it does where nothing at all has run for
    that long, as in a regular expression that runs away. That timer is one for the process (`faulthandler`'s).
    """

    def __init__(
        self, watch: Watch, *, rule_timeout_s: float = RULE_TIMEOUT_S, exit_after_s: float | None = None
    ) -> None:
        self._watch = watch
        self._timeout_s = rule_timeout_s
        self._exit_after_s = exit_after_s
        self._loop_thread = 0
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; to be called in the thread in which the rules work."""
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="ray_messaging rule watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; doing so twice does no harm."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        watch, known, looks = self._watch, -1, 0
        while True:
            calls = watch.calls
            looks = looks + 1 if watch.rule is not None and calls == known else 0
            known = calls
            if looks == _LOOKS:
                self._strike(calls)
            elif looks < _LOOKS and self._exit_after_s is not None:
                faulthandler.dump_traceback_later(self._exit_after_s, exit=True)
            if self._stopping.wait(self._timeout_s / _LOOKS):
                break
        if self._exit_after_s is not None:
            faulthandler.cancel_dump_traceback_later()

    def _strike(self, calls: int) -> None:
        rule = self._watch.rule
        frame = sys._current_frames().get(self._loop_thread)
        logger.error(
            "rule %r is at work for more than %g s, and holds all messages up: it is interrupted, what it judges is "
            "treated as after an error\n%s",
            None if rule is None else rule.name,
            self._timeout_s,
            "".join(traceback.format_stack(frame)) if frame is not None else "",
        )
        self._watch.strike(self._loop_thread, calls)
