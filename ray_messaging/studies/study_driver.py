"""Workers carry out the runs of a study that have no result yet, and the results are written to the study's folder."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray_messaging.cluster.run.result import CallCounts
from ray_messaging.common.progress_line import ProgressLine
from ray_messaging.studies.design import PlannedRun, Row
from ray_messaging.studies.run_tasks import DIED, BeginningRun, EndedRun, ForkedRun, Task
from ray_messaging.studies.study_arguments import SharedSteps
from ray_messaging.studies.study_folder import StudyFolder

if TYPE_CHECKING:
    from ray_messaging.studies.ray_workers import RayWorkers, WholeCluster
    from ray_messaging.studies.run_workers import ProcessWorkers

# If this many workers have died during the same run, the run itself is probably the cause, and is not repeated.
_DEATHS = 3
# Runs that have ended are written to the folder together: after this many seconds, or when there are this many runs or
# bytes.
_FLUSH_S, _FLUSH_RUNS, _FLUSH_BYTES = 1.0, 500, 2**25
_LOOK_S = 0.5  # the longest wait for the end of a run before the progress is shown again


def carry_out_all(
    files: StudyFolder,
    record: Mapping[str, Any],
    design: Sequence[PlannedRun],
    made: "Callable[..., ProcessWorkers | RayWorkers | WholeCluster]",
    workers: int | None,
    shared_steps: SharedSteps | None,
    budget: int | str | None,
    *,
    progress: bool,
) -> None:
    """Make the runs that have no result yet, and write all runs to the study's final files.

    Args: `made` makes the workers. `workers` is the number of runs at a time (None: one for each core). `budget` is the
    budget of calls that each run has (None: none). With `progress`, the progress is shown.
    """
    there = files.runs(record)
    left = [run for run in design if run.key not in there or there[run.key].is_to_be_repeated(budget)]
    if left:
        ended = _EndedRuns(files)
        try:
            shown = StudyProgress(len(design), len(left), shown=progress)
            count = min(len(left), workers) if workers else None
            _drive(ended, _Tasks(left, shared_steps), made(count=count), shown)
        finally:  # runs that have ended are also written after Ctrl-C
            ended.flush()
        there = files.runs(record)
    files.finish([there[run.key] for run in design])


class _Tasks:
    """The tasks of a study that wait for a worker.

    A task is a whole run, or first steps that several runs share (a beginning), or the later steps of one run (its
    rest). The rests of one beginning come before the next beginning, so that only few beginnings are in memory.
    """

    def __init__(self, left: Sequence[PlannedRun], shared_steps: SharedSteps | None) -> None:
        self._shared = shared_steps
        self._waiting: list[Task] = [*reversed(left)]
        self._runs: dict[str, list[PlannedRun]] = {}  # by the key of a beginning: the runs that go on from it
        # By the key of a beginning: the beginning's numbers of calls. They are added to the calls of the first run that
        # goes on from the beginning.
        self._calls: dict[str, CallCounts] = {}
        if shared_steps is not None:
            self._waiting = []
            for planned in left:
                before = shared_steps.before(planned)
                if before.key not in self._runs:
                    self._waiting.insert(0, BeginningRun(before, shared_steps.step))
                self._runs.setdefault(before.key, []).append(planned)

    def __len__(self) -> int:
        return len(self._waiting)

    def pop(self) -> Task:
        """Return the next task."""
        return self._waiting.pop()

    def again(self, task: Task) -> None:
        """Add a task again, because its worker has died."""
        self._waiting.append(task)

    def ended(self, task: Task, ended: EndedRun) -> Iterator[tuple[PlannedRun, EndedRun]]:
        """Yield the runs that a finished task has ended, each with its result.

        A task that makes the shared first steps of several runs ends these runs only if it has failed. Otherwise their
        later steps become new tasks.
        """
        if isinstance(task, PlannedRun):
            yield task, ended
        elif isinstance(task, ForkedRun):
            first = self._calls.pop(task.before.key, CallCounts())
            yield task.planned, ended._replace(calls=CallCounts.together([first, ended.calls]))
        else:
            runs = self._runs.pop(task.planned.key)
            if ended.end is None:
                yield from ((planned, ended) for planned in runs)
                return
            self._calls[task.planned.key] = ended.calls
            self._waiting += [ForkedRun(each, task.planned, task.step, ended.end) for each in reversed(runs)]


def _drive(
    ended: "_EndedRuns", tasks: _Tasks, made: "ProcessWorkers | RayWorkers | WholeCluster", shown: "StudyProgress"
) -> None:
    deaths = Counter[str]()
    running = 0
    with made as workers, shown:
        while True:
            while tasks and workers.free:
                workers.start(tasks.pop())
                running += 1
            # Files are written only now that all workers have runs again, so that no worker waits for the writing.
            ended.flush_if_due()
            shown.show_if_due()
            if not running:
                return
            for task, answer in workers.wait(_LOOK_S):
                running -= 1
                planned = task if isinstance(task, PlannedRun) else task.planned
                if answer is None or answer.died:
                    name = f"{type(task).__name__} {planned.key}"
                    deaths[name] += 1
                    if deaths[name] < _DEATHS:
                        tasks.again(task)
                        continue
                found = answer or EndedRun({}, None, 0.0, _died(planned.row))
                for run, each in tasks.ended(task, found):
                    ended.add(run, each)
                    shown.count(failed=each.error is not None, saved=each.calls.store)


def _died(row: Row) -> str:
    return (
        f"{DIED}the process of this run ({row}) died {_DEATHS} times: it may need more memory than there is (with "
        "fewer workers= each has more), or end the process itself. Call batch_run again to carry the run out"
    )


class _EndedRuns:
    """Runs that have ended, and are to be written to the folder together."""

    def __init__(self, files: StudyFolder) -> None:
        self._files = files
        self._number = files.next_part()
        self._ended: list[tuple[PlannedRun, EndedRun]] = []
        self._bytes = 0
        self._due = time.monotonic() + _FLUSH_S

    def add(self, planned: PlannedRun, ended: EndedRun) -> None:
        self._ended.append((planned, ended))
        self._bytes += len(ended.series or b"")

    def flush_if_due(self) -> None:
        late = time.monotonic() >= self._due
        if late or len(self._ended) >= _FLUSH_RUNS or self._bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        self._due = time.monotonic() + _FLUSH_S
        if self._ended:
            ended, self._ended, self._bytes = self._ended, [], 0
            self._files.write_part(self._number, ended)
            self._number += 1


class StudyProgress(ProgressLine):
    """Display of a study's progress: the numbers of ended and failed runs, the time left, and the calls saved."""

    def __init__(self, total: int, left: int, *, shown: bool) -> None:
        super().__init__(total, shown=shown)
        self._total, self._left, self._done, self._failed = total, left, 0, 0
        self._saved = 0
        self._begun = time.monotonic()

    def count(self, *, failed: bool, saved: int = 0) -> None:
        """Count a run that has ended, and the calls whose answers it found in the store."""
        self._done += 1
        self._failed += failed
        self._saved += saved

    def show_if_due(self) -> None:
        """Show the progress, if it is time."""
        if not self.is_due():
            return
        seconds = (time.monotonic() - self._begun) / max(1, self._done) * (self._left - self._done)
        ended = self._total - self._left + self._done
        failed = f", {self._failed:,} failed" if self._failed else ""
        failed += f", {self._saved:,} calls saved" if self._saved else ""
        left = f", about {_span(seconds)} left" if self._done else ""
        self.show(ended, f"{ended:,} of {self._total:,} runs{failed}{left}")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
