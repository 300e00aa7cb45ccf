"""Seats on Ray: what is refused, and questions that wait while actors die and start again."""

import threading
import uuid

import pytest
import ray

from ray_messaging import Messaging, Steps
from ray_messaging.errors import ConfigError, NoQuestion

pytestmark = pytest.mark.long


@pytest.fixture
def start(by_value):
    """Return a function that starts an experiment with a seat of agent 1, without the web server of its page."""

    def started(log_dir=None, **steps):
        messaging = Messaging.start(f"seats-{uuid.uuid4().hex[:8]}", steps=Steps(digest=True, **steps), log_dir=log_dir)
        ray.get(messaging.interceptor.open_seat.remote(1, ""))
        ray.get(messaging.interceptor.set_seat_ready.remote(1))
        return messaging

    return started


def person(me, inbox):
    me.state["heard"] = [message.payload["content"] for message in inbox]


def asked(messaging, step):
    """Return once the person is asked in a step."""
    view = ray.get(messaging.interceptor.news_of_seat.remote(1, -1))
    while view.question is None or view.question.step != step:
        view = ray.get(messaging.interceptor.news_of_seat.remote(1, view.version))


def say(messaging, step):
    """Answer as the person's page does: again, while the interceptor starts again and nobody has asked it yet."""
    message = {"to": [0], "text": f"step {step}"}
    while True:
        asked(messaging, step)
        try:
            return ray.get(messaging.interceptor.answer_of_seat.remote(1, step, [message]))
        except NoQuestion:
            continue


def running(messaging):
    """Run three steps in a thread; return the thread, and the list that gets the result."""
    found = []
    run = threading.Thread(
        target=lambda: found.append(messaging.run(person, agents=4, groups=2, until=3, progress=False))
    )
    run.start()
    return run, found


def test_a_question_waits_while_its_group_and_the_interceptor_die(start):
    with start(seat_timeout_s=None) as messaging:
        run, found = running(messaging)
        say(messaging, 0)
        asked(messaging, 1)
        ray.kill(messaging._run_actors.run._actors["group1"], no_restart=False)
        say(messaging, 1)  # the group's next process gets the answer that its last one had asked for
        asked(messaging, 2)
        ray.kill(messaging.interceptor, no_restart=False)
        say(messaging, 2)
        run.join(120)
        assert not run.is_alive()
        (result,) = found
        assert result.states[0] == {"heard": ["step 1"]}
        assert result.states[1] == {}
        assert result.calls.model == 0
        messaging.run(person, agents=4, groups=2, until=3, progress=False)  # all is done: nobody is asked


def test_what_has_no_seats_is_refused_and_steps_go_on_without_a_person_after_some_time(start):
    with start(seat_timeout_s=0.2) as messaging:
        with pytest.raises(ConfigError, match="agent 1 has a seat, but is not an agent of this run"):
            messaging.run(person, agents=1, until=1, progress=False)
        with pytest.raises(ConfigError, match='agent 1 has a seat, but by="group" calls the model for whole groups'):
            messaging.run(lambda group, step: None, by="group", agents=4, until=1, progress=False)
        result = messaging.run(person, agents=4, groups=1, until=2, timeout=0.1, only_active=True, progress=False)
        assert result.states[0] == {"heard": []}
        lines = ray.get(messaging.interceptor.news_of_seat.remote(1, -1)).lines
        assert [(line.kind, line.step) for line in lines] == [("note", 0), ("note", 1)]
    with (
        Messaging.start(f"seats-{uuid.uuid4().hex[:8]}") as messaging,
        pytest.raises(ConfigError, match="has no steps"),
    ):
        messaging.seat(1)


def test_one_web_server_has_all_seats_and_a_fork_has_what_people_did(start, tmp_path):
    pytest.importorskip("nicegui")
    with start(tmp_path / "log", seat_timeout_s=None, checkpoint=1) as messaging:
        one, other = messaging.seat(1, port=0), messaging.seat(3, port=0)
        assert one.url.partition("/seat/")[0] == other.url.partition("/seat/")[0]
        assert one.wait_until_ready(0)
        assert not other.wait_until_ready(0)
        with pytest.raises(ConfigError, match="share one web server, which has host="):
            messaging.seat(2, port=8267)  # and no run waits for 2
        ray.get(messaging.interceptor.set_seat_away.remote(3, away=True))
        run, found = running(messaging)
        for step in range(3):
            say(messaging, step)
        run.join(120)
        digests = found[0].digests
    with Messaging.fork(tmp_path / "log", f"twin-{uuid.uuid4().hex[:8]}", at_step=2, log_dir=tmp_path / "fork") as fork:
        result = fork.run(person, agents=4, groups=2, until=4, progress=False)  # nobody sits there any more
        assert {step: result.digests[step] for step in digests} == digests
        calls = [(call["agent"], call["step"], call["source"]) for call in fork.log.calls().to_pylist()]
        assert calls[-4:] == [(1, 2, "parent"), (3, 2, "parent"), (1, 3, "model"), (3, 3, "model")]
        assert '"present":false' in fork.log.calls().to_pylist()[-2]["result"]
