"""The page of a study in a real browser: progress, table, curves with intervals, and a heat map."""

import pytest
from support.inspector import browser, inspector, picture
from support.studies import written_study

pytestmark = pytest.mark.long

MARKUP = "<img src=x onerror=alert(1)>{b}"


def outcomes(run):
    row, noise = run.row, (run.seed % 97) / 97
    if row["chance"] == 0.5 and run.replicate == 2:
        raise RuntimeError(MARKUP)
    return {"knows": row["chance"] * (1 if row["limit"] == "none" else 0.4) + noise / 10, MARKUP: noise, "word": "x"}


@pytest.fixture(scope="module")
def seen():
    with browser() as found:
        yield found


def test_a_study_shows_curves_a_heat_map_and_its_rows(seen, tmp_path):
    parameters = {"chance": [0.1, 0.2, 0.3, 0.4, 0.5], "limit": ["none", "one", MARKUP], "size": [10]}
    written_study(tmp_path / "study", parameters, 6, outcomes, planned=120)
    with inspector(tmp_path / "study") as url:
        seen.base = url
        seen.go("/?outcome=knows&by=limit")
        seen.sees("said", "90 of 120 runs have ended, 3 failed.")
        seen.sees("error", "The first error: RuntimeError: <img")
        seen.sees("note", "Means of 5 to 6 runs, with intervals of 95%.")
        for mark in ("curves", "heat"):
            seen.element(mark).locator("canvas").first.wait_for()
        seen.sees("table", "0.1")
        seen.sees("table", " to ")
        picture(seen, "inspector-study")
        seen.page.get_by_label("over").click()
        seen.page.get_by_role("option", name="limit").click()
        seen.sees("note", "Means of 29 runs")
        seen.element("curves").hover()
        seen.page.set_viewport_size({"width": 420, "height": 900})
        seen.go("/?outcome=knows&x=y")
        seen.element("heat").locator("canvas").first.wait_for()
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        picture(seen, "inspector-study-narrow")
        seen.page.set_viewport_size({"width": 1280, "height": 800})
        seen.open("about:blank")


def test_a_study_goes_on_while_its_page_is_open(seen, tmp_path):
    parameters = {"chance": [0.1, 0.2]}
    written_study(tmp_path / "study", parameters, 2, lambda run: {"knows": run.row["chance"]}, planned=8)
    with inspector(tmp_path / "study") as url:
        seen.base = url
        seen.go("/")
        seen.sees("said", "4 of 8 runs have ended.")
        seen.element("heat").wait_for(state="hidden")
        written_study(tmp_path / "study", parameters, 4, lambda run: {"knows": run.row["chance"]}, planned=8)
        seen.sees("said", "8 of 8 runs have ended.")
        seen.open("about:blank")
