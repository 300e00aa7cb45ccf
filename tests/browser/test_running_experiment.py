"""The inspector of a running experiment in a real browser: each view with data, each control used."""

import random
import threading
import uuid

import pytest
from support.cluster import control, wait_for
from support.inspector import browser, picture

from ray_messaging import Messaging, rules

pytestmark = pytest.mark.long

NAMES = ("north", "south", "east", "west", "harbour", "market", "school")
SAID = (
    "Did you hear about the harbour?",
    "I would rather stay at home tonight.",
    "The market opens at nine; come early if you want fish.",
    "No.",
)
_PAUSE_S = 0.1


class Talk:
    """The groups of a town, ten agents each; a thread sends for them until the end. Those of `school` answer."""

    def __init__(self, messaging):
        self.messaging = messaging
        self.groups = messaging.create_groups({name: range(10 * n, 10 * n + 10) for n, name in enumerate(NAMES)})
        self._end = threading.Event()
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._speak, self._answer)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _speak(self):
        chance = random.Random(1)
        while not self._end.wait(_PAUSE_S):
            for place, group in enumerate([*self.groups.values()]):
                many = chance.randrange(2, 6) * (1 + place % 3)
                own = [chance.randrange(10 * place, 10 * place + 10) for _ in range(many)]
                group.send_columns(own, [chance.randrange(70) for _ in own], {"content": chance.choice(SAID)})

    def _answer(self):
        school = self.groups["school"]
        while not self._end.is_set():
            for message in school.fetch_messages(timeout=0.2):
                if message.expects_answer:
                    school.reply(message, {"content": "gladly"})
        school.ack()


@pytest.fixture(scope="module")
def town(ray_cluster, tmp_path_factory):
    """Give an experiment with a log and rules, in which agents write to each other all the time."""
    log_dir = tmp_path_factory.mktemp("town") / "log"
    listed = [rules.BlackList([(3, None), (17, 4), (44, None)]), rules.MaxLength(300)]
    with (
        Messaging.start(f"town-{uuid.uuid4().hex[:8]}", rules=listed, log_dir=log_dir) as messaging,
        Talk(messaging) as talk,
    ):
        yield talk


@pytest.fixture(scope="module")
def seen(town):
    """Give a browser in which the pages of the town are open, with control."""
    with browser() as found, town.messaging.ui(port=0, control=True) as inspector:
        found.base = inspector.url.partition("?")[0]
        found.open(inspector.url)
        found.sees("title", town.messaging.exp_id)
        yield found


def test_the_overview_follows_the_run(seen, town):
    seen.go("/")
    seen.sees("health", "checks")
    seen.sees("depths", "market")
    wait_for(lambda: seen.number("figure-rows") > 0)
    rows = seen.number("figure-rows")
    wait_for(lambda: seen.number("figure-rows") > rows and seen.number("figure-rate") > 0)
    wait_for(lambda: not seen.text("figure-blocked").startswith("0%"))
    seen.sees("period", "Per second, of the last minute")
    seen.sees("members", "The 60 of 68 agents")
    picture(seen, "inspector-overview")


def test_the_search_finds_texts(seen):
    seen.go("/search?agent=69")
    seen.sees("found", "The last")
    seen.element("contains").fill("harbour")
    seen.element("search").click()
    seen.sees("rows", "Did you hear about the harbour?")
    seen.element("step").fill("soon")
    seen.element("search").click()
    seen.sees("problem", "cannot read the step")


def test_a_conversation_goes_on(seen, town):
    town.groups["north"].send(1, 2, {"content": "are you there?"})
    seen.go("/conversation?a=1&b=2")
    seen.sees("said", "are you there?")
    town.groups["north"].send(2, 1, {"content": "always"})
    seen.sees("said", "always")
    picture(seen, "inspector-conversation")


def test_the_user_writes_to_an_agent_and_asks_it(seen, town):
    seen.go("/agent?id=65")
    seen.sees("where", "in group school")
    seen.sees("received", "delivered")
    seen.element("message").fill("good evening")
    seen.element("write").click()
    seen.sees("done", "delivered")
    seen.sees("rows", "good evening")
    seen.element("message").fill('{"content": "will you come?"}')
    seen.element("ask").click()
    seen.sees("done", '65 answers: {"content":"gladly"}')
    picture(seen, "inspector-agent")
    seen.element("message").fill('{"content"')
    seen.element("write").click()
    seen.sees("problem", "begins like JSON")


def test_a_rule_is_previewed_inserted_replaced_and_removed(seen, town):
    seen.go("/rules")
    seen.sees("rules", "black_list")
    seen.element("spec").fill("pattern:harbour|fish")
    seen.element("preview").click()
    seen.sees("previewed", "pattern would have blocked")
    seen.sees("previewed", "of the")
    assert [rule["name"] for rule in control(town.messaging, "rules")] == ["black_list", "max_length"]
    seen.element("place").fill("0")
    seen.element("insert").click()
    seen.sees("done", "rule pattern is in force")
    seen.sees("rules", "pattern")
    assert [rule["name"] for rule in control(town.messaging, "rules")] == ["pattern", "black_list", "max_length"]
    wait_for(lambda: len(town.messaging.log.recent(rule="pattern", fate="blocked", limit=1)))
    picture(seen, "inspector-rules")
    seen.element("spec").fill("pattern:nothing")
    seen.element("replace").first.click()
    seen.sees("done", "rule pattern is replaced")
    seen.sees("rules", "nothing")  # else the click would meet the list that is about to go
    seen.element("remove").first.click()
    seen.sees("done", "rule pattern is removed")
    assert [rule["name"] for rule in control(town.messaging, "rules")] == ["black_list", "max_length"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("max-length:soon", "is not a whole number"),
        ("import os", "unknown rule"),
        ("black-list:/etc/passwd", "not a pair of agents"),
    ],
)
def test_what_is_no_rule_is_refused_with_the_reason(seen, town, spec, reason):
    seen.go("/rules")
    seen.element("spec").fill(spec)
    for button in ("preview", "insert"):
        seen.element(button).click()
        seen.sees("problem", reason)
        assert "--rules" not in seen.text("problem")
    assert len(control(town.messaging, "rules")) == 2


def test_dead_letters_are_sent_again(seen, town):
    messaging = town.messaging
    messaging.create_group("inn", range(100, 104))
    town.groups["north"].send_columns([1] * 3, [100, 101, 102], {"content": "is there a room?"})
    messaging.remove_group("inn")
    seen.go("/deadletters")
    seen.sees("letters", "is there a room?")
    seen.sees("letters", "inn")
    inn = messaging.create_group("inn", range(100, 104))
    seen.element("requeue").first.click()
    seen.sees("done", "messages were sent again")
    wait_for(lambda: len(messaging.dead_letters) == 0)
    seen.sees("letters", "There are none.")
    assert [message.to_id for message in inn.fetch_messages(timeout=30)] == [100, 101, 102]
    inn.ack()
    messaging.remove_group("inn")


def test_a_page_without_control_only_watches(seen, town):
    with seen.window(color_scheme="dark") as seen, town.messaging.ui(port=0) as inspector:
        assert "token" not in inspector.url
        seen.base = inspector.url
        seen.go("/rules")
        seen.sees("rules", "black_list")
        assert seen.element("insert").count() + seen.element("remove").count() == 0
        seen.go("/agent?id=65")
        seen.sees("received", "delivered")
        assert seen.element("write").count() == 0
        seen.go("/")
        seen.sees("health", "checks")
        wait_for(lambda: seen.number("figure-rate") > 0)
        picture(seen, "inspector-dark")


def test_the_handle_ends_its_process_and_names_what_is_wrong(town):
    with town.messaging.ui(port=0) as inspector:
        assert inspector.url in repr(inspector)
        assert f'href="{inspector.url}"' in inspector._repr_html_()
        port = int(inspector.url.rstrip("/").rpartition(":")[2])
        with pytest.raises(ValueError, match=f"port {port} of 127.0.0.1 cannot be taken"):
            town.messaging.ui(port=port)
    assert inspector._process.poll() is not None
