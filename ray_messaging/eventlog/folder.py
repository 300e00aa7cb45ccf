"""The event log's folder: Parquet segments, each whole or not there, each saying in its footer up to where it reads.

A segment is `events-{number:08d}.parquet`, so that whoever reads a folder of Parquet reads this one. It is written
under a name that readers pass over, made durable, and renamed. On file systems that are not local there is no renaming:
there a file appears whole when it is closed.
"""

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ray_messaging.errors import LogError
from ray_messaging.eventlog.encoding import ROW_GROUP_ROWS, parquet_options

VERSION = 1
KEY = b"ray_messaging"  # of the footer's metadata

_SEGMENT = re.compile(r"events-(\d{8,})\.parquet")
_LEFTOVER = re.compile(r"_events-\d+\.parquet\.tmp|_probe|_\w+\.json\.tmp")
_LOCK = "_lock"


class Segment(NamedTuple):
    """One file of the log; `first_row` counts the rows of all segments before it."""

    path: str
    number: int
    rows: int
    first_row: int
    cursors: dict[str, str]  # stream -> the entry up to which this and all earlier segments hold it
    exp_id: str
    epoch: int  # the writer's
    size: int  # bytes
    begun: dict[str, tuple[str, int]]  # stream -> the entry after its cursor, and how many rows of it are held
    first_s: float | None = None  # the earliest sent_at, unix s; None: not known
    last_s: float | None = None  # the latest
    taken: dict[str, tuple[int, int]] | None = None  # stream -> messages and bytes that it and all earlier ones took


class Staged(NamedTuple):
    """A segment that is durable, but not yet under its name."""

    segment: Segment
    temporary: str


class Folder:
    """Open the folder of an event log: a path, or a URI that pyarrow's file systems know. Raises LogError."""

    def __init__(self, log_dir: str | Path) -> None:
        self.where = str(log_dir)
        try:
            self.filesystem, self.path = _resolve(self.where)
        except (OSError, ValueError) as error:
            raise self._error(
                f"{error}; write a path, or a URI of pyarrow's file systems (file://, s3://, gs://, hdfs://)"
            ) from error
        self.local = isinstance(self.filesystem, pafs.LocalFileSystem)

    def prepare(self, exp_id: str) -> None:
        """Make the folder ready for an experiment's log; raise LogError where it cannot be written, or is another's."""
        probe = self._file("_probe")
        try:
            self.filesystem.create_dir(self.path, recursive=True)
            with self.filesystem.open_output_stream(probe) as stream:
                stream.write(b"can this be written?")
            self.filesystem.delete_file(probe)
            for info in self._files(_LEFTOVER):
                self.filesystem.delete_file(info.path)
        except OSError as error:
            raise self._error(f"it cannot be written: {error}; {_advice(error)}") from error
        for segment in self.segments():
            if segment.exp_id != exp_id:
                raise self._error(
                    f"it holds the log of experiment {segment.exp_id!r}, this is {exp_id!r}: pass a log_dir of its own",
                    segment.path,
                )

    def segments(self) -> list[Segment]:
        """Return the segments by number, as their footers have them; raise LogError naming one that is damaged."""
        return sorted((self._read(info) for info in self._listed()), key=lambda segment: segment.number)

    def open(self, segment: Segment) -> pq.ParquetFile:
        """Open a segment; the caller closes it. Raises LogError."""
        try:
            return pq.ParquetFile(segment.path, filesystem=self.filesystem, page_checksum_verification=True)
        except (OSError, pa.ArrowInvalid) as error:
            raise self._damaged(segment.path, error) from error

    def write(self, number: int, table: pa.Table, meta: dict[str, Any]) -> Segment:
        """Write a segment, durable when this returns; one of that number is replaced, whole. Raises OSError."""
        return self.publish(self.stage(number, table, meta))

    def stage(self, number: int, table: pa.Table, meta: dict[str, Any]) -> Staged:
        """Make a segment's bytes durable without it being seen yet (where that can be done). Raises OSError.

        Args: meta has exp_id, epoch, first_row and cursors; it may have first_s, last_s, begun and taken.
        """
        meta = {"version": VERSION, "number": number, "rows": table.num_rows, **meta}
        path = self._file(f"events-{number:08d}.parquet")
        temporary = self._file(f"_events-{number:08d}.parquet.tmp") if self.local else path
        try:
            size = self._write_table(temporary, table, meta)
        except BaseException:
            if self.local:  # elsewhere what was not closed was never there, and what is there is the one before
                with suppress(OSError):
                    self.filesystem.delete_file(temporary)
            raise
        return Staged(_segment(path, size, meta), temporary)

    def publish(self, staged: Staged) -> Segment:
        """Give a staged segment its name, durably. Raises OSError."""
        segment, temporary = staged
        if self.local:
            Path(temporary).replace(segment.path)
            _fsync(self.path)
        return segment

    def erase(self) -> None:
        """Remove the segments, and what a crash left. Raises LogError."""
        try:
            # The newest first: whoever is interrupted leaves a log that ends early, not one with a hole.
            for info in reversed([*self._listed(), *self._files(_LEFTOVER)]):
                self.filesystem.delete_file(info.path)
            if self.local and Path(self.path).is_dir():
                _fsync(self.path)
        except OSError as error:
            raise self._error(f"its segments cannot be removed: {error}; {_advice(error)}") from error

    def read_small(self, name: str) -> bytes:
        """Return what a small file beside the segments holds; nothing where it is not there. Raises LogError."""
        try:
            with self.filesystem.open_input_stream(self._file(name)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._error(f"its {name} cannot be read: {error}; {_advice(error)}") from error

    def write_small(self, name: str, data: bytes) -> None:
        """Write a small file beside the segments, whole and durable when this returns. Raises OSError."""
        path = self._file(name)
        temporary = f"{path}.tmp" if self.local else path
        with self.filesystem.open_output_stream(temporary) as stream:
            stream.write(data)
        if self.local:
            _fsync(temporary)
            Path(temporary).replace(path)
            _fsync(self.path)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Keep other writers of this folder out, for as long as a name is given; False: another has it right now.

        Where the file system is not local there is nothing to hold on to, and this is always True.
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

    def _write_table(self, path: str, table: pa.Table, meta: dict[str, Any]) -> int:
        schema = table.schema.with_metadata({KEY: json.dumps(meta).encode()})
        with self.filesystem.open_output_stream(path) as stream:
            with pq.ParquetWriter(stream, schema, **parquet_options(table)) as writer:
                writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=ROW_GROUP_ROWS)
            size = stream.tell()
        if self.local:
            _fsync(path)
        return int(size)

    def _listed(self) -> list[pafs.FileInfo]:
        return sorted(self._files(_SEGMENT), key=lambda info: _number(info.base_name))

    def _files(self, names: re.Pattern[str]) -> list[pafs.FileInfo]:
        selector = pafs.FileSelector(self.path, allow_not_found=True)
        try:
            infos = self.filesystem.get_file_info(selector)
        except OSError as error:
            raise self._error(f"it cannot be read: {error}; {_advice(error)}") from error
        return [info for info in infos if info.type == pafs.FileType.File and names.fullmatch(info.base_name)]

    def _read(self, info: pafs.FileInfo) -> Segment:
        try:
            footer = pq.read_metadata(info.path, filesystem=self.filesystem)
            meta = json.loads((footer.metadata or {})[KEY])
            if meta["version"] > VERSION:
                raise self._error(
                    f"a newer ray_messaging wrote it (version {meta['version']}, this one reads {VERSION}): update",
                    info.path,
                )
            if (meta["rows"], meta["number"]) != (footer.num_rows, _number(info.base_name)):
                raise ValueError("its footer speaks of another segment")  # noqa: TRY301 - one way out
            return _segment(info.path, info.size, meta)
        except KeyError as error:
            raise self._damaged(info.path, "its footer lacks what this library writes there") from error
        except (OSError, pa.ArrowInvalid, ValueError, TypeError) as error:
            raise self._damaged(info.path, error) from error

    def _damaged(self, path: str, error: object) -> LogError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return self._error(f"it is not there any more ({error.strerror or error}): put it back", path)
        why = " ".join(str(error).split())
        return self._error(f"it is damaged ({why}): move it away, the other segments stay readable", path)

    def _file(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def _error(self, what: str, path: str | None = None) -> LogError:
        of = f"segment {path} of the event log" if path else f"the event log's folder {self.where}"
        return LogError(f"{of} cannot be used: {what}", path=path or self.where)


def _resolve(where: str) -> tuple[pafs.FileSystem, str]:
    if "://" not in where:
        return pafs.LocalFileSystem(), str(Path(where).expanduser().absolute())
    filesystem, path = pafs.FileSystem.from_uri(where)
    return filesystem, path


def _number(name: str) -> int:
    found = _SEGMENT.fullmatch(name)
    assert found is not None
    return int(found[1])


def _segment(path: str, size: int, meta: dict[str, Any]) -> Segment:
    return Segment(
        path,
        meta["number"],
        meta["rows"],
        meta["first_row"],
        dict(meta["cursors"]),
        meta["exp_id"],
        meta["epoch"],
        size,
        {stream: (entry, rows) for stream, (entry, rows) in meta.get("begun", {}).items()},
        meta.get("first_s"),
        meta.get("last_s"),
        {stream: (messages, nbytes) for stream, (messages, nbytes) in meta.get("taken", {}).items()},
    )


def _advice(error: OSError) -> str:
    advice = {
        errno.ENOSPC: "make room on the disk",
        errno.EDQUOT: "make room, or have the quota raised",
        errno.EACCES: "pass a log_dir that this process may write",
        errno.EROFS: "pass a log_dir on a file system that can be written",
        errno.ENOTDIR: "a file stands in the way, pass another log_dir",
        errno.EEXIST: "a file stands in the way, pass another log_dir",
    }
    return advice.get(error.errno or 0, "pass a log_dir that exists, or that can be made, and that can be written")


def _fsync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
