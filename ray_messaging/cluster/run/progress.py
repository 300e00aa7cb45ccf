"""Progress of a run."""

import time
from typing import Self

from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps
from ray_messaging.common.progress_line import ProgressLine

_NAMED = 3  # groups that hold up a step


class RunProgress:
    """The step, the rate and the slowest group of a run: a bar on a terminal, else a line on stderr now and then."""

    def __init__(self, steps: ExperimentSteps, until: int, *, shown: bool) -> None:
        self._steps = steps
        self._until = until
        self._line = ProgressLine(until, shown=shown)
        self._first: int | None = None  # the step that ran at the first look

    def __enter__(self) -> Self:
        self._line.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._line.__exit__(*error)

    def show(self) -> None:
        """Show how far the run is, where it is time to."""
        if not self._line.is_due():
            return
        progress = self._steps.progress()
        step, waiting = progress.sealed + 1, progress.waiting_for()
        self._first = step if self._first is None else self._first
        rate = (step - self._first) / max(time.monotonic() - self._line.began, 1e-9)
        paused = progress.target is not None and step > progress.target
        text = "; ".join([self.text(step, rate, waiting, paused=paused), *map(str, self._steps.stragglers()[:_NAMED])])
        self._line.show(step, text)

    def text(self, step: int, rate: float, waiting: dict[str, int], *, paused: bool = False) -> str:
        """Return the progress as text; `waiting` are the groups that hold up the others."""
        if paused:
            return f"step {step} of {self._until}, paused until messaging.steps.resume()"
        slowest = min(waiting, key=lambda name: (waiting[name], name), default=None)
        late = "" if slowest is None else f", waiting for {slowest}"
        more = "" if len(waiting) < 2 else f" and {len(waiting) - 1} more"
        return f"step {step} of {self._until}, {rate:.3g} steps/s{late}{more}"
