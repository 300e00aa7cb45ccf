"""Commands print foreign text safely."""

import io

import pytest
from rich.console import Console

from ray_messaging.cli.dead_letter_commands import show_letter, show_letters
from ray_messaging.cli.log_show import line_of, show_rows
from ray_messaging.cluster.handles.dead_letters import DeadLetter
from ray_messaging.eventlog.reading.event_rows import LogRow

EVIL = "a\x1b[2Jb\x07\x9b"
TEXTS = ["message_id", "channel", "subtopic", "from_id", "text", "text_before", "rule", "reason", "sender", "mailbox"]
NOTHING = dict.fromkeys(LogRow.__dataclass_fields__)
FACTS = {"sent_at": 1.0, "position": 1, "labels": (EVIL,), "fate": "blocked"}
ROW = LogRow(**NOTHING | FACTS | dict.fromkeys(TEXTS, EVIL))
LETTER = DeadLetter("1795184815738-12", EVIL, EVIL, 1.0, EVIL.encode(), 0, "town")


@pytest.fixture(params=[40, 80, 90, 200])
def console(request):
    """Return a console of some width; whatever is printed on it must be harmless."""
    made = Console(file=io.StringIO(), width=request.param, highlight=False, markup=False)
    yield made
    printed = made.file.getvalue()
    assert "a\ufffd[2Jb" in printed
    assert all(character.isprintable() or character == "\n" for character in printed)


def test_rows_of_a_log_do_not_steer_the_terminal(console):
    show_rows(console, [ROW])
    console.print(line_of(ROW))


def test_dead_letters_do_not_steer_the_terminal_and_their_ids_stay_whole(console):
    show_letters(console, [LETTER], {"letters": 1, "bytes": 9, "dropped": 0})
    show_letter(console, LETTER)
    assert console.file.getvalue().count(LETTER.id) == 2
