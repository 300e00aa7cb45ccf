"""Small files of records in the log's folder, beside the segments.

- The record of the run: the experiment, its settings, and the commands that started it.
- The rule changes of the run.
- The folder's account: which writer owns the folder, and which rows are known to be missing. Only the owner may publish
  files. The server also gives each writer a number, its epoch, which says who may trim the streams. The epochs cannot
  say who owns the folder, because after a flush of the server a new run gets the same epochs again.
- The names of the files of collected data that were written, so that readers notice a file that is gone.
- Sets of agents: each has all agents that share one mailbox. The row of a broadcast has the digest of the set to which
  its hearers belong.
"""

import platform
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np

from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.log_uri import IN_URL
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet

if TYPE_CHECKING:  # the import would load pyarrow, which interceptors do not need
    from ray_messaging.eventlog.folder import Folder, Segment

T = TypeVar("T")

FORMAT = 1
RUN = "_run.json"  # programs that read folders of Parquet files skip names that begin with an underscore
_RULE_CHANGES = "_rule_changes.json"
ACCOUNT = "_account.json"
COLLECTED = "_collected.json"
_LONGEST = 200  # `command_line` cuts each argument to this many characters
_SECRET = re.compile(r"(?i)(pass|secret|token|key|credential)")


# -- the run ----------------------------------------------------------------------------------------------------------


class RunStart(msgspec.Struct, frozen=True):
    """One start of an experiment that logs into the folder.

    `ended` is None while the run goes on. If the run was killed, `ended` stays None until `ray-messaging log finish`
    has completed the log. If the run has exactly one embedded server, `data` is the folder in which that server stores
    its data. Otherwise `data` is None. `rows` is the number of rows in the log at the recorded end. It is None before
    the end, and in records of version 1.0.0.
    """

    run: str
    began: str
    on_existing: str
    command: Sequence[str]
    versions: dict[str, str]
    server: str
    rules: Sequence[dict[str, Any]]  # the rules at the start, each with its settings
    ended: str | None = None
    killed: bool = False
    data: str | None = None
    rows: int | None = None


class Parent(msgspec.Struct, frozen=True):
    """The run from which a fork was made: its folder, its experiment, and the last step that was copied to the fork."""

    folder: str
    experiment: str
    step: int


class RunRecord(msgspec.Struct, frozen=True):
    """The record of a run.

    `groups` maps each group to its number of agents. `model` has the arguments of `messaging.run`. `parent` is None if
    the run is not a fork.
    """

    format: int
    experiment: str
    steps: dict[str, Any] | None = None
    groups: dict[str, int] = {}
    model: dict[str, Any] | None = None
    starts: Sequence[RunStart] = ()
    parent: Parent | None = None


def read_run(folder: "Folder") -> RunRecord | None:
    """Return the run's record, or None if the folder has none.

    Raises: LogError if the record is damaged, ConfigError if it has another format.
    """

    def decoded(data: bytes) -> RunRecord:
        if (known := int(msgspec.json.decode(data)["format"])) != FORMAT:
            raise ConfigError(
                f"{folder.where}/{RUN} has format {known}, and this version of ray_messaging reads only format "
                f"{FORMAT}: read "
                "the folder with the version of ray_messaging that wrote it, and give this version another log_dir"
            )
        return msgspec.json.decode(data, type=RunRecord)

    return _read(folder, RUN, decoded, "the record of the run in {path} is damaged ({error}): remove the file")


def unbegun_fork(folder: "Folder") -> int | None:
    """Return the last copied step if the folder has a fork that was never started, and None in all other cases."""
    record = read_run(folder)
    return None if record is None or record.parent is None or record.starts else record.parent.step


def write_run(folder: "Folder", record: RunRecord) -> None:
    """Write the record of the run in a folder, atomically. Raises OSError if that fails."""
    folder.write_file(RUN, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def note_start(folder: "Folder", experiment: str, steps: dict[str, Any] | None, start: RunStart) -> None:
    """Add a start to the run's record, unless the record has this start already.

    A start with on_existing="reset" begins a new record.

    Raises: OSError if the record cannot be written; LogError if the present record is damaged; ConfigError if it has
    another format.
    """
    before = None if start.on_existing == "reset" else read_run(folder)
    before = before or RunRecord(FORMAT, experiment)
    if all(each.run != start.run for each in before.starts):
        write_run(folder, msgspec.structs.replace(before, steps=steps, starts=[*before.starts, start]))


def note_model(folder: "Folder", model: dict[str, Any], groups: dict[str, int]) -> dict[str, Any] | None:
    """Record the arguments of a call of `messaging.run`, in place of earlier ones. If there is no record, do nothing.

    Returns: the arguments that were in the record before, if an earlier start of the run recorded them; otherwise None.

    Raises: OSError if the record cannot be written; LogError if the present record is damaged; ConfigError if it has
    another format.
    """
    if (before := read_run(folder)) is None:
        return None
    model = model | {"run": before.starts[-1].run}
    write_run(folder, msgspec.structs.replace(before, model=model, groups=before.groups | groups))
    return None if before.model is None or before.model.get("run") == model["run"] else before.model


def note_end(
    folder: "Folder", run: str, groups: dict[str, int], *, killed: bool = False, rows: int | None = None
) -> None:
    """Record the end of the run that one start began, its groups, and the number of rows in the log.

    If there is no record, do nothing.

    Args: `run` is the id of the start. With `killed`, record that the run was killed. `rows` is None if the number of
    rows is not known.

    Raises: OSError if the record cannot be written; LogError if the present record is damaged; ConfigError if it has
    another format.
    """
    if (before := read_run(folder)) is not None:
        ended = [
            msgspec.structs.replace(start, ended=utc_now(), killed=killed, rows=rows) if start.run == run else start
            for start in before.starts
        ]
        write_run(folder, msgspec.structs.replace(before, starts=ended, groups=before.groups | groups))


def has_ended(folder: "Folder") -> bool:
    """Return whether the record says that the run in a folder has ended since its last start.

    Raises: LogError if the record is damaged, ConfigError if it has another format.
    """
    record = read_run(folder)
    return record is not None and bool(record.starts) and record.starts[-1].ended is not None


def unended(folder: "Folder") -> str | None:
    """Return advice if the run in this folder may still be running or was killed, so that its last rows are missing.

    None: the run has recorded its end, or the folder has no record of a run.

    Raises: LogError if the record is damaged, ConfigError if it has another format.
    """
    record = read_run(folder)
    if record is None or not record.starts or record.starts[-1].ended is not None:
        return None
    start = record.starts[-1]
    where = f"they are in {start.data}, and `ray-messaging log finish {folder.where}` writes them into the log"
    if start.data is None:
        where = (
            f"if the run's server ({start.server}) still has them, Messaging.start({record.experiment!r}, ..., "
            "on_existing='resume') writes them into the log"
        )
    elif not Path(start.data).exists():
        where = f"they were in {start.data}, the folder of the run's server, which is gone"
    return (
        f"the run in {folder.where} that began at {start.began} has no recorded end: it is still running, or it was "
        f"killed. If it was killed, the log lacks the rows of its last messages: {where}"
    )


def absent_rows(folder: "Folder", segments: "Sequence[Segment]", end: int) -> str:
    """Return a text that says which rows are missing because a file of the log is gone; "" if no rows are missing.

    Args: `end` is the position after the last row of `segments`.

    Raises: LogError if the run's record is damaged, ConfigError if it has another format.
    """
    begin, number = 0, 1
    for segment in segments:
        if segment.first_row > begin:
            return _absent(folder, begin, segment.first_row, number)
        begin, number = segment.first_row + segment.rows, segment.number + 1
    record = read_run(folder)
    rows = None if record is None or not record.starts else record.starts[-1].rows
    return _absent(folder, end, rows, number) if rows is not None and rows > end else ""


def _absent(folder: "Folder", begin: int, end: int, number: int) -> str:
    name = f"events-{number:08d}{'' if folder.local else '-e*'}.parquet"  # *: the writer's epoch
    return (
        f"the rows at the positions from {begin:,} to {end - 1:,} are missing, because {folder.where}/{name} is gone: "
        "put it back"
    )


def run_facts(folder: "Folder") -> dict[str, Any] | None:
    """Return a run's record and rule changes as plain data, or None if the folder has no record.

    Raises: LogError if the record is damaged, ConfigError if it has another format.
    """
    record = read_run(folder)
    if record is None:
        return None
    facts: dict[str, Any] = msgspec.to_builtins(record)
    return facts | {"rule_changes": msgspec.to_builtins(read_rule_changes(folder))}


def utc_now() -> str:
    """Return the present time as a str in ISO format, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages on which a run's results may depend."""
    names = ("ray-messaging", "ray", "numpy", "pyarrow")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def command_line() -> list[str]:
    """Return the command that started this process, as a list of arguments without secrets.

    Passwords in URLs, and the values of options with names such as --token, are replaced by ***. Each argument is cut
    to 200 characters.
    """
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
            found.append(IN_URL.sub("://***@", argument)[:_LONGEST])
        hidden = secret and not equals
    return found


# -- the rule changes -------------------------------------------------------------------------------------------------


class RuleChange(msgspec.Struct, frozen=True):
    """One change of an experiment's rules while it ran.

    `change` is insert, replace or remove. For a rule with a list of pairs, it may also be the method that changed the
    list. `rule` is the rule's description. `step` is the first step to which the change applies (None: the experiment
    has no steps). If `exact` is true, the change applies to all messages of this step. Otherwise the change took effect
    in the middle of the step, so two runs with the same change may differ.
    """

    at: float  # the time of the change in unix seconds
    change: str
    rule: dict[str, Any]
    step: int | None = None
    exact: bool = False


def read_rule_changes(folder: "Folder") -> list[RuleChange]:
    """Return the rule changes of the run in a folder, in order; raise LogError if the file is damaged."""
    decode = msgspec.json.Decoder(list[RuleChange]).decode
    damaged = "the rule changes in {path} are damaged ({error}): remove the file"
    return _read(folder, _RULE_CHANGES, decode, damaged) or []


def write_rule_changes(folder: "Folder", changes: Sequence[RuleChange]) -> None:
    """Replace the rule changes of the run in a folder by the given ones. Raises OSError if that fails."""
    folder.write_file(_RULE_CHANGES, msgspec.json.encode(list(changes)))


# -- the account ------------------------------------------------------------------------------------------------------


class FolderAccount(msgspec.Struct, frozen=True):
    """The account of a log's folder: its owner, and descriptions of rows that are known to be missing.

    `writer` names the owner in the form `run/writer`. While another run takes the folder over, `writer` names only that
    run. `experiment` is the owner's experiment.
    """

    writer: str = ""
    missing: tuple[str, ...] = ()
    experiment: str = ""

    def belongs_to(self, writer: str) -> bool:
        """Return whether a writer may publish files: it is the owner, or the account names no owner."""
        return self.writer in {"", writer}


def read_account(folder: "Folder") -> FolderAccount:
    """Return the folder's account, which says who owns the folder and which rows are missing.

    If there is no account yet, return one without an owner and without missing rows.

    Raises: LogError if the account cannot be read.
    """
    damaged = "the account of the event log is damaged ({error}): remove {path}, and with it the notes on missing rows"
    return _read(folder, ACCOUNT, msgspec.json.Decoder(FolderAccount).decode, damaged) or FolderAccount()


def claim(folder: "Folder", writer: str, experiment: str) -> None:
    """Make a writer the owner of a folder, so that earlier writers publish no more files.

    The caller must have locked the folder.

    Raises: OSError if the account cannot be written; LogError if the account is damaged, or if it names another
    experiment.
    """
    account = read_account(folder)
    if account.experiment not in {"", experiment}:
        raise LogError(
            f"the event log's folder {folder.where} belongs to experiment {account.experiment!r}, but this is "
            f"experiment {experiment!r}: pass another log_dir, or remove that folder",
            path=folder.where,
        )
    _change(folder, account, writer=writer, experiment=experiment)


def note_missing(folder: "Folder", writer: str, text: str) -> None:
    """Add a description of missing rows to the account, unless the account has it or names another owner.

    The caller must have locked the folder. Raises OSError if the account cannot be written, LogError if it is damaged.
    """
    account = read_account(folder)
    if text not in account.missing and account.belongs_to(writer):
        _change(folder, account, missing=(*account.missing, text))


def forget_missing(folder: "Folder") -> None:
    """Remove all descriptions of missing rows from the folder's account, because the log's files are removed.

    Raises OSError if the account cannot be written, LogError if it is damaged.
    """
    _change(folder, read_account(folder), missing=())


def _change(folder: "Folder", account: FolderAccount, **values: Any) -> None:  # noqa: ANN401 - values of fields
    changed = msgspec.structs.replace(account, **values)
    if changed != account:
        folder.write_file(ACCOUNT, msgspec.json.encode(changed))


# -- files of collected data ------------------------------------------------------------------------------------------


def collected_names(folder: "Folder") -> list[str]:
    """Return the names of the files of collected data that were written; raise LogError if the record is damaged.

    The result is [] for a folder that version 1.0.0 has written, because it has no such record.
    """
    damaged = "the names of the files of series and calls in {path} are damaged ({error}): remove the file"
    return _read(folder, COLLECTED, msgspec.json.Decoder(list[str]).decode, damaged) or []


def note_collected(folder: "Folder", name: str) -> None:
    """Add the name of a written file of collected data to the record COLLECTED.

    Raises OSError if the record cannot be written, LogError if it is damaged.
    """
    names = [*dict.fromkeys([*collected_names(folder), name])]
    folder.write_file(COLLECTED, msgspec.json.format(msgspec.json.encode(names), indent=2) + b"\n")


# -- sets of agents ---------------------------------------------------------------------------------------------------


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    ints: bytes  # int64 ids, ascending
    strings: tuple[str, ...]


def write_agents(folder: "Folder", digest: str, agents: AgentSet) -> None:
    """Write a set of agents to a file, whose name is the digest of the set. Raises OSError if that fails."""
    stored = _Stored(agents.ints.astype("<i8", copy=False).tobytes(), tuple(sorted(agents.strings)))
    folder.write_file(_file(digest), msgspec.msgpack.encode(stored))


def read_agents(folder: "Folder", digest: str) -> AgentSet | None:
    """Return the set of agents with this digest, or None if the folder has no file with it.

    Raises LogError if the file is damaged.
    """

    def decoded(data: bytes) -> AgentSet:
        stored = msgspec.msgpack.decode(data, type=_Stored)
        return AgentSet(np.frombuffer(stored.ints, "<i8"), stored.strings)

    return _read(folder, _file(digest), decoded, "the agents of a mailbox in {path} are damaged: {error}")


def all_agents(folder: "Folder") -> AgentSet:
    """Return all agents that are in any of a folder's sets of agents. Raises LogError if a file is damaged."""
    found = NO_AGENTS
    for digest in folder.agent_sets():
        found |= read_agents(folder, digest) or NO_AGENTS
    return found


def _file(digest: str) -> str:
    return f"_agents-{digest}.bin"


def _read(folder: "Folder", name: str, decode: Callable[[bytes], T], damaged: str) -> T | None:
    """Return the decoded content of a file, or None if the file is absent.

    Raises: LogError with the text `damaged` if the file is damaged.
    """
    data = folder.read_file(name)
    try:
        return decode(data) if data else None
    except ConfigError:  # A ConfigError is also a ValueError, which the next clause would catch.
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError, TypeError, KeyError) as error:
        path = f"{folder.where}/{name}"
        raise LogError(damaged.format(path=path, error=error), path=path) from error
