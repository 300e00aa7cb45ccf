"""Stopwatch of a program's parts, from the moment at which its process was asked for."""

import json
import sys
import time


class Stopwatch:
    """Seconds of a program's parts. The monotonic clock is the machine's, so that it began in another process."""

    def __init__(self) -> None:
        self._parts: dict[str, float] = {}
        self._last = float(sys.argv[1])

    def lap(self, part: str) -> float:
        """Note that a part ends now; return its seconds."""
        now = time.perf_counter()
        self._parts[part], self._last = now - self._last, now
        return self._parts[part]

    def note(self, name: str, seconds: float) -> None:
        """Note a value that is no part of the sum."""
        self._parts[name] = seconds

    def show(self) -> None:
        """Print the parts as a line of JSON, with the moment at which they ended."""
        print(json.dumps(self._parts | {"ended": self._last}))
