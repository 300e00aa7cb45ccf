"""Output of the log commands: tables, bars and lines. If the output is not a terminal, it is plain text."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from ray_messaging.cli.show import counted, heat_map, plain_table, print_table
from ray_messaging.common.texts import printable, shortened, utc_time
from ray_messaging.eventlog.plot import span_in_words
from ray_messaging.eventlog.reading.event_rows import LogRow
from ray_messaging.eventlog.reading.paging import json_line
from ray_messaging.eventlog.reading.step_digests import Difference
from ray_messaging.model.fates import BLOCKED, DELIVERED, FATES, STORED, facts_of

BAR = 24  # the length of a bar, in columns of the terminal
_LINE = 60  # the line of traffic takes at most this many columns of the terminal
_BESIDE_LINE = 30  # how many columns of the terminal are reserved for the cells beside the line of traffic
_WIDE = 100  # the least width of a terminal, in columns, at which explanations are shown
_ROOMY = 130  # the least width of a terminal, in columns, at which a row of the log fits into one line
_BLOCKS = " ▁▂▃▄▅▆▇█"
_DIGITS = " 123456789"


def show_stats(console: Console, stats: dict[str, Any]) -> None:
    """Print the result of `EventLog.stats`."""
    console.print(_summary(stats))
    if not stats["rows"]:
        return
    for show in (_show_fates, _show_rules, _show_busiest, _show_traffic, _show_groups):
        show(console, stats)


def _summary(stats: dict[str, Any]) -> str:
    size = f"{counted(stats['segments'], 'segment')}, {decimal(stats['bytes'])}"
    if not stats["rows"]:
        return f"No rows ({size})."
    live = f", {stats['live']:,} newer rows" if stats["live"] else ""
    return (
        f"{stats['rows']:,} rows, from {utc_time(stats['first'])} to {utc_time(stats['last'])} UTC, of "
        f"{stats['writers']:,} writers to {stats['readers']:,} readers ({size}{live})."
    )


def _show_fates(console: Console, stats: dict[str, Any]) -> None:
    meaning = console.width >= _WIDE
    names = ("fate", "rows", "share", "", *["meaning"] * meaning)
    table = plain_table("\nFates", *names, right=("rows", "share"), whole=names)
    for fate, rows in stats["fates"].items():
        share = rows / stats["rows"]
        means = [facts_of(fate).meaning] * meaning
        table.add_row(fate, f"{rows:,}", f"{share:.1%}", _bar(console, share, fate), *means)
    print_table(console, table)


def _show_rules(console: Console, stats: dict[str, Any]) -> None:
    if not stats["rules"]:
        return
    right = (FATES[BLOCKED], "rewritten or labelled")
    table = plain_table("\nRules", "rule", *right, "", right=right)
    most = max(sum(fates.values()) for fates in stats["rules"].values())
    for rule, fates in sorted(stats["rules"].items(), key=lambda found: -sum(found[1].values())):
        blocked = fates.get(FATES[BLOCKED], 0)
        passed = sum(fates.values()) - blocked
        bar = _bar(console, blocked / most, FATES[BLOCKED]) + _bar(console, passed / most, FATES[DELIVERED])
        table.add_row(printable(rule), f"{blocked:,}", f"{passed:,}", bar)
    print_table(console, table)


def _show_busiest(console: Console, stats: dict[str, Any]) -> None:
    table = plain_table("\nBusiest agents", "writer", "rows", "reader", "rows", right=["rows"])
    writers, readers = stats["busiest_writers"], stats["busiest_readers"]
    for place in range(max(len(writers), len(readers))):
        cells: list[str] = []
        for found, nobody in ((writers, "the user"), (readers, "no agent")):
            name, rows = found[place] if place < len(found) else ("", "")
            cells += [nobody if name is None else printable(str(name)), f"{rows:,}" if rows else ""]
        table.add_row(*cells)
    print_table(console, table)


def _show_traffic(console: Console, stats: dict[str, Any]) -> None:
    traffic = stats["traffic"]
    bins = len(next(iter(traffic["fates"].values())))
    merged = -(-bins // max(1, min(_LINE, console.width - _BESIDE_LINE)))  # how many bins one column shows
    span = span_in_words(round(traffic["width_s"] * merged, 3))
    title = f"\nTraffic from {utc_time(traffic['start'])} on; a column is {'a ' * span.isalpha()}{span}"
    names = ("fate", "most", "rows by time")
    table = plain_table(title, *names, right=["most"], whole=names)
    for fate, counts in traffic["fates"].items():
        columns = [sum(counts[at : at + merged]) for at in range(0, bins, merged)]
        if any(columns):
            line = Text(sparkline(columns, _marks(console)), style=facts_of(fate).terminal)
            table.add_row(fate, f"{max(columns):,}", line)
    print_table(console, table)


def _show_groups(console: Console, stats: dict[str, Any]) -> None:
    groups = stats["groups"]
    if groups["delivered"]:
        title = "\nDelivered from messager (row) to mailbox (column)"
        heat_map(console, title, groups["from"], groups["to"], groups["delivered"])


def sparkline(counts: Sequence[int], marks: str = _BLOCKS) -> str:
    """Return one character for each count: a blank for zero, the last of `marks` for the maximum."""
    most = max(counts, default=0)
    steps = len(marks) - 1
    return "".join(marks[-(-count * steps // most)] if count else marks[0] for count in counts)


def _marks(console: Console) -> str:
    return _BLOCKS if console.encoding.startswith("utf") else _DIGITS


def _bar(console: Console, share: float, fate: str) -> Text:
    mark = "█" if console.encoding.startswith("utf") else "#"
    return Text(mark * max(round(share * BAR), int(share > 0)), style=facts_of(fate).terminal)


def show_rows(console: Console, rows: Iterable[LogRow]) -> None:
    """Print rows as a table. On a narrow terminal, what a rule did is printed below the payload."""
    roomy = console.width >= _ROOMY
    names = ("position", "sent at (UTC)", "from", "to", "fate", "payload", *["rule", "reason"] * roomy)
    table = plain_table("", *names, right=["position"], whole=("position", "sent at (UTC)", "fate"))
    for row in rows:
        ends = (Text(_from(row)), Text(_to(row)), Text(row.fate, style=facts_of(row.fate).terminal))
        text = Text(printable(shortened(row.text)))
        sent_at = utc_time(row.sent_at)
        if roomy:
            table.add_row(str(row.position), sent_at, *ends, text, printable(row.rule or ""), _reason(row))
        else:
            why = Text(f"\n{_why(row)}" if row.rule else "", style="dim")
            table.add_row(str(row.position), sent_at[5:], *ends, text + why)
    print_table(console, table)


def show_table(console: Console, found: pa.Table) -> None:
    """Print the rows of any table."""
    numbers = [name for name in found.column_names if pa.types.is_integer(found[name].type)]
    table = plain_table("", *map(printable, found.column_names), right=[*map(printable, numbers)])
    for row in zip(*(found[name].to_pylist() for name in found.column_names), strict=True):
        table.add_row(*(Text("" if value is None else printable(shortened(str(value)))) for value in row))
    print_table(console, table)


def line_of(row: LogRow) -> Text:
    """Return a row as one line: time, sender, recipient, fate, payload, rewriting rule and labels.

    The fate and its reason are left out if the message was delivered.
    """
    line = Text.assemble((utc_time(row.sent_at), "dim"), f"  {_from(row)} -> {_to(row)}  ")
    if row.fate not in STORED:
        line.append(row.fate, facts_of(row.fate).terminal)
        line.append(f" ({_why(row)})  " if row.rule else "  ")
    line.append(printable(row.text))
    if row.text_before is not None:
        line.append(f"  ({_why(row)})", "dim")
    if row.labels:
        line.append(printable(f"  [{', '.join(row.labels)}]"), "dim")
    return line


def _from(row: LogRow) -> str:
    return "the user" if row.from_id is None else printable(str(row.from_id))


def _to(row: LogRow) -> str:
    return printable(row.channel if row.to_id is None else str(row.to_id))


def _why(row: LogRow) -> str:
    reason = _reason(row)
    return f"{printable(str(row.rule))}: {reason}" if reason else printable(str(row.rule))


def _reason(row: LogRow) -> str:
    """Return the rule's reason, and the payload before the rule rewrote it, as one text ("": the row has neither)."""
    was = "" if row.text_before is None else f"before: {shortened(row.text_before)}"
    return printable("; ".join(filter(None, (row.reason, was))))


def difference_line(found: Difference) -> bytes:
    """Return a difference as a line of JSON, with the message from each of the logs."""
    rows = {
        name: None if row is None else msgspec.Raw(json_line(row))
        for name, row in (("mine", found.mine), ("theirs", found.theirs))
    }
    agreed = {"differ": True, "step": found.step, "agent": found.agent, "message_id": found.message_id}
    return msgspec.json.encode(agreed | rows)


def show_run(console: Console, run: dict[str, Any]) -> None:
    """Print the record of a run."""
    console.print(f"Experiment {printable(run['experiment'])}")
    for name in ("steps", "model"):
        if run[name] is not None:
            console.print(f"{name}: {_settings(run[name])}")
    if run["groups"]:
        agents = sum(run["groups"].values())
        console.print(f"{counted(len(run['groups']), 'group')}, {counted(agents, 'agent')}: {_settings(run['groups'])}")
    starts = plain_table("Starts", "began", "ended", "command", "server", "versions")
    for start in run["starts"]:
        command = printable(" ".join(start["command"]))
        ended = start["ended"] or "(not closed)"
        starts.add_row(start["began"], ended, command, printable(start["server"]), _settings(start["versions"]))
    print_table(console, starts)
    if run["starts"] and run["starts"][-1]["rules"]:
        rules = plain_table("Rules at the last start", "rule", "settings")
        for rule in run["starts"][-1]["rules"]:
            rules.add_row(printable(rule["name"]), _settings({k: v for k, v in rule.items() if k != "name"}))
        print_table(console, rules)
    if run["rule_changes"]:
        changes = plain_table("Changes of rules", "at", "step", "change", "rule")
        for change in run["rule_changes"]:
            step = "" if change["step"] is None else f"{change['step']}{'' if change['exact'] else ' (within it)'}"
            changes.add_row(utc_time(change["at"]), step, printable(change["change"]), _settings(change["rule"]))
        print_table(console, changes)


def _settings(found: dict[str, Any]) -> str:
    return ", ".join(printable(f"{name} {value}") for name, value in found.items())


def show_difference(console: Console, found: Difference, one: str, other: str) -> None:
    """Print the first message in which two logs differ, side by side."""
    console.print(
        f"The runs differ first in step {found.step}, in message {found.message_id} of agent {found.agent!r}."
    )
    table = plain_table("", "field", printable(one), printable(other), whole=("field",))
    for name in ("to_id", "step_read", "subtopic", "fate", "rule", "labels", "text"):
        values = ["(no such message)" if row is None else getattr(row, name) for row in (found.mine, found.theirs)]
        table.add_row("payload" if name == "text" else name, *("" if v is None else printable(str(v)) for v in values))
    print_table(console, table)
