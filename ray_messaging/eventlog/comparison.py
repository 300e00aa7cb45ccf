"""Comparison of two runs in steps: how many messages differ in each step, and of how many agents."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.notebook import html_table
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.plot import COLOURS, new_figure
from ray_messaging.eventlog.reading.event_rows import LogRow
from ray_messaging.eventlog.reading.step_digests import (
    Difference,
    beside,
    content_of,
    key_of,
    last_id,
    of_groups,
    sent_by_groups,
)
from ray_messaging.receipt import BLOCKED, FATES

_SHOWN = 20  # steps in the text


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs beside each other, step by step.

    `first` is the first message that differs, None if there is none. `table` has a row per step: `messages` and
    `blocked` of the one run, `other_messages` and `other_blocked` of the other one, how many messages `differ` (in
    content or fate, or because one run lacks them), and how many `agents` have sent such a message. A broadcast counts
    once.
    """

    first: Difference | None
    table: pa.Table

    def to_pandas(self) -> Any:  # noqa: ANN401 - a pandas.DataFrame
        """Return the table as a DataFrame, by step."""
        return self.table.to_pandas().set_index("step")

    def plot(self) -> Any:  # noqa: ANN401 - matplotlib's Figure
        """Return a figure of the messages that differ, and of the agents that sent them, by step.

        Raises: ImportError, which says how to install matplotlib, if it is not installed.
        """
        figure, (above, below) = new_figure(8, 2.4, 2.4)
        steps = self.table["step"].to_pylist()
        for axes, name, colour in ((above, "differ", "blocked"), (below, "agents", "delivered")):
            axes.bar(steps, self.table[name].to_pylist(), color=COLOURS[colour])
            axes.set_ylabel({"differ": "messages that differ", "agents": "agents that sent them"}[name])
        below.set_xlabel("step")
        figure.suptitle(self._headline(), fontsize=10)
        return figure

    def _headline(self) -> str:
        if self.first is None:
            return "The runs sent the same messages."
        at = self.first
        return f"The runs differ first in step {at.step}, in message {at.message_id} of agent {at.agent!r}."

    def __str__(self) -> str:
        found = self.table.filter(pc.field("differ") > 0).slice(0, _SHOWN).to_pylist()
        names = self.table.column_names
        rows = [names, *([f"{row[name]:,}" for name in names] for row in found)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([self._headline(), *(lines if found else ())])

    def _repr_html_(self) -> str:
        columns = {name: self.table[name].to_pylist() for name in self.table.column_names}
        return html_table(self._headline(), columns, len(self.table))


def compare(mine: EventLog | str | Path, theirs: EventLog | str | Path) -> Comparison:
    """Compare two runs in steps, each given as a log or its folder: the same run under a change, or under another seed.

    Raises: LogError if a folder holds no event log; ConfigError if neither run, or only one of them, had steps.
    """
    logs = [log if isinstance(log, EventLog) else EventLog.open(log) for log in (mine, theirs)]
    first = logs[0].diff(logs[1])
    equal, one, other = _by_step(*logs)
    rows = [_row(step, equal[step], one[step], other[step]) for step in sorted({*equal, *one, *other})]
    names = ("step", "messages", "other_messages", "blocked", "other_blocked", "differ", "agents")
    columns = [*zip(*rows, strict=True)] if rows else [()] * len(names)
    table = {name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)}
    return Comparison(first, pa.table(table))


_Messages = dict[Any, LogRow]


def _by_step(
    mine: EventLog, theirs: EventLog
) -> tuple[defaultdict[int, Counter[bool]], defaultdict[int, _Messages], defaultdict[int, _Messages]]:
    """Return by step the messages with which both logs begin, counted by whether they are blocked, and the others."""
    equal: defaultdict[int, Counter[bool]] = defaultdict(Counter)
    found: tuple[defaultdict[int, _Messages], ...] = defaultdict(dict), defaultdict(dict)
    before = ["", ""]
    for *parts, same in beside(mine.pages(text=True), theirs.pages(text=True)):
        if same:
            counts = of_groups(parts[0], before[0]).group_by(["step", "fate"]).aggregate([([], "count_all")])
            for row in counts.to_pylist():
                equal[row["step"]][row["fate"] == FATES[BLOCKED]] += row["count_all"]
        for at, part in enumerate(parts):
            for row in () if same else sent_by_groups([part], before[at]):
                assert row.step is not None
                found[at][row.step][key_of(row)] = row
            before[at] = last_id(part, before[at])
    return equal, found[0], found[1]


def _row(step: int, equal: Counter[bool], one: _Messages, other: _Messages) -> tuple[int, ...]:
    both = one.keys() & other.keys()
    differ = [key for key in both if content_of(one[key]) != content_of(other[key])] + [*(one.keys() ^ other.keys())]
    agents: set[AgentId | None] = {(one.get(key) or other[key]).from_id for key in differ}
    sums = [equal.total() + len(rows) for rows in (one, other)]
    blocked = [equal[True] + sum(row.fate == FATES[BLOCKED] for row in rows.values()) for rows in (one, other)]
    return step, *sums, *blocked, len(differ), len(agents)
