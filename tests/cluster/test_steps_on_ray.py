"""Steps by the handles of groups, from Ray tasks."""

import json
from collections import Counter

import pytest
import ray
from support.cluster import wait_for
from support.step_society import AGENTS, SEED, STEPS, run_step, sequential

from ray_messaging import Messaging
from ray_messaging.config import Steps
from ray_messaging.errors import AlreadyExists, ConfigError, MessagingError, StepAborted, UndeclaredSend, UnknownName
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.interception.rules import RateLimit
from ray_messaging.steps.digests import history_digest


@pytest.fixture
def messaging(ray_cluster, exp_id):
    with Messaging.start(exp_id, steps=Steps(seed=SEED, groups=3, digest=True)) as started:
        yield started


@pytest.fixture
def groups(messaging):
    return messaging.create_groups({f"group{number}": range(number, AGENTS, 3) for number in range(3)})


@ray.remote(num_cpus=0, max_retries=3, retry_exceptions=[StepAborted])
def live(group, until=STEPS, leave=False):
    states = {}
    for step in group.steps(until=until, leave=leave):
        states = run_step(step)
    return states


def joined(parts):
    return {agent: state for part in parts for agent, state in part.items()}


def test_tasks_give_the_states_and_digests_of_one_loop(messaging, groups):
    for call in (lambda: groups["group0"].send(0, 1, {}), groups["group0"].fetch_messages):
        with pytest.raises(ConfigError, match="in its steps"):
            call()
    with pytest.raises(ConfigError, match="the loop"):
        groups["group0"].step = 3
    with pytest.raises(ConfigError, match="steps="):
        Messaging.start("other", steps=7)
    assert groups["group0"].state is None
    with pytest.raises(
        UnknownName, match=r"step 0 is not committed by all groups yet; the last step that all have committed is: none"
    ):
        messaging.steps.digest(0)
    found = ray.get([live.remote(group) for group in groups.values()], timeout=300)
    states, wanted = sequential()
    assert joined(found) == states
    assert ray.get(live.remote(groups["group0"])) == {}  # all is committed
    assert json.loads(groups["group1"].state)["1"] == states[1]
    fates = [group.fates(STEPS - 1) for group in groups.values()]
    assert sum(fates, Counter()) == messaging.steps.fates(STEPS - 1) == {"delivered": sum(map(Counter.total, fates))}
    chained = b""
    for step in range(STEPS):
        assert messaging.steps.digest(step) == wanted[step]
        chained = history_digest(chained, step, messaging.steps.fates(step).total(), wanted[step])
    assert messaging.steps.history_digest(STEPS - 1) == chained
    for step in (STEPS, STEPS + 100):
        with pytest.raises(UnknownName, match=rf"step {step} is not committed .* is: 7\. .*wait\(until={step + 1}"):
            messaging.steps.history_digest(step)
    for step in (-1, "3", True):
        with pytest.raises(ConfigError, match="numbered from 0"):
            messaging.steps.digest(step)


@pytest.mark.long
def test_a_twin_that_tasks_drive_is_its_parents_twin(ray_cluster, tmp_path, exp_id):
    agents = {f"group{number}": range(number, AGENTS, 3) for number in range(3)}
    steps = Steps(seed=SEED, groups=3, digest=True, checkpoint=2)
    with Messaging.start(exp_id, steps=steps, log_dir=tmp_path / "parent") as parent:
        made = parent.create_groups(agents).values()
        ray.get([live.remote(group) for group in made], timeout=300)
        wanted = [parent.steps.digest(step) for step in range(STEPS)]
    assert [digest.hex() for digest in wanted] == [digest.hex() for digest in sequential()[1]]
    into = tmp_path / "twin"
    with Messaging.fork(tmp_path / "parent", f"{exp_id}-twin", at_step=4, log_dir=into) as twin:
        made = twin.create_groups(agents).values()
        ray.get([live.remote(group) for group in made], timeout=300)
        assert [twin.steps.digest(step) for step in range(4, STEPS)] == wanted[4:]
    assert EventLog.open(into).diff(EventLog.open(tmp_path / "parent")) is None


@pytest.mark.long
def test_a_second_driver_gets_an_error(groups):
    steps = groups["group1"].steps(until=3)
    others = [live.remote(groups[name], 3) for name in ("group0", "group2")]
    next(steps)
    with pytest.raises(AlreadyExists, match="one task at a time"):
        ray.get(live.options(retry_exceptions=False).remote(groups["group1"], 3))
    for step in steps:
        assert step.number > 0
    ray.get(others)


@pytest.mark.long
def test_steps_are_paused_and_go_on(messaging, groups):
    assert messaging.steps.advance() == 0
    assert messaging.steps.advance() == 1
    refs = [live.remote(group) for group in groups.values()]
    messaging.steps.wait(until=2, timeout=300)
    assert messaging.steps.now == 2
    with pytest.raises(TimeoutError, match=r"wait for group0 \(step 2\), group1 \(step 2\), group2 \(step 2\)"):
        messaging.steps.wait(until=3, timeout=0.2)
    assert messaging.steps.waiting_for() == {}  # no step is open
    assert "2 steps done, pauses after step 1" in messaging.steps._repr_html_()
    messaging.steps.resume()
    assert joined(ray.get(refs, timeout=300)) == sequential()[0]
    assert messaging.steps.now == STEPS


@pytest.mark.long
def test_groups_wait_for_their_senders_alone(ray_cluster, exp_id):
    with Messaging.start(exp_id, steps=Steps(seed=SEED, wait_for="senders")) as messaging:
        west, east = messaging.create_groups({"west": [1, 2], "east": [3, 4]}).values()
        messaging.steps.declare({"east": ["west"], "west": []})
        assert [step.number for step in west.steps(until=8)] == list(range(8))  # east has not begun
        assert messaging.steps.now == 0
        steps = east.steps(until=8)
        for number, to_id in enumerate([3, 4, 1]):
            step = next(steps)
            assert [message.to_id for message in step.messages] == [3, 4][number - 1 : number]
            step.send(4, to_id, {})
        with pytest.raises(
            UndeclaredSend, match="step 2 of group 'east' is not committed, because it has messages for 'west'"
        ):
            next(steps)
        with pytest.raises(ConfigError, match=r"step 7 is open.*at_step=9"):
            messaging.steps.declare({"west": ["east"]})
        messaging.steps.declare({"west": ["east"]}, at_step=9)
        assert messaging.steps.wait_for == "senders"
        ray.get(messaging.interceptor.insert_rule.remote(RateLimit(per_round=1000)))
        assert messaging.steps.wait_for == "all"
        ray.get(messaging.interceptor.pop_rule.remote("rate_limit"))
        assert messaging.steps.wait_for == "senders"
        for wrong in ({"hears": {"west": "east"}}, {"hears": {}, "at_step": -1}):
            with pytest.raises(ConfigError, match=r"list of groups|number of a step"):
                messaging.steps.declare(**wrong)


@pytest.mark.long
def test_a_group_that_nobody_drives_is_named(ray_cluster, exp_id):
    with Messaging.start(exp_id, steps=Steps(stall_s=0.2)) as messaging:
        west, _ = messaging.create_groups({"west": [1], "east": [2]}).values()
        driving = live.remote(west, 2)
        with pytest.raises(TimeoutError):
            messaging.steps.wait(until=1, timeout=0.5, progress=True)
        wait_for(lambda: [each.group for each in messaging.steps.stragglers()] == ["east"], "a step that east holds up")
        assert "no task has opened group 'east'" in str(messaging.health().of("steps")[0])
        ray.cancel(driving)


@pytest.mark.long
def test_groups_leave_while_others_go_on(messaging, groups):
    refs = [live.remote(groups["group0"], STEPS), live.remote(groups["group1"], 3, leave=True)]
    steps = groups["group2"].steps(until=STEPS)
    assert [next(steps).number for _ in range(3)] == [0, 1, 2]
    messaging.remove_group("group2")  # in its step 2
    ray.get(refs, timeout=300)
    assert messaging.steps.now == STEPS
    assert messaging.steps.groups == ["group0"]
    with pytest.raises(MessagingError):
        next(steps)
