"""A run on Ray that ends by a condition of its collected values: resumed, forked, and with groups that die."""

import uuid

import pandas as pd
import pytest
from support.cluster import die_once

from ray_messaging import Count, Mean, Messaging, Of, Steps, run
from ray_messaging.errors import ConfigError, StepFailed

AGENTS, SEED = 12, 3
COLLECT = [Count("health"), Of([5], Mean("fifth", of="days"))]


def ill(me, inbox):
    me.state["days"] += me.state["health"] == "ill"
    if inbox and me.state["health"] == "well":
        me.state["health"] = "ill"
    if me.state["days"] == 2:
        me.state["health"] = "immune"
    if me.state["health"] == "ill":
        me.send((me.id + 1) % AGENTS, {})


GIVEN = {
    "agents": AGENTS, "start": lambda me: {"health": "ill" if me.id == 0 else "well", "days": 0},
    "collect": COLLECT, "progress": False,
}  # fmt: skip


def is_over(now):
    return now["health=ill"] == 0


@pytest.fixture(scope="module")
def expected():
    return {every: run(ill, until=is_over, max_steps=50, seed=SEED, collect_every=every, **GIVEN) for every in (1, 4)}


def same(one, other):
    assert (one.states, one.steps, one.stopped) == (other.states, other.steps, other.stopped)
    pd.testing.assert_frame_equal(one.series, other.series, check_exact=True)
    return True


@pytest.mark.long
@pytest.mark.parametrize("every", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_a_run_ends_by_a_condition_whoever_dies_and_goes_on_exactly(by_value, tmp_path, expected, every):
    def dying(me, inbox):
        ill(me, inbox)
        if me.step in {3, 8} and me.id in {7, 8}:
            die_once(tmp_path / f"{me.id}")

    wanted, given = expected[every], GIVEN | {"groups": 3, "collect_every": every}
    log_dir = tmp_path / "log" if every == 1 else None
    steps, name = Steps(seed=SEED, digest=True, checkpoint=log_dir and 2), f"until-{uuid.uuid4().hex[:8]}"
    with Messaging.start(name, steps=steps, log_dir=log_dir, data_dir=tmp_path / "data") as messaging:
        half = messaging.run(dying, until=is_over, max_steps=9, **given)
        assert (half.steps, half.stopped) == (9, False)
        with pytest.raises(StepFailed, match=r"until= failed after step 8: ZeroDivisionError"):
            messaging.run(dying, until=lambda now: now["fifth"] / 0, max_steps=9, **given)
    again = {"on_existing": "resume", "steps": steps, "log_dir": log_dir, "data_dir": tmp_path / "data"}
    with Messaging.start(name, **again) as messaging:
        found = messaging.run(dying, until=is_over, max_steps=50, **given)
        assert same(found, wanted)
        assert found.digests == wanted.digests
        assert same(messaging.run(dying, until=is_over, max_steps=50, **given), wanted)  # it is over: no step runs
        with pytest.raises(ConfigError, match="pass max_steps="):
            messaging.run(dying, until=is_over, **given)
    if log_dir is None:
        return
    with Messaging.fork(log_dir, f"{name}-end", at_step=wanted.steps, log_dir=tmp_path / "end") as messaging:
        assert same(messaging.run(ill, until=is_over, max_steps=50, **given), wanted)
        longer = messaging.run(ill, until=lambda now: now["step"] > wanted.steps, max_steps=50, **given)
        assert longer.steps == wanted.steps + 2
