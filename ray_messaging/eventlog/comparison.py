"""Comparison of two runs: for each step, how many messages differ, and how many agents sent them."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.common.notebook import html_table
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.plot import new_figure
from ray_messaging.eventlog.reading.step_digests import Difference, Rows, beside, unequal
from ray_messaging.model.fates import BLOCKED, DELIVERED, FATES, facts_of

_SHOWN = 20  # how many steps the text of a comparison shows at most


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs beside each other, step by step.

    `first` is the first message that differs, or None if no message differs. `table` has a row per step. Its columns
    `messages` and `blocked` count messages of the first run, `other_messages` and `other_blocked` those of the second
    run. `differ` counts the messages that differ in content, fate or order, or that only one run has. `agents` counts
    the agents that sent these messages. A broadcast counts as one message.
    """

    first: Difference | None
    table: pa.Table

    def to_pandas(self) -> Any:  # noqa: ANN401 - a pandas.DataFrame
        """Return the table as a DataFrame, by step."""
        return self.table.to_pandas().set_index("step")

    def plot(self) -> Any:  # noqa: ANN401 - matplotlib's Figure
        """Return a figure that shows, by step, how many messages differ, and how many agents sent them.

        Raises: ImportError, which says how to install matplotlib, if it is not installed.
        """
        figure, (above, below) = new_figure(8, 2.4, 2.4)
        steps = self.table["step"].to_pylist()
        for axes, name, fate in ((above, "differ", BLOCKED), (below, "agents", DELIVERED)):
            axes.bar(steps, self.table[name].to_pylist(), color=facts_of(FATES[fate]).colour)
            axes.set_ylabel({"differ": "messages that differ", "agents": "agents that sent them"}[name])
        below.set_xlabel("step")
        figure.suptitle(self.headline(), fontsize=10)
        return figure

    def headline(self) -> str:
        """Return a sentence that names the first message in which the runs differ, or says that no message differs."""
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
        return "\n".join([self.headline(), *(lines if found else ())])

    def _repr_html_(self) -> str:
        columns = {name: self.table[name].to_pylist() for name in self.table.column_names}
        return html_table(self.headline(), columns, len(self.table))


def compare(mine: EventLog | str | Path, theirs: EventLog | str | Path) -> Comparison:
    """Compare two runs that had steps, such as runs with different seeds. Pass their event logs, or the logs' folders.

    The result has `first`, the first message that differs (None: no message differs), and `to_pandas()`, with a row for
    each step: the numbers of messages in each run, and how many differ.

    The messages of each agent are compared: their contents, recipients, order, fates and labels. Message ids are not
    compared.

    Raises: LogError if a folder contains no event log; ConfigError if a run had no steps, or if neither run sent a
    message in a step.
    """
    logs = [log if isinstance(log, EventLog) else EventLog.open(log) for log in (mine, theirs)]
    first = logs[0].diff(logs[1])
    equal, others = beside(*(log.pages(text=True) for log in logs))
    rows = {step: _row(step, counts, [], []) for step, counts in equal.items()}
    rows |= {step: _row(step, equal.get(step, Counter()), ours, those) for step, ours, those in others}
    names = ("step", "messages", "other_messages", "blocked", "other_blocked", "differ", "agents")
    columns = [*zip(*(rows[step] for step in sorted(rows)), strict=True)] if rows else [()] * len(names)
    table = {name: pa.array(column, pa.int64()) for name, column in zip(names, columns, strict=True)}
    return Comparison(first, pa.table(table))


def _row(step: int, equal: Counter[bool], ours: Rows, those: Rows) -> tuple[int, ...]:
    differ = unequal(ours, those)
    agents = {(mine or theirs).from_id for mine, theirs in differ}  # type: ignore[union-attr]  # one of them is there
    sums = [equal.total() + len(rows) for rows in (ours, those)]
    blocked = [equal[True] + sum(row.fate == FATES[BLOCKED] for row in rows) for rows in (ours, those)]
    return step, *sums, *blocked, len(differ), len(agents)
