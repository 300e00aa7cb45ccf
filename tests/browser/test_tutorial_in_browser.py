"""The tutorial's programs and commands as a newcomer has them, and the inspector in a real browser.

Each program has a Ray cluster of its own, as on a newcomer's machine, and ends by Ctrl-C.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import wait_for
from support.doc_pages import ROOT, blocks, commands, compare
from support.inspector import browser, inspector, picture
from support.own_driver import kill_related
from support.patience import WAIT_S

pytestmark = pytest.mark.long

PAGE = "docs/tutorial.md"
(DEMO,) = (block for block in blocks(PAGE) if block.section == "The demo")
PROGRAM, UI, PRINTED, LOG = (block for block in blocks(PAGE) if block.section == "Watch a run, and change it")
START_S = 150.0  # of Ray, a server and groups


def place(home):
    """Return folder and environment of the newcomer's processes: no Ray is known there."""
    known = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {"cwd": home, "env": known | {"TMPDIR": str(home), "PATH": path, "PYTHONPATH": paths}}


class Terminal:
    """A program in a terminal of its own, which has ended with the block."""

    def __init__(self, command, home):
        self._home, self._screen = home, home / "screen.txt"
        with self._screen.open("wb") as screen:
            self._process = subprocess.Popen(
                command, **place(home), stdout=screen, stderr=subprocess.STDOUT, start_new_session=True
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        kill_related(self._home)
        self._process.wait(WAIT_S)

    @property
    def screen(self):
        return self._screen.read_text()

    def until(self, words):
        """Wait until the screen has some words."""
        wait_for(lambda: words in self.screen or self._process.poll() is not None, words, START_S)
        assert words in self.screen, self.screen

    def ctrl_c(self):
        """Press Ctrl-C, which a shell's foreground processes get together; return the exit code."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(WAIT_S)


def run(home, line):
    """Run a command of a third terminal; return what it prints."""
    found = subprocess.run(
        line, shell=True, **place(home), capture_output=True, text=True, timeout=START_S, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def check_console(home, block):
    """Run the commands of a block, and compare what they print."""
    for words, wanted, line in commands(block):
        compare(PAGE, line, wanted, run(home, " ".join(words)))


def test_the_inspector_is_open_beside_the_demo(home):
    [(words, wanted, line)] = commands(DEMO)
    with Terminal(words, home) as demo, browser() as seen:
        demo.until("open it in a browser")
        seen.open(demo.screen.partition("The inspector is at ")[2].partition(": open")[0])
        seen.sees("title", "demo-")
        wait_for(lambda: seen.number("figure-rows") > 0 and not seen.text("figure-blocked").startswith("0%"))
        demo.until("Ctrl-C ends both")
        wait_for(lambda: seen.number("figure-rows") >= 1_000_000)
        seen.sees("health", "checks")
        picture(seen, "first-demo")
        assert demo.ctrl_c() == 0
        compare(PAGE, line, wanted, demo.screen)


def test_a_rule_of_the_page_is_seen_everywhere(home):
    (home / "first.py").write_text(PROGRAM.text)
    [(words, _, _)] = commands(UI)
    assert words[:2] == ["ray-messaging", "ui"]
    with Terminal(["python", "first.py"], home) as first:
        first.until("delivered")
        with browser() as seen, inspector(*words[2:], **place(home)) as url:
            seen.base = url.partition("?")[0]
            seen.open(url)
            insert_the_rule(seen)
            first.until("Receipts(6 delivered, 4 blocked)")
            look_at_the_blocked_messages(seen)
        assert first.ctrl_c() == 0
        compare(PAGE, PRINTED.line, PRINTED.text, first.screen)
        check_console(home, LOG)
        look_at_the_report(home)


def insert_the_rule(seen):
    seen.go("/rules")
    seen.sees("rules", "There are no rules")
    seen.element("spec").fill("pattern:casino")
    seen.element("preview").click()
    seen.sees("previewed", "(40.0%)")
    seen.sees("previewed", "meet me at the casino")
    seen.element("insert").click()
    seen.sees("done", "rule pattern is in force")
    seen.sees("rules", "casino")
    picture(seen, "first-rule")


def look_at_the_blocked_messages(seen):
    seen.go("/")
    seen.sees("health", "checks")
    wait_for(lambda: "%" in seen.text("figure-blocked") and seen.number("figure-rows") > 0)
    wait_for(lambda: float(seen.text("figure-blocked").rstrip("%")) >= 20)  # as long with the rule as without
    seen.go("/search?rule=pattern&contains=casino")
    seen.sees("rows", "the payload holds the word 'casino'")


def look_at_the_report(home):
    with browser() as seen:
        seen.page.goto(f"file://{home}/first.html")
        text = seen.page.inner_text("body")
        for words in ("pattern", "the payload holds the word 'casino'"):
            assert words in text
