"""How fast the log says why a message was sent, beside a scan of the whole log: ten million rows of a run in steps.

python -m benchmarks.event_log.causes [--rows 10000000] [--agents 24818] [--steps 100] [--json FILE]

The traffic is skewed as on mathoverflow, which has 24,818 writers: the agents at the top read and write most. The peer
is DuckDB, which computes the same tree by one join for each level over the Parquet files.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.event_log.query import BEGIN_US, WORDS, took
from ray_messaging import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.log_schema import SCHEMA
from ray_messaging.eventlog.writing.open_segment import SEGMENT_ROWS

LIMIT_S, DEPTH = 2.0, 3
SKEW = 0.7  # the n-th agent takes part in proportion to n ** -SKEW
LEVEL = """
    select distinct cause.message_id, cause.from_id, cause.step from read_parquet('{files}') cause
    join level on cause.to_id = level.from_id and cause.step_read = level.step where cause.fate = 'delivered'
"""


def step_rows(rng: np.random.Generator, step: int, rows: int, agents: int) -> dict[str, Any]:
    """Return the messages of one step, in canonical order."""
    weights = np.arange(1, agents + 1) ** -SKEW
    ends = rng.choice(agents, (2, rows), p=weights / weights.sum())
    from_ids, to_ids = ends[:, np.lexsort(ends)]
    order = np.argsort(from_ids, kind="stable")
    counts = np.bincount(from_ids, minlength=agents)
    ordinals = np.empty(rows, np.int64)
    ordinals[order] = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
    return {"step": np.full(rows, step), "ordinal": ordinals, "from_id": from_ids, "to_id": to_ids}


def segment(rng: np.random.Generator, found: dict[str, Any], first: int) -> pa.Table:
    """Make a segment of messages of about 100 bytes."""
    rows = len(found["step"])
    texts = WORDS[rng.integers(0, len(WORDS), (rows, 14))]
    ids = zip(found["step"].tolist(), found["ordinal"].tolist(), found["from_id"].tolist(), strict=True)
    columns = {
        **found,
        "message_id": [f"{step}-{ordinal}-{agent}" for step, ordinal, agent in ids],
        "step_read": found["step"] + 1,
        "channel": [f"exps:bench:agents:{to_id}:agent-chat" for to_id in found["to_id"].tolist()],
        "subtopic": ["agent-chat"] * rows,
        "payload": [f'{{"content":"{" ".join(words)}"}}' for words in texts.tolist()],
        "sent_at": BEGIN_US + (first + np.arange(rows)) * 50,
        "delivered_at": BEGIN_US + (first + np.arange(rows)) * 50 + 400,
        "fate": ["delivered"] * rows,
        "sender": ["west"] * rows,
        "mailbox": ["east"] * rows,
        "noted": [False] * rows,
        "entry": ["1-0@0"] * rows,
        "row": np.arange(rows, dtype=np.int32),
    }
    none = pa.nulls(rows)
    return pa.table({field.name: pa.array(columns.get(field.name, none)).cast(field.type) for field in SCHEMA}, SCHEMA)


def build(folder: Path, rows: int, agents: int, steps: int) -> None:
    """Write the folder as the log's writer does."""
    made, rng = Folder(folder), np.random.default_rng(agents)
    made.prepare("bench")
    every = [step_rows(rng, step, rows // steps, agents) for step in range(steps)]
    whole = {name: np.concatenate([each[name] for each in every]) for name in every[0]}
    for number, first in enumerate(range(0, len(whole["step"]), SEGMENT_ROWS), 1):
        part = {name: column[first : first + SEGMENT_ROWS] for name, column in whole.items()}
        made.write(
            number, segment(rng, part, first), {"exp_id": "bench", "epoch": 1, "first_row": first, "cursors": {}}
        )


def by_scans(folder: str, message_id: str) -> list[Any]:
    """Return the ids in the tree of a message, by one scan of all files for each level."""
    files, found = f"{folder}/events-*.parquet", [message_id]
    with duckdb.connect() as database:
        database.sql(
            f"create table level as select message_id, from_id, step from read_parquet('{files}') "
            f"where message_id = '{message_id}'"
        )
        for _ in range(DEPTH):
            database.sql(f"create or replace table level as {LEVEL.format(files=files)}")
            found += [each for (each,) in database.sql("select message_id from level").fetchall()]
    return found


def main() -> None:
    """Build, ask, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--agents", type=int, default=24_818)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    table = Table(title=f"{args.rows:,} rows, {args.steps} steps, {args.agents:,} agents; limit {LIMIT_S:g} s")
    for column in ("question", "agent", "found", "seconds", "of the limit"):
        table.add_column(column, justify="right" if column != "question" else "left")
    results = []
    with tempfile.TemporaryDirectory(prefix="ray-messaging-bench-") as name:
        with console.status(f"writing {args.rows:,} rows ..."):
            build(Path(name), args.rows, args.agents, args.steps)
        log, step = EventLog.open(name), args.steps - 5
        for agent in (0, args.agents // 2):
            (message_id,) = log.query(from_id=agent, step=slice(step, None), limit=1)["message_id"].to_pylist()
            questions: dict[str, Callable[[], Any]] = {
                "why": lambda message_id=message_id: log.why(message_id, DEPTH).rows(),
                "DuckDB, a scan for each level": lambda message_id=message_id: by_scans(name, message_id),
                "effects": lambda message_id=message_id: log.effects(message_id, DEPTH).agents,
            }
            for question, ask in questions.items():
                seconds, found = took(ask)
                results.append({"question": question, "agent": agent, "found": found, "seconds": seconds})
                share = f"{seconds / LIMIT_S:.2f}"
                table.add_row(question, f"{agent:,}", f"{found:,}", f"{seconds:.2f}", share)
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
