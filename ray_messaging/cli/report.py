"""The command `ray-messaging report`, which writes an HTML page about one run, or about two runs."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ray_messaging.cli.log_options import open_log
from ray_messaging.cli.options import Json
from ray_messaging.cli.report_charts import network_chart, step_chart, svg
from ray_messaging.cli.session import check_file, output, print_json
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.texts import printable, utc_time
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.plot import figure_of
from ray_messaging.eventlog.reading.paging import json_line
from ray_messaging.eventlog.reading.step_digests import Difference
from ray_messaging.model.fates import BLOCKED, FATES

# The page may not run scripts or load anything from a network, so that texts written by agents can do no harm.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1600px; padding: 0 1em; color: #222 }
section { display: grid; grid-template-columns: repeat(var(--runs), minmax(0, 1fr)); gap: 0 2.5em }
h2 { grid-column: 1 / -1; margin: 1.6em 0 .4em; border-bottom: 1px solid #ddd; font-size: 1.2em }
.pair { display: flex; gap: 3em }
table { border-collapse: collapse; margin: .3em 0 } th { text-align: left; font-weight: 600; white-space: nowrap }
td, th { padding: .15em 1em .15em 0; vertical-align: top } td { overflow-wrap: anywhere }
.facts th { font-weight: 400; color: #666 } tr + tr td, tr + tr th { border-top: 1px solid #eee }
img { width: 100% } p { margin: .4em 0 }
@media (max-width: 900px) { section { grid-template-columns: minmax(0, 1fr) } }
"""


def page_of(logs: Mapping[str, EventLog]) -> str:
    """Return the page about some logs, given by name.

    Raises: ImportError if matplotlib or networkx is not installed; LogError if a log cannot be read.
    """
    stats = {name: log.stats() for name, log in logs.items()}
    title = " and ".join(logs)
    sections = [
        _section("Run", [_run(name, log.run) for name, log in logs.items()]),
        _section("What became of the messages", [_fates(found) for found in stats.values()]),
        _section("Differences", _differences([*logs], [*logs.values()], [*stats.values()]) if len(logs) > 1 else ()),
        _section("Interventions", [_changes(log.run) for log in logs.values()]),
        _section("Messages by step", [step_chart(log) for log in logs.values()]),
        _section("Traffic", [svg(figure_of(found)) for found in stats.values()]),
        _section("Blocked, by reason", [_blocked(log) for log in logs.values()]),
        _section("Busiest agents", [_busiest(found) for found in stats.values()]),
        _section("Network", [network_chart(log) for log in logs.values()]),
    ]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    name = _escaped(f"Report of {title}")
    body = "".join(sections)
    style = f"<style>:root {{ --runs: {len(logs)} }}{_STYLE}</style>"
    page = f"<head>{head}<title>{name}</title>{style}</head><body><h1>{name}</h1>{body}</body>"
    return f'<!doctype html><html lang="en">{page}</html>\n'


def _section(title: str, parts: Sequence[str]) -> str:
    """Return a section of the page with a part for each run, or "" if all parts are empty."""
    if not any(parts):
        return ""
    return f"<section><h2>{title}</h2>{''.join(f'<div>{part}</div>' for part in parts)}</section>"


def _run(name: str, run: Mapping[str, Any] | None) -> str:
    if run is None:
        return f"<p>{_escaped(name)} has no record of its run.</p>"
    facts = {"folder": name, "experiment": run["experiment"], "steps": run["steps"], "model": run["model"]}
    facts |= {"groups": len(run["groups"]), "agents": sum(run["groups"].values())}
    for start in run["starts"][-1:]:
        facts |= {"command": " ".join(start["command"]), "server": start["server"], "versions": start["versions"]}
        facts |= {f"rule {rule['name']}": _settings(rule) for rule in start["rules"]}
    for number, start in enumerate(run["starts"], 1):
        began, ended = (str(start[key] or "")[:19].replace("T", " ") for key in ("began", "ended"))
        facts["ran" if len(run["starts"]) == 1 else f"start {number}"] = f"{began} to {ended or '(not closed)'} UTC"
    return _facts(facts)


def _fates(stats: Mapping[str, Any]) -> str:
    begins = {"first": utc_time(stats["first"]), "last": utc_time(stats["last"])} if stats["rows"] else {}
    return _facts(_counts(stats) | begins)


def _counts(stats: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of a run, by name, for a table: rows, messages by fate and rule, senders, and recipients."""
    fates = {fate: count for fate, count in stats["fates"].items() if count}
    rules = {f"{name}: {action}": count for name, found in stats["rules"].items() for action, count in found.items()}
    return {"rows": stats["rows"]} | fates | rules | {end: stats[end] for end in ("writers", "readers")}


def _differences(names: Sequence[str], logs: Sequence[EventLog], stats: Sequence[Mapping[str, Any]]) -> list[str]:
    mine, theirs = (_counts(found) for found in stats)
    rows = [
        (name, mine.get(name, 0), theirs.get(name, 0))
        for name in dict.fromkeys([*mine, *theirs])
        if mine.get(name, 0) != theirs.get(name, 0)
    ]
    counts = {
        "": [name for name, _, _ in rows],
        names[0]: [f"{one:,}" for _, one, _ in rows],
        names[1]: [f"{other:,}" for _, _, other in rows],
        "change": [f"{other - one:+,}" for _, one, other in rows],
    }
    first = _first_difference(names, logs)
    return [first, html_table("Counts that differ", counts, len(rows))] if rows else [first]


def _first_difference(names: Sequence[str], logs: Sequence[EventLog]) -> str:
    try:
        found: Difference | None = logs[0].diff(logs[1])
    except ConfigError as error:  # runs without steps cannot be compared
        return f"<p>{_escaped(str(error))}</p>"
    if found is None:
        return "<p>Both runs sent the same messages.</p>"
    fields = ("to_id", "step_read", "subtopic", "fate", "rule", "labels", "text")
    sides = [
        ["no such message" if row is None else _told(getattr(row, field)) for field in fields]
        for row in (found.mine, found.theirs)
    ]
    where = f"They differ first in step {found.step}, in message {found.message_id} of agent {found.agent!r}."
    return html_table(where, {"field": fields, names[0]: sides[0], names[1]: sides[1]}, len(fields))


def _changes(run: Mapping[str, Any] | None) -> str:
    changes = [] if run is None else run["rule_changes"]
    if not changes:
        return ""
    shown = changes[:SHOWN]
    columns: dict[str, list[object]] = {"at": [utc_time(change["at"]) for change in shown]}
    columns |= {name: [change[name] for change in shown] for name in ("step", "change")}
    columns["rule"] = [_settings(change["rule"]) for change in shown]
    return html_table("", columns, len(changes))


def _blocked(log: EventLog) -> str:
    counts = log.count(by=("rule", "reason"), fate=FATES[BLOCKED])
    if not len(counts):
        return ""
    first = counts.slice(0, SHOWN)
    return html_table("", {name: first[name].to_pylist() for name in ("rule", "reason", "count")}, len(counts))


def _busiest(stats: Mapping[str, Any]) -> str:
    text = ""
    for end, name in (("busiest_writers", "sent"), ("busiest_readers", "received")):
        agents, messages = [[row[place] for row in stats[end][:SHOWN]] for place in (0, 1)]
        text += html_table(f"Most {name}", {"agent": agents, "messages": messages}, len(agents))
    return f'<div class="pair">{text}</div>'


def _facts(facts: Mapping[str, Any]) -> str:
    """Return a table of names and values, without empty values."""
    told = {name: _told(value) for name, value in facts.items() if value not in (None, {}, "")}
    rows = "".join(f"<tr><th>{_escaped(name)}</th><td>{_escaped(value)}</td></tr>" for name, value in told.items())
    return f'<table class="facts">{rows}</table>'


def _settings(rule: object) -> object:
    """Return the description of a rule as text: its kind and its settings that are not empty.

    Return other values unchanged.
    """
    if not isinstance(rule, Mapping):
        return rule
    settings = {
        key: value for key, value in rule.items() if key not in ("name", "kind") and value not in (None, [], {})
    }
    return f"{rule['kind']}({_told(settings)})"


def _told(value: object) -> str:
    """Return a value of a record in a form for people."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_told(part)}" for key, part in value.items() if part not in (None, [], {}, ""))
    if isinstance(value, list | tuple):
        return ", ".join(map(_told, value))
    return str(value)


def _escaped(text: str) -> str:
    return html.escape(printable(text))


def report(
    log_dir: Annotated[
        str, typer.Argument(metavar="LOG_DIR", help="A log_dir, or the exp_id of a running experiment.")
    ],
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="Another log_dir or exp_id, to compare with.")
    ] = None,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The new file.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a page about a run, or about two runs side by side: settings, traffic, fates, rules, network.

    The page is one HTML file, which can be opened without a network.
    """
    check_file(file, "choose another file with --file")
    logs = {name: open_log(name) for name in (log_dir, other) if name is not None}
    try:
        text = page_of(logs)
    except ImportError as error:
        raise ConfigError(
            "a report needs matplotlib and networkx: pip install 'ray-messaging[plot,networkx]'"
        ) from error
    file.write_text(text, encoding="utf-8")
    if as_json:
        print_json(json_line({"file": str(file), "bytes": len(text.encode())}))
    else:
        output().print(f"The report is in {file}: open it in a browser.")
