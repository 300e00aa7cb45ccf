"""Table of the fault tests: for each fault the lost, repeated and reordered messages, and the longest gap.

python tests/faults [--replicas] [--quick] [--only NAME ...] [--without-ray] [--json FILE] [--markdown FILE]

The cases are those of tests/faults: real servers and real processes, each message in a ledger. --replicas runs some of
them on a cluster and on Sentinels. --quick leaves out the long ones, --only takes those with a text in their names. The
exit code is 1 if a promise broke or a case failed.
"""

import argparse
import importlib
import json
import logging
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # in place of this folder: the cases are in the package `faults`

MODULES = (
    "server",
    "failover",
    "slots",
    "process",
    "moving",
    "link",
    "loss",
    "overload",
    "hostile",
    "embedded",
    "group",
    "interceptor",
    "cluster",
    "serving",
)
ON_RAY = ("embedded", "group", "interceptor", "cluster", "serving")
COLUMNS = (
    "fault",
    "sent",
    "acknowledged and lost",
    "twice",
    "out of order",
    "unknown",
    "longest gap (s)",
    "drained in (s)",
    "promise",
    "held",
)


@dataclass
class Row:
    """Result of one case; `account` is None if it failed before it could count."""

    name: str
    promise: str
    account: Any
    broken: dict[str, int]
    took_s: float
    error: str = ""

    @property
    def held(self) -> bool:
        """Tell whether the promise held."""
        return self.account is not None and not self.broken

    def cells(self) -> list[str]:
        """Return it as the table shows it."""
        account = self.account
        if account is None:
            return [self.name, *["-"] * 7, self.promise, f"failed: {self.error}"]
        unknown = f"{account.unknown:,} ({account.came_of_unknown:,} came)" if account.unknown else "0"
        counts = [f"{count:,}" for count in (account.sent, account.lost, account.duplicates, account.order_breaks)]
        times = [f"{account.longest_gap_s:.2f}", f"{account.drain_s:.2f}"]
        return [self.name, *counts, unknown, *times, self.promise, "yes" if self.held else f"NO: {self.broken}"]


def cases(args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Return the cases that are wanted, each with its module."""
    for module in MODULES:
        if args.without_ray and module in ON_RAY:
            continue
        found = importlib.import_module(f"faults.{module}_cases").CASES
        if args.replicas:
            found = [more for case in found for more in case.on_services()]
        for case in found:
            if (args.only and any(text in case.name for text in args.only)) or not (
                args.only or (args.quick and case.long)
            ):
                yield module, case


def run(case: Any) -> Row:
    """Run one case in a folder of its own."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        try:
            account = case.run(Path(folder))
        except Exception as error:  # noqa: BLE001 - one case that fails must not hide the others
            traceback.print_exc()
            text = str(error).partition("\n")[0][:200]
            return Row(
                case.name, case.promise.text, None, {}, time.monotonic() - begin, f"{type(error).__name__}: {text}"
            )
    return Row(case.name, case.promise.text, account, case.promise.broken(account), time.monotonic() - begin)


@contextmanager
def ray_when_needed(wanted: list[tuple[str, Any]]) -> Iterator[None]:
    """Run Ray while cases need it."""
    if not any(module in ON_RAY for module, _ in wanted):
        yield
        return
    import ray
    from support import cluster as cluster_support
    from support.bare_ray import start_ray

    start_ray()
    try:
        ray.cloudpickle.register_pickle_by_value(cluster_support)
        yield
    finally:
        ray.shutdown()


def notes(rows: list[Row]) -> list[str]:
    """Return further measurements of the cases, a line each."""
    told = [(row.name, row.account.facts) for row in rows if row.account is not None]
    return [f"{name}: {', '.join(f'{k} {v}' for k, v in facts.items())}" for name, facts in told if facts]


def table(rows: list[Row]) -> Table:
    """Draw the table for a terminal."""
    drawn = Table(title="Faults", show_lines=False)
    for at, column in enumerate(COLUMNS):
        drawn.add_column(column, justify="right" if 0 < at < 8 else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*row.cells(), style="" if row.held else "bold red")
    return drawn


def markdown(rows: list[Row]) -> str:
    """Draw the table for the README."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * 7 + "|---" * 2 + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row.cells()) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes(rows)), ""])


def as_json(rows: list[Row]) -> str:
    """Return all that was counted."""
    return json.dumps([asdict(row) | {"held": row.held} for row in rows], indent=1, default=str)


def main() -> int:
    """Run the cases, show the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the cases that take long")
    parser.add_argument("--replicas", action="store_true", help="on a cluster, and on a primary with Sentinels")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases with a text in their names")
    parser.add_argument("--without-ray", action="store_true", help="leave out the faults of Ray's processes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # faults log a lot, and the table has the results
    console, rows = Console(width=None if sys.stdout.isatty() else 200), []
    wanted = list(cases(args))
    with ray_when_needed(wanted):
        for number, (_, case) in enumerate(wanted, 1):
            rows.append(run(case))
            verdict = "held" if rows[-1].held else "BROKE"
            console.print(f"{number}/{len(wanted)} {case.name}: {verdict}, {rows[-1].took_s:.0f} s", highlight=False)
    console.print(table(rows))
    for note in notes(rows):
        console.print(note, highlight=False)
    for path, text in ((args.json, as_json), (args.markdown, markdown)):
        if path is not None:
            path.write_text(text(rows))
    return 0 if rows and all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
