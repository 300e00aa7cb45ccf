"""The event log's folder, which contains Parquet segments. Each segment is complete or absent.

The footer of a segment also has the log's stream cursors, which say how far the log has read each stream.

A segment is `events-{number:08d}.parquet`, so that any reader of Parquet folders can read this one. It is written under
a name that readers ignore, made durable, and renamed. File systems that are not local cannot rename: there a file
appears, complete, when it is closed.

In version 5 of the schema, a segment had a file for each set of typed columns. Of these segments, those with only one
file can be read.
"""

import errno
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.log_schema import (
    READABLE,
    ROW_GROUP_ROWS,
    VERSION,
    as_stored,
    channel_head,
    parquet_options,
    type_record,
    with_positions,
    without_empty,
)
from ray_messaging.transports.step_values import CollectedKind

KEY = b"ray_messaging"  # This library's facts are under this key in the metadata of a segment's footer.

SEGMENT = re.compile(r"events-(\d{8,})\.parquet")
# Version 5 of the schema could split a segment into several files with such names.
_OTHER = re.compile(r"events-\d{8,}-\d+-\d+\.parquet")
_AGENTS = re.compile(r"_agents-(\w+)\.bin")
_LEFTOVER = re.compile(r"_[\w.-]+\.tmp")
_LOCK = "_lock"
_COLLECTED_FILE = re.compile(r"\d{8,}-\d{8,}\.parquet")
CHECKPOINTS = "_checkpoints"  # the name of the folder with checkpoints
_CHECKPOINT_FILE = re.compile(r"\d{8,}\.parquet")


class StepPosition(NamedTuple):
    """How far the log has got in an experiment's steps.

    `handled` is the last step whose messages are all in the log. Of a later step, only messages from outside of the
    steps can be in the log: `outside` maps each box of a later step to the number of its rows from outside. A box has
    the messages that one mailbox reads in one step.
    """

    handled: int
    outside: dict[str, int]


class Segment(msgspec.Struct, frozen=True):
    """One piece of the log. `first_row` is the number of rows in all earlier segments."""

    path: str
    number: int
    rows: int
    first_row: int
    cursors: dict[str, str]  # stream -> the last entry of the stream that is in this segment or an earlier one
    exp_id: str
    epoch: int  # the epoch of the writer: a later writer has a higher number
    size: int  # in bytes
    # Stream -> the entry that is only partly in the log, and how many of its rows are in it.
    begun: dict[str, tuple[str, int]] = {}
    # Stream -> the number of messages and bytes that were read from it up to this segment.
    taken: dict[str, tuple[int, int]] = {}
    first_s: float | None = None  # earliest sent_at, in unix seconds; None: unknown
    last_s: float | None = None  # latest sent_at
    steps: StepPosition | None = None  # the log's position in the steps; None: there are no steps


class Staged(NamedTuple):
    """A durable segment whose file still has a temporary name."""

    segment: Segment
    temporary: str


class Folder:
    """Folder of an event log: a path, or a URI of pyarrow's file systems.

    Its methods raise LogError if the folder or a file in it cannot be used, and ConfigError if a segment has the schema
    of another version.
    """

    def __init__(self, log_dir: str | Path) -> None:
        self.where = str(log_dir)
        try:
            self.filesystem, self.path = _resolve(self.where)
        except (OSError, ValueError) as error:
            raise self._error(
                f"{error}; write a path, or a URI of pyarrow's file systems (file://, s3://, gs://, hdfs://)"
            ) from error
        self.local = isinstance(self.filesystem, pafs.LocalFileSystem)

    def prepare(self, exp_id: str, *, any_schema: bool = False) -> None:
        """Create the folder for an experiment's log if needed, and check that it can be used.

        Args: with `any_schema`, segments of another schema are accepted, because they will be removed.

        Raises: LogError if the folder cannot be written, or holds the log of another experiment.
        """
        probe = self._temporary("_probe")
        try:
            self.filesystem.create_dir(self.path, recursive=True)
            with self.filesystem.open_output_stream(probe) as stream:
                stream.write(b"probe")
            self.filesystem.delete_file(probe)
            for info in self._files(_LEFTOVER):
                self.filesystem.delete_file(info.path)
        except OSError as error:
            raise self._error(f"it cannot be written: {error}; {_advice(error)}") from error
        for segment in self.segments(any_schema=any_schema):
            if segment.exp_id != exp_id:
                raise self._error(
                    f"it holds the log of experiment {segment.exp_id!r}, and this is experiment {exp_id!r}: give each "
                    "experiment a log_dir of its own",
                    segment.path,
                )

    def segments(self, *, any_schema: bool = False) -> list[Segment]:
        """Return the segments, sorted by number, as their footers describe them.

        Args: with `any_schema` segments of another schema are accepted.

        Raises: LogError with the path of the first damaged segment; ConfigError for a segment of another schema.
        """
        found = (self._read(info, any_schema=any_schema) for info in self._listed())
        return sorted(found, key=lambda segment: segment.number)

    def write(self, number: int, table: pa.Table, meta: dict[str, Any]) -> Segment:
        """Write a segment durably; it replaces a segment of the same number. Raises OSError if that fails."""
        return self.publish(self.stage(number, table, meta))

    def stage(self, number: int, table: pa.Table, meta: dict[str, Any]) -> Staged:
        """Make a segment's bytes durable, but (on local file systems) not visible yet.

        Args: meta must have exp_id, epoch, first_row and cursors; first_s, last_s, begun, taken and steps are optional.

        Raises: OSError if the file cannot be written.
        """
        name = f"events-{number:08d}.parquet"
        temporary = self._temporary(f"_{name}") if self.local else self._file(name)
        meta = {"version": VERSION, "number": number, "rows": len(table), **meta}
        try:
            size = self._write_table(temporary, with_positions(without_empty(table), meta["first_row"]), meta)
        except BaseException:
            # On other file systems an unclosed file does not exist, and the path still has the previous file.
            if self.local:
                with suppress(OSError):
                    self.filesystem.delete_file(temporary)
            raise
        return Staged(_segment(self._file(name), size, meta), temporary)

    def publish(self, staged: Staged) -> Segment:
        """Rename the file of a staged segment to its final name, durably. Raises OSError if that fails."""
        segment, temporary = staged
        if self.local:
            Path(temporary).replace(segment.path)
            _fsync(self.path)
        return segment

    def erase(self) -> None:
        """Remove the segments, the files beside them, and leftovers of a crash. Raises LogError if that fails."""
        try:
            # The newest segments go first, so that an interruption leaves a log that ends early, not one with a gap.
            for info in reversed(
                [*self._files(_OTHER), *self._listed(), *self._files(_LEFTOVER), *self._files(_AGENTS)]
            ):
                self.filesystem.delete_file(info.path)
            for name in {CHECKPOINTS, *(f"_{kind}" for kind in CollectedKind)}.intersection(self._subfolders("")):
                self.filesystem.delete_dir(self._file(name))
            if self.local and Path(self.path).is_dir():
                _fsync(self.path)
        except OSError as error:
            raise self._error(f"its segments cannot be removed: {error}; {_advice(error)}") from error

    def exists(self) -> bool:
        """Return whether there is a folder at this path; raise LogError if the path cannot be read."""
        try:
            return bool(self.filesystem.get_file_info(self.path).type == pafs.FileType.Directory)
        except OSError as error:
            raise self._error(f"it cannot be read: {error}; {_advice(error)}") from error

    def read_file(self, name: str) -> bytes:
        """Return the content of a file beside the segments, b"" if it does not exist. Raises LogError if that fails."""
        try:
            with self.filesystem.open_input_stream(self._file(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._error(f"its {name} cannot be read: {error}; {_advice(error)}") from error

    def agent_sets(self) -> list[str]:
        """Return the digests under which the folder stores sets of agents."""
        return [found[1] for info in self._files(_AGENTS) if (found := _AGENTS.fullmatch(info.base_name)) is not None]

    def collected_files(self, kind: CollectedKind, born: str | None = None) -> list[str]:
        """Return the files of one kind of collected data, by their steps; raise LogError if the folder cannot be read.

        Args: `born` is the time at which the server began to count the steps of these files; None: the newest such
        time.
        """
        found = self._subfolders(f"_{kind}") if born is None else [born]
        path = self._file(f"_{kind}/{max(found)}" if found else f"_{kind}")
        return sorted(info.path for info in self._files(_COLLECTED_FILE, path))

    def write_collected(self, kind: CollectedKind, born: str, first: int, last: int, data: bytes | pa.Buffer) -> None:
        """Write collected data of one kind and of the steps `first` to `last`, atomically and durably.

        Raises: OSError if that fails.
        """
        self.write_file(f"_{kind}/{born}/{first:08d}-{last:08d}.parquet", data)

    def checkpoints(self) -> list[int]:
        """Return the steps that have a checkpoint after them, ascending; raise LogError if the folder is unreadable."""
        files = self._files(_CHECKPOINT_FILE, self._file(CHECKPOINTS))
        return sorted(int(info.base_name.partition(".")[0]) for info in files)

    def write_file(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file beside the segments, atomically and durably. Raises OSError if that fails.

        Folders in its name are created. If several calls write one file at the same time, the last one counts.
        """
        path, (top, *below) = self._file(name), name.split("/")
        if below:
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        temporary = self._temporary(top) if self.local else path
        try:
            with self.filesystem.open_output_stream(temporary) as stream:
                stream.write(data)
            if self.local:
                _fsync(temporary)
                Path(temporary).replace(path)
        except BaseException:
            if self.local:
                with suppress(OSError):
                    self.filesystem.delete_file(temporary)
            raise
        for folder in Path(path).parents[: len(below) + 1] if self.local else ():
            _fsync(str(folder))

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock the folder against other writers, if it is local; yield False if another writer has the lock."""
        if not self.local:
            yield True
            return
        handle = os.open(self._file(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(handle)

    def _write_table(self, path: str, table: pa.Table, meta: dict[str, Any]) -> int:
        stored = as_stored(table)
        of_schema = type_record(table.schema) | channel_head(table.schema)
        with self.filesystem.open_output_stream(path) as stream:
            with pq.ParquetWriter(stream, stored.schema, **parquet_options(stored)) as writer:
                writer.write_table(stored, row_group_size=ROW_GROUP_ROWS)
                writer.add_key_value_metadata({KEY.decode(): json.dumps(meta)} | of_schema)
            size = stream.tell()
        if self.local:
            _fsync(path)
        return int(size)

    def _subfolders(self, name: str) -> list[str]:
        selector = pafs.FileSelector(self._file(name), allow_not_found=True)
        return [info.base_name for info in self._infos(selector) if info.type == pafs.FileType.Directory]

    def _listed(self) -> list[pafs.FileInfo]:
        return sorted(self._files(SEGMENT), key=lambda info: _number(info.base_name))

    def _files(self, names: re.Pattern[str], path: str | None = None) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(path or self.path, allow_not_found=True)
        return [
            info
            for info in self._infos(selector)
            if info.type == pafs.FileType.File and names.fullmatch(info.base_name)
        ]

    def _infos(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        try:
            found: list[pafs.FileInfo] = self.filesystem.get_file_info(selector)
        except OSError as error:
            raise self._error(f"it cannot be read: {error}; {_advice(error)}") from error
        return found

    def _read(self, info: pafs.FileInfo, *, any_schema: bool) -> Segment:
        try:
            footer = pq.read_metadata(info.path, filesystem=self.filesystem)
            meta = json.loads((footer.metadata or {})[KEY])
            split = bool(meta.get("others"))  # in version 5, a segment could be split into several files
            if not any_schema and (split or meta["version"] not in READABLE):
                raise ConfigError(  # noqa: TRY301 - one way out
                    f"segment {info.path} of the event log has schema "
                    f"{meta['version']}{', with a file for each set of typed columns' if split else ''}, which this "
                    f"ray_messaging does not read (it writes schema {VERSION}): read the folder with the version of "
                    "ray_messaging that wrote it, which its _run.json names, and give this version another log_dir"
                )
            if not split and (meta["rows"], meta["number"]) != (footer.num_rows, _number(info.base_name)):
                raise ValueError("its footer belongs to another segment")  # noqa: TRY301 - one way out
            return _segment(info.path, info.size, meta)
        except ConfigError:  # A ConfigError is also a ValueError, which the next clause would catch.
            raise
        except (KeyError, msgspec.ValidationError) as error:
            raise self.damaged(info.path, "its footer lacks what this library writes there") from error
        except (OSError, pa.ArrowInvalid, ValueError, TypeError) as error:
            raise self.damaged(info.path, error) from error

    def damaged(self, path: str, error: object) -> LogError:
        """Return the error for a file that cannot be read."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return self._error(f"it is not there any more ({error.strerror or error}): put it back", path)
        why = " ".join(str(error).split())
        return self._error(f"it is damaged ({why}): move it away, the other segments stay readable", path)

    def _temporary(self, name: str) -> str:
        """Return a path to which no other process writes.

        An earlier writer may still run for a while after another process has taken over its log.
        """
        return self._file(f"{name}.{secrets.token_hex(8)}.tmp")

    def _file(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def _error(self, reason: str, path: str | None = None) -> LogError:
        of = f"segment {path} of the event log" if path else f"the event log's folder {self.where}"
        return LogError(f"{of} cannot be used: {reason}", path=path or self.where)


def _resolve(where: str) -> tuple[pafs.FileSystem, str]:
    if "://" not in where:
        return pafs.LocalFileSystem(), str(Path(where).expanduser().absolute())
    filesystem, path = pafs.FileSystem.from_uri(where)
    return filesystem, path


def _number(name: str) -> int:
    found = SEGMENT.fullmatch(name)
    assert found is not None
    return int(found[1])


def _segment(path: str, size: int, meta: dict[str, Any]) -> Segment:
    """Build a segment from the metadata in its footer; raise msgspec.ValidationError if they are not valid."""
    return msgspec.convert(meta | {"path": path, "size": size}, Segment)


def _advice(error: OSError) -> str:
    advice = {
        errno.ENOSPC: "make room on the disk",
        errno.EDQUOT: "make room, or have the quota raised",
        errno.EACCES: "pass a log_dir that this process may write",
        errno.EROFS: "pass a log_dir on a file system that can be written",
        errno.ENOTDIR: "a file is in the way, pass another log_dir",
        errno.EEXIST: "a file is in the way, pass another log_dir",
    }
    return advice.get(error.errno or 0, "pass a log_dir that exists or can be created, and is writable")


def _fsync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
