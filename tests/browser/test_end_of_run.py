"""The inspector of an experiment in steps that ends while its page is open."""

import uuid

import pytest
from support.inspector import browser

from ray_messaging import Messaging, Steps, rules

pytestmark = pytest.mark.long


def test_its_page_shows_the_log_from_then_on(ray_cluster, tmp_path):
    def greet(me, inbox):
        me.send((me.id + 1) % 10, {"content": f"good morning, I heard {len(inbox)}"})

    listed = [rules.BlackList([(3, 4)])]
    exp_id = f"end-{uuid.uuid4().hex[:8]}"
    with (
        browser() as seen,
        Messaging.start(exp_id, steps=Steps(seed=1), rules=listed, log_dir=tmp_path / "log") as messaging,
        messaging.ui(port=0) as inspector,
    ):
        seen.open(inspector.url)
        messaging.run(greet, agents=10, groups=2, until=5, collect=lambda me: {"double": 2 * me.id})
        seen.sees("phase", "live")
        seen.sees("period", "Per step, of the last steps")
        seen.sees("health", "checks")
        messaging.shutdown()
        seen.sees("phase", "ended")
        seen.sees("title", exp_id)
        seen.sees("record", "black_list")
        seen.sees("figure-rows", "50")
        seen.sees("period", "Per step, of the whole run.")
        assert "kill it" not in seen.page.inner_text("body")
        seen.base = inspector.url
        seen.go("/rules")
        seen.sees("rules", "pairs=1; 5 blocked")
        seen.go("/agent?id=3")
        seen.element("collected").locator("canvas").first.wait_for()


def test_a_run_without_a_log_has_ended_too(ray_cluster):
    with (
        browser() as seen,
        Messaging.start(f"end-{uuid.uuid4().hex[:8]}") as messaging,
        messaging.ui(port=0, control=True) as inspector,
    ):
        seen.open(inspector.url)
        seen.sees("period", "keeps no event log")
        messaging.shutdown()
        seen.sees("phase", "ended")
        seen.sees("problem", "has ended, and kept no event log")
