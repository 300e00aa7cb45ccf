"""A source that reads the folder of a log. The run that wrote the log has ended, or still writes it."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_floating, is_integer

from ray_messaging.eventlog.comparison import compare
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.inspector.page_values import (
    AgentFacts,
    BusiestAgents,
    CallFacts,
    Differences,
    RuleFacts,
    Series,
    SocietyInStep,
    TrafficBins,
    clock,
    cut,
    in_words,
    name,
    settings,
)
from ray_messaging.inspector.sources.busiest_agents import society_of
from ray_messaging.inspector.sources.log_rows import RunFacts, agent_id
from ray_messaging.inspector.sources.society_in_step import measures_of, over_steps, society_in_step
from ray_messaging.inspector.sources.traffic import BINS, Key, binned, traffic_of, unit_for
from ray_messaging.model.fates import BLOCKED, FATES
from ray_messaging.model.series_columns import AGENT, AGENT_NAME, STEP, TAKEN
from ray_messaging.transports.step_values import CollectedKind

T = TypeVar("T")

_SERIES_FILES = 8  # a page can show the collected values of at most this many files, of some MB each
_MOST, _LONGEST = 15, 400  # how many lines of the run's record are shown at most, and how many characters of each


class FolderFacts(RunFacts):
    """Facts about a run, read from the folder of its log. Rows are counted once, and again after the log has grown."""

    def __init__(self, log_dir: str | Path, beside: str | Path | None = None) -> None:
        """Open a folder, and the folder of another run for comparison; raise LogError if one of them has no log."""
        self.beside = None if beside is None else FolderFacts(beside)
        self.log_dir = str(log_dir)
        self.log = EventLog.open(log_dir)
        self.title = name(str(log_dir).rstrip("/").rpartition("/")[2] or str(log_dir))
        self.phase = "no end" if self.log.unended else "ended"
        run = self.log.run
        had_rules = run is None or run["rule_changes"] or any(start["rules"] for start in run["starts"])
        self._folder = Folder(log_dir)
        lacks = {
            "Society": not self._folder.collected_files(CollectedKind.SERIES),
            "Calls": not self._folder.collected_files(CollectedKind.CALLS),
            "Why": run is not None and run["steps"] is None,
            "Rules": not had_rules,
            "Dead letters": True,
        }
        self.lacks = tuple(title for title, lacking in lacks.items() if lacking)
        self._found: dict[Callable[[int], Any], tuple[int, Any]] = {}

    def _once(self, count: Callable[[int], T]) -> T:
        """Return `count(rows)` for the number of rows in the log. It is computed anew only if the log has grown."""
        end = self.log.end
        if self._found.get(count, (None,))[0] != end:
            self._found[count] = end, count(end + 1)
        return cast(T, self._found[count][1])

    def traffic(self) -> TrafficBins:
        """Return the numbers of messages of the whole run, by step or time."""
        return self._once(self._traffic)

    def _traffic(self, rows: int) -> TrafficBins:
        first, last = (
            table["sent_at"].to_pylist() for table in (self.log.query(limit=1), self.log.recent(limit=1, width=0))
        )
        span = (last[0] - first[0]).total_seconds() if first and last else 0.0
        unit, width = unit_for(span)
        counts = self.log.count(by=[unit, "step", *Key._fields])
        bins = binned(counts, "step")
        in_steps = sum(map(Counter.total, bins.values())) > rows / 2  # some messages of a run with steps have no step
        if in_steps:
            width = (max(bins) - min(bins)) // BINS + 1
        else:
            bins = binned(counts, unit)
        start = min(bins, default=0.0)
        count = int((max(bins, default=0.0) - start) // width) + 1
        return traffic_of(bins, start, width, count, rows, rows / span if span else None, in_steps=in_steps)

    def society(self) -> BusiestAgents:
        """Return the agents, and the pairs of agents, with the most messages in the whole run."""
        return self._once(self._society)

    def _society(self, _rows: int) -> BusiestAgents:
        found, last = society_of(self.log), self._once(self._last)
        measure = next((measure for row in last.values() for measure in row), "")
        values = {agent: last[agent][measure] for agent, _ in found.agents if agent in last}
        return replace(found, measure=name(measure), values=values) if values else found

    def calls(self) -> CallFacts | None:
        """Return the numbers, tokens, costs and times of the calls through `me.remember`."""
        return self._once(self._calls)

    def _calls(self, _rows: int) -> CallFacts | None:
        return super().calls()

    def agent(self, agent: str) -> AgentFacts:
        """Return facts about one agent.

        They include the values that `collect` recorded of this agent in the last step with values of agents.
        """
        found = super().agent(agent)
        return replace(found, state=in_words(self._once(self._last).get(found.name, {})))

    def society_in_step(self, measure: str, step: int | None, columns: int | None) -> SocietyInStep | None:
        """Return all agents in one step, each with one collected value.

        Return None if the run has collected no values of single agents, or too many for a page.

        Raises: InvalidQuery for a value that the run has not collected.
        """
        series = self._by_agent()
        return None if series is None else society_in_step(series, self.log, measure, step, columns)

    def over_steps(self, measure: str) -> Series | None:
        """Return, by step, the mean of a collected value over all agents; for texts, how many agents have each text.

        If the run collected no values of single agents, return the aggregates that it collected, or None if there are
        none. Return None, too, if the collected values are too many for a page.

        Raises: InvalidQuery for a value that the run has not collected.
        """
        series = self._by_agent()
        return self.series() if series is None else over_steps(series, measure)

    def differences(self) -> Differences | None:
        """Return where the messages of this run differ from those of the run `beside`; None: there is no other run.

        Raises: ConfigError if only one of the two runs had steps, LogError if a log cannot be read.
        """
        return None if self.beside is None else self._once(self._differences)

    def _differences(self, _rows: int) -> Differences:
        found = compare(self.log, cast(RunFacts, self.beside).log)
        columns = found.table.to_pydict()
        return Differences(cut(found.headline()), Series(columns["step"], {"messages": columns["differ"]}))

    def _by_agent(self) -> pa.Table | None:
        series = pa.table({}) if self._is_long() else self._once(self._series)
        return series if measures_of(series) and len(series) else None

    def measures(self) -> list[str]:
        """Return the names of the values that `collect` recorded of each agent; [] if there are none, or too many."""
        series = self._by_agent()
        return [] if series is None else measures_of(series)

    def _last(self, _rows: int) -> dict[str, dict[str, Any]]:
        """Return, by the agent's name, the values that `collect` recorded of each agent in the last step with values.

        Return {} if there are no values of single agents, or too many for a page.
        """
        table = pa.table({}) if self._is_long() else self._once(self._series)
        if AGENT not in table.column_names:
            return {}
        last = table.filter(pc.equal(table[STEP], pc.max(table[STEP]))).to_pylist()
        return {
            name(row[AGENT] if row.get(AGENT_NAME) is None else row[AGENT_NAME]): {
                column: value for column, value in row.items() if column not in TAKEN
            }
            for row in last
        }

    def _is_long(self) -> bool:
        return len(self._folder.collected_files(CollectedKind.SERIES)) > _SERIES_FILES

    def series(self, agent: str | None = None) -> Series | None:
        """Return the aggregates that `collect` recorded, or the values that it recorded of one agent.

        Return None if there are no such values, or too many for a page.
        """
        if self._is_long():
            return None
        table = self._once(self._series)
        if agent is not None:
            found = agent_id(agent)
            column = "agent_name" if isinstance(found, str) else "agent"
            if column not in table.column_names:
                return None
            table = table.filter(pc.equal(table[column], found))
        elif "agent" in table.column_names:
            return None
        lines = {
            name(field.name): table[field.name].to_pylist()
            for field in table.schema
            if field.name not in TAKEN and (is_integer(field.type) or is_floating(field.type))
        }
        return Series(table["step"].to_pylist(), lines) if lines and len(table) else None

    def _series(self, _rows: int) -> pa.Table:
        return self.log.series()

    def record(self) -> list[tuple[str, str]]:
        """Return the record of the run as pairs of a name and a value; raise LogError if it is damaged.

        The record has the experiment, starts, groups, steps and rules.
        """
        run = self.log.run
        if run is None:
            return [("record", "none: its folder has no _run.json")]
        found = [("experiment", run["experiment"]), ("groups", ", ".join(run["groups"]) or "unknown")]
        found += [("agents", f"{sum(run['groups'].values()):,}")] if run["groups"] else []
        found += [("steps", settings(run["steps"]))] if run["steps"] else []
        for start in run["starts"]:
            found.append(("started", f"{start['began']}, {start['server']}"))
            found.append(("ended", start["ended"] or "it runs, or was killed"))
            found.append(("rules", ", ".join(str(rule.get("name")) for rule in start["rules"]) or "none"))
        found += [("no end", self.log.unended)] if self.log.unended else []
        found.append(("changes of rules", f"{len(run['rule_changes']):,}"))
        return [(title, cut(value, _LONGEST)) for title, value in found[:_MOST]]

    def rules(self) -> list[RuleFacts]:
        """Return the rules of the run, and what each has done, in the order in which they first occur in the log."""
        return self._once(self._rules)

    def _rules(self, _rows: int) -> list[RuleFacts]:
        acted: dict[str, list[str]] = {}
        for row in self.log.count(by=["rule", "fate"]).to_pylist():
            if row["rule"] is not None:
                what = row["fate"] if row["fate"] == FATES[BLOCKED] else f"changed, {row['fate']}"
                acted.setdefault(row["rule"], []).append(f"{row['count']:,} {what}")
        run = self.log.run or {"starts": [], "rule_changes": []}
        known: dict[str, Any] = {rule["name"]: rule for start in run["starts"] for rule in start["rules"]}
        for change in run["rule_changes"]:
            found = change["rule"]["name"]
            known.setdefault(found, change["rule"])
            acted.setdefault(found, []).append(_changed(change))
        known = known | {rule: {} for rule in acted if rule not in known}
        return [
            RuleFacts(
                name(rule),
                cut(facts.get("kind"), 60),
                settings(facts),
                done="; ".join(acted.get(rule, ["never acted"])),
            )
            for rule, facts in known.items()
        ]


def _changed(change: Mapping[str, Any]) -> str:
    step, at = change["step"], f"on {clock(change['at'])}"
    when = at if step is None else f"from step {step:,}" if change["exact"] else f"in the middle of step {step:,}"
    return f"{change['change']} {when}"
