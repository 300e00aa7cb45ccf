"""Run the parts one after the other, each in a process of its own, and keep their output.

A part prints figures as lines of JSON on its stdout. It has a time limit, and its child processes end with it: they
must not disturb the next part.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.figures import NOT_HERE, Figure
from benchmarks.runs.results import Outcome

ROOT = Path(__file__).parents[2]
GRACE_S = 5.0  # from SIGTERM to SIGKILL
LINE_LIMIT = 1_000_000
WORDS_KEPT = 40  # last lines that are no figures, for the reason of a failure
WHY_CHARACTERS = 500
SILENT = "it said nothing"
ERROR_LINE = re.compile(r"[A-Za-z_][\w.]*(\([\w.]*\))?: ")


class MissingError(RuntimeError):
    """A program or server that this machine lacks. The part is reported as missing, not as failed."""


@dataclass(frozen=True)
class Part:
    """One measurement: its command, its input on stdin, and its time limit.

    `command` may raise if its environment is missing. `served` starts a server for the duration of the part, and
    `stdin` gets its address; `served` may raise MissingError.
    """

    name: str
    axis: str
    command: Callable[[], Sequence[str]]
    stdin: Callable[[Any], str]
    limit_s: float
    served: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)


class _Reader:
    """Reader of a part's two pipes: keeps the figures and the last of the other lines."""

    def __init__(self, process: subprocess.Popen[str], seen: Callable[[Figure], None]) -> None:
        self.figures: list[Figure] = []
        self.words: deque[str] = deque(maxlen=WORDS_KEPT)
        self._seen = seen
        self._threads = [
            threading.Thread(target=self._read, args=(pipe, take), daemon=True)
            for pipe, take in ((process.stdout, self._take), (process.stderr, lambda _: False))
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, pipe: IO[str], take: Callable[[str], bool]) -> None:
        with pipe:
            for line in iter(lambda: pipe.readline(LINE_LIMIT), ""):
                if not take(line) and line.strip():
                    self.words.append(line.rstrip())

    def _take(self, line: str) -> bool:
        if not line.startswith("{"):
            return False
        try:
            figure = Figure.from_json(line)
        except (ValueError, TypeError) as error:
            self.words.append(f"no figure: {error}")
            return False
        self.figures.append(figure)
        self._seen(figure)
        return True

    def finish(self) -> None:
        """Wait for the ends of both pipes, which a child of the part may hold open."""
        for thread in self._threads:
            thread.join(GRACE_S)

    def last_words(self) -> str:
        """Return the last line that was no figure."""
        return (self.words[-1] if self.words else SILENT)[:WHY_CHARACTERS]


def error_line(words: Sequence[str]) -> str:
    """Return the line that ends a traceback, or else the last one: Ray's processes may say something after it."""
    found = next((line for line in reversed(words) if ERROR_LINE.match(line)), words[-1] if words else SILENT)
    return found[:WHY_CHARACTERS]


def run_part(part: Part, seen: Callable[[Figure], None] = lambda _: None) -> Outcome:
    """Run one part to its end or its time limit. A failing part does not raise."""
    outcome, begin = Outcome(part.name, part.axis), time.monotonic()
    try:
        with part.served() as server:
            _run(part, part.stdin(server), outcome, seen)
    except MissingError as error:
        outcome.state, outcome.why = "missing", str(error)
    except KeyboardInterrupt:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a server that does not start must not end the others
        outcome.state, outcome.why = "failed", f"{type(error).__name__}: {error}"[:WHY_CHARACTERS]
    outcome.took_s = round(time.monotonic() - begin, 1)
    return outcome


def _run(part: Part, stdin: str, outcome: Outcome, seen: Callable[[Figure], None]) -> None:
    """Start the process, write its task, and read until it ends."""
    process = subprocess.Popen(
        list(part.command()),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # its processes are one group, which ends with it
    )
    reader, unfinished = _Reader(process, seen), ""
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended early: see its exit code
            process.stdin.write(stdin)
            process.stdin.close()
        process.wait(part.limit_s)
    except subprocess.TimeoutExpired:
        unfinished = f"not done after {part.limit_s:g} s; last words: {reader.last_words()}"
    finally:
        _end(process)
        reader.finish()
    outcome.figures = reader.figures
    if unfinished:
        outcome.state, outcome.why = "failed", unfinished
    elif process.returncode == NOT_HERE:
        outcome.state, outcome.why = "missing", reader.last_words()
    elif process.returncode:
        outcome.state, outcome.why = "failed", f"exit code {process.returncode}: {error_line(reader.words)}"
    elif not reader.figures:
        outcome.state, outcome.why = "failed", f"it printed no figure: {reader.last_words()}"


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and the rest of its process group."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, which)


def run_all(parts: Sequence[Part], watcher: "Watcher") -> Iterator[Outcome]:
    """Run the parts one after the other; Ctrl-C ends the one under way and leaves out the others."""
    for number, part in enumerate(parts):
        watcher.begin(part.name)
        try:
            outcome = run_part(part, watcher.seen)
        except KeyboardInterrupt:
            for left in parts[number:]:
                yield Outcome(left.name, left.axis, "failed", "interrupted")
            return
        watcher.end(outcome)
        yield outcome


class Watcher:
    """Observer of a run, with no-op methods."""

    def begin(self, name: str) -> None:
        """Called when a part begins."""

    def seen(self, figure: Figure) -> None:
        """Called with each figure, in the reader's thread."""

    def end(self, outcome: Outcome) -> None:
        """Called with the outcome of the part."""
