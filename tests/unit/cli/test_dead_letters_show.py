"""Output of the dead-letter commands."""

import io

import pytest
from rich.console import Console

from ray_messaging.cli.dead_letters import show_letter, show_letters
from ray_messaging.cluster.handles.dead_letters import DeadLetter

EVIL = "a\x1b[2Jb\x9b"
LETTER = DeadLetter("1795184815738-12", EVIL, EVIL, 1.0, EVIL.encode(), 0, "town")


@pytest.mark.parametrize("width", [40, 90, 200])
def test_ids_stay_whole_and_nothing_steers_the_terminal(width):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    show_letters(console, [LETTER], {"letters": 1, "bytes": 9, "dropped": 0})
    show_letter(console, LETTER)
    printed = console.file.getvalue()
    assert printed.count(LETTER.id) == 2
    assert "a\ufffd[2Jb" in printed
    assert all(character.isprintable() or character == "\n" for character in printed)
