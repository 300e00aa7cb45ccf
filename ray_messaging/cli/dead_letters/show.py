"""Output of the commands on dead letters: a table, a letter's messages, JSON."""

import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from ray_messaging.cli.show import counted, plain_table, print_table
from ray_messaging.cluster.handles.dead_letters import DeadLetter
from ray_messaging.common.texts import TEXT_WIDTH, printable, shortened, utc_time
from ray_messaging.message import Message

_WIDE = 120  # columns of a terminal in which reasons are beside the letters
_TABLE_WIDTH = 80  # columns that a table needs
_SHOWN = 50  # messages of a letter in a table
_BYTES = 64  # shown of an undecodable frame


def show_letters(console: Console, letters: Sequence[DeadLetter], stats: dict[str, int]) -> None:
    """Print letters, and the total."""
    console.print(
        f"{counted(stats['letters'], 'dead letter')}, {decimal(stats['bytes'])}"
        + (f"; {stats['dropped']:,} older ones were dropped at the limit" if stats["dropped"] else "")
        + "."
    )
    if not letters:
        return
    if console.width < _TABLE_WIDTH:
        for letter in letters:
            console.print(_plain(f"{letter.id} {letter.mailbox}: {letter.rows:,} messages: {letter.reason}"))
        return
    names = ("id", "died at (UTC)", "mailbox", "messages", "size")
    wide = console.width >= _WIDE
    table = plain_table("", *names, *["reason"] * wide, right=("messages", "size"), whole=names)
    for letter in letters:
        rows = f"{letter.rows:,}" if letter.readable else "unreadable"
        mailbox, reason = _plain(letter.mailbox), _plain(letter.reason)
        cells = (letter.id, utc_time(letter.at)[:19], mailbox, rows, decimal(len(letter.frame)))
        table.add_row(*cells, *[reason] * wide)
    print_table(console, table)
    if not wide:
        for why, count in Counter(letter.reason for letter in letters).items():
            console.print(_plain(f"{count:,} because: {why}"))


def show_letter(console: Console, letter: DeadLetter) -> None:
    """Print one letter, and its first messages."""
    console.print(f"Dead letter {letter.id} of mailbox {_plain(letter.mailbox)}, died at {utc_time(letter.at)} UTC.")
    console.print(f"Why: {_plain(letter.reason)}")
    if not letter.readable:
        head = letter.frame[:_BYTES].hex(" ")
        more = " ..." if len(letter.frame) > _BYTES else ""
        console.print(f"It cannot be decoded, so it cannot be requeued. Its {len(letter.frame):,} bytes: {head}{more}")
        return
    console.print(f"{counted(letter.rows, 'unhandled message')}:")
    whole = ("message", "sent at (UTC)")
    table = plain_table("", *whole, "from", "to", "payload", whole=whole)
    for message in letter.messages[:_SHOWN]:
        sender = "the user" if message.from_id is None else str(message.from_id)
        to = message.channel if message.to_id is None else str(message.to_id)
        text = shortened(message.data[: 4 * TEXT_WIDTH].decode(errors="replace"))
        table.add_row(_plain(message.id), utc_time(message.sent_at), *map(_plain, (sender, to, text)))
    print_table(console, table)
    if letter.rows > _SHOWN:
        console.print(f"... and {letter.rows - _SHOWN:,} more: --json prints all of them.")


def record(letter: DeadLetter, *, whole: bool = False) -> dict[str, Any]:
    """Return a letter as JSON types; `whole`: with its messages, or its bytes (base64) if it has none."""
    found: dict[str, Any] = {
        "id": letter.id,
        "mailbox": letter.mailbox,
        "reason": letter.reason,
        "at": letter.at,
        "readable": letter.readable,
        "messages": letter.rows,
        "bytes": len(letter.frame),
    }
    if not whole:
        return found
    if letter.readable:
        return found | {"content": [_message(message) for message in letter.messages]}
    return found | {"frame": base64.b64encode(letter.frame).decode()}


def _message(message: Message) -> dict[str, Any]:
    try:
        payload: Any = msgspec.json.decode(message.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # any bytes from a foreign client
        payload = message.data.decode(errors="replace")
    return {
        "id": message.id,
        "channel": message.channel,
        "from_id": message.from_id,
        "to_id": message.to_id,
        "step": message.step,
        "sent_at": message.sent_at,
        "payload": payload,
    }


def _plain(text: str) -> Text:
    return Text(printable(text))
