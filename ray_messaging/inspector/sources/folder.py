"""The folder of a log as a source: of a run that has ended, or of one that still writes files."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.inspector.sources.log_rows import Source
from ray_messaging.inspector.sources.traffic import Bin, Key, counted, traffic_of, unit_for
from ray_messaging.inspector.values import RuleFacts, Traffic, cut, name

_MOST, _LONGEST = 14, 240  # lines of the record, and characters of each


class FolderSource(Source):
    """Source for the folder of a log. It counts the log once, and again if the log has grown."""

    def __init__(self, log_dir: str | Path, log: EventLog | None = None) -> None:
        """Open a folder; raise LogError if it holds no log."""
        self.log = log or EventLog.open(log_dir)
        self.title = name(str(log_dir).rstrip("/").rpartition("/")[2] or str(log_dir))
        self._traffic: tuple[int, Traffic] | None = None

    def traffic(self) -> Traffic:
        """Return the traffic of the whole run."""
        end = self.log.end
        if self._traffic is None or self._traffic[0] != end:
            self._traffic = end, self._counted(end + 1)
        return self._traffic[1]

    def _counted(self, rows: int) -> Traffic:
        first, last = (
            table["sent_at"].to_pylist() for table in (self.log.query(limit=1), self.log.recent(limit=1, width=0))
        )
        span = (last[0] - first[0]).total_seconds() if first and last else 0.0
        unit, width = unit_for(span)
        counts = counted(self.log, unit, ("fate", "rule"))
        # Counted separately, as each second of a long run has hundreds of flows.
        ends = sum(counted(self.log, "day", ("fate", "sender", "mailbox")).values(), Counter[Key]())
        start = min(counts, default=0.0)
        bins = int((max(counts, default=0.0) - start) // width) + 1
        found = traffic_of([Bin(*each) for each in counts.items()], start, width, bins, rows)
        between = traffic_of([Bin(start, ends)], start, width, 1, rows)
        return replace(found, flows=between.flows, blocked_from=between.blocked_from)

    def record(self) -> list[tuple[str, str]]:
        """Return the facts of the run: experiment, starts, groups, steps, changes of rules.

        Raise LogError if they are damaged.
        """
        run = self.log.run
        if run is None:
            return [("record", "none: its folder has no _run.json")]
        found = [("experiment", run["experiment"]), ("groups", ", ".join(run["groups"]) or "unknown")]
        found += [("agents", f"{sum(run['groups'].values()):,}")] if run["groups"] else []
        found += [("steps", str(run["steps"]))] if run["steps"] else []
        for start in run["starts"]:
            found.append(("started", f"{start['began']}, {start['server']}"))
            found.append(("ended", start["ended"] or "it runs, or was killed"))
            found.append(("rules", ", ".join(str(rule.get("name")) for rule in start["rules"]) or "none"))
        found.append(("changes of rules", f"{len(run['rule_changes']):,}"))
        return [(title, cut(value, _LONGEST)) for title, value in found[:_MOST]]

    def rules(self) -> list[RuleFacts]:
        """Return the rules that have acted, those with the most messages first."""
        table = self.log.count(by=["rule", "fate"])
        acted: dict[str, list[str]] = {}
        for row in table.to_pylist():
            if row["rule"] is not None:
                what = "blocked" if row["fate"] == "blocked" else f"changed, {row['fate']}"
                acted.setdefault(name(row["rule"]), []).append(f"{row['count']:,} {what}")
        return [RuleFacts(rule, "", "; ".join(found)) for rule, found in acted.items()]
