"""The arguments of the log commands: the log to read, and the options that select rows."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from ray_messaging.cli.session import join_experiment
from ray_messaging.errors import ConfigError
from ray_messaging.model.fates import FATES

if TYPE_CHECKING:
    from ray_messaging.cluster.messaging import Messaging
    from ray_messaging.eventlog.event_log import EventLog

T = TypeVar("T")

_ID_HELP = "repeatable; '' is the user"


Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A log_dir, or the exp_id of a running experiment; a folder of that name has priority."
    ),
]


def _texts(flag: str, metavar: str, text: str) -> Any:  # noqa: ANN401 - a type with an option
    """Return the type of an option that may be passed several times."""
    return Annotated[list[str] | None, typer.Option(flag, metavar=metavar, help=text)]


def _text(flag: str, metavar: str, text: str) -> Any:  # noqa: ANN401 - a type with an option
    return Annotated[str | None, typer.Option(flag, metavar=metavar, help=text)]


OPTIONS: dict[str, Any] = {
    "from_id": _texts("--from-id", "ID", f"The sender; {_ID_HELP}."),
    "to_id": _texts("--to-id", "ID", f"The recipient; {_ID_HELP}."),
    "agent": _texts("--agent", "ID", f"The sender or the recipient; {_ID_HELP}."),
    "channel": _texts("--channel", "NAME", "The whole name of a channel; repeatable."),
    "subtopic": _texts("--subtopic", "NAME", "The last part of the channel, such as agent-chat; repeatable."),
    "fate": _texts("--fate", "FATE", f"One of {', '.join(FATES)}; repeatable."),
    "rule": _texts("--rule", "NAME", "The rule that acted; repeatable."),
    "message_id": _texts("--message-id", "ID", "The message_id of a message; repeatable."),
    "in_reply_to": _texts("--in-reply-to", "ID", "The message_id of the question that is answered; repeatable."),
    "step": _text("--step", "N|A:B", "The step in which the message was sent, or the steps from A to B, without B."),
    "step_read": _text(
        "--step-read", "N|A:B", "The step in which the message was read, or the steps from A to B, without B."
    ),
    "since": _text("--since", "TIME", "Sent at this time or later: ISO (UTC) or unix seconds."),
    "until": _text("--until", "TIME", "Sent before: ISO (UTC) or unix seconds."),
    "contains": _text("--contains", "TEXT", "A part of the payload's JSON; case-sensitive."),
    "limit": Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="Only the first N rows.")],
    "after": Annotated[
        int | None, typer.Option("--after", min=-1, metavar="POSITION", help="Only rows after this position.")
    ],
}
_ENDS = ("from_id", "to_id", "agent")


def with_fields(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds the options of OPTIONS to a command, except those in `without`.

    The command gets the options' values as its argument `fields`.
    """
    names = [name for name in OPTIONS if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:  # noqa: ANN401 - the options' values
            fields = read_fields({name: values.pop(name) for name in names})
            command(**values, fields=fields)

        hints = get_type_hints(command, include_extras=True)
        own = [found for name, found in signature(command).parameters.items() if name != "fields"]
        added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=OPTIONS[name]) for name in names]
        kept = [found.replace(annotation=hints[found.name], kind=Parameter.KEYWORD_ONLY) for found in own]
        run.__signature__ = Signature([*kept, *added])  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {found.name: found.annotation for found in (*kept, *added)}
        return run

    return decorate


def read_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Return the values of options as fields of a query. Options that were not passed are left out.

    Raises: InvalidQuery if --step or --step-read cannot be read.
    """
    fields = {name: value for name, value in given.items() if value not in (None, [])}
    for name in _ENDS:
        if name in fields:
            fields[name] = [read_id(text) for text in fields[name]]
    for name in ("step", "step_read"):
        if name in fields:
            from ray_messaging.eventlog.reading.filters import parse_steps  # noqa: PLC0415 - it brings pyarrow

            fields[name] = parse_steps(fields[name], f"--{name.replace('_', '-')}", name)
    for name in ("since", "until"):
        if name in fields:
            fields[name] = _read_time(fields[name])
    return fields


def read_id(text: str) -> str | None:
    """Return an agent's id that a user wrote as text. The text "" stands for the user, whose id is None."""
    return text or None


def _read_time(text: str) -> float | str:
    if len(text) == len("20260131") and text.isdecimal():  # eight digits are a date, not seconds since 1970
        return text
    try:
        return float(text)
    except ValueError:
        return text


def open_log(target: str) -> "EventLog":
    """Open the log in the folder `target`, or of the running experiment `target`.

    A `target` with a slash is always taken for a folder.

    Raises: LogError if the folder is missing or contains no log; ConfigError if `target` is a file, or neither a folder
    nor a running experiment.
    """
    from ray_messaging.eventlog.event_log import EventLog  # noqa: PLC0415 - it brings pyarrow

    found = open_run(target, EventLog.open)
    return found if isinstance(found, EventLog) else found.log


def open_run(target: str, open_folder: Callable[[str], T]) -> "T | Messaging":
    """Open the folder `target` by `open_folder`, or connect to the running experiment `target`.

    A `target` with a slash is always taken for a folder.

    Raises: LogError if the folder is missing or contains no log; ConfigError if `target` is a file, or neither a folder
    nor a running experiment.
    """
    if Path(target).is_file():
        raise ConfigError(f"{target!r} is a file: pass the folder that contains the log's events-*.parquet")
    if "/" in target or Path(target).is_dir():
        return open_folder(target)
    missing = f"there is no folder {target!r} here, and "
    return join_experiment(target, "pass the log_dir of a run", missing=missing)
