"""The log commands print foreign text safely."""

import io

from rich.console import Console

from ray_messaging.cli.log_show import line_of, show_rows
from ray_messaging.eventlog.reading.event_rows import LogRow

EVIL = "a\x1b[2Jb\x07\x9b"


def test_nothing_steers_the_terminal():
    none = dict.fromkeys(LogRow.__dataclass_fields__) | {"sent_at": 1.0, "position": 1}
    names = (
        "message_id",
        "channel",
        "subtopic",
        "from_id",
        "text",
        "text_before",
        "rule",
        "reason",
        "sender",
        "mailbox",
    )
    row = LogRow(**none | dict.fromkeys(names, EVIL) | {"labels": (EVIL,), "fate": "blocked"})
    for width in (80, 200):
        console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
        show_rows(console, [row])
        console.print(line_of(row))
        printed = console.file.getvalue()
        assert "\ufffd[2Jb" in printed
        assert all(character.isprintable() or character == "\n" for character in printed)
