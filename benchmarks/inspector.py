"""The load of the inspector: the first view of a long log, and what an open page costs a bulk run.

    python -m benchmarks.inspector                 # both
    python -m benchmarks.inspector --rows 1000000 --rounds 4 --json

It needs chromium on PATH, and playwright.

`view`: the seconds from the command until its address is there, from a visit until the overview has figures (the
first visit reads the log), and until a search has rows; the memory of the inspector.

`cost`: one group sends columns to another one, which fetches them, with an open overview and without, by turns; a
round has one turn of each, and every other round begins with the page. Before a turn the log has all rows of earlier
ones, and an opened page has shown its figures and its first health check. A turn is from its first send to its last
fetch. `updates_per_s` counts how often the page changed the number of rows, `processors_of_the_inspector` is processor
time per second of its process; both of the turns with the page. A turn must last many seconds: the page looks once a
second, and a look waits until the log has the rows that were sent before it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

AGENTS = 100_000
GROUPS = 16
BATCH = 50_000
WARM_UP = 2_000_000  # messages
PATIENCE_MS = 300_000
COUNT_CHANGES = """
window.seen = 0;
new MutationObserver(() => window.seen++).observe(
  document.querySelector('[data-mark=figure-rows]'), {childList: true, characterData: true, subtree: true})
"""


def write_log(path, rows):
    """Write a log of messages between agents of GROUPS groups, over ten minutes."""
    from ray_messaging.eventlog.folder import Folder
    from ray_messaging.eventlog.log_schema import SCHEMA

    folder, chance, first = Folder(path), np.random.default_rng(1), 0
    folder.prepare("long")
    names = np.array([f"group-{n}" for n in range(GROUPS)])
    for number in range(-(-rows // 250_000)):
        count = min(250_000, rows - first)
        at = 1_700_000_000_000_000 + (np.arange(first, first + count) * 600_000_000) // rows
        ends = chance.integers(0, AGENTS, (2, count))
        blocked = chance.random(count) < 0.05
        given = {
            "message_id": [f"s-1-{n}" for n in range(first, first + count)],
            "channel": ["exps:long:agents:1:agent-chat"] * count,
            "subtopic": ["agent-chat"] * count,
            "from_id": ends[0],
            "to_id": ends[1],
            "payload": [f'{{"content":"number {n}"}}' for n in range(first, first + count)],
            "sent_at": at,
            "fate": np.where(blocked, "blocked", "delivered"),
            "rule": np.where(blocked, "black_list", None),
            "sender": names[ends[0] * GROUPS // AGENTS],
            "mailbox": np.where(blocked, None, names[ends[1] * GROUPS // AGENTS]),
            "noted": blocked,
            "entry": ["1-0"] * count,
            "row": np.arange(count, dtype=np.int32),
        }
        columns = [
            pa.array(given[field.name]).cast(field.type) if field.name in given else pa.nulls(count, field.type)
            for field in SCHEMA
        ]
        facts = {"exp_id": "long", "epoch": 1, "first_row": first, "cursors": {}}
        span = {"first_s": float(at[0] / 1e6), "last_s": float(at[-1] / 1e6)}
        folder.write(number, pa.table(columns, schema=SCHEMA), facts | span)
        first += count


@contextmanager
def page():
    """Open a browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser.new_page(viewport={"width": 1280, "height": 800})
        browser.close()


def resident_mib(pid):
    """Return the resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024


def cpu_s(pid):
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until_seen(shown, url, mark):
    """Open a page; return the seconds until an element shows a figure."""
    began = time.monotonic()
    shown.goto(url)
    script = f"/^[0-9]/.test(document.querySelector('[data-mark={mark}]')?.innerText)"
    shown.wait_for_function(script, timeout=PATIENCE_MS)
    return time.monotonic() - began


def first_view(rows):
    """Measure the start, the first view, a second one, and a search, in a log of many rows."""
    with tempfile.TemporaryDirectory() as folder, page() as shown:
        write_log(f"{folder}/long", rows)
        began = time.monotonic()
        command = [sys.executable, "-m", "ray_messaging.cli", "ui", f"{folder}/long", "--port", "0", "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        url = json.loads(process.stdout.readline())["url"]
        found = {"rows": rows, "start_s": time.monotonic() - began}
        found["first_view_s"] = until_seen(shown, url, "figure-rows")
        found["second_view_s"] = until_seen(shown, url, "figure-rows")
        began = time.monotonic()
        shown.goto(f"{url}search?agent=77")
        shown.get_by_text("The last").wait_for(timeout=PATIENCE_MS)
        found["search_s"] = time.monotonic() - began
        found["resident_mib"] = resident_mib(process.pid)
        process.terminate()
        process.wait()
        process.stdout.close()
    return found


def caught_up(log):
    """Wait until the log has all rows; return their number."""
    return log.end + 1  # an answer of the log covers all that was sent before


def settle(shown, url):
    """Open the overview, and wait until it has shown its figures and its health check, which takes longest."""
    until_seen(shown, url, "figure-rate")
    shown.locator("[data-mark=health]").get_by_text("checks").wait_for(timeout=PATIENCE_MS)


def bulk(groups, messages):
    """Send columns between two groups, and fetch all of them; return the seconds."""
    west, east = groups
    began = time.monotonic()
    for _ in range(messages // BATCH):
        west.send_columns(np.arange(BATCH) % 1000, 1000 + np.arange(BATCH) % 1000, {"content": "hello"})
        while len(east.fetch_messages()):
            pass
    east.ack()
    return time.monotonic() - began


def watched(shown, inspector, turn):
    """Take a turn beside an open page; return its seconds, the page's updates and the inspector's processor time."""
    settle(shown, inspector.url)
    shown.evaluate(COUNT_CHANGES)
    cpu = cpu_s(inspector.pid)
    seconds = turn()
    updates, spent = shown.evaluate("window.seen"), cpu_s(inspector.pid) - cpu
    shown.goto("about:blank")
    return seconds, updates, spent


def cost(rounds, messages):
    """Send in bulk with and without an open page by turns."""
    from ray_messaging import Messaging

    rates = {"without": [], "with": []}
    updates, spent = [], []
    with tempfile.TemporaryDirectory() as folder, Messaging.start("inspected", log_dir=f"{folder}/log") as messaging:
        groups = messaging.create_groups({"west": range(1000), "east": range(1000, 2000)}).values()
        bulk(groups, min(messages, WARM_UP))
        with page() as shown, messaging.ui(port=0) as inspector:
            for number in range(rounds):
                for name in ("without", "with") if number % 2 == 0 else ("with", "without"):
                    caught_up(messaging.log)
                    if name == "without":
                        seconds = bulk(groups, messages)
                    else:
                        seconds, changes, cpu = watched(shown, inspector, lambda: bulk(groups, messages))
                        updates.append(changes / seconds)
                        spent.append(cpu / seconds)
                    rates[name].append(messages / seconds)
            memory = resident_mib(inspector.pid)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    return {
        "messages_per_s": {name: [round(rate) for rate in found] for name, found in rates.items()},
        "cost": 1 - medians["with"] / medians["without"],
        "updates_per_s": statistics.median(updates),
        "processors_of_the_inspector": statistics.median(spent),
        "resident_mib": memory,
    }


def main():
    """Run what is asked for, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--messages", type=int, default=20_000_000, help="in each turn of `cost`")
    parser.add_argument("--part", choices=["view", "cost"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = {}
    if given.part != "cost":
        found["view"] = first_view(given.rows)
    if given.part != "view":
        found["cost"] = cost(given.rounds, given.messages)
    if given.json:
        print(json.dumps(found))
    for part, figures in {} if given.json else found.items():
        print(part)
        for name, figure in figures.items():
            print(f"  {name}: {figure:.3g}" if isinstance(figure, float) else f"  {name}: {figure}")


if __name__ == "__main__":
    main()
