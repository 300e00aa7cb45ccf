"""Table of the fault tests: for each fault the lost, repeated and reordered messages, and the longest gap.

python tests/faults [--replicas] [--quick] [--only NAME ...] [--json FILE] [--markdown FILE]

The cases are those of tests/faults: real servers and real processes, each message in a ledger. --replicas runs some of
them on a cluster and on Sentinels. --quick runs the short ones, --only those with a text in their names. The exit code
is 1 if a promise broke or a case failed.
"""

import argparse
import importlib
import json
import logging
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # in place of this folder: the cases are in the package `faults`

ON_RAY = ("embedded", "group", "interceptor", "cluster", "serving")
MODULES = ("server", "failover", "process", "moving", "link", "loss", "overload", "hostile", *ON_RAY)
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


def cases(args: argparse.Namespace) -> list[tuple[str, Any]]:
    """Return the cases that are wanted, each with its module."""
    found = [(module, case) for module in MODULES for case in importlib.import_module(f"faults.{module}_cases").CASES]
    if args.replicas:
        found = [(module, each) for module, case in found for each in case.on_services()]
    if args.only:
        return [(module, case) for module, case in found if any(text in case.name for text in args.only)]
    return [(module, case) for module, case in found if case.quick or not args.quick]


def run(case: Any) -> Row:
    """Run one case in a folder of its own."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        try:
            account = case.run(Path(folder))
        except Exception as error:  # noqa: BLE001 - one case that fails must not hide the others
            traceback.print_exc()
            text = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            return Row(case.name, case.promise.text, None, {}, time.monotonic() - begin, text)
    return Row(case.name, case.promise.text, account, case.promise.broken(account), time.monotonic() - begin)


def markdown(rows: list[Row]) -> str:
    """Draw the table, and below it further measurements of the cases."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * 7 + "|---" * 2 + "|"]
    lines += ["| " + " | ".join(cell.replace("|", "/") for cell in row.cells()) + " |" for row in rows]
    facts = [(row.name, row.account.facts) for row in rows if row.account is not None and row.account.facts]
    notes = [f"- {name}: {', '.join(f'{k} {v}' for k, v in each.items())}" for name, each in facts]
    return "\n".join([*lines, "", *notes, ""])


def as_json(rows: list[Row]) -> str:
    """Return all that was counted."""
    return json.dumps([asdict(row) | {"held": row.held} for row in rows], indent=1, default=str)


def main() -> int:
    """Run the cases, show the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run the cases that take a few seconds")
    parser.add_argument("--replicas", action="store_true", help="on a cluster, and on a primary with Sentinels")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases with a text in their names")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # faults log a lot, and the table has the results
    rows, wanted = [], cases(args)
    if any(module in ON_RAY for module, _ in wanted):
        from support.bare_ray import start_ray

        start_ray()
    for number, (_, case) in enumerate(wanted, 1):
        rows.append(run(case))
        verdict = "held" if rows[-1].held else "BROKE"
        print(f"{number}/{len(wanted)} {case.name}: {verdict}, {rows[-1].took_s:.0f} s", file=sys.stderr)  # noqa: T201
    print(markdown(rows))  # noqa: T201
    for path, text in ((args.json, as_json), (args.markdown, markdown)):
        if path is not None:
            path.write_text(text(rows))
    return 0 if rows and all(row.held for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
