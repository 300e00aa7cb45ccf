"""How fast the event log answers: a folder of ten million rows, asked by agent.

python -m benchmarks.event_log.query [--rows 10000000] [--agents 1000 100000] [--json FILE]
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from ray_messaging import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.log_schema import SCHEMA
from ray_messaging.eventlog.writing.open_segment import SEGMENT_ROWS

BUSIEST = """
    select date_trunc('hour', sent_at) as hour, from_id, to_id, count(*) as sent from messages
    group by hour, from_id, to_id
    qualify row_number() over (partition by hour order by sent desc) = 1
"""
LIMIT_S = 1.0
ROUNDS = 5
BEGIN_US = 1_790_000_000_000_000
WORDS = np.array(["the", "of", "and", "in", "is", "that", "for", "it", "was", "on", "are", "with", "they", "be"])


def segment(rng: np.random.Generator, number: int, agents: int) -> pa.Table:
    """Make a segment of messages of about 100 bytes between random agents."""
    rows, first = SEGMENT_ROWS, number * SEGMENT_ROWS
    from_ids, to_ids = rng.integers(0, agents, (2, rows))
    texts = rng.choice(WORDS, (rows, 14))
    payloads = [f'{{"n":{first + row},"content":"{" ".join(words)}"}}' for row, words in enumerate(texts)]
    times = BEGIN_US + (first + np.arange(rows)) * 50
    none = pa.nulls(rows)
    columns = {
        "message_id": [f"west-1-{first + row}" for row in range(rows)],
        "step": none,
        "channel": [f"exps:bench:agents:{to_id}:agent-chat" for to_id in to_ids],
        "subtopic": ["agent-chat"] * rows,
        "from_id": from_ids,
        "to_id": to_ids,
        "payload": payloads,
        "sent_at": times,
        "delivered_at": times + 400,
        "fate": ["delivered"] * rows,
        "sender": ["west"] * rows,
        "mailbox": ["east"] * rows,
        "noted": [False] * rows,
        "entry": [f"{t // 1000}-0" for t in times // 4096 * 4096],
        "row": np.arange(rows, dtype=np.int32) % 4096,
    }
    return pa.table({field.name: pa.array(columns.get(field.name, none)).cast(field.type) for field in SCHEMA}, SCHEMA)


def build(folder: Path, rows: int, agents: int) -> None:
    """Write the folder as the log's writer does."""
    made, rng = Folder(folder), np.random.default_rng(agents)
    made.prepare("bench")
    for number in range(-(-rows // SEGMENT_ROWS)):
        meta = {"exp_id": "bench", "epoch": 1, "first_row": number * SEGMENT_ROWS, "cursors": {}}
        made.write(number + 1, segment(rng, number, agents), meta)


def took(ask: Callable[[], Any]) -> tuple[float, int]:
    """Return the median of some rounds, in seconds, and the length of the answer."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = ask()
        found.append(time.perf_counter() - began)
    return statistics.median(found), len(answer)


def main() -> None:
    """Build, ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 100_000])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    table = Table(title=f"{args.rows:,} rows; limit {LIMIT_S:g} s")
    for column in ("question", "agents", "rows found", "seconds", "of the limit", "folder MiB"):
        table.add_column(column, justify="right" if column != "question" else "left")
    rows = []
    for agents in args.agents:
        with tempfile.TemporaryDirectory(prefix="ray-messaging-bench-") as name:
            with console.status(f"writing {args.rows:,} rows ..."):
                build(Path(name), args.rows, agents)
            size = sum(file.stat().st_size for file in Path(name).iterdir()) / 2**20
            log = EventLog.open(name)
            questions: dict[str, Callable[[], Any]] = {
                "query(agent=17)": lambda log=log: log.query(agent=17),
                "query(from_id=17, to_id=18)": lambda log=log: log.query(from_id=17, to_id=18),
                "count(by='from_id')": lambda log=log: log.count(by="from_id"),
                "sql(the busiest pair by hour)": lambda log=log: log.sql(BUSIEST),
            }
            for question, ask in questions.items():
                seconds, found = took(ask)
                rows.append({"question": question, "agents": agents, "found": found, "seconds": seconds, "mib": size})
                table.add_row(
                    question, f"{agents:,}", f"{found:,}", f"{seconds:.2f}", f"{seconds / LIMIT_S:.2f}", f"{size:,.0f}"
                )
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
