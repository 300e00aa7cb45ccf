"""Dead letters on the command line: `ray-messaging deadletters list|show|requeue|drop`."""

import base64
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from msgspec.json import encode
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from ray_messaging.cli.options import Json
from ray_messaging.cli.session import check_file, join_experiment, output, print_json
from ray_messaging.cli.show import counted, plain_table, print_table
from ray_messaging.cluster.handles.dead_letters import DeadLetter, DeadLetters
from ray_messaging.common.texts import TEXT_WIDTH, printable, shortened, utc_time
from ray_messaging.config import RedisConfig
from ray_messaging.errors import ConfigError
from ray_messaging.message import Message

SOME_LEFT = 1  # exit code: some letters could not be handled

ExpId = Annotated[
    str,
    typer.Argument(
        metavar="EXP_ID", help="A running experiment; with --redis, any experiment that has data on that server."
    ),
]
Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Use this server, redis://host:port/db, without Ray."),
]
Letter = Annotated[str, typer.Argument(metavar="ID", help="The letter's id, from `list`.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of letters, from `list`.")]
Mailbox = Annotated[str | None, typer.Option("--mailbox", metavar="NAME", help="Only the letters of this mailbox.")]
All = Annotated[bool, typer.Option("--all", help="All letters.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, metavar="N", help="At most N letters.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Only letters after the one with this id.")]
Export = Annotated[
    Path | None, typer.Option("--export", metavar="FILE", help="Write the letter's raw bytes to this new file.")
]

app = typer.Typer(
    help="Inspect dead letters (messages that could not be handled), send them again, or delete them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


_WIDE = 120  # if the terminal has at least this many columns, reasons are shown beside the letters
_TABLE_WIDTH = 80  # if the terminal has fewer columns than this, letters are listed without a table
_SHOWN = 50  # at most this many messages of a letter are shown
_BYTES = 64  # if a frame cannot be decoded, this many of its bytes are shown


def show_letters(console: Console, letters: Sequence[DeadLetter], stats: dict[str, int]) -> None:
    """Print letters, and the total of all letters."""
    console.print(
        f"{counted(stats['letters'], 'dead letter')}, {decimal(stats['bytes'])}"
        + (f"; {stats['dropped']:,} older ones were dropped when the limit was reached" if stats["dropped"] else "")
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
    """Return a dead letter as a dict of JSON's types.

    With `whole`, the result has the letter's messages, or the letter's bytes in base64 if they cannot be decoded.
    """
    found: dict[str, Any] = {name: getattr(letter, name) for name in ("id", "mailbox", "reason", "at", "readable")}
    found |= {"messages": letter.rows, "bytes": len(letter.frame)}
    if not whole:
        return found
    if letter.readable:
        return found | {"content": [_message(message) for message in letter.messages]}
    return found | {"frame": base64.b64encode(letter.frame).decode()}


def _message(message: Message) -> dict[str, Any]:
    try:
        payload: Any = msgspec.json.decode(message.data)
    # A foreign client may have sent any bytes. Those that are not text are replaced.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        payload = message.data.decode(errors="replace")
    names = ("id", "channel", "from_id", "to_id", "step", "sent_at")
    return {name: getattr(message, name) for name in names} | {"payload": payload}


def _plain(text: str) -> Text:
    return Text(printable(text))


@app.command("list", short_help="Print the dead letters.")
def list_letters(
    exp_id: ExpId,
    redis: Redis = None,
    mailbox: Mailbox = None,
    limit: Limit = 50,
    after: After = None,
    as_json: Json = False,
) -> None:
    """Print the dead letters, the oldest first, with mailbox and reason."""
    letters = _open(exp_id, redis)
    found = letters.list(limit=limit, after=after, mailbox=mailbox)
    if as_json:
        print_json(*(encode(record(letter)) for letter in found))
        return
    console = output()
    show_letters(console, found, letters.stats())
    if len(found) == limit:
        console.print(f"There may be more: --after {found[-1].id}, or another --limit.")


@app.command(short_help="Print the messages of one dead letter.")
def show(exp_id: ExpId, letter: Letter, redis: Redis = None, export: Export = None, as_json: Json = False) -> None:
    """Print the messages in a dead letter, or its bytes if it cannot be decoded."""
    if export is not None:
        check_file(export, "choose another file")
        if export.exists():
            raise ConfigError(f"{str(export)!r} exists already: choose another file")
    found = _open(exp_id, redis).get(letter)
    if export is not None:
        _write(export, found.frame)
    if as_json:
        print_json(encode(record(found, whole=True)))
    else:
        show_letter(output(), found)
        if export is not None:
            output().print(f"\nIts {len(found.frame):,} bytes are in {export}.")


@app.command(short_help="Send dead letters again, to the mailboxes that listen for them now.")
def requeue(
    exp_id: ExpId,
    ids: Ids = None,
    redis: Redis = None,
    mailbox: Mailbox = None,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Send the messages of dead letters to the mailboxes that listen for them now, each at most once.

    Letters that cannot be sent are kept, and the reasons are printed. Then the exit code is 1.
    """
    some = _selection(ids, mailbox, every=every)
    done = _open(exp_id, redis).requeue(some, mailbox=mailbox, everything=every)
    if as_json:
        print_json(encode({"letters": done.letters, "messages": done.messages, "left": done.left}))
    else:
        output().print(
            f"Sent {counted(done.messages, 'message')} again, and deleted {counted(done.letters, 'letter')}."
        )
    _finish([f"{letter}: {why}" for letter, why in done.left.items()], quiet=as_json)


@app.command(short_help="Delete dead letters with their messages.")
def drop(
    exp_id: ExpId,
    ids: Ids = None,
    redis: Redis = None,
    mailbox: Mailbox = None,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Delete dead letters with their messages. The exit code is 1 if one of them did not exist."""
    some = _selection(ids, mailbox, every=every)
    dropped = _open(exp_id, redis).drop(some, mailbox=mailbox, everything=every)
    missing = 0 if some is None else len(set(some)) - dropped
    if as_json:
        print_json(encode({"dropped": dropped, "missing": missing}))
    else:
        output().print(f"Deleted {counted(dropped, 'letter')}.")
    _finish([f"{counted(missing, 'letter')} could not be found"] * bool(missing), quiet=False)


def _open(exp_id: str, redis: str | None) -> DeadLetters:
    """Open the dead letters of an experiment; raise ConfigError, UnknownName or ConnectionFailed if that fails."""
    if redis is None:
        return join_experiment(exp_id, "pass --redis with the server of an ended experiment").dead_letters
    return DeadLetters(RedisConfig.from_url(redis), exp_id).check()


def _selection(ids: Sequence[str] | None, mailbox: str | None, *, every: bool) -> list[str] | None:
    """Return the given ids, or None if another option selects letters.

    Raises: ConfigError unless exactly one option selects letters.
    """
    if bool(ids) + (mailbox is not None) + every != 1:
        raise ConfigError("say which dead letters: pass exactly one of these: ids, --mailbox NAME, --all")
    return list(ids) if ids else None


def _write(file: Path, frame: bytes) -> None:
    try:
        with file.open("xb") as opened:
            opened.write(frame)
    except OSError as error:
        raise ConfigError(f"cannot write {str(file)!r} ({error.strerror}): choose another file") from error


def _finish(left: Sequence[str], *, quiet: bool) -> None:
    """Print each text of `left` on stderr, unless `quiet` is true. Exit with code 1 if `left` is not empty.

    Args: `left` has texts about the letters that could not be handled.
    """
    for letter in () if quiet else left:
        typer.echo(f"left: {letter}", err=True)
    if left:
        raise typer.Exit(SOME_LEFT)
