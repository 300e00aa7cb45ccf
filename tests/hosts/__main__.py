"""Table of the faults of a network: what each run lost, what came twice or out of order, and how long it stood still.

python tests/hosts [--only TEXT ...] [--json FILE] [--show]

Needs Linux, root, iproute2 and gcc (see support/hosts.py). --only runs the cases with a text in their names, --show
prints what a run has said. The exit code is 1 if a promise broke.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # in place of this folder: the cases are in the package `hosts`

COLUMNS = ("fault", "lost", "twice", "disorder", "digest", "stood still (s)", "took (s)", "health meanwhile", "held")


def cells_of(outcome, took_s, digest, *, fails):
    """Return the cells of one row."""
    found = outcome.result
    counts = [found.get(what, "") for what in ("lost", "twice", "disorder")]
    same = "" if outcome.error else "equal" if found["digest"] == digest else "differs"
    still = f"{found['still_s']:.1f}" if "still_s" in found else ""
    health = ", ".join(f"{each['health']} in {each['took_s']:.1f} s" for each in outcome.health)
    broken = outcome.broken(digest, fails=fails)
    held = "no" if broken else f"yes: {outcome.error}" if fails else "yes"
    return [outcome.case, *counts, same, still, f"{took_s:.0f}", health, f"{held} {'; '.join(broken)}".strip()]


def main():
    """Print the table."""
    from hosts.fault_cases import CASES, digest_of_one_process
    from support.hosts import missing

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--show", action="store_true")
    asked = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(reason)
    digest, outcomes, held = digest_of_one_process(), [], True
    say(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for case in CASES:
        if asked.only and not any(text in case.name for text in asked.only):
            continue
        began = time.monotonic()
        try:
            outcome = case.run()
        except AssertionError as error:
            held = False
            say(f"| {case.name} | no result: {error} |")
            continue
        held &= not outcome.broken(digest, fails=case.fails)
        cells = cells_of(outcome, time.monotonic() - began, digest, fails=case.fails)
        say(f"| {' | '.join(map(str, cells))} |")
        outcomes.append(asdict(outcome))
        if asked.show:
            say(outcome.printed)
    if asked.json:
        asked.json.write_text(json.dumps(outcomes, indent=1))
    sys.exit(not held)


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
