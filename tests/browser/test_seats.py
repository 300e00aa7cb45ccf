"""Three people at seats in real browsers: one leaves and comes back, and the driver is killed in between."""

import json
import os
import signal

import pytest
from support.cluster import wait_for
from support.inspector import browser, picture
from support.own_driver import Driver, command_of, related_to
from support.servers import free_port

import ray_messaging
from ray_messaging import EventLog

pytestmark = pytest.mark.long

STEPS, SEATS, AGENTS = 6, (1, 4, 7), 9
KILLED = 4  # the step in which people write while the driver is killed
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
steps = Steps(seed=7, seat_timeout_s=240, digest=True)
with Messaging.start("seats", steps=steps, log_dir=home / "log", on_existing="resume") as messaging:
    seats = [messaging.seat(agent, consent=CONSENT, port=PORT) for agent in SEATS]
    print(*[seat.url for seat in seats], flush=True)
    assert all(seat.wait_until_ready(240) for seat in seats)
    result = messaging.run(person, agents=AGENTS, groups=3, until=STEPS, graph=EDGES, progress=False)
    print("ended", messaging.steps.now, result.calls.model, flush=True)
    (home / "go").read_text()  # waits
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
        """Write a message in a step, to one more agent."""
        self.seen.sees("step", f"Step {step}")
        self.seen.sees("status", "It is your turn.")
        self.seen.element("to").nth((self.agent + step) % (AGENTS - 1)).check()  # beside those of earlier steps
        self.seen.element("text").fill(f"<b>{self.agent}</b> says {step}")

    def play(self, step):
        if step:
            self.type(step)
        else:  # go on without a message
            self.seen.sees("step", f"Step {step}")
            self.seen.sees("status", "It is your turn.")
        self.seen.element("text").press("Control+Enter")


def pages_of(home):
    """Return the process with the web server of the seats."""
    return [pid for pid in related_to(home) if "--seats" in command_of(pid)]


def replayed(log):
    """Return a model in which the seats' agents send what people sent, by the log."""
    said = {(call["agent"], call["step"]): json.loads(call["result"]) for call in log.calls().to_pylist()}
    names = {}
    exec(MODEL, names)

    def person(me, inbox):
        if me.id in SEATS:
            for message in said[me.id, me.step]["messages"]:
                for to in message["to"]:
                    me.send(to, {"content": message["text"]})
        else:
            names["person"](me, inbox)

    return person


def all_play(people, *steps):
    for step in steps:
        for person in people:
            person.play(step)


def leave(person):
    person.seen.element("leave").click()
    person.seen.sees("back", "Come back")
    person.seen.page.close()


def killed_and_resumed(people, driver, script, urls):
    """Kill all but the browsers while people write, and resume the run; return the new driver."""
    for person in people:
        person.type(KILLED)
    driver.kill_all()
    for person in people:
        person.seen.sees("problem", "There is no connection.")
    driver = Driver(script, driver.home)
    assert driver.process.stdout.readline().split() == urls  # the links stay
    for person in people:  # their pages have kept the texts, and find the new server by themselves
        person.seen.element("send").click()
    return driver


def kill_pages(home):
    """Kill the web server of the seats; return once there is another one."""
    (old,) = pages_of(home)
    os.kill(old, signal.SIGKILL)
    wait_for(lambda: {*pages_of(home)} - {old}, "another web server of the seats")


def end(driver, people):
    assert driver.process.stdout.readline() == f"ended {STEPS} 0\n", driver.process.stderr.read()
    (driver.home / "go").write_text("")
    for person in people:
        person.seen.sees("status", "It is over. Thank you!")
        # The browser says so while there is no server.
        person.seen.errors = [each for each in person.seen.errors if "Failed to load resource" not in each]
    assert driver.wait_end()[0] == 0


def test_three_people_play_all_steps_through_a_kill_of_the_driver(home):
    os.mkfifo(home / "go")
    script = f"PORT = {free_port()}\n" + MODEL + LIVE
    driver = Driver(script, home)
    urls = driver.process.stdout.readline().split()
    assert len(urls) == 3, driver.process.stderr.read()
    with browser() as first, first.window() as second, first.window() as third, first.window() as phone:
        people = [Person(*each) for each in zip((first, second, third), SEATS, urls, strict=True)]
        for person in people:
            person.begin()
        all_play(people, 0)
        picture(first, "seat")
        leave(people.pop())
        all_play(people, 1)
        phone.page.set_viewport_size({"width": 420, "height": 800})
        back = Person(phone, SEATS[-1], urls[-1])  # with another device
        back.seen.element("back").click()
        all_play(people, 2)
        people.append(back)
        all_play(people, 3)
        driver = killed_and_resumed(people, driver, script, urls)
        kill_pages(home)
        all_play(people, 5)
        picture(phone, "seat-phone")
        end(driver, people)
    log = EventLog.open(home / "log")
    digests = [log.digest(step) for step in range(STEPS)]
    twin = ray_messaging.run(replayed(log), agents=AGENTS, until=STEPS, graph=EDGES, seed=7, progress=False)
    assert twin.digests == {step: digest.hex() for step, digest in enumerate(digests)}
