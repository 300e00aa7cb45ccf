"""Dead letters from the command line: `ray-messaging deadletters list|show|requeue|drop`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ray_messaging.cli.clusters import asked_clusters, join_ray
from ray_messaging.cli.deadletters.show import record, show_letter, show_letters
from ray_messaging.cli.session import check_file, clean_errors, output
from ray_messaging.cluster.handles.dead_letters import DeadLetters
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.config import RedisConfig
from ray_messaging.errors import ConfigError, UnknownName

SOME_LEFT = 1  # exit code: not all that was asked for could be done

ExpId = Annotated[
    str, typer.Argument(metavar="EXP_ID", help="An experiment that runs, or with --redis one of a server.")
]
Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Ask this server, redis://host:port/db; no Ray is needed then."),
]
Letter = Annotated[str, typer.Argument(metavar="ID", help="The letter's id, as `list` shows it.")]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[ID]...", help="Letters, by their ids, as `list` shows them.")
]
Mailbox = Annotated[str | None, typer.Option("--mailbox", metavar="NAME", help="Those of this mailbox.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=100_000, metavar="N", help="At most so many.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Only those behind this one.")]
Export = Annotated[
    Path | None, typer.Option("--export", metavar="FILE", help="Write its bytes, as they are, to this new file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

app = typer.Typer(
    help="Look at what nobody will read as it is, and why; bring it back, or delete it.",
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
    """Print the dead letters, the oldest first: whose they were, and why they died."""
    with clean_errors():
        letters = _open(exp_id, redis)
        found = letters.list(limit=limit, after=after, mailbox=mailbox)
        if as_json:
            for letter in found:
                _print_json(record(letter))
            return
        console = output()
        show_letters(console, found, letters.stats())
        if len(found) == limit:
            console.print(f"There may be more: --after {found[-1].id}, or another --limit.")


@app.command(short_help="Print what is in one.")
def show(exp_id: ExpId, letter: Letter, redis: Redis = None, export: Export = None, as_json: Json = False) -> None:
    """Print the messages in a dead letter, or the bytes of one that cannot be decoded."""
    with clean_errors():
        if export is not None:
            check_file(export, "export to another file")
            if export.exists():
                raise ConfigError(f"{str(export)!r} is there already: export to another file")
        found = _open(exp_id, redis).get(letter)
        if export is not None:
            _write(export, found.frame)
        if as_json:
            _print_json(record(found, whole=True))
        else:
            show_letter(output(), found)
            if export is not None:
                output().print(f"\nIts {len(found.frame):,} bytes are in {export}.")


@app.command(short_help="Bring letters back to who listens now.")
def requeue(
    exp_id: ExpId,
    ids: Ids = None,
    redis: Redis = None,
    mailbox: Mailbox = None,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Bring the messages of letters back into the mailboxes that listen for them now, each at most once.

    What cannot go stays dead; the exit code is 1 then, and the reasons are told.
    """
    with clean_errors():
        some = _some(ids, mailbox, every=every)
        done = _open(exp_id, redis).requeue(some, mailbox=mailbox, everything=every)
        if as_json:
            _print_json({"letters": done.letters, "messages": done.messages, "left": done.left})
        else:
            output().print(f"Brought back {_count(done.messages, 'message')}; {_count(done.letters, 'letter')} gone.")
            for letter, why in done.left.items():
                typer.echo(f"left: {letter}: {why}", err=True)
    if done.left:
        raise typer.Exit(SOME_LEFT)


@app.command(short_help="Delete letters, and what is in them.")
def drop(
    exp_id: ExpId,
    ids: Ids = None,
    redis: Redis = None,
    mailbox: Mailbox = None,
    every: All = False,
    as_json: Json = False,
) -> None:
    """Delete letters, and the messages in them; the exit code is 1 where one was not there."""
    with clean_errors():
        some = _some(ids, mailbox, every=every)
        dropped = _open(exp_id, redis).drop(some, mailbox=mailbox, everything=every)
        missing = 0 if some is None else len(set(some)) - dropped
        if as_json:
            _print_json({"dropped": dropped, "missing": missing})
        else:
            output().print(f"Deleted {_count(dropped, 'letter')}.")
        if missing:
            typer.echo(f"left: {_count(missing, 'letter')} not there (any more)", err=True)
    if missing:
        raise typer.Exit(SOME_LEFT)


def _open(exp_id: str, redis: str | None) -> DeadLetters:
    """Find the dead letters of an experiment. Raises: ConfigError, UnknownName, ConnectionFailed."""
    if redis is not None:
        if redis.startswith("mqtt"):
            raise ConfigError("an MQTT broker keeps no dead letters: docs/mqtt.md says what becomes of them")
        return DeadLetters(RedisConfig.from_url(redis), exp_id).check()
    if not join_ray(exp_id):
        raise ConfigError(
            f"there is no Ray cluster here that experiment {exp_id!r} could run in: set RAY_ADDRESS, or --redis names "
            "its server"
        )
    try:
        return Messaging.connect(exp_id).dead_letters
    except UnknownName as error:
        raise ConfigError(
            f"no experiment {exp_id!r} runs in the Ray cluster {asked_clusters()}: RAY_ADDRESS says which cluster to "
            "ask, and --redis which server of yours, where it has ended"
        ) from error


def _some(ids: Sequence[str] | None, mailbox: str | None, *, every: bool) -> list[str] | None:
    """Return the ids that were given, or None; raise ConfigError unless one thing says which letters."""
    if bool(ids) + (mailbox is not None) + every != 1:
        raise ConfigError("say which dead letters: by their ids, --mailbox NAME or --all, and only by one of these")
    return list(ids) if ids else None


def _write(file: Path, frame: bytes) -> None:
    try:
        with file.open("xb") as opened:
            opened.write(frame)
    except OSError as error:
        raise ConfigError(f"cannot write {str(file)!r} ({error.strerror}): export to another file") from error


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _print_json(found: Any) -> None:  # noqa: ANN401 - JSON's types
    typer.echo(msgspec.json.encode(found))
