"""Early end of a run, at Ctrl-C."""

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

import ray

from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps


class EarlyEnd:
    """The end of a run after the steps that are open at Ctrl-C; a second Ctrl-C raises KeyboardInterrupt as ever.

    No step begins any more from the first Ctrl-C on until this is left. Python has signals in the main thread alone:
    in other threads this does nothing.
    """

    def __init__(self, steps: ExperimentSteps, actors: Sequence[Any]) -> None:
        self.asked = False
        self._steps = steps
        self._actors = actors
        self._former: Any = None  # handler of the signal
        self._target: int | None = None  # of the steps, before ours
        self._last: int | None = None  # the step that becomes the last one

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_error: object) -> None:
        self._restore()
        if self._last is not None:
            self._steps.resume(self._target)

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
        if self._last is None:
            self._target, self._last = self._steps.progress().target, self._steps.pause()
        told = [actor.end_after.remote(self._last) for actor in self._actors]
        ray.wait(told, num_returns=len(told), timeout=1.0)
        self._steps.pause()  # it wakes the groups that wait
