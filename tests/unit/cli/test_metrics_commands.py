"""The dashboard for Grafana: the command that writes it, and whether its queries name metrics that exist."""

import json
import re
from importlib.resources import files

import pytest
from typer.testing import CliRunner

from ray_messaging.cli import app
from ray_messaging.observability.metrics.experiment_metrics import of_interceptor, of_log, of_mailboxes
from ray_messaging.observability.metrics.families import named_values
from ray_messaging.observability.metrics.messager_metrics import MessagerMetrics
from ray_messaging.transports.server_facts import Kept, Mailbox

NAME = "ray_messaging_grafana_dashboard.json"
BOX = Mailbox("east", 3, 300, 10, 1000, 1.5, None, leased=False, unlogged=0, unlogged_bytes=0, hosts=True)
KEPT = Kept(1, True, 0, 0, 0, 0, 0, 0, 1, [BOX])


def told_to_ray():
    """Return the metrics that groups, interceptor and log tell Ray, with their labels, by name."""
    metrics = MessagerMetrics()
    metrics.messages_blocked("rule", 1)
    families = metrics.families(dict.fromkeys(("outbox", "inbox", "deferred", "lent"), 0))
    common = {"experiment", "messager"}
    found = {value.name: common | {key for key, _ in value.labels} for each in families for value in named_values(each)}
    interceptor = {
        "judged": 1,
        "blocked": 1,
        "rule_seconds": {"rule": 1.0},
        "rule_failures": {"rule": {"failures": 1}},
        "stragglers": {"east": 60.0},
    }
    others = [*of_interceptor(interceptor), *of_log(dict.fromkeys(("rows", "segments", "open_rows", "lag_s"), 1))]
    for family in [*others, *of_mailboxes(KEPT)]:
        found |= {value.name: {"experiment"} | {key for key, _ in value.labels} for value in named_values(family)}
    return {f"ray_messaging_{name}": labels for name, labels in found.items()}


def dashboard():
    return json.loads(files("ray_messaging.observability.metrics").joinpath("grafana_dashboard.json").read_text())


def queries():
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


@pytest.mark.parametrize("query", [*queries(), *(each["query"] for each in dashboard()["templating"]["list"][1:])])
def test_each_query_names_metrics_and_labels_that_exist(query):
    there = told_to_ray()
    used = re.findall(r"(ray_messaging_\w+)(?:\{([^}]*)\})?", query)
    assert used
    for name, filters in used:
        assert name in there
        by = re.findall(r"by \(([^)]*)\)", query)
        labels = {word for group in by for word in group.split(", ")} | set(re.findall(r"(\w+)=~", filters))
        assert labels <= there[name], name


def test_each_panel_has_a_place_of_its_own():
    places = [tuple(panel["gridPos"].values()) for panel in dashboard()["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(places)


def test_the_command_writes_the_dashboard(tmp_path):
    found = CliRunner().invoke(app, ["metrics", "dashboard", str(tmp_path)])
    assert found.exit_code == 0
    assert NAME in found.stdout.replace("\n", "")
    assert json.loads((tmp_path / NAME).read_text()) == dashboard()


def test_it_goes_where_ray_puts_its_own(tmp_path, monkeypatch):
    folder = tmp_path / "ray" / "session_latest" / "metrics" / "grafana" / "dashboards"
    folder.mkdir(parents=True)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert CliRunner().invoke(app, ["metrics", "dashboard"]).exit_code == 0
    assert (folder / NAME).exists()


def test_a_folder_that_is_missing_is_refused(tmp_path):
    found = CliRunner().invoke(app, ["metrics", "dashboard", str(tmp_path / "nowhere")])
    assert found.exit_code != 0
    assert "there is no folder" in found.output.replace("\n", " ")
