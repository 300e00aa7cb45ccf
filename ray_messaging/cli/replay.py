"""The replay: a real trace through groups, every message checked."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.rule_specs import parse_rules
from ray_messaging.cli.session import check_json_file, clean_errors, finish, output, run
from ray_messaging.cli.show import show_check, show_fates, show_heat_map, show_speed
from ray_messaging.replay.plan import Plan, deal
from ray_messaging.replay.trace import read_trace
from ray_messaging.replay.traffic import Traffic


def _speed(text: str) -> float | None:
    """Read --speed: None is as fast as it goes."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (isfinite(speed) and speed > 0):
        raise typer.BadParameter(f"{text!r} is neither 'max' nor a positive number")
    return speed


def replay(
    trace: Annotated[Path, typer.Argument(help="SNAP edge list (src dst time), CSV with a header or JSON lines; .gz.")],
    groups: Annotated[int, typer.Option(min=1, max=256, help="How many groups, one Ray actor each.")] = 4,
    rules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC", help="black-list:1-2,3-*,*-4, black-list:FILE.csv or max-length:BYTES; repeatable."
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the account to this file.")
    ] = None,
    speed: Annotated[
        str, typer.Option(metavar="max|X", help="X times the pace of the trace's times, or as fast as it goes.")
    ] = "max",
    redis: Annotated[
        str | None, typer.Option(metavar="URL", help="Use this server, redis://host:port/db, not an embedded one.")
    ] = None,
    from_field: Annotated[
        str | None, typer.Option("--from", metavar="FIELD", help="The sender's field, or a template: '{game}-{name}'.")
    ] = None,
    to_field: Annotated[str | None, typer.Option("--to", metavar="FIELD", help="The receiver's field.")] = None,
    time_field: Annotated[str | None, typer.Option("--time", metavar="FIELD", help="The time's field.")] = None,
    text_field: Annotated[str | None, typer.Option("--text", metavar="FIELD", help="The text's field.")] = None,
) -> None:
    """Send a trace's messages from group to group as they were sent, and check that each arrives as it should.

    Exit code 1: the account does not balance. 2: something cannot be used, or broke.
    """
    pace = _speed(speed)
    with clean_errors():
        check_json_file(json_file)
        parsed = parse_rules(rules or [])
        traffic = Traffic.of(
            read_trace(trace, from_field=from_field, to_field=to_field, time_field=time_field, text_field=text_field)
        )
        plan = Plan(traffic, deal(traffic.agents, groups), speed=pace)
        console = output()
        if plan.groups < groups:
            typer.echo(f"note: {len(traffic.agents)} agents fill {plan.groups} of {groups} groups", err=True)
        console.print(
            f"Replay of {trace.name}: {len(traffic):,} messages among {len(traffic.agents):,} agents in {plan.groups} "
            f"groups (a Ray actor each), {'as fast as it goes' if pace is None else f'at {pace:g} times its pace'}, "
            f"{'rules: ' + ', '.join(rule.name for rule in parsed) if parsed else 'no rules'}."
        )
        outcome = run(console, plan, parsed, redis, purpose="replay", probe=False)
        for show in (show_fates, show_heat_map, show_check, show_speed):
            console.print()
            show(console, outcome.account)
        finish(outcome, json_file, {"trace": str(trace), "agents": len(traffic.agents)})
