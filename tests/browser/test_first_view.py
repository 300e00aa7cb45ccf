"""The views of a log in a real browser, with texts that attack it."""

import random
import re

import pytest
from playwright.sync_api import expect
from support.inspector import SIZE, browser, inspector, picture
from support.log_queries import T0, row, write_folder

pytestmark = pytest.mark.long

GROUPS = ("north", "south", "east", "west", "harbour", "market")
MARKUP = "<img src=x onerror=alert(1)>"
PENDING = re.compile(r"\bpending\b")
SCRIPT = "</script><script>alert(2)</script>{{ constructor.constructor('alert(3)')() }}"


def rows():
    """Return some rows of a small town, the last ones with texts that attack."""
    chance = random.Random(3)
    found = []
    for number in range(3000):
        sender, hearer = chance.randrange(60), chance.randrange(60)
        fate = chance.choices(["delivered", "blocked", "undeliverable"], [90, 8, 2])[0]
        facts = {"sent_at": T0 + number / 25, "sender": GROUPS[sender // 10], "fate": fate, "step": number // 100}
        if fate == "delivered":
            facts["mailbox"] = GROUPS[hearer // 10]
        elif fate == "blocked":
            facts |= {"rule": chance.choice(["black_list", "manners"]), "reason": "this pair is on the black list"}
        found.append(row(number, sender, hearer, text=chance.choice(["Good morning.", "Not today."]), **facts))
    attack = {"sent_at": T0 + 120, "sender": MARKUP, "mailbox": ":north", "labels": [MARKUP], "reason": "\x1b[2J"}
    found += [
        row(3000, MARKUP, "ann\u202eknil", text=SCRIPT, rule=MARKUP, payload_before=MARKUP, **attack),
        row(3001, 1, 2, text="x" * 2**20, sent_at=T0 + 121, sender="north", mailbox="north"),
        row(3002, 3, MARKUP, fate="blocked", rule=MARKUP, sent_at=T0 + 121, sender=":north"),
    ]
    found += [
        row(3003, "ann", "bob", text="will you come?", sent_at=T0 + 121, expects_answer=True, step=30),
        row(3004, "bob", "ann", text="gladly", sent_at=T0 + 122, in_reply_to="s-1-3003", step=31),
    ]
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Give a browser in which the log is open. A script of a text that ran is an error of the browser."""
    folder = write_folder(tmp_path_factory.mktemp("ended") / f"town{MARKUP.replace('/', '')}", [rows()])
    with browser() as found, inspector(folder.where) as url:
        found.base = url
        yield found


def test_the_overview_of_the_whole_run(seen):
    seen.go("/")
    seen.sees("title", f"town{MARKUP}")
    seen.sees("figure-rows", "3,005")
    seen.sees("figure-blocked", "%")
    seen.sees("record", "its folder has no _run.json")
    seen.sees("period", "Per step, of the whole run.")
    seen.sees("members", "The 60 of 63 agents")
    assert seen.element("society").locator("canvas").count() >= 1
    expect(seen.page.get_by_role("link", name="Rules")).to_be_visible()
    expect(seen.page.get_by_role("link", name="Dead letters")).to_have_count(0)  # a log has none
    seen.element("society").hover()
    seen.element("blocked").hover()  # its tooltip has the names of the rules
    picture(seen, "inspector-log")


def test_cards_show_that_their_data_are_still_to_come(seen):
    with seen.window() as other:
        other.base = seen.base
        other.page.route_web_socket("**", lambda socket: None)  # nothing comes
        other.go("/")
        for mark in ("figure-rows", "rates", "society", "record"):
            expect(other.element(mark)).to_have_class(PENDING)
        other.go("/search")
        expect(other.element("rows")).to_have_class(PENDING)
        expect(other.page.get_by_text("No rows.")).to_be_hidden()
    seen.go("/")
    seen.sees("record", "its folder has no _run.json")
    seen.element("society").locator("canvas").first.wait_for()
    expect(seen.page.locator(".pending:visible")).to_have_count(0)


def test_an_error_is_shown_in_place_of_data_that_do_not_come(seen, tmp_path):
    folder = write_folder(tmp_path / "damaged", [rows()])
    (segment,) = (tmp_path / "damaged").rglob("*.parquet")
    written = segment.read_bytes()
    segment.write_bytes(written[:1000] + bytes(2000) + written[3000:])
    with seen.window() as found, inspector(folder.where) as url:
        found.base = url
        found.go("/")
        found.sees("problem", f"file {segment} of the event log cannot be used: it is damaged")
        found.sees("record", "its folder has no _run.json")  # what can be read is shown
        expect(found.page.locator("body")).to_have_class(re.compile(r"\bfailed\b"))
        expect(found.element("figure-rows")).to_have_class(PENDING)
        found.go("/agent?id=3")
        found.sees("problem", "it is damaged")
        expect(found.element("sent")).to_have_class(PENDING)


def test_texts_are_texts_in_every_view(seen):
    seen.go("/search?contains=script")
    seen.sees("rows", SCRIPT)
    seen.sees("rows", f"before: {MARKUP}")
    seen.sees("rows", "ann\u27e8U+202E\u27e9knil")
    seen.sees("rows", "\u241b[2J")
    seen.element("rows").get_by_text(MARKUP, exact=True).first.click()
    seen.sees("received", "blocked")
    seen.sees("sent", "delivered")
    seen.element("hears-from").get_by_text("3", exact=True).click()
    seen.sees("said", MARKUP)
    seen.go("/rules")
    seen.sees("rules", MARKUP)


def test_a_payload_of_a_mebibyte_is_cut(seen):
    seen.go("/search?agent=1")
    seen.sees("rows", "the beginning of 1.0 MiB")
    assert len(seen.page.content()) < 300_000
    seen.go("/conversation?a=1&b=2")
    seen.sees("said", "the beginning of 1.0 MiB")
    assert len(seen.page.content()) < 300_000


def test_light_and_dark(seen):
    seen.go("/")
    dark = seen.page.locator("body.body--dark")
    before = dark.count()
    seen.page.get_by_label("light or dark").click()
    seen.page.wait_for_function(f"document.querySelectorAll('body.body--dark').length != {before}")


def test_a_conversation_links_questions_and_answers_and_offers_pairs(seen):
    seen.go("/conversation")
    seen.sees("pairs", "Who wrote most:")
    seen.element("pairs").get_by_role("link").first.click()
    seen.sees("said", "Good morning.")
    seen.go("/conversation?a=ann&b=bob")
    seen.sees("said", "answered: gladly")
    seen.element("said").get_by_role("link", name="answers: will you come?").click()
    assert "#" in seen.page.url


def test_pages_fit_a_narrow_screen(seen):
    seen.page.set_viewport_size({"width": 420, "height": 800})
    for path in ("/", "/search", "/conversation?a=ann&b=bob", "/agent?id=1", "/rules"):
        seen.go(path)
        seen.page.wait_for_load_state("networkidle")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 420, path
    seen.page.set_viewport_size(SIZE)
