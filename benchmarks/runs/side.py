"""One of two alternating sides: a driver in a session of its own, frozen between its turns."""

import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Self

from benchmarks.figures import DONE, Figure
from benchmarks.runs.runner import WORDS_KEPT, error_line
from benchmarks.runs.sessions import freeze, thaw

GRACE_S = 30.0  # for Ray and our server to end by themselves


class Side:
    """A driver (`python -m benchmarks.runs.driver`) that does tasks while it is `awake`.

    `who` names its figures, `job` is its first line. It starts frozen at the begin of the `with` block. At the end it
    stops by itself; if the block fails or this process is killed, its whole session is killed.
    """

    def __init__(self, who: str, command: Sequence[str], job: str) -> None:
        self.who, self._command, self._job = who, command, job

    def __enter__(self) -> Self:
        self._said = tempfile.TemporaryFile("w+", errors="replace")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        # The keeper ends the session when its stdin closes, even by our death. A driver starts nothing before its job.
        keep = [sys.executable, "-m", "benchmarks.runs.sessions", str(self._process.pid)]
        self._keeper = subprocess.Popen(keep, stdin=subprocess.PIPE, start_new_session=True)
        try:
            self.ask(self._job)
            freeze(self._process.pid)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._end()

    @contextmanager
    def awake(self) -> Iterator[Self]:
        """Let the driver run for the time of the block."""
        thaw(self._process.pid)
        try:
            yield self
        finally:
            freeze(self._process.pid)

    def ask(self, line: str) -> list[Figure]:
        """Write a line, and return the figures of the answer. Raises RuntimeError if the driver ends instead."""
        stdin, stdout = self._pipes()
        with suppress(BrokenPipeError):  # it ended early: its stdout ends, too
            stdin.write(line + "\n")
        found: list[Figure] = []
        for answer in iter(stdout.readline, ""):
            if answer == DONE + "\n":
                return found
            if answer.startswith("{"):
                found.append(Figure.from_json(answer))
            else:
                self._said.write(answer)
        self._said.seek(0)
        words = [words.rstrip() for words in deque(self._said, maxlen=WORDS_KEPT)]
        raise RuntimeError(f"the driver of {self.who} ended; {error_line(words)}")

    def _finish(self) -> None:
        """Let the driver end by itself and close its server and Ray."""
        thaw(self._process.pid)
        self._pipes()[0].close()  # the signal to end
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)

    def _end(self) -> None:
        """End the rest of the session, frozen or not. Raises RuntimeError if that fails."""
        self._keeper.communicate()  # closes its stdin
        self._process.wait()
        for pipe in (*self._pipes(), self._said):
            with suppress(BrokenPipeError):
                pipe.close()
        if self._keeper.returncode:
            raise RuntimeError(f"processes of {self.who} do not end: see session {self._process.pid}")

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout
