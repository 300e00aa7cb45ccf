"""Models of the literature, checked against their published values.

    python -m examples.zoo                             # list the models and their sources
    python -m examples.zoo --check                     # run all models, which takes minutes
    python -m examples.zoo --check --small sir watts   # run two models, with few replicates
    python -m examples.zoo --check --page docs/zoo.md  # run all models, and write the page

The exit code is 1 if a value does not come out, unless the model's file declares this.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.zoo.claims import check_model
from examples.zoo.table import HEADS, MODELS, load, page, row


def main(arguments=None):
    """Check the zoo, and return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m examples.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"which models, by default all: {', '.join(MODELS)}")
    parser.add_argument("--check", action="store_true", help="run the models, and print the table")
    parser.add_argument("--small", action="store_true", help="use few replicates and small societies")
    parser.add_argument("--page", type=Path, help="write the table as a page of the documentation, too")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="number of processes, by default one for each core"
    )
    plan = parser.parse_args(arguments)
    if unknown := sorted({*plan.models} - {*MODELS}):
        parser.error(f"there is no model {', '.join(unknown)}: choose from {', '.join(MODELS)}")
    if plan.page and (plan.models or plan.small or not plan.check):
        parser.error("--page has the whole zoo: give it with --check, and without models and --small")
    names = plan.models or MODELS
    if not plan.check:
        for name in names:
            print(f"{name}: {load(name).NAME}. {load(name).SOURCE}")
        return 0
    outcomes = checked(names, small=plan.small, workers=plan.workers)
    show(outcomes)
    if plan.page:
        plan.page.write_text(page(outcomes))
    wrong = [each for found in outcomes.values() for each in found if not each.comes_out and not each.claim.declared]
    return 1 if wrong else 0


def checked(names, *, small, workers):
    """Run the models in as many processes as `workers`. Return {model: what came out of each of its claims}."""
    told = Console(stderr=True)
    outcomes = {}
    if workers == 1:
        found = ((name, check_model(name, small=small)) for name in names)
    else:
        pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        calls = [(name, pool.submit(check_model, name, small=small)) for name in names]
        found = ((name, call.result()) for name, call in calls)
    for name, each in found:
        outcomes[name] = each
        told.print(f"{len(outcomes)} of {len(names)}: {name}", highlight=False)
    return outcomes


def show(outcomes):
    """Print the table. If the output is no terminal, print one line of text for each row."""
    console = Console()
    rows = [row(name, each) for name, found in outcomes.items() for each in found]
    if not console.is_terminal:
        print(*("\t".join(line) for line in [HEADS, *rows]), sep="\n")
        return
    table = Table(*HEADS)
    for line in rows:
        table.add_row(*line, style="red" if line[-1] == "no" else None)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
