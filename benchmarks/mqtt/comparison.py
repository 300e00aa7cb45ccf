"""Delivered messages per second and lone-message latency of a few peers in one process, as a table."""

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PINGS = 1000


def table(rows: list[dict[str, Any]], reference: str, where: str = "") -> Table:
    """Draw the rows, each peer's beside those of `reference`, one of the peers."""
    title = f"delivered messages/s{where}, two groups, both directions (median); lone message, send to inbox"
    made = Table(title=title)
    for column in ("agents", "", "one awaited call each", "ours is", "p50 ms", "p99 ms"):
        made.add_column(column, justify="left" if not column else "right")
    ours = {row["agents"]: row for row in rows if row["peer"] == reference}
    for row in rows:
        mine = ours[row["agents"]]
        theirs = row["awaited"]["median"]
        cells = [f"{row['agents']:,}", row["peer"], f"{theirs:,.0f}", f"{mine['awaited']['median'] / theirs:,.1f} x"]
        made.add_row(*cells, f"{row['latency_ms']['p50']:.2f}", f"{row['latency_ms']['p99']:.2f}")
    return made


def options(about: str | None, agents: list[int]) -> argparse.ArgumentParser:
    """Make a parser of the options that every run of peers has; `agents` are the default sizes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--agents", type=int, nargs="+", default=agents)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    return parser


def screen() -> Console:
    """Make the console: a file or a pipe has no width of its own."""
    return Console(width=None if sys.stdout.isatty() else 130)
