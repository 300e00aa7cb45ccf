"""The run of `demo` and `replay`, which checks that all messages arrive correctly, and its report."""

import json
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

import typer
from rich.console import Console

from ray_messaging.cli.session import print_json
from ray_messaging.cli.show import progress_bars, show_check, show_fates, show_heat_map, show_speed
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.cluster.ray_clusters import check_ray_address
from ray_messaging.cluster.ray_internals import errors_to_stderr
from ray_messaging.errors import ConfigError, Unbalanced
from ray_messaging.eventlog.folder import Folder
from ray_messaging.interception.rules import Rule
from ray_messaging.replay.account import ReplayAccount
from ray_messaging.replay.replay_plan import Plan
from ray_messaging.replay.runner import ReplayRunner, lone_latency_ms

DOES_NOT_BALANCE = 1


def run(
    console: Console,
    plan: Plan,
    rules: Sequence[Rule],
    redis: str | None,
    *,
    purpose: str,
    probe: bool,
    log_dir: str | None = None,
    ui: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Run a plan: start what is needed, send and receive all messages, stop everything, and print the outcome.

    With `ui`, the inspector shows the run, and the experiment is stopped only after Ctrl-C.

    Args: `purpose` is the beginning of the experiment's name. With `probe`, the latency of single messages is measured
    after the run, if each message of the run has one fate and arrived accordingly.
    Returns: the outcome in JSON's types, and a list of sentences about the numbers that do not agree.
    """
    check_ray_address()
    errors_to_stderr()
    began = time.monotonic()
    exp_id = f"{purpose}-{secrets.token_hex(4)}"
    console.print(f"Starting Ray, {'your server' if redis else 'a server'}, the interceptor and the groups ...")
    messaging = Messaging.start(exp_id, redis=redis, rules=rules, log_dir=log_dir)
    # After the run, its data are erased, so that nothing is left on a user's server.
    with ExitStack() as stack:
        stack.callback(messaging.shutdown, erase=True)
        engine = stack.enter_context(ReplayRunner(messaging, plan))
        startup_seconds = time.monotonic() - began
        console.print(f"Ready after {startup_seconds:.1f} s. Sending {len(plan.traffic):,} messages ...")
        if log_dir is not None:
            console.print(f"(To watch it from another terminal: ray-messaging log tail {exp_id})")
        if ui:
            console.print(f"The inspector is at {stack.enter_context(messaging.ui(port=0)).url}: open it in a browser.")
        with progress_bars(console, len(plan.traffic)) as on_progress:
            account = engine.run(on_progress)
        logged, problems = (None, []) if log_dir is None else _logged(console, messaging, account)
        lone_ms = _lone_latency_ms(f"{exp_id}-lone", rules, redis) if probe and account.balances else None
        for show in (show_fates, show_heat_map, show_check):
            console.print()
            show(console, account)
        console.print()
        show_speed(console, account, lone_ms)
        if logged is not None and not problems:
            console.print(
                f"The event log has {sum(logged.values()):,} sends, each with one fate, as in the senders' receipts. "
                f"Look into it:\n  ray-messaging log stats {log_dir}"
            )
        if ui:
            console.print("\nThe experiment stays for the inspector; Ctrl-C ends both.")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    measured = {"startup_seconds": round(startup_seconds, 3), "logged": logged, "lone_latency_ms": lone_ms}
    found = account.to_dict() | {name: value for name, value in measured.items() if value is not None}
    return found, [*account.problems, *problems]


def _lone_latency_ms(exp_id: str, rules: Sequence[Rule], redis: str | None) -> dict[str, float | None]:
    """Return p50 and p99, in ms, of the latency of single messages.

    The messages have an experiment of their own, so the run does not count them.
    """
    messaging = Messaging.start(exp_id, redis=redis, rules=rules)
    try:
        return lone_latency_ms(messaging)
    finally:
        messaging.shutdown(erase=True)


def _logged(console: Console, messaging: Messaging, account: ReplayAccount) -> tuple[dict[str, int], list[str]]:
    """Return the event log's counts by fate, and in words how these differ from the senders' receipts."""
    console.print("Checking the event log ...")
    try:
        counts = dict(messaging.log.balance().fates)
    except Unbalanced as error:
        return {}, [f"the event log does not balance: {error}"]
    if counts != account.fates:
        return counts, [f"the event log has {counts}, but the senders' receipts have {account.fates}"]
    return counts, []


def finish(found: dict[str, Any], problems: Sequence[str], *, as_json: bool) -> None:
    """Print the outcome of a run if `as_json` is True, and each problem on stderr. With a problem, exit with code 1."""
    if as_json:
        print_json(json.dumps(found).encode())
    for problem in problems:
        typer.echo(f"error: the account does not balance: {problem}", err=True)
    if problems:
        raise typer.Exit(DOES_NOT_BALANCE)


def check_outputs(log_dir: str | None) -> None:
    """Raise ConfigError if a run's folder is "" or already has a log; LogError if the folder cannot be read."""
    if log_dir == "":
        raise ConfigError("--log-dir '' is not a folder: name one, or leave the option out")
    if log_dir is not None and Folder(log_dir).segments():
        raise ConfigError(
            f"{log_dir!r} contains the log of an earlier run (ray-messaging log stats {log_dir} shows it): choose "
            "another --log-dir, or remove that folder"
        )
