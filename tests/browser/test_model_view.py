"""The page of a local model in a real browser: sliders, step, play and reset, and its society."""

import pytest
from support.inspector import browser, inspector, picture

pytestmark = pytest.mark.long

MODEL = """
from typing import Annotated, Literal
from ray_messaging import grid


def voter(me, inbox, *, noise):
    heard = [message.payload["side"] for message in inbox]
    if heard:
        me.state["side"] = heard[int(me.rng.integers(len(heard)))]
    if me.rng.random() < noise:
        me.state["side"] = ("left", "right")[int(me.rng.integers(2))]
    for friend in me.neighbours:
        me.send(friend, {"side": me.state["side"]})


def town(*, noise: float = 0.01, side: Annotated[int, (5, 30)] = 20, edge: bool = True,
         begin: Literal["mixed", "left"] = "mixed"):
    return {
        "model": voter, "agents": side * side, "until": 12, "graph": grid(side, side, torus=not edge),
        "start": lambda me: {"side": "left" if begin == "left" or me.rng.random() < 0.5 else "right"},
    }


def broken(*, share: float = 0.5):
    def fails(me, inbox):
        raise ValueError("<img src=x onerror=alert(1)>")
    return {"model": fails, "agents": 3}
"""


@pytest.fixture(scope="module")
def seen():
    with browser() as found:
        yield found


def test_a_model_is_played_and_begun_anew_with_other_parameters(seen, tmp_path):
    (tmp_path / "town.py").write_text(MODEL)
    with inspector("--model=town:town", cwd=tmp_path) as url:
        seen.base = url
        seen.go("/")
        seen.sees("now", "0 steps done.")
        seen.element("run-step").click()
        seen.sees("now", "1 step done.")
        seen.sees("said", "Step 0: 400 agents.")
        seen.element("run-play").click()
        seen.sees("now", "12 steps done, up to the end.")
        seen.sees("said", "Step 11: 400 agents.")
        seen.element("map-0").locator("canvas").first.wait_for()
        picture(seen, "inspector-model")
        seen.element("set-side").click(position={"x": 1, "y": 8})
        seen.element("run-reset").click()
        seen.sees("now", "0 steps done.")
        seen.element("run-step").click()
        seen.sees("said", "Step 0: 25 agents.")
        seen.page.set_viewport_size({"width": 420, "height": 900})
        picture(seen, "inspector-model-narrow")
        assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        seen.page.set_viewport_size({"width": 1280, "height": 800})
        seen.open("about:blank")


def test_a_model_that_fails_says_where(seen, tmp_path):
    (tmp_path / "town.py").write_text(MODEL)
    with inspector("--model=town:broken", cwd=tmp_path) as url:
        seen.base = url
        seen.go("/")
        seen.element("run-step").click()
        seen.sees("problem", "step 0, which is not committed: ValueError: <img")
        seen.sees("now", "0 steps done.")
        seen.open("about:blank")
