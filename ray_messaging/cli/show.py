"""Output of the commands: tables, a heat map, progress bars. If the output is not a terminal, it is plain text."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ray_messaging.model.fates import BLOCKED, FATES, UNDELIVERABLE, facts_of

if TYPE_CHECKING:
    from ray_messaging.replay.account import ReplayAccount
    from ray_messaging.replay.runner import Progress as OnProgress

GAP = 2  # the number of blanks between columns

# Background colours from pale to dark blue, each with a text colour that can be read on it.
SHADES = (
    ("black", "#eff3ff"),
    ("black", "#c6dbef"),
    ("black", "#9ecae1"),
    ("black", "#6baed6"),
    ("white", "#3182bd"),
    ("white", "#08519c"),
)


@contextmanager
def progress_bars(console: Console, messages: int) -> "Iterator[OnProgress]":
    """Show live counts of sent and received messages on a terminal. Yield the function that updates the counts."""
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        sent_bar, received_bar = bars.add_task("sent", total=messages), bars.add_task("received", total=messages)

        def update(sent: int, received: int, expected: int | None) -> None:
            bars.update(sent_bar, completed=sent)
            bars.update(received_bar, completed=received, total=messages if expected is None else expected)

        yield update


def show_fates(console: Console, account: "ReplayAccount") -> None:
    """Print how many messages had each fate, such as "delivered".

    Also print how many messages each rule blocked, and which agents had no group that listened for them.
    """
    right = ("messages", "share")
    table = plain_table("What became of the messages", "fate", *right, "meaning", right=right)
    for fate, count in sorted(account.fates.items(), key=lambda found: -found[1]):
        table.add_row(fate, f"{count:,}", f"{count / max(1, account.messages):.1%}", facts_of(fate).meaning)
        if fate == FATES[BLOCKED]:
            for rule, stopped in account.blocked_by.items():
                table.add_row(f"  by {rule}", f"{stopped:,}", "", "")
        if fate == FATES[UNDELIVERABLE]:
            for agent, unheard in account.unheard.items():
                table.add_row(f"  to agent {agent}", f"{unheard:,}", "", "no group listened: did a process die?")
    print_table(console, table)


def show_heat_map(console: Console, account: "ReplayAccount") -> None:
    """Print the number of messages delivered between groups. A darker cell stands for more messages."""
    names = [group["name"] for group in account.groups]
    heat_map(console, "Delivered from group (row) to group (column)", names, names, account.matrix)


def heat_map(
    console: Console, title: str, rows: Sequence[str], columns: Sequence[str], matrix: Sequence[Sequence[int]]
) -> None:
    """Print a matrix of counts.

    If it is too wide for the terminal, it is printed as digits, where 9 means over 90% of the maximum.
    """
    most = max((count for row in matrix for count in row), default=0)
    width = max(len(f"{most:,}"), *map(len, columns)) + GAP
    wide = width * len(columns) + max(map(len, rows)) + GAP > console.width
    table = plain_table(title + (", in tenths of the largest count" if wide else ""))
    table.add_column("from \\ to")
    for number, name in enumerate(columns, 1):
        table.add_column(str(number % 10) if wide else name, justify="right", no_wrap=True)
    for name, row in zip(rows, matrix, strict=True):
        cells = (str(count * 10 // (most + 1)) if wide else f"{count:,}" for count in row)
        table.add_row(name, *(Text(cell, style=_shade(count, most)) for cell, count in zip(cells, row, strict=True)))
    print_table(console, table)


def show_check(console: Console, account: "ReplayAccount") -> None:
    """Print the results of the receivers' checks, and whether all numbers agree."""
    table = plain_table("What the receivers checked", "check", "messages", right=["messages"])
    for name, count in (
        ("received", account.received),
        ("duplicates", account.duplicates),
        ("out of order within a pair", account.out_of_order),
        ("delivered but lost", account.lost),
        ("with other ids, text or time", account.misdirected + account.changed + account.unexpected),
    ):
        table.add_row(name, f"{count:,}")
    print_table(console, table)
    if account.balances:
        console.print("The account balances: every message has one fate, and each delivered one arrived once.")
    for problem in account.problems:
        console.print(f"THE ACCOUNT DOES NOT BALANCE: {problem}", style="bold red")


def show_speed(console: Console, account: "ReplayAccount", lone_ms: dict[str, float | None] | None = None) -> None:
    """Print throughput and latencies."""
    messages, seconds = account.messages, account.seconds
    console.print(f"Throughput: {account.per_second:,.0f} messages/s ({messages:,} in {seconds:.2f} s).")
    lone = "" if lone_ms is None else f" A lone message: {_latency(lone_ms)}."
    console.print(f"Latency from send to inbox: {_latency(account.latency_ms)} in bulk.{lone}")


def _latency(ms: dict[str, float | None]) -> str:
    p50, p99 = ms["p50"], ms["p99"]
    return "nothing to measure" if p50 is None or p99 is None else f"p50 {p50:,.2f} ms, p99 {p99:,.2f} ms"


def _shade(count: int, most: int) -> str:
    if not count:
        return "dim"
    ink, paper = SHADES[min(len(SHADES) - 1, count * len(SHADES) // (most + 1))]
    return f"{ink} on {paper}"


def print_table(console: Console, table: Table) -> None:
    """Print a table under its title. The title may be wider than the table."""
    if table.title:
        console.print(Text(str(table.title), style="bold"))
        table.title = None
    console.print(table)


def plain_table(title: str, *columns: str, right: Collection[str] = (), whole: Collection[str] = ()) -> Table:
    """Build a table for `print_table`.

    Args: `right` are the columns with numbers, `whole` those whose cells are not broken into lines.
    """
    table = Table(title=title, box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in whole)
    return table


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
