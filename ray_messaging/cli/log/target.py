"""What a log command is asked of: a folder, or a running experiment."""

from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.clusters import asked_clusters, join_ray
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.eventlog.event_log import EventLog

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="The log_dir of a run, or the exp_id of one that is running; a folder goes first."
    ),
]


def open_log(target: str) -> EventLog:
    """Open the log of a folder, or of a running experiment. Raises: LogError, ConfigError, UnknownName."""
    if Path(target).is_file():
        raise ConfigError(f"{target!r} is a file: pass the folder that holds the log's events-*.parquet")
    if "/" in target or Path(target).is_dir():
        return EventLog.open(target)
    if not join_ray(target):
        raise ConfigError(
            f"there is no folder {target!r} here, and no Ray cluster that experiment {target!r} could run in: pass "
            "the log_dir of a run, or set RAY_ADDRESS"
        )
    try:
        return Messaging.connect(target).log
    except UnknownName as error:
        raise ConfigError(
            f"there is no folder {target!r} here, and no experiment {target!r} in the Ray cluster {asked_clusters()}: "
            "pass the log_dir of a run; RAY_ADDRESS says which cluster to ask"
        ) from error
