"""What our actors say of themselves to `health`: at once, from memory, whatever is wrong with the server."""

import shutil
import time
from pathlib import Path
from typing import Any

from ray_messaging.common.task_health import TaskHealth
from ray_messaging.observability.health.reports import Disk, Report

LOST = "shut the experiment down, see why the server lost its data, and start again by on_existing='resume'"


def disk_of(path: str) -> Disk | None:
    """Return the room that is left for a folder; None where it is on no disk of this machine."""
    if "://" in path:
        return None
    folder = Path(path)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    return Disk(path, usage.free, usage.total)


def log_report(stats: dict[str, Any], path: str) -> Report:
    """Say how the event log's actor is doing."""
    error = str(stats.get("error") or "")
    writer = TaskHealth("writer", not error, busy=False, age_s=0.0)
    remedy = LOST if stats.get("lost") else ""
    loops = [] if error else [writer]
    return Report(time.time(), error=error, remedy=remedy, loops=loops, stats=stats, disk=disk_of(path))


def server_report(stats: dict[str, Any]) -> Report:
    """Say how the actor of the embedded server is doing."""
    dead = "" if stats["alive"] else f"the embedded server does not run ({stats['last_end'] or 'no reason known'})"
    disk = None if stats["data_dir"] is None else disk_of(stats["data_dir"])
    return Report(time.time(), error=dead, stats=stats, disk=disk)
