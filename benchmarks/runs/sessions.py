"""Freeze, thaw and end all processes of a session, even if some die meanwhile.

    python -m benchmarks.runs.sessions SESSION     ends them once its stdin has ended

Ray's workers have process groups of their own: only the session holds them all. After a driver is killed, some of
Ray's processes stay, and frozen ones notice nothing.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

PATIENCE_S, LOOK_S = 10.0, 0.01
ENDED = "ZX"  # states of a process, as in proc(5)
STOPPED = "tT" + ENDED


def members(session: int) -> dict[int, str]:
    """Return the processes of a session, each with the letter of its state."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has just ended
            state, _, _, its_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(its_session) == session:
                found[int(entry.name)] = state
    return found


def freeze(session: int) -> None:
    """Stop all processes. Raises TimeoutError."""
    _until(session, signal.SIGSTOP, STOPPED)


def thaw(session: int) -> None:
    """Continue all processes."""
    _tell(members(session), signal.SIGCONT)


def end(session: int) -> None:
    """Kill all processes, frozen or not. Raises TimeoutError."""
    _until(session, signal.SIGKILL, ENDED)


def _until(session: int, which: signal.Signals, states: str) -> None:
    """Signal the processes in none of the states until all are in one: they may fork meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while left := {pid: state for pid, state in members(session).items() if state not in states}:
        if time.monotonic() > deadline:
            raise TimeoutError(f"session {session}: {left} did not obey {which.name} within {PATIENCE_S:g} s")
        _tell(left, which)
        time.sleep(LOOK_S)  # there is no event for it


def _tell(pids: dict[int, str], which: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, which)


if __name__ == "__main__":
    sys.stdin.read()
    end(int(sys.argv[1]))
