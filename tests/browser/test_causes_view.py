"""The page that draws why a message was sent, in a real browser, with texts that attack it."""

import random

import pytest
from support.inspector import browser, inspector, picture
from support.log_queries import T0, row, write_folder

pytestmark = pytest.mark.long

SCRIPT = "<img src=x onerror=alert(1)>{b}"
WORDS = ("It rains in the north.", "The bridge is closed.", "Who said so?", "I saw it.", "Nobody goes there.")


def rows():
    """Return the messages of some steps, the last of them an answer."""
    chance, found = random.Random(5), []
    for step in range(6):
        for agent in range(8):
            ids = {"message_id": f"{step}-0-{agent}", "step": step, "step_read": step + 1, "ordinal": 0}
            facts = {"sent_at": T0 + step, "text": SCRIPT if agent == 3 else chance.choice(WORDS)}
            facts |= {"fate": "blocked", "rule": "black_list", "reason": "no"} if agent == 5 else {}
            found.append(row(len(found), agent, chance.choice([1, 2, 3, 4]), **ids, **facts))
    asked = {"message_id": "5-1-6", "step": 5, "step_read": 6, "ordinal": 1, "expects_answer": True, "sent_at": T0 + 5}
    found.append(row(100, 6, 2, text="Is the bridge closed?", **asked))
    answer = {"message_id": "6-0-2", "step": 6, "step_read": 7, "ordinal": 0, "in_reply_to": "5-1-6", "sent_at": T0 + 6}
    found.append(row(101, 2, 6, text="It is, since this morning.", labels=["kind"], **answer))
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("steps") / "town", [rows()])
    with browser() as found, inspector(folder.where) as url:
        found.base = url
        yield found


def test_a_row_leads_to_the_tree_of_its_causes(seen):
    seen.go("/search?contains=this+morning")
    seen.element("rows").get_by_text("why", exact=True).click()
    seen.sees("rows", "Is the bridge closed?")
    seen.sees("rows", "It is, since this morning.")
    seen.sees("fork", "town-fork --at-step 6 --rules black-list:2-6 --model MODULE:FUNCTION --until STEP")
    seen.element("tree").locator("canvas").first.wait_for()
    seen.element("effects").locator("canvas").first.wait_for()
    seen.element("tree").hover()  # its tooltip has the texts
    picture(seen, "inspector-why")


def test_texts_are_texts_and_an_unknown_id_is_told(seen):
    seen.go("/why?id=4-0-3")
    seen.sees("rows", SCRIPT)
    seen.element("tree").hover()
    seen.go("/why?id=77-0-1")
    seen.sees("problem", "no message of the log has the id '77-0-1'")
