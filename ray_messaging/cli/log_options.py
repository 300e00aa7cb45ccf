"""Arguments of the log commands: the log to read, and the options that select rows."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ray_messaging.cli.session import clean_errors, join_experiment
from ray_messaging.errors import ConfigError, InvalidQuery
from ray_messaging.eventlog.event_log import EventLog

_ID_HELP = "repeatable; '' is the user"

FromId = Annotated[list[str] | None, typer.Option("--from-id", metavar="ID", help=f"The sender; {_ID_HELP}.")]
ToId = Annotated[list[str] | None, typer.Option("--to-id", metavar="ID", help=f"The recipient; {_ID_HELP}.")]
Agent = Annotated[
    list[str] | None, typer.Option("--agent", metavar="ID", help=f"The sender or the recipient; {_ID_HELP}.")
]
Channel = Annotated[list[str] | None, typer.Option("--channel", metavar="NAME", help="The whole channel; repeatable.")]
Subtopic = Annotated[
    list[str] | None, typer.Option("--subtopic", metavar="NAME", help="For example agent-chat; repeatable.")
]
FateOption = Annotated[
    list[str] | None,
    typer.Option("--fate", metavar="FATE", help="delivered, published, undeliverable or blocked; repeatable."),
]
Rule = Annotated[list[str] | None, typer.Option("--rule", metavar="NAME", help="The rule that acted; repeatable.")]
MessageId = Annotated[list[str] | None, typer.Option("--message-id", metavar="ID", help="The message; repeatable.")]
InReplyTo = Annotated[
    list[str] | None, typer.Option("--in-reply-to", metavar="ID", help="The question that it answers; repeatable.")
]
Step = Annotated[
    str | None,
    typer.Option("--step", metavar="N|A:B", help="The simulation step, or steps from A to B, without B."),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Sent at this time or later: ISO (UTC) or unix seconds.")
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Sent before: ISO (UTC) or unix seconds.")]
Contains = Annotated[
    str | None, typer.Option("--contains", metavar="TEXT", help="A part of the payload's JSON; case-sensitive.")
]
Payload = Annotated[
    list[str] | None,
    typer.Option("--payload", metavar="NAME=VALUE", help="A value of typed payloads, or LOW:HIGH, without HIGH."),
]
Limit = Annotated[int | None, typer.Option("--limit", min=0, metavar="N", help="Only the first N rows.")]
After = Annotated[int | None, typer.Option("--after", min=-1, metavar="POSITION", help="Only rows after this one.")]

Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET", help="A log_dir, or the exp_id of a running experiment; a folder of that name has priority."
    ),
]

OPTIONS: dict[str, Any] = {
    "from_id": FromId,
    "to_id": ToId,
    "agent": Agent,
    "channel": Channel,
    "subtopic": Subtopic,
    "fate": FateOption,
    "rule": Rule,
    "message_id": MessageId,
    "in_reply_to": InReplyTo,
    "step": Step,
    "since": Since,
    "until": Until,
    "contains": Contains,
    "payload": Payload,
    "limit": Limit,
    "after": After,
}
_ENDS = ("from_id", "to_id", "agent")


def with_fields(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options in OPTIONS, except `without`, to a command. It gets them as `fields`, with clean errors."""
    names = [name for name in OPTIONS if name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**values: Any) -> None:  # noqa: ANN401 - the options' values
            given = {name: values.pop(name) for name in names}
            with clean_errors():
                command(**values, fields=read_fields(given))

        hints = get_type_hints(command, include_extras=True)
        own = [found for name, found in signature(command).parameters.items() if name != "fields"]
        added = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=OPTIONS[name]) for name in names]
        kept = [found.replace(annotation=hints[found.name], kind=Parameter.KEYWORD_ONLY) for found in own]
        run.__signature__ = Signature([*kept, *added])  # type: ignore[attr-defined]  # typer reads it
        run.__annotations__ = {found.name: found.annotation for found in (*kept, *added)}
        return run

    return decorate


def read_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a query in the event log's types; raise InvalidQuery."""
    fields = {name: value for name, value in given.items() if value not in (None, [])}
    for name in _ENDS:
        if name in fields:
            fields[name] = [read_id(text) for text in fields[name]]
    if "step" in fields:
        fields["step"] = _read_step(fields["step"])
    for name in ("since", "until"):
        if name in fields:
            fields[name] = _read_time(fields[name])
    if "payload" in fields:
        fields["payload"] = dict(map(_read_value, fields["payload"]))
    return fields


def _read_value(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InvalidQuery(
            f"cannot read --payload {text!r}: write price=3.5 or price=1:10", field="payload", value=text
        )
    low, colon, high = value.partition(":")
    bounds = [_number(part) if part else None for part in (low, high)]
    if colon and not any(isinstance(bound, str) for bound in bounds):
        return name, [slice(*bounds), value]
    return name, [_number(value), value]  # in a column of texts, a number is one, too


def _number(text: str) -> float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)


def read_id(text: str) -> str | None:
    """Return an id as written; '' is the user."""
    return text or None


def _read_step(text: str) -> int | slice:
    try:
        low, colon, high = text.partition(":")
        return slice(int(low) if low else None, int(high) if high else None) if colon else int(low)
    except ValueError as error:
        raise InvalidQuery(f"cannot read --step {text!r}: write 5 or 5:10", field="step", value=text) from error


def _read_time(text: str) -> float | str:
    if len(text) == len("20260131") and text.isdecimal():  # a date, not a second of 1970
        return text
    try:
        return float(text)
    except ValueError:
        return text


def open_log(target: str) -> EventLog:
    """Open the log of a folder, or of a running experiment; raise LogError, ConfigError."""
    if Path(target).is_file():
        raise ConfigError(f"{target!r} is a file: pass the folder that holds the log's events-*.parquet")
    if "/" in target or Path(target).is_dir():
        return EventLog.open(target)
    missing = f"there is no folder {target!r} here, and "
    return join_experiment(target, "pass the log_dir of a run", missing=missing).log
