"""Seats on Ray: what is refused, and questions that wait while actors die and start again."""

import threading
import uuid

import pytest
import ray

from ray_messaging import Messaging, Steps
from ray_messaging.errors import ConfigError

pytestmark = pytest.mark.long


@pytest.fixture
def start(ray_cluster):
    """Return a function that starts an experiment with a seat of agent 1, without the web server of its page."""

    def started(**steps):
        messaging = Messaging.start(f"seats-{uuid.uuid4().hex[:8]}", steps=Steps(digest=True, **steps))
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
    message = {"to": [0], "text": f"step {step}"}
    ray.get(messaging.interceptor.answer_of_seat.remote(1, step, [message]))


def test_a_question_waits_while_its_group_and_the_interceptor_die(start, by_value):
    with start(seat_timeout_s=None) as messaging:
        found = []
        run = threading.Thread(
            target=lambda: found.append(messaging.run(person, agents=4, groups=2, until=3, progress=False))
        )
        run.start()
        asked(messaging, 0)
        say(messaging, 0)
        asked(messaging, 1)
        ray.kill(messaging._run_actors.run._actors["group1"], no_restart=False)
        say(messaging, 1)  # the group's next process gets the answer that its last one had asked for
        asked(messaging, 2)
        ray.kill(messaging.interceptor, no_restart=False)
        asked(messaging, 2)
        say(messaging, 2)
        run.join(120)
        assert not run.is_alive()
        (result,) = found
        assert result.states[0] == {"heard": ["step 1"]}
        assert result.states[1] == {}
        assert result.calls.model == 0
        messaging.run(person, agents=4, groups=2, until=3, progress=False)  # all is done: nobody is asked


def test_steps_go_on_without_a_person_after_some_time_and_without_a_page(start, by_value):
    with start(seat_timeout_s=0.2) as messaging:
        result = messaging.run(person, agents=4, groups=1, until=2, timeout=0.1, only_active=True, progress=False)
        assert result.states[0] == {"heard": []}
        lines = ray.get(messaging.interceptor.news_of_seat.remote(1, -1)).lines
        assert [(line.kind, line.step) for line in lines] == [("note", 0), ("note", 1)]


def test_what_has_no_seats_is_refused(start):
    with start() as messaging:
        with pytest.raises(ConfigError, match="agent 1 has a seat, and is no agent of this run"):
            messaging.run(person, agents=1, until=1, progress=False)
        with pytest.raises(ConfigError, match='agent 1 has a seat, and by="group" calls the model for whole groups'):
            messaging.run(lambda group, step: None, by="group", agents=4, until=1, progress=False)
    with (
        Messaging.start(f"seats-{uuid.uuid4().hex[:8]}") as messaging,
        pytest.raises(ConfigError, match="has no steps"),
    ):
        messaging.seat(1)


def test_one_web_server_has_all_seats(start):
    pytest.importorskip("nicegui")
    with start() as messaging:
        one, other = messaging.seat(1, port=0), messaging.seat("two/three", port=0)
        assert one.url.partition("/seat/")[0] == other.url.partition("/seat/")[0]
        assert "/seat/two%2Fthree?token=" in other.url
        assert one.wait_until_ready(0)
        assert not other.wait_until_ready(0)
        with pytest.raises(ConfigError, match="share one web server, with host="):
            messaging.seat(3, port=8267)
