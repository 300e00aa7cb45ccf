"""The record of a run in the log's folder: what ran, with which settings, started by which command."""

import platform
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.rule_changes import read_rule_changes

FORMAT = 1
_NAME = "_run.json"  # programs that read folders of Parquet files skip names with an underscore
_LONGEST = 200  # characters of an argument
_SECRET = re.compile(r"(?i)(pass|secret|token|key|credential)")
_IN_URL = re.compile(r"://[^/@\s]*@")


class RunStart(msgspec.Struct, frozen=True):
    """One start of an experiment that logs into the folder.

    `ended` is None while it runs, and where it was `killed` and its log is not finished yet. `data` is the folder that
    its embedded server keeps its data in; None: it has none, or several.
    """

    run: str
    began: str
    on_existing: str
    command: Sequence[str]
    versions: dict[str, str]
    server: str
    rules: Sequence[dict[str, Any]]  # in force at the start, each with its settings
    ended: str | None = None
    killed: bool = False
    data: str | None = None


class RunRecord(msgspec.Struct, frozen=True):
    """All that is known of a run beside its messages.

    `groups` maps each group to its number of agents, `model` holds the arguments of `messaging.run`.
    """

    format: int
    experiment: str
    steps: dict[str, Any] | None = None
    groups: dict[str, int] = {}
    model: dict[str, Any] | None = None
    starts: Sequence[RunStart] = ()


def read_run(folder: Folder) -> RunRecord | None:
    """Return the record of the folder's run; None: it has none. Raises LogError, ConfigError for another format."""
    data = folder.read_small(_NAME)
    if not data:
        return None
    path = f"{folder.where}/{_NAME}"
    try:
        known = int(msgspec.json.decode(data)["format"])
        record = None if known != FORMAT else msgspec.json.decode(data, type=RunRecord)
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError) as error:
        raise LogError(f"the record of the run in {path} is damaged ({error}): remove the file", path=path) from error
    if record is None:
        raise ConfigError(
            f"{path} has format {known}, and this ray_messaging reads format {FORMAT} only: read the folder with the "
            "version of ray_messaging that wrote it, and log into a folder of its own here"
        )
    return record


def write_run(folder: Folder, record: RunRecord) -> None:
    """Write the record of the folder's run, atomically. Raises OSError."""
    folder.write_small(_NAME, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def note_start(folder: Folder, experiment: str, steps: dict[str, Any] | None, start: RunStart) -> None:
    """Add a start to the record, once; a reset begins a new record. Raises OSError, LogError."""
    before = None if start.on_existing == "reset" else read_run(folder)
    before = before or RunRecord(FORMAT, experiment)
    if all(each.run != start.run for each in before.starts):
        write_run(folder, msgspec.structs.replace(before, steps=steps, starts=[*before.starts, start]))


def note_model(folder: Folder, model: dict[str, Any], groups: dict[str, int]) -> None:
    """Note a call of `messaging.run`. Raises OSError, LogError."""
    if (before := read_run(folder)) is not None:
        write_run(folder, msgspec.structs.replace(before, model=model, groups=before.groups | groups))


def note_end(folder: Folder, run: str, groups: dict[str, int], *, killed: bool = False) -> None:
    """Note the end of a start, and the groups that there were. Raises OSError, LogError."""
    if (before := read_run(folder)) is not None:
        ended = [
            msgspec.structs.replace(start, ended=utc_now(), killed=killed) if start.run == run else start
            for start in before.starts
        ]
        write_run(folder, msgspec.structs.replace(before, starts=ended, groups=before.groups | groups))


def has_ended(folder: Folder) -> bool:
    """Return whether the last run in a folder came to its end, perhaps without a message; raises as `read_run`."""
    record = read_run(folder)
    return record is not None and bool(record.starts) and record.starts[-1].ended is not None


def unended(folder: Folder) -> str | None:
    """Return what to do about a run that has no end; None: it has one, or there is no record. Raises as `read_run`."""
    record = read_run(folder)
    if record is None or not record.starts or record.starts[-1].ended is not None:
        return None
    start = record.starts[-1]
    where = f"{start.data} has them, and `ray-messaging log finish {folder.where}` writes them"
    if start.data is None:
        where = (
            f"if its server ({start.server}) has them still, Messaging.start({record.experiment!r}, ..., "
            "on_existing='resume') writes them"
        )
    elif not Path(start.data).exists():
        where = f"{start.data}, the folder of its server, had them, and is gone"
    return (
        f"the run in {folder.where} that began at {start.began} has no end: it runs still, or was killed, and then "
        f"rows of what was sent last are missing here; {where}"
    )


def run_facts(folder: Folder) -> dict[str, Any] | None:
    """Return the record and the rule changes of a run as plain data; None: there is no record. Raises LogError."""
    record = read_run(folder)
    if record is None:
        return None
    facts: dict[str, Any] = msgspec.to_builtins(record)
    return facts | {"rule_changes": msgspec.to_builtins(read_rule_changes(folder))}


def utc_now() -> str:
    """Return the time as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result may depend on."""
    names = ("ray-messaging", "ray", "numpy", "pyarrow")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def command_line() -> list[str]:
    """Return the command that started this process, without secrets: passwords in URLs, and values of such options."""
    found: list[str] = []
    hidden = False
    for argument in sys.orig_argv:
        name, equals, _ = argument.partition("=")
        secret = argument.startswith("-") and _SECRET.search(name) is not None
        if hidden:
            found.append("***")
        elif secret and equals:
            found.append(f"{name}=***")
        else:
            found.append(_IN_URL.sub("://***@", argument)[:_LONGEST])
        hidden = secret and not equals
    return found
