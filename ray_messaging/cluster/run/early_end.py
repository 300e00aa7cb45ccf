"""Early end of a run, at Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

import ray

from ray_messaging.cluster.handles.actor_calls import result

_TOLD_S = 1.0


class EarlyEnd:
    """The end of a run after the steps that are open at Ctrl-C; a second Ctrl-C raises KeyboardInterrupt as ever.

    No step begins any more from the first Ctrl-C on until this is left; a pause of the steps stays as it is. Python has
    signals in the main thread alone: in other threads this does nothing.
    """

    def __init__(self, interceptor: Any, actors: Sequence[Any]) -> None:  # noqa: ANN401 - a Ray actor handle
        self.asked = False
        self._interceptor = interceptor
        self._actors = actors
        self._former: Any = None  # handler of the signal
        self._holds = False  # maybe

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_error: object) -> None:
        self._restore()
        if self._holds:  # a call is under way before another Ctrl-C can end the wait for its answer
            result(self._interceptor.release_steps.remote(), actor_name="the interceptor")

    def _restore(self) -> None:
        if self._former is not None:
            signal.signal(signal.SIGINT, self._former)
            self._former = None

    def _ask(self, _signal: int, _frame: FrameType | None) -> None:
        self._restore()
        self.asked = True
        sys.stderr.write("\nthe run ends after the open step; Ctrl-C once more ends it at once\n")

    def tell(self) -> None:
        """Have all groups end after the last open step; call it again, because one that has restarted does not know."""
        self._holds = True
        last = result(self._interceptor.hold_steps.remote(), actor_name="the interceptor")
        told = [actor.end_after.remote(last) for actor in self._actors]
        ray.wait(told, num_returns=len(told), timeout=_TOLD_S)
        result(self._interceptor.hold_steps.remote(), actor_name="the interceptor")  # it wakes the groups that wait
