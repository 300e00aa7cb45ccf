"""The steps of a running experiment in a real browser: the groups that are late; pause, resume, advance."""

import threading
import uuid

import pytest
from support.cluster import wait_for
from support.inspector import browser, picture

from ray_messaging import Messaging, Steps
from ray_messaging.common.texts import steps_done

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def town(ray_cluster):
    """Give an experiment in steps with two groups, of which east is not driven."""
    with Messaging.start(f"steps-{uuid.uuid4().hex[:8]}", steps=Steps(groups=2)) as messaging:
        yield messaging, messaging.create_group("west", range(3)), messaging.create_group("east", range(3, 6))


def drive(group, until):
    """Take a group through its steps, in a thread."""

    def run():
        for _ in group.steps(until=until):
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def insert_a_rule(seen, url):
    """Insert a rule from step 3 on, and return to the overview."""
    seen.base = url.partition("?")[0]
    seen.go("/rules")
    seen.sees("advice", "Step 0 is open. A change that begins with a later step")
    seen.element("spec").fill("max-length:500")
    seen.element("at-step").fill("3")
    seen.element("insert").click()
    seen.sees("done", "rule max_length is in force from step 3")
    seen.go("/")


def test_the_steps_are_seen_paused_and_advanced(town):
    messaging, west, east = town
    threads = [drive(west, 5)]
    with browser() as seen, messaging.ui(port=0, control=True) as inspector:
        seen.open(inspector.url)
        seen.sees("steps", "Step 0 is open")
        seen.sees("waiting", "Waited for: east (step 0)")
        picture(seen, "inspector-steps")
        insert_a_rule(seen, inspector.url)
        assert [(change.step, change.exact) for change in messaging.rules.changes()] == [(3, True)]
        seen.element("pause").click()
        seen.sees("done", "paused after step")
        last = messaging.steps.progress().target
        assert last is not None
        seen.sees("steps", f"Step 0 is open; pauses after step {last}")
        threads.append(drive(east, 5))
        seen.sees("steps", f"{steps_done(last + 1)}; paused after step {last}.")
        seen.element("advance").click()
        seen.sees("done", f"runs up to step {last + 1}")
        seen.sees("steps", f"{steps_done(last + 2)}; paused after step {last + 1}.")
        wait_for(lambda: messaging.steps.now == last + 2)
        seen.element("resume").click()
        seen.sees("done", "the steps go on")
        seen.sees("steps", "5 steps done.")
        assert not seen.element("waiting").count()  # nobody is waited for
        seen.go("/rules")
        seen.sees("advice", "5 steps done. A change applies from step 5 on")
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
