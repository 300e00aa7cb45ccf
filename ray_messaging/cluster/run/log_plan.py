"""The plan of a local run's event log."""

from pathlib import Path
from typing import NamedTuple

from ray_messaging.cluster.spec import absolute
from ray_messaging.errors import ConfigError

EXPERIMENT = "local"  # a local run has a server of its own, on which its experiment has this name


class LogPlan(NamedTuple):
    """The folder of a local run's event log, and what to do if the folder has a log already.

    `on_existing` is "error", "resume" or "reset". `checkpoint` is the number of steps between checkpoints (None: there
    are none). With `keeps_server`, the data of the run's server are kept, so that the run can be resumed.
    """

    folder: str
    on_existing: str
    checkpoint: int | None
    keeps_server: bool = False


def log_plan(log_dir: object, on_existing: str, checkpoint: object) -> LogPlan | None:
    """Return the plan of a log, or None if `log_dir` is None; raise ConfigError for invalid arguments."""
    if on_existing not in {"error", "resume", "reset"}:
        raise ConfigError(f"on_existing={on_existing!r} is unknown: write 'error', 'resume' or 'reset'")
    if log_dir is None:
        if checkpoint is not None or on_existing != "error":
            raise ConfigError(
                "checkpoint= and on_existing= are for the run's log, but this run keeps none: pass log_dir='a folder'"
            )
        return None
    if not isinstance(log_dir, str | Path) or log_dir == "":
        raise ConfigError(f"log_dir={log_dir!r} is not a path: write log_dir='a folder'")
    if checkpoint is not None and (isinstance(checkpoint, bool) or not isinstance(checkpoint, int) or checkpoint < 1):
        raise ConfigError(f"checkpoint={checkpoint!r} must be a whole number of steps between checkpoints, at least 1")
    return LogPlan(str(absolute(log_dir)), on_existing, checkpoint, keeps_server=True)
