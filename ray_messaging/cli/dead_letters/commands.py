"""Dead letters on the command line: `ray-messaging deadletters list|show|requeue|drop`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec.json import encode

from ray_messaging.cli.dead_letters.show import record, show_letter, show_letters
from ray_messaging.cli.joining import join_experiment
from ray_messaging.cli.options import Json
from ray_messaging.cli.session import check_file, clean_errors, output, print_json
from ray_messaging.cli.show import counted
from ray_messaging.cluster.handles.dead_letters import DeadLetters
from ray_messaging.config import RedisConfig
from ray_messaging.errors import ConfigError

SOME_LEFT = 1  # exit code: some letters could not be handled

ExpId = Annotated[
    str, typer.Argument(metavar="EXP_ID", help="A running experiment, or with --redis one on that server.")
]
Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Use this server, redis://host:port/db, without Ray."),
]
Letter = Annotated[str, typer.Argument(metavar="ID", help="The letter's id, from `list`.")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of letters, from `list`.")]
Mailbox = Annotated[str | None, typer.Option("--mailbox", metavar="NAME", help="The letters of this mailbox.")]
All = Annotated[bool, typer.Option("--all", help="All letters.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, metavar="N", help="At most N letters.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Only letters after this one.")]
Export = Annotated[Path | None, typer.Option("--export", metavar="FILE", help="Write its raw bytes to this new file.")]

app = typer.Typer(
    help="Inspect dead letters (messages that no mailbox can hand out), send them again, or delete them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


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
    with clean_errors():
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
    """Print the messages in a dead letter, or the bytes of one that cannot be decoded."""
    with clean_errors():
        if export is not None:
            check_file(export, "choose another file")
            if export.exists():
                raise ConfigError(f"{str(export)!r} is there already: choose another file")
        found = _open(exp_id, redis).get(letter)
        if export is not None:
            _write(export, found.frame)
        if as_json:
            print_json(encode(record(found, whole=True)))
        else:
            show_letter(output(), found)
            if export is not None:
                output().print(f"\nIts {len(found.frame):,} bytes are in {export}.")


@app.command(short_help="Send letters again, to their present listeners.")
def requeue(
    exp_id: ExpId,
    ids: Ids = None,
    redis: Redis = None,
    mailbox: Mailbox = None,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Send the messages of dead letters to the mailboxes that listen for them now, each at most once.

    Letters that cannot be sent stay; then the exit code is 1, and the reasons are printed.
    """
    with clean_errors():
        some = _selection(ids, mailbox, every=every)
        done = _open(exp_id, redis).requeue(some, mailbox=mailbox, everything=every)
        if as_json:
            print_json(encode({"letters": done.letters, "messages": done.messages, "left": done.left}))
        else:
            output().print(f"Sent again {counted(done.messages, 'message')}; {counted(done.letters, 'letter')} gone.")
        _finish([f"{letter}: {why}" for letter, why in done.left.items()], quiet=as_json)


@app.command(short_help="Delete letters with their messages.")
def drop(
    exp_id: ExpId,
    ids: Ids = None,
    redis: Redis = None,
    mailbox: Mailbox = None,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Delete dead letters with their messages; the exit code is 1 if one did not exist."""
    with clean_errors():
        some = _selection(ids, mailbox, every=every)
        dropped = _open(exp_id, redis).drop(some, mailbox=mailbox, everything=every)
        missing = 0 if some is None else len(set(some)) - dropped
        if as_json:
            print_json(encode({"dropped": dropped, "missing": missing}))
        else:
            output().print(f"Deleted {counted(dropped, 'letter')}.")
        _finish([f"{counted(missing, 'letter')} not there (any more)"] * bool(missing), quiet=False)


def _open(exp_id: str, redis: str | None) -> DeadLetters:
    """Open the dead letters of an experiment. Raises: ConfigError, UnknownName, ConnectionFailed."""
    if redis is None:
        return join_experiment(exp_id, "--redis for the server of an ended experiment").dead_letters
    return DeadLetters(RedisConfig.from_url(redis), exp_id).check()


def _selection(ids: Sequence[str] | None, mailbox: str | None, *, every: bool) -> list[str] | None:
    """Return the given ids, or None; raise ConfigError unless exactly one option selects letters."""
    if bool(ids) + (mailbox is not None) + every != 1:
        raise ConfigError("say which dead letters: by their ids, --mailbox NAME or --all, and only by one of these")
    return list(ids) if ids else None


def _write(file: Path, frame: bytes) -> None:
    try:
        with file.open("xb") as opened:
            opened.write(frame)
    except OSError as error:
        raise ConfigError(f"cannot write {str(file)!r} ({error.strerror}): choose another file") from error


def _finish(left: Sequence[str], *, quiet: bool) -> None:
    """Exit with code 1 if some letters are left, and print them unless `quiet`."""
    for letter in () if quiet else left:
        typer.echo(f"left: {letter}", err=True)
    if left:
        raise typer.Exit(SOME_LEFT)
