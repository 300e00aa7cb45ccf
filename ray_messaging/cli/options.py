"""The options of the commands, as types."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.rule_specs import KNOWN

Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Use this server, redis://host:port/db, not one of our own."),
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the account to this file.")]
LogDir = Annotated[
    str | None,
    typer.Option(
        "--log-dir", metavar="DIR", help="Keep the event log here, as Parquet: a new folder, or a URI (s3://...)."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="The same seed generates the same traffic.")]
Agents = Annotated[int, typer.Option(min=4, help="How many agents the society has.")]
Messages = Annotated[int, typer.Option(min=1, help="How many messages the agents send.")]
DemoGroups = Annotated[int, typer.Option("--groups", min=2, max=64, help="How many groups, one Ray actor each.")]

TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="TRACE", help="SNAP edge list (src dst time), CSV with a header or JSON lines; .gz as it is."
    ),
]
Groups = Annotated[int, typer.Option(min=1, max=256, help="How many groups, one Ray actor each.")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC",
        help=f"A rule, repeatable; a run is one round: {'; '.join(known.example for known in KNOWN.values())}.",
    ),
]
Speed = Annotated[
    str, typer.Option(metavar="max|X", help="X times the pace of the trace's times, or as fast as it goes.")
]
From = Annotated[
    str | None, typer.Option("--from", metavar="FIELD", help="The sender's field, or a template: '{game}-{name}'.")
]
To = Annotated[str | None, typer.Option("--to", metavar="FIELD", help="The receiver's field, or a template.")]
Time = Annotated[str | None, typer.Option("--time", metavar="FIELD", help="The time's field.")]
Text = Annotated[str | None, typer.Option("--text", metavar="FIELD", help="The text's field.")]


def read_speed(text: str) -> float | None:
    """Read --speed: None is as fast as it goes; raise typer.BadParameter."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (isfinite(speed) and speed > 0):
        raise typer.BadParameter(f"{text!r} is neither 'max' nor a positive number", param_hint="--speed")
    return speed
