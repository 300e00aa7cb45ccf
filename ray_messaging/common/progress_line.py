"""Progress of a long call, on a terminal or as lines of text."""

import sys
import time
from typing import Any, Self

_LINE_S = 10.0  # seconds between two lines of text


class ProgressLine:
    """Display of a long call's progress on stderr: a bar on a terminal, otherwise a line of text every 10 s."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._next = 0.0  # the time at which the next line is due
        self._shown = shown
        self._bar: Any = _bar() if shown and sys.stderr.isatty() else None
        self._task = None if self._bar is None else self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def has_lines(self) -> bool:
        """Return whether lines of text were shown. They stay visible after the end, while a bar vanishes."""
        return self._bar is None and self._next > 0

    def is_due(self) -> bool:
        """Return whether it is time to show the progress."""
        return self._shown and (self._bar is not None or time.monotonic() >= self._next)

    def show(self, completed: int, text: str) -> None:
        """Show the progress. `completed` is the number of parts of the call that are done. `text` says it in words."""
        self._next = time.monotonic() + _LINE_S
        if self._bar is None:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        else:
            self._bar.update(self._task, completed=completed, description=text)


def _bar() -> Any:  # noqa: ANN401 - rich's Progress, which is loaded on a terminal only
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
