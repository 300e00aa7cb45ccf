"""Send 50 million messages through four groups while something breaks every ten seconds.

python -m benchmarks.soak [--messages 50000000] [--seconds 600] [--fault-every 10] [--groups 4] [--json FILE]
python -m benchmarks.soak --steady [--minutes 60] [--pace 1] [--json FILE]

The exit code is 1 if a message was lost, came twice, out of order, or to the wrong agent. With --steady there are no
faults, and it is 1 if memory or keys grow that should not.
"""

import argparse
import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.soak import steady
from benchmarks.soak.faults import Faults
from benchmarks.soak.memory import Memory
from benchmarks.soak.traffic import FLAWS, Receiver, Sender, Town, account
from ray_messaging import Messaging, rules

SIZE = 10_000  # agents of a group, and messages of a call


def soak(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run once; return the report."""
    town = Town(arguments.groups, SIZE)
    steps = max(1, arguments.messages // (arguments.groups * SIZE))
    pace_s = 0.8 * arguments.seconds / steps  # faults cost time, which is made up for
    with Messaging.start(f"soak-{secrets.token_hex(4)}", rules=[rules.BlackList(town.black_list())]) as messaging:
        for number in range(arguments.groups):
            messaging.create_group(f"g{number}", town.agents_of(number))
        # Handles of their own, as tasks would have.
        found = [messaging.group(f"g{number}") for number in range(arguments.groups)]
        copies = Messaging.connect(messaging.exp_id)
        senders = [Sender(town, number, group, steps, pace_s) for number, group in enumerate(found)]
        receivers = [Receiver(town, number, copies.group(group.name), steps) for number, group in enumerate(found)]
        faults = Faults(messaging, arguments.fault_every)
        memory = Memory(messaging, faults)
        began = time.monotonic()
        for thread in (*receivers, *senders, memory, faults):
            thread.start()
        watch(console, senders, steps, arguments.seconds)
        for thread in senders:
            thread.stop()
            thread.join()
        faults.stop()
        faults.join()
        sent_s = time.monotonic() - began
        for receiver in receivers:
            receiver.stop()
            receiver.join()
            if receiver.failure is not None:
                raise receiver.failure
        drained_s = time.monotonic() - began - sent_s
        memory.stop()
        memory.join()
        waiting = sum(messaging.stats()["waiting"].values())
    return {
        "account": account(town, senders, receivers) | {"waiting": waiting},
        "seconds": sent_s,
        "drain_seconds": drained_s,
        "faults": len(faults.done),
        "kinds": kinds(faults, receivers),
        "errors": {name: sum(s.errors[name] for s in senders) for s in senders for name in s.errors},
        "memory_mib": memory.figures(),
    }


def watch(console: Console, senders: list[Sender], steps: int, seconds: float) -> None:
    """Show how far it is until all was sent or the time is over."""
    deadline = time.monotonic() + seconds
    columns = (TextColumn("messages sent"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("sent", total=len(senders) * steps * SIZE)
        while any(sender.is_alive() for sender in senders) and time.monotonic() < deadline:
            next(sender for sender in senders if sender.is_alive()).join(0.5)
            progress.update(task, completed=sum(sender.done for sender in senders) * SIZE)


def kinds(faults: Faults, receivers: list[Receiver]) -> dict[str, dict[str, float]]:
    """Return of each kind of fault how often it was, and the longest time that a group got nothing after it."""
    found: dict[str, dict[str, float]] = {}
    for _, name in faults.done:
        found.setdefault(name, {"count": 0, "longest_gap_s": 0.0})["count"] += 1
    for end, length in (gap for receiver in receivers for gap in receiver.gaps):
        before = [name for at, name in faults.done if at < end]
        if before:
            kind = found[before[-1]]
            kind["longest_gap_s"] = max(kind["longest_gap_s"], length)
    return found


def show(console: Console, report: dict[str, Any]) -> None:
    """Print the account, the faults and the memory."""
    balance = report["account"]
    console.print(
        f"{balance['sent']:,} messages in {report['seconds']:.0f} s and {report['faults']} faults "
        f"(drained {report['drain_seconds']:.1f} s later): {balance['acknowledged']:,} acknowledged, "
        f"{balance['blocked']:,} blocked, {balance['unknown']:,} unknown "
        f"(of which {balance['unknown_arrived']:,} arrived); "
        f"{balance['received']:,} received"
    )
    console.print(", ".join(f"{name.replace('_', ' ')} {balance[name]:,}" for name in (*FLAWS, "waiting")))
    table = Table("fault", "times", "longest gap s")
    for name, kind in report["kinds"].items():
        table.add_row(name, f"{kind['count']:.0f}", f"{kind['longest_gap_s']:.1f}" if kind["longest_gap_s"] else "< 1")
    console.print(table)
    table = Table("memory, MiB", "second quarter", "last quarter", "most")
    for name, figures in report["memory_mib"].items():
        table.add_row(name, *(f"{figures[key]:.0f}" for key in ("second_quarter", "last_quarter", "most")))
    console.print(table)


def main() -> int:
    """Run and print; return 0 if the balance is exact, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="no step begins later")
    parser.add_argument("--fault-every", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--steady", action="store_true", help="all kinds of traffic, no faults; reports growth")
    parser.add_argument("--minutes", type=float, default=60.0, help="with --steady")
    parser.add_argument("--pace", type=float, default=1.0, help="with --steady: factor of the speed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if arguments.steady:
        return steady.main(arguments, console)
    report = soak(arguments, console)
    show(console, report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(any(report["account"][name] for name in FLAWS) or report["account"]["waiting"] > 0)


if __name__ == "__main__":
    sys.exit(main())
