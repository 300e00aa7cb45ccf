"""Helpers for several commands: a check of a file, the console, output of JSON, and a running experiment."""

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from ray_messaging.addressing.channels import check_name
from ray_messaging.errors import ConfigError, UnknownName

if TYPE_CHECKING:
    from ray_messaging.cluster.messaging import Messaging

PLAIN_WIDTH = 200  # the width of tables, in columns, if the output is not a terminal


def check_file(file: Path | None, advice: str) -> None:
    """Raise ConfigError if a file cannot be created. Commands call this before they start anything."""
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        reason = "it is a folder:" if file.is_dir() else "its folder does not exist: create the folder, or"
        raise ConfigError(f"cannot write {str(file)!r}, because {reason} {advice}")


def print_json(*lines: bytes) -> None:
    """Print objects of JSON, one per line."""
    for line in lines:
        typer.echo(line)


def output(*, aside: bool = False) -> Console:
    """Return the console for output. It has colours, live bars and line breaks only on a terminal.

    Args: With `aside`, the console writes to stderr, because a program reads stdout.
    """
    stream = sys.stderr if aside else sys.stdout
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")  # characters that the terminal cannot show are escaped
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width, console.soft_wrap = PLAIN_WIDTH, True
    return console


def join_experiment(exp_id: str, otherwise: str, *, missing: str = "") -> "Messaging":
    """Return a running experiment; raise ConfigError if it does not run.

    Args: `otherwise` is a remedy, at the end of the error. `missing` is the beginning of the error, such as "there is
    no folder 'town' here, and ".
    """
    from ray_messaging.cluster.messaging import Messaging  # noqa: PLC0415 - it brings Ray, which takes a second
    from ray_messaging.cluster.ray_clusters import join_ray  # noqa: PLC0415

    try:
        if join_ray(check_name("exp_id", exp_id)):
            return Messaging.connect(exp_id)
    except UnknownName as error:
        raise ConfigError(f"{missing}{error}; or {otherwise}") from error
    raise ConfigError(
        f"{missing}no Ray cluster was found on this machine, so experiment {exp_id!r} does not run here: set "
        f"RAY_ADDRESS to the host:port of the experiment's cluster, or {otherwise}"
    )
