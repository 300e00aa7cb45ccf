"""The commands `replay` (a real trace) and `demo` (generated traffic), which check every message."""

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.options import Rules
from ray_messaging.cli.rule_specs import parse_rules
from ray_messaging.cli.session import output
from ray_messaging.cli.show import counted
from ray_messaging.cli.ui import check_extra
from ray_messaging.errors import ConfigError
from ray_messaging.interception.rules import BlackList, RateLimit, Rule
from ray_messaging.replay.generated_society import generate
from ray_messaging.replay.replay_plan import Plan, assign_groups, due_times
from ray_messaging.replay.trace import Traffic, read_trace

Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Use this server, redis://host:port/db, instead of an embedded one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, in one object; all else goes to stderr.")]
LogDir = Annotated[
    str | None,
    typer.Option(
        "--log-dir", metavar="DIR", help="Write an event log, as Parquet, to this new folder, or URI (s3://...)."
    ),
]
Ui = Annotated[bool, typer.Option("--ui", help="Also open the inspector, until Ctrl-C (needs --log-dir).")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the generated traffic.")]
Agents = Annotated[int, typer.Option(min=4, help="Number of agents.")]
Messages = Annotated[int, typer.Option(min=1, help="Number of messages.")]
DemoGroups = Annotated[int, typer.Option("--groups", min=2, max=64, help="Number of groups. Each is a Ray actor.")]

TraceFile = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="SNAP edge list (src dst time), CSV with a header, JSON lines; plain or .gz."),
]
Groups = Annotated[int, typer.Option(min=1, max=256, help="Number of groups. Each is a Ray actor.")]
Speed = Annotated[
    str,
    typer.Option(metavar="max|X", help="X: send X times as fast as the times in the trace; max: as fast as possible."),
]
From = Annotated[
    str | None, typer.Option("--from", metavar="FIELD", help="Field of the sender, or a template: '{game}-{name}'.")
]
To = Annotated[str | None, typer.Option("--to", metavar="FIELD", help="Field of the receiver, or a template.")]
Time = Annotated[str | None, typer.Option("--time", metavar="FIELD", help="Field of the time.")]
Text = Annotated[str | None, typer.Option("--text", metavar="FIELD", help="Field of the text.")]

NEXT = """
Try next:
  ray-messaging demo --agents 10000 --json > account.json
  ray-messaging demo --log-dir town-log && ray-messaging log stats town-log
  ray-messaging demo --log-dir seen-log --ui (the same in the browser)
  ray-messaging replay TRACE --groups 4      (your own file: edge list, CSV or JSONL)
  ray-messaging replay TRACE --rules 'black-list:1-2,3-*' --rules max-length:500
In Python: from ray_messaging import Messaging (docs/tutorial.md)"""


def demo(
    agents: Agents = 1000,
    groups: DemoGroups = 4,
    messages: Messages = 1_000_000,
    redis: Redis = None,
    as_json: Json = False,
    log_dir: LogDir = None,
    ui: Ui = False,
    seed: Seed = 1,
) -> None:
    """Run a generated society of agents that send each other messages, with a black list, and show the result."""
    from ray_messaging.cli.checked_run import check_outputs, finish, run  # noqa: PLC0415 - it brings Ray

    if ui and log_dir is None:
        raise ConfigError("--ui shows the messages of a log, so a log is needed: add --log-dir demo-log to --ui")
    if ui:
        check_extra()
    check_outputs(log_dir)
    society = generate(agents, groups, messages, seed=seed)
    plan = Plan(society.traffic, society.group_of)
    console = output(aside=as_json)
    console.print(
        f"Demo: {agents:,} agents in {groups} groups (a Ray actor each) send {messages:,} messages to each other. "
        f"A black list blocks all messages of agent {society.silenced}, and those of "
        f"{len(society.black_list) - 1} pairs."
    )
    rules = [BlackList(society.black_list)]
    found, problems = run(console, plan, rules, redis, purpose="demo", probe=True, log_dir=log_dir, ui=ui)
    console.print(NEXT)
    finish({"agents": agents, "seed": seed} | found, problems, as_json=as_json)


def _speed(text: str) -> float | None:
    """Return the value of --speed, or None for `max`; raise typer.BadParameter for an invalid value."""
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not (isfinite(speed) and speed > 0):
        raise typer.BadParameter(f"{text!r} is neither 'max' nor a positive number", param_hint="--speed")
    return speed


def _pace(traffic: Traffic, speed: float | None) -> str:
    if speed is None:
        return "as fast as possible"
    return f"at {speed:,.10g} times its pace ({due_times(traffic.times, speed)[-1]:,.1f} s)"


def _note(plan: Plan, groups: int, rules: Sequence[Rule], speed: float | None) -> None:
    """Print warnings about unexpected settings."""
    if plan.groups < groups:
        typer.echo(f"note: {len(plan.traffic.agents)} agents fill {plan.groups} of {groups} groups", err=True)
    if speed is None and any(isinstance(rule, RateLimit) and rule.per_second for rule in rules):
        typer.echo(
            "note: a limit per_second counts seconds of the clock, and this replay is faster than the trace: "
            "--speed 1 keeps the pace of its times",
            err=True,
        )


def replay(
    trace: TraceFile,
    groups: Groups = 4,
    rules: Rules = None,
    as_json: Json = False,
    log_dir: LogDir = None,
    speed: Speed = "max",
    redis: Redis = None,
    from_field: From = None,
    to_field: To = None,
    time_field: Time = None,
    text_field: Text = None,
) -> None:
    """Send the messages of a trace between groups, and check that each arrives correctly.

    The exit code is 1 if a message did not arrive as it should, and 2 if an argument is invalid or the run failed.
    """
    from ray_messaging.cli.checked_run import check_outputs, finish, run  # noqa: PLC0415 - it brings Ray

    pace = _speed(speed)
    check_outputs(log_dir)
    parsed = parse_rules(rules or [])
    names = {"from_field": from_field, "to_field": to_field, "time_field": time_field, "text_field": text_field}
    traffic = read_trace(trace, **names)
    plan = Plan(traffic, assign_groups(traffic.agents, groups), speed=pace)
    console = output(aside=as_json)
    _note(plan, groups, parsed, pace)
    console.print(
        f"Replay of {trace.name}: {len(traffic):,} messages among {len(traffic.agents):,} agents in "
        f"{counted(plan.groups, 'group')} (a Ray actor each), {_pace(traffic, pace)}, "
        f"{'rules: ' + ', '.join(rule.name for rule in parsed) if parsed else 'no rules'}."
    )
    found, problems = run(console, plan, parsed, redis, purpose="replay", probe=False, log_dir=log_dir)
    finish({"trace": str(trace), "agents": len(traffic.agents)} | found, problems, as_json=as_json)
