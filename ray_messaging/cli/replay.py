"""The `replay` command: a real trace sent through groups, every message checked."""

from collections.abc import Sequence

import typer

from ray_messaging.cli.options import (
    From,
    Groups,
    JsonFile,
    LogDir,
    Redis,
    Rules,
    Speed,
    Text,
    Time,
    To,
    TraceFile,
    read_speed,
)
from ray_messaging.cli.rule_specs import parse_rules
from ray_messaging.cli.session import check_outputs, clean_errors, finish, output, run
from ray_messaging.cli.show import counted
from ray_messaging.interception.rules import RateLimit, Rule
from ray_messaging.replay.plan import Plan, Traffic, assign_groups, due_times
from ray_messaging.replay.traces.trace import read_trace


def _pace(traffic: Traffic, speed: float | None) -> str:
    if speed is None:
        return "as fast as possible"
    return f"at {speed:,.10g} times its pace ({due_times(traffic.times, speed)[-1]:,.1f} s)"


def _note(plan: Plan, groups: int, rules: Sequence[Rule], speed: float | None) -> None:
    """Print warnings about unexpected settings."""
    if plan.groups < groups:
        typer.echo(f"note: {len(plan.traffic.agents)} agents fill {plan.groups} of {groups} groups", err=True)
    if speed is None and any(isinstance(rule, RateLimit) and rule.per_second for rule in rules):
        typer.echo("note: per_second counts by the clock: --speed X keeps the pace of the trace's times", err=True)


def replay(
    trace: TraceFile,
    groups: Groups = 4,
    rules: Rules = None,
    json_file: JsonFile = None,
    log_dir: LogDir = None,
    speed: Speed = "max",
    redis: Redis = None,
    from_field: From = None,
    to_field: To = None,
    time_field: Time = None,
    text_field: Text = None,
) -> None:
    """Send a trace's messages between groups, and check that each arrives correctly.

    Exit code 1: the account does not balance. 2: an argument is invalid, or the run failed.
    """
    pace = read_speed(speed)
    with clean_errors():
        check_outputs(json_file, log_dir)
        parsed = parse_rules(rules or [])
        names = {"from_field": from_field, "to_field": to_field, "time_field": time_field, "text_field": text_field}
        traffic = Traffic.of(read_trace(trace, **names))
        plan = Plan(traffic, assign_groups(traffic.agents, groups), speed=pace)
        console = output()
        _note(plan, groups, parsed, pace)
        console.print(
            f"Replay of {trace.name}: {len(traffic):,} messages among {len(traffic.agents):,} agents in "
            f"{counted(plan.groups, 'group')} (a Ray actor each), {_pace(traffic, pace)}, "
            f"{'rules: ' + ', '.join(rule.name for rule in parsed) if parsed else 'no rules'}."
        )
        outcome = run(console, plan, parsed, redis, purpose="replay", probe=False, log_dir=log_dir)
        finish(outcome, json_file, {"trace": str(trace), "agents": len(traffic.agents)})
