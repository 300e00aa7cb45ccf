"""The event log's folder, which contains the log as Parquet files, called segments. A segment is complete or absent.

The footer of a segment also has the log's cursors, which say how far the log has read each stream on the server.

A segment's name is `events-{number:08d}.parquet`, so that any reader of Parquet folders can read this one. A segment is
written under a name that readers ignore, made durable, and renamed.

Object stores can neither rename files nor lock folders. There a file is written in one piece, and appears when it is
complete. A writer that a successor has replaced may still be writing a file, which must not replace a file of the
successor. So on an object store the name of a segment ends with the epoch of its writer, a number that is higher for
each new writer: `events-{number:08d}-e{epoch}.parquet`. If several segments have the same number, readers use the one
with the highest epoch. Of several files of collected data (see `collected.py`) with the same steps, readers also use
the one with the highest epoch.

In version 5 of the schema, a segment could be split into several files, one for each set of typed columns. Segments of
version 5 can be read if they are not split.
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
from ray_messaging.eventlog.folder_records import note_collected
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
from ray_messaging.eventlog.log_uri import checked_uri
from ray_messaging.transports.step_values import CollectedKind

KEY = b"ray_messaging"  # the key of this library's data in the metadata of a segment's footer

SEGMENT = re.compile(r"events-(\d{8,})(?:-e(\d+))?\.parquet")
# The names of the files of a split segment in version 5 of the schema.
_OTHER = re.compile(r"events-\d{8,}-\d+-\d+\.parquet")
_AGENTS = re.compile(r"_agents-(\w+)\.bin")
_LEFTOVER = re.compile(r"_[\w.-]+\.tmp")
_RECORDS = re.compile(r"_(run|rule_changes|account)\.json")
_COLLECTED = re.compile(r"_collected\.json")
_LOCK = "_lock"
_ANY = re.compile(r".+")
_COLLECTED_FILE = re.compile(r"(\d{8,})-(\d{8,})(?:-e(\d+))?\.parquet")
CHECKPOINTS = "_checkpoints"  # the name of the folder with checkpoints
AUDIENCES = "audiences"  # the name of the folder with the files of audiences
_CHECKPOINT_FILE = re.compile(r"\d{8,}\.parquet")


class StepPosition(NamedTuple):
    """How far the log has read an experiment's steps.

    `handled` is the last step whose messages are all in the log. Of later steps, the log can have only messages that
    were sent outside of steps. A box holds the messages that one mailbox reads in one step. `outside` maps each box of
    a later step to the number of rows that the log has read from the box.
    """

    handled: int
    outside: dict[str, int]


class Segment(msgspec.Struct, frozen=True):
    """A segment: one Parquet file of the log. `first_row` is the number of rows in all earlier files."""

    path: str
    number: int
    rows: int
    first_row: int
    cursors: dict[str, str]  # stream -> the last entry of the stream that is in this segment or an earlier one
    exp_id: str
    epoch: int  # the epoch of the writer: a later writer has a higher number
    size: int  # the size of the file in bytes
    # Stream -> the entry that is only partly in the log, and how many of the entry's rows the log has.
    begun: dict[str, tuple[str, int]] = {}
    # Stream -> the number of messages and bytes that were read from it up to this segment.
    taken: dict[str, tuple[int, int]] = {}
    first_s: float | None = None  # earliest sent_at, in unix seconds; None: unknown
    last_s: float | None = None  # latest sent_at
    steps: StepPosition | None = None  # the log's position in the steps; None: there are no steps


class Staged(NamedTuple):
    """A segment of the log that readers do not see yet.

    In a local folder, `content` is the path of a durable temporary file, which will be renamed. On an object store, it
    is the bytes of the future file, which is not written yet.
    """

    segment: Segment
    content: str | pa.Buffer


class Folder:
    """Folder of an event log: a path, or a URI of pyarrow's file systems.

    The methods that write a file of the log raise OSError if that fails. The other methods raise LogError if the folder
    or a file in it cannot be used, and ConfigError if a segment has the schema of another version, or if a URI has a
    password.
    """

    def __init__(self, log_dir: str | Path) -> None:
        self.where = checked_uri(str(log_dir))
        try:
            self.filesystem, self.path = _resolve(self.where)
        except (OSError, ValueError) as error:
            raise self._error(
                f"{error}; write a path, or a URI of pyarrow's file systems (file://, s3://, gs://, hdfs://)"
            ) from error
        self.local = isinstance(self.filesystem, pafs.LocalFileSystem)

    def prepare(self, exp_id: str, *, any_schema: bool = False) -> None:
        """Create the folder for an experiment's log if needed, and check that it can be used.

        Args: with `any_schema`, log files with another schema are accepted. The caller is going to remove them.

        Raises: LogError if the folder cannot be written, or holds the log of another experiment; ConfigError for a
        segment of another schema.
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
            raise self._error(f"the folder cannot be written: {error}; {self._advice(error)}") from error
        for segment in self.segments(any_schema=any_schema):
            if segment.exp_id != exp_id:
                raise self._error(
                    f"it contains the log of experiment {segment.exp_id!r}, but this is experiment {exp_id!r}: give "
                    "each experiment a log_dir of its own",
                    segment.path,
                )

    def segments(self, *, any_schema: bool = False) -> list[Segment]:
        """Read the footers of the log's Parquet files, called segments; return a description of each, sorted by number.

        Args: with `any_schema`, segments of another schema are accepted.

        Raises: LogError with the path of the first damaged segment; ConfigError for a segment of another schema.
        """
        found = (self._read(info, any_schema=any_schema) for info in self._listed())
        return sorted(found, key=lambda segment: segment.number)

    def write(self, number: int, table: pa.Table, meta: dict[str, Any]) -> Segment:
        """Write a segment (a Parquet file of the log) durably, in place of a segment with the same number.

        Args: `meta` is as for `stage`.

        Raises: OSError if that fails.
        """
        return self.publish(self.stage(number, table, meta))

    def stage(self, number: int, table: pa.Table, meta: dict[str, Any]) -> Staged:
        """Encode a segment (a Parquet file of the log), and on a local file system make its bytes durable.

        Readers do not see it before `publish`.

        Args: meta must have exp_id, epoch, first_row and cursors; first_s, last_s, begun, taken and steps are optional.

        Raises: OSError if the file cannot be written.
        """
        name = f"events-{number:08d}.parquet" if self.local else f"events-{number:08d}-e{meta['epoch']}.parquet"
        meta = {"version": VERSION, "number": number, "rows": len(table), **meta}
        data = _encoded(with_positions(without_empty(table), meta["first_row"]), meta)
        segment = _segment(self._file(name), data.size, meta)
        return Staged(segment, self._durable(f"_{name}", data) if self.local else data)

    def publish(self, staged: Staged) -> Segment:
        """Make a segment from `stage` visible to readers, durably. Raises OSError if that fails."""
        segment, content = staged
        if isinstance(content, str):
            Path(content).replace(segment.path)
            _fsync(self.path)
        else:
            self._put(segment.path, content)
        return segment

    def erase(self, *, records: bool = False) -> None:
        """Remove the log's segments, checkpoints, collected data, sets of agents and temporary files.

        Args: with `records`, also remove the records of the run, and the files of audiences.

        Raises: LogError if a file cannot be removed.
        """
        beside = {CHECKPOINTS, *(f"_{kind}" for kind in CollectedKind)} | ({AUDIENCES} if records else set())
        segments = sorted(self._files(SEGMENT), key=lambda info: _number(info.base_name))
        try:
            # The newest segments are removed first. After an interruption the log then ends early, and has no gap.
            for info in reversed(
                [
                    *(self._files(_RECORDS) if records else ()),
                    *self._files(_OTHER),
                    *segments,
                    *self._files(_LEFTOVER),
                    *self._files(_AGENTS),
                    *self._files(_COLLECTED),
                ]
            ):
                self.filesystem.delete_file(info.path)
            for name in beside.intersection(self.subfolders("")):
                self.filesystem.delete_dir(self._file(name))
            if self.local and Path(self.path).is_dir():
                _fsync(self.path)
        except OSError as error:
            raise self._error(f"files in it cannot be removed: {error}; {self._advice(error)}") from error

    def exists(self) -> bool:
        """Return whether the folder exists; raise LogError if its path cannot be read."""
        try:
            return bool(self.filesystem.get_file_info(self.path).type == pafs.FileType.Directory)
        except OSError as error:
            raise self._error(f"the folder cannot be read: {error}; {self._advice(error)}") from error

    def read_file(self, name: str) -> bytes:
        """Return the content of a file in the log's folder, or b"" if there is none. Raises LogError if that fails."""
        try:
            with self.filesystem.open_input_stream(self._file(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._error(f"the file {name} in it cannot be read: {error}; {self._advice(error)}") from error

    def names(self, path: str) -> list[str]:
        """Return the names of the files in a subfolder, sorted; [] if it does not exist."""
        return sorted(info.base_name for info in self._files(_ANY, self._file(path)))

    def subfolders(self, name: str) -> list[str]:
        """Return the names of the folders in a subfolder ("": in this folder itself)."""
        selector = pafs.FileSelector(self._file(name), allow_not_found=True)
        return [info.base_name for info in self._infos(selector) if info.type == pafs.FileType.Directory]

    def agent_sets(self) -> list[str]:
        """Return the digests of the sets of agents that are stored in the folder."""
        return [found[1] for info in self._files(_AGENTS) if (found := _AGENTS.fullmatch(info.base_name)) is not None]

    def collected_files(self, kind: CollectedKind, born: str | None = None) -> list[str]:
        """Return the paths of the files of one kind of collected data, sorted by their steps.

        If files of two writers of the log have a step in common, only the file of the later writer is returned.

        Args: `born` is the time at which the server began to count the steps (see `collected.py`). None: the latest
        such time in the folder.

        Raises: LogError if the folder cannot be read.
        """
        found = self.subfolders(f"_{kind}") if born is None else [born]
        path = self._file(f"_{kind}/{max(found)}" if found else f"_{kind}")
        kept: list[tuple[int, int, str]] = []
        files = [(steps_and_epoch(info.path), info.path) for info in self._files(_COLLECTED_FILE, path)]
        for (first, last, _), file in sorted(files, key=lambda each: each[0][2], reverse=True):
            if all(last < low or first > high for low, high, _ in kept):
                kept.append((first, last, file))
        return [file for *_, file in sorted(kept)]

    def write_collected(
        self, kind: CollectedKind, born: str, steps: tuple[int, int], data: bytes | pa.Buffer, *, epoch: int
    ) -> None:
        """Write a file with collected data of one kind and of some steps, atomically and durably.

        Args: `born` is the time at which the server began to count the steps. `steps` are the first and the last step
        of the data. `epoch` is the number of the log's present writer: each new writer gets a higher number.

        Raises: OSError if the file cannot be written.
        """
        of_writer = "" if self.local else f"-e{epoch}"
        name = f"_{kind}/{born}/{steps[0]:08d}-{steps[1]:08d}{of_writer}.parquet"
        self.write_file(name, data)
        note_collected(self, name)

    def checkpoints(self) -> list[int]:
        """Return the steps that have a checkpoint, ascending; raise LogError if the folder cannot be read."""
        files = self._files(_CHECKPOINT_FILE, self._file(CHECKPOINTS))
        return sorted(int(info.base_name.partition(".")[0]) for info in files)

    def write_file(self, name: str, data: bytes | pa.Buffer) -> None:
        """Write a file into the log's folder, atomically and durably. Raises OSError if that fails.

        Folders in `name` are created. If several calls write the same file at the same time, the last one replaces the
        others.
        """
        path, (top, *below) = self._file(name), name.split("/")
        if below:
            self.filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        if not self.local:
            self._put(path, data)
            return
        temporary = self._durable(top, data)
        try:
            Path(temporary).replace(path)
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise
        for folder in Path(path).parents[: len(below) + 1]:
            _fsync(str(folder))

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Lock the folder against other writers; yield whether this writer may write.

        The result is False if another writer has the lock. An object store has no locks, so there the result is always
        True.
        """
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

    def _durable(self, name: str, data: bytes | pa.Buffer) -> str:
        """Write a temporary file of a local folder durably, and return its path. Raises OSError if that fails."""
        temporary = self._temporary(name)
        try:
            self._put(temporary, data)
            _fsync(temporary)
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(temporary)
            raise
        return temporary

    def _put(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a file in one piece.

        On an object store, the file appears when the stream is closed, and pyarrow also closes the stream after an
        error in Python. So that no incomplete file appears, all bytes must be known before the stream is opened.
        """
        with self.filesystem.open_output_stream(path) as stream:
            stream.write(data)

    def _listed(self) -> list[pafs.FileInfo]:
        newest: dict[int, tuple[int, pafs.FileInfo]] = {}
        for info in self._files(SEGMENT):
            number, epoch = _number(info.base_name), _epoch(info.base_name)
            if number not in newest or epoch > newest[number][0]:
                newest[number] = epoch, info
        return [newest[number][1] for number in sorted(newest)]

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
            raise self._error(f"the folder cannot be read: {error}; {self._advice(error)}") from error
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
                    f"version of ray_messaging cannot read (it writes schema {VERSION}): read the folder with the "
                    "version of "
                    "ray_messaging that wrote it, which its _run.json names, and give this version another log_dir"
                )
            if not split and (meta["rows"], meta["number"]) != (footer.num_rows, _number(info.base_name)):
                raise ValueError("the file's footer belongs to another segment of a log")  # noqa: TRY301 - one way out
            return _segment(info.path, info.size, meta)
        except ConfigError:  # a ConfigError is also a ValueError, which the next clause would catch
            raise
        except (KeyError, msgspec.ValidationError) as error:
            raise self.damaged(info.path, "the file's footer lacks the metadata that ray_messaging writes") from error
        except (OSError, pa.ArrowInvalid, ValueError, TypeError) as error:
            raise self.damaged(info.path, error) from error

    def damaged(self, path: str, error: object) -> LogError:
        """Build the error for a file of the log, a segment or a file of collected data, that cannot be read."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return self._error(f"it is not there any more ({error.strerror or error}): put it back", path)
        why = " ".join(str(error).split())
        return self._error(f"it is damaged ({why}): move it away; the log's other files can still be read", path)

    def _temporary(self, name: str) -> str:
        """Return a path to which no other process writes.

        The path is unique, because an earlier writer may still run after another process has taken over its log.
        """
        return self._file(f"{name}.{secrets.token_hex(8)}.tmp")

    def _file(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def _advice(self, error: OSError) -> str:
        if not self.local:
            return (
                "a bucket must exist, and the processes of Ray that read and write it need its credentials and its "
                "address in their environment, for s3:// as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and "
                "AWS_ENDPOINT_URL if the store is not Amazon's"
            )
        advice = {
            errno.ENOSPC: "make room on the disk",
            errno.EDQUOT: "make room, or have the quota raised",
            errno.EACCES: "pass a log_dir that this process may write",
            errno.EROFS: "pass a log_dir on a file system that can be written",
            errno.ENOTDIR: "there is a file at that path: pass another log_dir",
            errno.EEXIST: "there is a file at that path: pass another log_dir",
        }
        return advice.get(error.errno or 0, "pass a log_dir that exists or can be created, and is writable")

    def _error(self, reason: str, path: str | None = None) -> LogError:
        of = f"file {path} of the event log" if path else f"the event log's folder {self.where}"
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


def steps_and_epoch(file: str) -> tuple[int, int, int]:
    """Return the first step, the last step and the epoch that are in the name of a file of collected data.

    The epoch is the number of the log's writer that wrote the file, or -1 if the name has none.
    """
    found = _COLLECTED_FILE.fullmatch(file.rpartition("/")[2])
    assert found is not None
    return int(found[1]), int(found[2]), int(found[3] or -1)


def _epoch(name: str) -> int:
    """Return the number of the writer, its epoch, from the name of a log file; -1 if the name has none."""
    found = SEGMENT.fullmatch(name)
    assert found is not None
    return int(found[2] or -1)


def _encoded(table: pa.Table, meta: dict[str, Any]) -> pa.Buffer:
    stored, sink = as_stored(table), pa.BufferOutputStream()
    of_schema = type_record(table.schema) | channel_head(table.schema)
    with pq.ParquetWriter(sink, stored.schema, **parquet_options(stored)) as writer:
        writer.write_table(stored, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata({KEY.decode(): json.dumps(meta)} | of_schema)
    return sink.getvalue()


def _segment(path: str, size: int, meta: dict[str, Any]) -> Segment:
    """Describe a file of the log by the metadata in its footer; raise msgspec.ValidationError if they are invalid."""
    return msgspec.convert(meta | {"path": path, "size": size}, Segment)


def _fsync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
