"""Three people at seats in real browsers: one leaves and comes back, and the driver is killed in between."""

import json
import os
import signal
import socket
from contextlib import ExitStack

import pytest
from support.cluster import wait_for
from support.inspector import browser, picture
from support.own_driver import Driver, command_of, related_to

import ray_messaging
from ray_messaging import EventLog

pytestmark = pytest.mark.long

STEPS, SEATS, AGENTS = 20, (1, 4, 7), 9
EDGES = [(one, other) for one in range(AGENTS) for other in range(AGENTS) if one != other]
CONSENT = "We study how groups talk.\nYou may leave at any time."
MODEL = f"""
EDGES, SEATS, AGENTS, STEPS, CONSENT = {EDGES!r}, {SEATS!r}, {AGENTS!r}, {STEPS!r}, {CONSENT!r}


def person(me, inbox):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    words = sorted(message.payload["content"] for message in inbox)
    me.send(int(me.rng.choice(me.neighbours)), {{"content": f"{{me.id}} heard {{words[:2]}}"[:60]}})


"""
LIVE = """
import os
from pathlib import Path
from ray_messaging import Messaging, Steps

home = Path(os.environ["TMPDIR"])
steps = Steps(seed=7, seat_timeout_s=240, digest=True, checkpoint=6)
with Messaging.start("seats", steps=steps, log_dir=home / "log", on_existing="resume") as messaging:
    seats = [messaging.seat(agent, consent=CONSENT, port=PORT) for agent in SEATS]
    print(*[seat.url for seat in seats], flush=True)
    assert all(seat.wait_until_ready(240) for seat in seats)
    result = messaging.run(person, agents=AGENTS, groups=3, until=STEPS, graph=EDGES, progress=False)
    print("ended", result.until, result.calls.model, flush=True)
    (home / "go").read_text()  # waits
"""
FORK = """
import os
from pathlib import Path
from ray_messaging import Messaging

home = Path(os.environ["TMPDIR"])
with Messaging.fork(home / "log", "twin", at_step=8, log_dir=home / "twin") as messaging:
    messaging.run(person, agents=AGENTS, groups=3, until=STEPS, graph=EDGES, progress=False)
print("ended", flush=True)
"""


class Person:
    """A person at a seat, with a browser of their own."""

    def __init__(self, seen, agent, url):
        self.seen, self.agent = seen, agent
        seen.open(url)

    def begin(self):
        self.seen.sees("consent", CONSENT.splitlines()[0])
        assert self.seen.element("ready").is_disabled()
        self.seen.element("agree").check()
        self.seen.element("ready").press("Enter")

    def type(self, step):
        """Write a message to somebody else in a step."""
        self.seen.sees("step", f"Step {step}")
        self.seen.sees("status", "It is your turn.")
        for box in self.seen.element("to").all():
            box.set_checked(int(box.input_value()) == (self.agent + step) % AGENTS)
        self.seen.element("text").fill(f"<b>{self.agent}</b> says {step}")

    def play(self, step):
        if (self.agent + step) % AGENTS == self.agent:
            self.seen.sees("step", f"Step {step}")
        else:
            self.type(step)
        self.seen.element("text").press("Control+Enter")


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def pages_of(home):
    """Return the process with the web server of the seats."""
    return [pid for pid in related_to(home) if "--seats" in command_of(pid)]


def replayed(log):
    """Return a model in which the seats' agents send what people sent, by the log."""
    said = {(call["agent"], call["step"]): json.loads(call["result"]) for call in log.calls().to_pylist()}
    names = {}
    exec(MODEL, names)  # noqa: S102 - it is above

    def person(me, inbox):
        if me.id not in SEATS:
            return names["person"](me, inbox)
        for message in said[me.id, me.step]["messages"]:
            for to in message["to"]:
                me.send(to, {"content": message["text"]})

    return person


def test_three_people_play_twenty_steps_through_a_kill_of_the_driver(home, port):
    os.mkfifo(home / "go")
    script = f"PORT = {port}\n" + MODEL + LIVE
    driver = Driver(script, home)
    urls = driver.process.stdout.readline().split()
    assert len(urls) == 3, driver.process.stderr.read()
    with ExitStack() as stack:
        first = stack.enter_context(browser())
        windows = [first, *(stack.enter_context(first.window()) for _ in SEATS[1:])]
        people = [Person(*each) for each in zip(windows, SEATS, urls, strict=True)]
        for person in people:
            person.begin()
        for step in range(5):
            for person in people:
                person.play(step)
        picture(windows[0], "seat")
        leaving = people.pop()
        leaving.seen.element("leave").click()
        leaving.seen.sees("back", "Come back")
        leaving.seen.page.close()
        for step in range(5, 8):
            for person in people:
                person.play(step)
        with first.window(viewport={"width": 420, "height": 800}) as phone:
            back = Person(phone, SEATS[-1], urls[-1])  # with another device
            back.seen.element("back").click()
            for person in people:
                person.type(8)
            driver.kill_all()
            driver = Driver(script, home)
            assert driver.process.stdout.readline().split() == urls  # the links stay
            windows[0].element("send").click()  # the page has found the new server by itself, and kept the text
            people[1].seen.element("send").click()
            people.append(back)
            for step in range(9, STEPS):
                if step == 14:
                    (pages,) = pages_of(home)
                    os.kill(pages, signal.SIGKILL)
                    wait_for(lambda: pages_of(home) not in ([], [pages]), "another web server of the seats")
                for person in people:
                    person.play(step)
            assert driver.process.stdout.readline().startswith(f"ended {STEPS} 0")
            picture(phone, "seat-phone")
            (home / "go").write_text("")
            for person in people:
                person.seen.sees("status", "It is over. Thank you!")
            for window in (*windows, phone):  # of the time without a server
                window.errors = [error for error in window.errors if "Failed to load resource" not in error]
        assert driver.wait_end()[0] == 0
    log = EventLog.open(home / "log")
    digests = [log.digest(step) for step in range(STEPS)]
    twin = ray_messaging.run(replayed(log), agents=AGENTS, until=STEPS, graph=EDGES, seed=7, progress=False)
    assert twin.digests == {step: digest.hex() for step, digest in enumerate(digests)}
    fork = Driver(MODEL + FORK, home)
    assert fork.process.stdout.readline() == "ended\n", fork.process.stderr.read()
    fork.wait_end()
    forked = EventLog.open(home / "twin")
    assert [forked.digest(step) for step in range(STEPS)] == digests
    again = [call["source"] for call in forked.calls().to_pylist() if call["step"] >= 8]
    assert again == ["parent"] * (STEPS - 8) * len(SEATS)
