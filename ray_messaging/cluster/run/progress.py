"""Progress of a run, on a terminal or as lines of text."""

import sys
import time
from typing import Any, Self

from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps

_LINE_S = 10.0  # between two lines of text
_NAMED = 3  # groups that hold up a step


class RunProgress:
    """The step, the rate and the slowest group of a run: a bar on a terminal, else a line on stderr now and then."""

    def __init__(self, steps: ExperimentSteps, until: int, *, shown: bool) -> None:
        self._steps = steps
        self._until = until
        self._shown = shown
        self._began = self._said = time.monotonic()
        self._first: int | None = None  # the step that ran at the first look
        self._bar: Any = _bar() if shown and sys.stderr.isatty() else None
        self._task = None if self._bar is None else self._bar.add_task("", total=until)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self) -> None:
        """Show how far the run is, where it is time to."""
        now = time.monotonic()
        if not self._shown or (self._bar is None and now < self._said + _LINE_S):
            return
        self._said = now
        progress = self._steps.progress()
        step, waiting = progress.sealed + 1, progress.waiting_for()
        self._first = step if self._first is None else self._first
        rate = (step - self._first) / max(now - self._began, 1e-9)
        text = "; ".join([self.text(step, rate, waiting), *map(str, self._steps.stragglers()[:_NAMED])])
        if self._bar is None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        else:
            self._bar.update(self._task, completed=step, description=text)

    def text(self, step: int, rate: float, waiting: dict[str, int]) -> str:
        """Return the progress as text; `waiting` are the groups that hold up the others."""
        slowest = min(waiting, key=lambda name: (waiting[name], name), default=None)
        late = "" if slowest is None else f", waiting for {slowest}"
        more = "" if len(waiting) < 2 else f" and {len(waiting) - 1} more"
        return f"step {step} of {self._until}, {rate:.3g} steps/s{late}{more}"


def _bar() -> Any:  # noqa: ANN401 - rich's Progress, which is loaded on a terminal only
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
