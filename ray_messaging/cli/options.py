"""Options of the commands, as types."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.rule_specs import KNOWN

Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Use this server, redis://host:port/db, instead of an embedded one."),
]
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the result to this file, as JSON.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs: one object per line.")]
LogDir = Annotated[
    str | None,
    typer.Option(
        "--log-dir", metavar="DIR", help="Write an event log, as Parquet, to this new folder, or URI (s3://...)."
    ),
]
Ui = Annotated[
    bool, typer.Option("--ui", help="Open the inspector beside it (needs --log-dir), and stay for it until Ctrl-C.")
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the generated traffic.")]
Agents = Annotated[int, typer.Option(min=4, help="Number of agents.")]
Messages = Annotated[int, typer.Option(min=1, help="Number of messages.")]
DemoGroups = Annotated[int, typer.Option("--groups", min=2, max=64, help="Number of groups. Each is a Ray actor.")]

TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="SNAP edge list (src dst time), CSV with a header, JSON lines; plain or .gz."),
]
Groups = Annotated[int, typer.Option(min=1, max=256, help="Number of groups. Each is a Ray actor.")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC",
        help=f"A rule; repeatable. A run is one round: {'; '.join(known.example for known in KNOWN.values())}.",
    ),
]
Speed = Annotated[
    str, typer.Option(metavar="max|X", help="X times the pace of the trace's times; max: as fast as possible.")
]
From = Annotated[
    str | None, typer.Option("--from", metavar="FIELD", help="Field of the sender, or a template: '{game}-{name}'.")
]
To = Annotated[str | None, typer.Option("--to", metavar="FIELD", help="Field of the receiver, or a template.")]
Time = Annotated[str | None, typer.Option("--time", metavar="FIELD", help="Field of the time.")]
Text = Annotated[str | None, typer.Option("--text", metavar="FIELD", help="Field of the text.")]


def read_speed(text: str) -> float | None:
    """Parse --speed; None for `max`. Raises typer.BadParameter if it is neither `max` nor a positive number."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (isfinite(speed) and speed > 0):
        raise typer.BadParameter(f"{text!r} is neither 'max' nor a positive number", param_hint="--speed")
    return speed
