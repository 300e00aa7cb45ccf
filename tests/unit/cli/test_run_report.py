"""The report of runs: one page, which needs no network and makes no markup of texts."""

import base64
import json
import re
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from support.log_queries import row, write_folder
from typer.testing import CliRunner

from ray_messaging.cli import app
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import FORMAT, RuleChange, RunRecord, write_rule_changes, write_run

EVIL = "<script>alert(1)</script>\x1b[31m"
AGENT = "<b>ann</b> $^$"
ROWS = [
    row(0, 1, 2, step=1),
    row(1, AGENT, 1, step=2, text=EVIL),
    row(2, "ann", 1, step=2),
    row(3, 2, 1, step=2, fate="blocked", rule="black_list", reason=EVIL),
]


class Page(HTMLParser):
    """The tags, texts and pictures of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.pictures = set(), [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            if name in {"src", "href"}:
                kind, _, data = value.partition("base64,")
                assert kind == "data:image/svg+xml;"
                self.pictures.append(ET.fromstring(base64.b64decode(data)))

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def folder(tmp_path):
    def write(name, rows):
        return write_folder(tmp_path / name, [rows]).where

    return write


def run(*arguments, exit_code=0):
    found = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert found.exit_code == exit_code, found.output
    return found


def test_the_report_of_a_run(folder, tmp_path):
    run(folder("log", ROWS), "--file", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.tags.isdisjoint({"script", "link", "iframe"})
    assert "\x1b" not in text
    assert len(page.pictures) == 3  # by step, traffic and groups, the network
    shown = "|".join(page.texts)
    assert "|delivered|3|" in shown
    assert "|black_list|<script>alert(1)</script>\ufffd[31m" in shown
    assert "|Most sent|agent|messages|" in shown
    assert "Differences" not in shown


def test_the_report_of_two_runs(folder, tmp_path):
    other = [*ROWS[:2], row(2, "ann", 2, step=2), *ROWS[3:]]
    printed = run(folder("log", ROWS), folder("other", other), "--file", tmp_path / "two.html", "--json").stdout
    facts = json.loads(printed)
    assert facts == {"file": str(tmp_path / "two.html"), "bytes": (tmp_path / "two.html").stat().st_size}
    page = Page((tmp_path / "two.html").read_text())
    assert len(page.pictures) == 6
    assert page.texts.count("delivered") == 2
    assert "Differences" in page.texts
    assert "Counts that differ" not in page.texts


def test_counts_that_differ_and_interventions_are_in_the_report(folder, tmp_path):
    path = folder("log", ROWS)
    write_run(Folder(path), RunRecord(FORMAT, "exp"))
    mask = {"name": "pattern", "kind": "Pattern", "words": ["idiot"], "regexes": [], "field": None, "action": "mask"}
    write_rule_changes(Folder(path), [RuleChange(1e9, "insert", mask, step=2, exact=True)])
    run(path, folder("other", ROWS[:3]), "--file", tmp_path / "two.html")
    page = Page((tmp_path / "two.html").read_text())
    shown = "|".join(page.texts)
    assert "|rows|4|3|-1|blocked|1|0|-1|black_list: blocked|1|0|-1|" in shown
    assert "|2|insert|Pattern(words idiot, action mask)|" in shown


@pytest.mark.parametrize("missing", ["nowhere", "log.html/report.html"])
def test_what_cannot_be_read_or_written_is_named(folder, tmp_path, missing):
    log = folder("log", ROWS) if missing != "nowhere" else tmp_path / "nowhere"
    found = run(log, "--file", tmp_path / missing, exit_code=2)
    assert str(tmp_path / missing)[:40] in re.sub(r"\s", "", found.stderr)
    assert "Traceback" not in found.output


@pytest.mark.parametrize("missing", ["matplotlib.figure", "networkx"])
def test_a_missing_library_is_named_with_its_extra(folder, tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    found = run(folder("log", ROWS), "--file", tmp_path / "report.html", exit_code=2)
    assert "pip install 'ray-messaging[plot,networkx]'" in found.stderr


def test_a_log_without_messages(folder, tmp_path):
    run(folder("log", []), "--file", tmp_path / "report.html")
    assert "|rows|0|" in "|".join(Page((tmp_path / "report.html").read_text()).texts)
