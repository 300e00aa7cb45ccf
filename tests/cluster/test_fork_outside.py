"""What came to a parent from outside is sent again in its forks: surveys, questions, messages that rules changed."""

import msgspec
import pytest

from ray_messaging import EventLog, Messaging, Steps, compare, rules
from ray_messaging.errors import ConfigError

AGENTS, STEPS, SEED = 20, 14, 3


class Mood(msgspec.Struct):
    """An answer to a survey."""

    mood: int


def citizen(me, inbox):
    """Answer what is asked, and tell others what depends on all that was heard."""
    for message in inbox:
        me.state["sum"] = (me.state.get("sum", me.id) * 31 + message.payload.get("n", 7)) % 1009
        if message.expects_answer:
            me.reply(message, {"mood": me.state["sum"]})
    for friend in (1, 5, 6):
        me.send((me.id + friend) % AGENTS, {"n": me.state.get("sum", me.id)})


def ran(messaging, until):
    return messaging.run(citizen, agents=AGENTS, groups=2, until=until, progress=False)


def judges():
    return [rules.Pattern(["secret"]), rules.BlackList([(None, 4)])]


@pytest.fixture(scope="module")
def parent(by_value, tmp_path_factory):
    """Give the folder of a run with checkpoints after steps 4, 9, 13, and what the user did between its steps."""
    folder = tmp_path_factory.mktemp("outside") / "parent"
    of = Steps(seed=SEED, digest=True, checkpoint=5)
    with Messaging.start("outside", log_dir=folder, steps=of, rules=judges()) as messaging:
        ran(messaging, 6)
        messaging.broadcast("*", {"n": 3})
        messaging.create_survey(Mood, question={"n": 1}, timeout=None)
        messaging.ask_columns([2, 3], {"n": 2}, timeout=600)
        messaging.broadcast("*", {"n": 4, "text": "secret"})
        ran(messaging, 11)
        messaging.create_survey(Mood, question={"n": 5}, to=[1, 2, 3], timeout=None)
        result = ran(messaging, STEPS)
    return folder, result


def is_twin(folder, into, result, twin):
    assert twin.states == result.states
    assert twin.digests == {step: result.digests[step] for step in twin.digests}
    assert compare(into, folder).table["differ"].to_pylist() == [0] * STEPS
    assert EventLog.open(into).diff(EventLog.open(folder)) is None


@pytest.mark.long
@pytest.mark.parametrize("at_step", [5, 9, 12])
def test_a_fork_of_a_run_with_surveys_is_its_twin(parent, tmp_path, at_step):
    folder, result = parent
    into = tmp_path / "twin"
    with Messaging.fork(folder, f"outside-{at_step}", at_step=at_step, log_dir=into, rules=judges()) as messaging:
        twin = ran(messaging, STEPS)
    is_twin(folder, into, result, twin)


@pytest.mark.long
def test_a_fork_whose_process_was_killed_goes_on_and_sends_what_is_left(parent, tmp_path):
    folder, result = parent
    into = tmp_path / "twin"

    def fork(of=folder, **options):
        return Messaging.fork(of, "outside-twice", log_dir=into, rules=judges(), **options)

    with fork(at_step=5, on_existing="resume") as messaging:  # nothing is there yet
        ran(messaging, 6)
        messaging.broadcast("*", {"n": 3})  # the first that came in the parent, and then the process dies
    with pytest.raises(ConfigError, match="on_existing='reset' is unknown: write 'error', or 'resume'"):
        fork(on_existing="reset")
    with pytest.raises(ConfigError, match="a fork that began after step 4: fork at step 5 or later"):
        fork(at_step=4, on_existing="resume")
    with pytest.raises(
        ConfigError, match="twin has a fork of 'outside', so this fork of 'outside-twice' cannot use it"
    ):
        fork(of=into, on_existing="resume")
    with fork(at_step=5, on_existing="resume") as messaging:
        twin = ran(messaging, STEPS)
    is_twin(folder, into, result, twin)


@pytest.mark.long
def test_a_rule_that_a_fork_gets_for_a_later_step_judges_what_is_sent_again_in_that_step(parent, tmp_path):
    folder, _ = parent
    into = tmp_path / "changed"
    with Messaging.fork(folder, "outside-later", at_step=10, log_dir=into, rules=judges()) as messaging:
        messaging.rules.insert(rules.MaxLength(3, name="late"), at_step=11)
        ran(messaging, STEPS)
    asked = EventLog.open(into).query(step_read=11).to_pylist()
    assert {row["to_id"]: row["rule"] for row in asked if row["from_id"] is None} == dict.fromkeys((1, 2, 3), "late")
