"""The page of a society in a real browser: a lattice, positions, a small network, and two runs beside each other."""

from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.inspector import browser, inspector, picture
from support.log_queries import T0, row, write_folder

from ray_messaging.transports.step_values import CollectedKind

pytestmark = pytest.mark.long

STEPS = 12
MARKUP = "<img src=x onerror=alert(1)>{b}"


def written(path, agents, columns, *, told=""):
    """Write the folder of a run in steps: the messages of some agents, and what was collected of each agent."""
    chance, rows = np.random.default_rng(5), []
    for step in range(STEPS):
        for place in range(8):
            one, other = (agents[int(each)] for each in chance.integers(len(agents), size=2))
            text = told if step > 4 and place == 0 else "hello"
            rows.append(row(len(rows), one, other, step=step, ordinal=place, text=text, sent_at=T0 + step))
    folder = write_folder(path, [rows])
    ids = [*agents] * STEPS
    table = {
        "step": np.repeat(np.arange(STEPS), len(agents)),
        "agent": [None if isinstance(i, str) else i for i in ids],
    }
    if any(isinstance(each, str) for each in ids):
        table["agent_name"] = [each if isinstance(each, str) else None for each in ids]
    data = pa.BufferOutputStream()
    pq.write_table(pa.table(table | columns), data)
    folder.write_collected(CollectedKind.SERIES, "0", (0, STEPS - 1), data.getvalue(), epoch=0)
    return folder.where


def lattice(seed):
    """Return the sides of the voters of a lattice, step by step: each copies a neighbour now and then."""
    chance = np.random.default_rng(seed)
    sides, found = chance.integers(2, size=(24, 24)), []
    for _ in range(STEPS):
        found.append(sides.ravel())
        copied = np.roll(sides, chance.integers(-1, 2), axis=chance.integers(2))
        sides = np.where(chance.random(sides.shape) < 0.5, copied, sides)
    return {"side": [("left", "right")[side] for side in np.concatenate(found)]}


@pytest.fixture(scope="module")
def seen():
    with browser() as found:
        yield found


@contextmanager
def opened(seen, *arguments):
    """Run the inspector. At the end the browser leaves it first: a page looks for a server that has ended."""
    with inspector(*arguments) as url:
        seen.base = url
        yield
        seen.open("about:blank")


def test_a_slider_shows_each_step_of_a_lattice(seen, tmp_path):
    with opened(seen, written(tmp_path / "voters", range(576), lattice(1))):
        seen.go("/society?step=3")
        seen.sees("said", "Step 3: 576 agents.")
        seen.element("map-0").locator("canvas").first.wait_for()
        seen.element("map-0").hover()
        seen.element("play").click()
        seen.sees("said", f"Step {STEPS - 1}: 576 agents.")
        picture(seen, "inspector-society")


def test_the_agents_of_a_small_society_are_joined_by_messages(seen, tmp_path):
    agents = [*range(20), "ann", MARKUP]
    moods = {"mood": np.random.default_rng(2).normal(size=len(agents) * STEPS), "side": [MARKUP] * len(agents) * STEPS}
    with opened(seen, written(tmp_path / "small", agents, moods)):
        seen.go("/society")
        seen.sees("said", f"Step {STEPS - 1}: 22 agents.")
        seen.element("map-0").locator("canvas").first.wait_for()
        seen.element("map-0").hover()
        seen.page.get_by_label("colour").click()
        seen.page.get_by_role("option", name="side").click()
        seen.element("lines").hover()
        picture(seen, "inspector-society-small")


def test_two_runs_are_compared_beside_each_other(seen, tmp_path):
    parent = written(tmp_path / "parent", range(576), lattice(1), told="stay")
    fork = written(tmp_path / "fork", range(576), lattice(2), told="go")
    with opened(seen, parent, "--beside", fork):
        seen.go("/society?step=6")
        seen.sees("said", "Step 6: 576 agents.")
        seen.sees("differ", "The runs differ first in step 5")
        for mark in ("map-0", "map-1", "differences", "lines"):
            seen.element(mark).locator("canvas").first.wait_for()
        picture(seen, "inspector-beside")


def test_both_runs_are_shown_by_the_value_of_the_first_run(seen, tmp_path):
    mood = {"mood": np.arange(576 * STEPS) / 7}
    first = written(tmp_path / "first", range(576), mood | lattice(1))
    other = written(tmp_path / "other", range(576), lattice(2))
    with opened(seen, first, "--beside", other):
        seen.go(f"/society?step={'9' * 5000}")
        seen.sees("said", f"Step {STEPS - 1}: 576 agents.")
        seen.sees("problem", "has not collected 'mood' of its agents: it has 'side'")
        seen.element("map-0").locator("canvas").first.wait_for()
        seen.element("map-1").wait_for(state="hidden")
        seen.page.get_by_label("colour").click()
        seen.page.get_by_role("option", name="side").click()
        seen.element("map-1").locator("canvas").first.wait_for()
        seen.element("problem").wait_for(state="hidden")


def test_a_run_that_collected_nothing_says_how_to_collect(seen, tmp_path):
    with opened(seen, write_folder(tmp_path / "bare", [[row(0, 1, 2)]]).where):
        seen.go("/society")
        seen.sees("said", "A run collects a value of each agent by")
