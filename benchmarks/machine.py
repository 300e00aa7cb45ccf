"""Facts of this machine, its versions, and whether it is quiet enough for a measurement."""

import os
import platform
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ray_messaging.embedded.machine import find_binary

ROOT = Path(__file__).parent.parent
WATCHED_S = 1.0
BUSY = 0.10  # a tenth of the processors taken by others shows in every figure


def facts() -> dict[str, Any]:
    """Return cores, versions, commit, date and load; takes a second, in which it watches other processes."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "system": platform.platform(),
        "versions": {"python": _python()}
        | {name: _version(name) for name in ("ray-messaging", "ray", "redis", "uvloop")}
        | {"valkey": _valkey(), "redis-server": _redis_server()},
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "busy": round(busy_share(WATCHED_S), 3),
    }


def busy_share(seconds: float) -> float:
    """Watch the processors for some time; return the share of them that was at work, 0 to 1."""
    work, total = _ticks()
    time.sleep(seconds)
    later_work, later_total = _ticks()
    return (later_work - work) / max(1, later_total - total)


def _ticks() -> tuple[int, int]:
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
    except OSError:  # no Linux: nobody can say
        return 0, 0
    ticks = [int(part) for part in line.split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # idle, and waiting for a disk


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _python() -> str:
    """Return the version and its origin: a distribution's optimized build is a quarter faster than a plain one."""
    return f"{platform.python_version()} in {sys.base_prefix}"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _valkey() -> str:
    return _told([find_binary(), "--version"]).partition("v=")[2].partition(" ")[0] or "unknown"


def _redis_server() -> str:
    binary = shutil.which("redis-server")
    return _told([binary, "--version"]).partition("v=")[2].partition(" ")[0] if binary else "not on PATH"


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    commit = _told([git, "-C", str(ROOT), "rev-parse", "--short", "HEAD"])
    changed = _told([git, "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit or 'unknown'}{' and changes' if changed else ''}"


def _told(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
