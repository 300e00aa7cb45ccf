"""Table of the fault tests: for each fault the lost, repeated and reordered messages, and the longest gap.

python tests/faults [--replicas] [--quick] [--only NAME ...]

The cases are those of tests/faults: real servers and real processes, each message in a ledger. --replicas runs some of
them on a cluster and on Sentinels. --quick leaves out the long ones, --only takes those with a text in their names. The
exit code is 1 if a promise broke or a case failed.
"""

import argparse
import importlib
import logging
import sys
import tempfile
import time
import traceback
from pathlib import Path

from rich.console import Console

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # in place of this folder: the cases are in the package `faults`

MODULES = ("server", "failover", "slots", "process", "moving", "link", "loss", "overload")
ON_RAY = ("embedded", "group", "interceptor", "cluster")
COLUMNS = (
    "fault", "sent", "acknowledged and lost", "twice", "out of order", "unknown", "longest gap (s)", "drained in (s)",
    "promise", "held",
)  # fmt: skip
CONSOLE = Console(width=None if sys.stdout.isatty() else 500, highlight=False, markup=False)


def cases(modules, args):
    """Return the wanted cases of some modules."""
    found = [case for module in modules for case in importlib.import_module(f"faults.{module}_cases").CASES]
    if args.replicas:
        found = [more for case in found for more in case.on_services()]
    if args.only:
        return [case for case in found if any(text in case.name for text in args.only)]
    return [case for case in found if not (args.quick and case.long)]


def run(case):
    """Run a case in a folder of its own; return whether its promise held, and its cells in the table."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        try:
            account = case.run(Path(folder))
        except Exception as error:  # noqa: BLE001 - one case that fails must not hide the others
            traceback.print_exc()
            return False, [case.name, *["-"] * 7, case.promise.text, f"failed: {error!r}"[:200]]
    broken = case.promise.broken(account)
    unknown = f"{account.unknown:,} ({account.came_of_unknown:,} came)" if account.unknown else "0"
    counts = [f"{count:,}" for count in (account.sent, account.lost, account.duplicates, account.order_breaks)]
    times = [f"{account.longest_gap_s:.2f}", f"{account.drain_s:.2f}"]
    CONSOLE.print(*(f"{name} {fact}" for name, fact in account.facts.items()), sep=", ")
    return not broken, [
        case.name, *counts, unknown, *times, case.promise.text, f"NO: {broken}" if broken else "yes",
    ]  # fmt: skip


def main():
    """Run the cases, print the table in Markdown; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out the cases that take long")
    parser.add_argument("--replicas", action="store_true", help="on a cluster, and on a primary with Sentinels")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases with a text in their names")
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # faults log a lot, and the table has the results
    wanted, on_ray = cases(MODULES, args), cases(ON_RAY, args)
    if on_ray:
        from support.bare_ray import start_ray

        start_ray()
    rows = []
    for number, case in enumerate([*wanted, *on_ray], 1):
        begin = time.monotonic()
        rows.append(run(case))
        verdict = "held" if rows[-1][0] else "BROKE"
        took = f"{time.monotonic() - begin:.0f} s"
        CONSOLE.print(f"{number}/{len(wanted) + len(on_ray)} {case.name}: {verdict}, {took}")
    for cells in (COLUMNS, ["---", *["---:"] * 7, "---", "---"], *(cells for _, cells in rows)):
        CONSOLE.print(f"| {' | '.join(cells)} |")
    return 0 if rows and all(held for held, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
