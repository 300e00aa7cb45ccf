"""The folder of a study: Parquet files of the runs that have ended, and `_study.json`, the study's arguments.

While the study goes on, each `runs-{number}.parquet` has some runs, and `series-{number}.parquet` the values that
`collect=` recorded in them, their series. When the study has ended, `runs.parquet` and `series.parquet` have all runs
and series, in the order of the design. These two files have the same bytes for any number of workers, so the seconds
that each run took are in another file, `seconds.parquet`. A file appears when it is complete.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ray_messaging.cluster.run.result import CallCounts
from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.studies.design import CALLS, DIGEST, ERROR, KEY, MADE, REPLICATE, SAVED, SECONDS, SEED, PlannedRun
from ray_messaging.studies.run_tasks import DIED, SPENT, EndedRun, spent
from ray_messaging.studies.study_tables import exact_table, exact_values, fitted, joined_schema, kind_of

RECORD = "_study.json"
LOGS = "logs"  # the subfolder for the event logs of the runs, each in a folder whose name is the run's key
RUNS, SERIES, TIMES = "runs.parquet", "series.parquet", "seconds.parquet"
_PART = re.compile(r"(runs|series)-(\d{8,})\.parquet")
_OF_SERIES = re.compile(r"series(-\d{8,})?\.parquet")
# This field in the metadata of a series file has a list: for each row group of the file, the key of the group's run.
_KEYS = b"ray_messaging.runs"


class StoredRun(NamedTuple):
    """A run that has ended, read from the study's folder.

    `series` has the name of the file with the values that the run collected, and the number of the row group that has
    them.
    """

    key: str
    row: dict[str, Any]
    replicate: int
    seed: int
    outcomes: dict[str, Any]
    digest: str | None
    error: str | None
    seconds: float | None
    series: tuple[str, int] | None = None
    calls: CallCounts = CallCounts()

    @property
    def may_be_repeated(self) -> bool:
        """Return whether a later call of `batch_run` may make the run again, or may have made it again.

        This is possible if the run's worker, or a part of its cluster, died, or if its budget of calls was spent.
        """
        return self.error is not None and self.error.startswith((DIED, SPENT))

    def is_to_be_repeated(self, budget: int | str | None) -> bool:
        """Return whether a call of `batch_run` with this budget makes the run again.

        A run that has spent the same budget is not repeated.
        """
        return self.may_be_repeated and not str(self.error).startswith(spent(budget))


class StudyFolder:
    """A folder of a study. Its methods raise LogError if the folder, or a file in it, cannot be used."""

    def __init__(self, where: str | Path) -> None:
        self.folder = Folder(where)
        self.where = str(where)
        # For the name of each collected value: its kind, and a run that has collected it.
        self._kinds: dict[str, tuple[str, str]] | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Return a context manager that keeps other processes from writing to the folder.

        Raises: LogError if another process is writing to the folder; ConfigError if the folder is not on a disk of this
        machine.
        """
        if not self.folder.local:
            raise ConfigError(
                f"the study's folder {self.where!r} must be on a disk of this machine, because it is locked while it "
                "is written: pass a local path, and copy the folder when the study has ended"
            )
        with self._writing():
            self.folder.filesystem.create_dir(self.folder.path, recursive=True)
        with self.folder.lock() as locked:
            if not locked:
                raise LogError(
                    f"another process is writing the study in {self.where!r}: wait until it has ended", path=self.where
                )
            yield

    def record(self) -> dict[str, Any] | None:
        """Return how the study was planned: its model, seed, parameters, outcomes and options, under these names.

        Return None if the folder has no study.

        Raises: LogError if the file of the record, `_study.json`, cannot be decoded.
        """
        if not (text := self.folder.read_file(RECORD)):
            return None
        try:
            found = json.loads(text)
        except ValueError as error:
            raise LogError(
                f"{RECORD} of the study in {self.where!r} is damaged: {error}; restore the file, or begin anew by "
                "batch_run(..., on_existing='reset')",
                path=self.where,
            ) from error
        return found if isinstance(found, dict) else None

    def is_study(self) -> bool:
        """Return whether the folder has the record of a study. The record need not be readable."""
        return RECORD in self.files()

    def note(self, record: Mapping[str, Any]) -> None:
        """Write the record of the study."""
        with self._writing():
            self.folder.write_file(RECORD, json.dumps(record, indent=1, sort_keys=True).encode())

    def files(self) -> list[str]:
        """Return the names of the files in the folder, sorted."""
        try:
            found = self.folder.filesystem.get_file_info(pafs.FileSelector(self.folder.path, allow_not_found=True))
        except OSError as error:
            raise LogError(
                f"the study's folder {self.where!r} cannot be read ({error}): check the path, and its permissions",
                path=self.where,
            ) from error
        return sorted(info.base_name for info in found if info.type == pafs.FileType.File)

    def state(self) -> object:
        """Return a value that changes whenever a file in the folder changes."""
        found = self.folder.filesystem.get_file_info(pafs.FileSelector(self.folder.path, allow_not_found=True))
        return sorted((info.base_name, info.size or 0, info.mtime_ns or 0) for info in found)

    def erase(self) -> None:
        """Remove the study's files; the record is removed last."""
        there = self.files()
        whole = [name for name in (RUNS, SERIES, TIMES, RECORD) if name in there]
        with self._writing():
            if LOGS in self.folder.subfolders(""):
                self.folder.filesystem.delete_dir(self._path(LOGS))
            for name in [*filter(_PART.fullmatch, there), *whole]:
                self.folder.filesystem.delete_file(self._path(name))

    def runs(self, record: Mapping[str, Any]) -> dict[str, StoredRun]:
        """Return the runs that have ended, by key. A run that was made twice is returned only once."""
        while True:
            there = self.files()
            try:
                return self._runs_in(there, record)
            except LogError as error:
                # If a file is gone, another program has ended the study, and has joined the files. Then the files are
                # listed again.
                if not isinstance(error.__cause__, FileNotFoundError) or self.files() == there:
                    raise

    def _runs_in(self, there: Sequence[str], record: Mapping[str, Any]) -> dict[str, StoredRun]:
        found: dict[str, StoredRun] = {}
        if RUNS in there:
            times = _times_of(self._columns(TIMES)) if TIMES in there else {}
            for run in self._stored(RUNS, SERIES if SERIES in there else None, record):
                seconds, calls = times.get(run.key, (None, CallCounts()))
                found[run.key] = run._replace(seconds=seconds, calls=calls)
        for name in there:
            if (part := _PART.fullmatch(name)) is not None and part[1] == "runs":
                series = f"series-{part[2]}.parquet"
                for run in self._stored(name, series if series in there else None, record):
                    if run.key not in found or found[run.key].may_be_repeated:
                        found[run.key] = run
        return _with_zeros(found, record.get("counts", ()))

    def log_of(self, key: str) -> str:
        """Return the folder of a run's event log."""
        return f"{self._path(LOGS)}/{key}"

    def next_part(self) -> int:
        """Return the number for the next file of runs."""
        return max((int(part[2]) for name in self.files() if (part := _PART.fullmatch(name))), default=-1) + 1

    def write_part(self, number: int, ended: Sequence[tuple[PlannedRun, EndedRun]]) -> None:
        """Write some runs that have ended.

        The file of the runs is written after the file of their series, because a run counts as stored once its row is
        written.

        Raises: ConfigError if a run has collected a value of another kind than an earlier run.
        """
        series = [(run.key, _table(each.series, self.where)) for run, each in ended if each.series is not None]
        with_series = [run for run, each in ended if each.series is not None]
        for run, (_, table) in zip(with_series, series, strict=True):
            self._check_kinds(table.schema, f"replicate {run.replicate} of {run.row}")
        rows = [
            StoredRun(*run, each.outcomes, each.digest, each.error, each.seconds, calls=each.calls)
            for run, each in ended
        ]
        with self._writing():
            if series:
                keys, tables = zip(*series, strict=True)
                name, schemas = f"series-{number:08d}.parquet", [each.schema for each in tables]
                self._write_series(name, keys, tables.__getitem__, schemas)
            self._write(f"runs-{number:08d}.parquet", exact_table(_columns_of(rows, with_seconds=True)))

    def _check_kinds(self, schema: pa.Schema, whose: str) -> None:
        if self._kinds is None:
            self._kinds = {}
            for name in filter(_OF_SERIES.fullmatch, self.files()):
                self._check_kinds(self._schema(name), "an earlier run")
        for field in schema:
            if (kind := kind_of(field.type)) is None:
                continue
            other, of = self._kinds.setdefault(field.name, (kind, whose))
            if other != kind:
                raise ConfigError(
                    f"the collected value {field.name!r} is a {kind} in {whose}, and a {other} in {of}: a column of a "
                    "study's series must have one kind. Let collect= return the same kind in all runs, and begin anew "
                    "by on_existing='reset'"
                )

    def finish(self, runs: Sequence[StoredRun]) -> None:
        """Write all runs in the given order to one file, and the values that they collected to another one.

        Then remove the files that had only some of the runs.
        """
        with self._writing():
            of_series = [run for run in runs if run.series is not None]
            if of_series:
                # An older `series.parquet`, from which the new file may be made, is replaced only when the new one is
                # complete.
                self._write_series(
                    SERIES,
                    [run.key for run in of_series],
                    lambda place: self.series_of(of_series[place]),
                    [self._schema(file) for file in dict.fromkeys(run.series[0] for run in of_series if run.series)],
                )
            self._write(TIMES, exact_table({KEY: [run.key for run in runs]} | _costs_of(runs)))
            self._write(RUNS, exact_table(_columns_of(runs, with_seconds=False)))
            for name in filter(_PART.fullmatch, self.files()):
                self.folder.filesystem.delete_file(self._path(name))

    def series_of(self, run: StoredRun) -> pa.Table:
        """Return the values that one run has collected.

        This works even if the study has grown since the run was read.
        """
        assert run.series is not None
        if (table := self._series(*run.series, run.key)) is None:
            for name in filter(_OF_SERIES.fullmatch, self.files()):
                if run.key in (keys := self._keys(name)):
                    table = self._series(name, keys.index(run.key), run.key)
        if table is None:
            raise LogError(
                f"the study in {self.where!r} was begun anew after you opened it: open it again by Study(...)",
                path=self.where,
            )
        return table.drop_columns([KEY])

    def _series(self, name: str, group: int, key: str) -> pa.Table | None:
        """Return the collected values of a run, from a row group of a Parquet file.

        The result is None if the row group is missing, or has the values of another run.
        """
        with self._reading(name):
            try:
                stream = self.folder.filesystem.open_input_file(self._path(name))
            except FileNotFoundError:
                return None
            with stream:
                file = pq.ParquetFile(stream, page_checksum_verification=True)
                table = file.read_row_group(group) if group < file.num_row_groups else None
        return table if table is not None and {*table[KEY].to_pylist()} <= {key} else None

    def _stored(self, name: str, series: str | None, record: Mapping[str, Any]) -> list[StoredRun]:
        columns = self._columns(name)
        groups = {} if series is None else {key: group for group, key in enumerate(self._keys(series))}
        names: Sequence[str] = record["parameters"]
        others = {KEY, REPLICATE, SEED, DIGEST, ERROR, SECONDS, CALLS, MADE, SAVED, *names}
        outcomes = [column for column in columns if column not in others]
        places = range(len(columns[KEY]))
        times = _times_of(columns) if SECONDS in columns else {}
        return [
            StoredRun(
                key=(key := columns[KEY][place]),
                row={column: columns[column][place] for column in names},
                replicate=columns[REPLICATE][place],
                seed=columns[SEED][place],
                outcomes={column: value for column in outcomes if (value := columns[column][place]) is not None},
                digest=columns[DIGEST][place],
                error=columns[ERROR][place],
                seconds=times[key][0] if times else None,
                series=None if series is None or key not in groups else (series, groups[key]),
                calls=times[key][1] if times else CallCounts(),
            )
            for place in places
        ]

    def _columns(self, name: str) -> dict[str, list[Any]]:
        with self._reading(name), self.folder.filesystem.open_input_file(self._path(name)) as stream:
            return exact_values(pq.read_table(stream, page_checksum_verification=True))

    def _schema(self, name: str) -> pa.Schema:
        with self._reading(name), self.folder.filesystem.open_input_file(self._path(name)) as stream:
            schema = pq.read_schema(stream)
        return schema.remove(schema.get_field_index(KEY)).remove_metadata()

    def _keys(self, name: str) -> list[str]:
        with self._reading(name), self.folder.filesystem.open_input_file(self._path(name)) as stream:
            found: list[str] = json.loads(pq.read_metadata(stream).metadata[_KEYS])
        return found

    def _write(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        self.folder.write_file(name, sink.getvalue())

    def _write_series(
        self, name: str, keys: Sequence[str], read: Callable[[int], pa.Table], schemas: Sequence[pa.Schema]
    ) -> None:
        """Write the collected values of runs to one file.

        Each run has a row group of its own, so that the values of a whole study are never all in memory.

        Args: `read(i)` returns the values of the run with the key `keys[i]`.
        """
        schema = joined_schema(schemas)
        whole = pa.schema([pa.field(KEY, pa.string()), *schema])
        temporary = self._path(f"_{name}.tmp")
        filesystem = self.folder.filesystem
        with (
            filesystem.open_output_stream(temporary) as stream,
            pq.ParquetWriter(stream, whole, compression="zstd", write_page_checksum=True) as writer,
        ):
            for place, key in enumerate(keys):
                table = fitted(read(place), schema)
                table = table.add_column(0, whole.field(KEY), pa.array([key] * len(table), pa.string()))
                writer.write_table(table, row_group_size=max(1, len(table)))
            writer.add_key_value_metadata({_KEYS.decode(): json.dumps([*keys])})
        filesystem.move(temporary, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.folder.path.rstrip('/')}/{name}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LogError(
                f"the study's folder {self.where!r} cannot be written: {error}; the runs that it has are kept: free "
                "space, then call batch_run again with the same arguments, which carries out only the missing runs",
                path=self.where,
            ) from error

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowInvalid, KeyError) as error:
            remedy = (
                "remove a file whose name begins with 'runs', and call batch_run again with the same arguments, which "
                "carries out the file's runs again; for another file, begin anew by batch_run(..., on_existing='reset')"
            )
            if isinstance(error, FileNotFoundError):
                remedy = "another call of batch_run may have replaced it: open the study again by Study(...)"
            raise LogError(
                f"the file {name!r} of the study in {self.where!r} cannot be read: {error}; {remedy}",
                path=self._path(name),
            ) from error


def _with_zeros(runs: dict[str, StoredRun], counts: Sequence[str]) -> dict[str, StoredRun]:
    """Return the runs with the count 0 added for values that a `Count` found only in other runs.

    Runs that ended with an error are returned unchanged.
    """
    counted = {name for run in runs.values() for name in run.outcomes if name.partition("=")[0] in counts}
    zeros = dict.fromkeys(sorted(counted), 0)
    return {
        key: run if run.error is not None else run._replace(outcomes=zeros | run.outcomes) for key, run in runs.items()
    }


def _columns_of(runs: Sequence[StoredRun], *, with_seconds: bool) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for run in runs for name in run.row)
    outcomes = sorted({name for run in runs for name in run.outcomes})
    columns: dict[str, list[Any]] = {KEY: [run.key for run in runs]}
    columns |= {name: [run.row[name] for run in runs] for name in names}
    columns |= {REPLICATE: [run.replicate for run in runs], SEED: [run.seed for run in runs]}
    columns |= {name: [run.outcomes.get(name) for run in runs] for name in outcomes}
    columns |= {DIGEST: [run.digest for run in runs], ERROR: [run.error for run in runs]}
    return columns | (_costs_of(runs) if with_seconds else {})


def _costs_of(runs: Sequence[StoredRun]) -> dict[str, list[Any]]:
    """Return, by column name, the seconds and calls of runs, which may differ if the same run is made twice."""
    counts = [{name: count for name, count in run.calls._asdict().items() if count} for run in runs]
    return {SECONDS: [run.seconds for run in runs], CALLS: [json.dumps(each) for each in counts]}


def _times_of(columns: Mapping[str, list[Any]]) -> dict[str, tuple[float | None, CallCounts]]:
    """Return, by the key of each run, its seconds and the counts of its calls."""
    if CALLS in columns:
        calls = [CallCounts(**json.loads(text)) for text in columns[CALLS]]
    else:  # an earlier release of this library has written the files
        calls = [CallCounts(model=made, store=saved) for made, saved in zip(columns[MADE], columns[SAVED], strict=True)]
    return dict(zip(columns[KEY], zip(columns[SECONDS], calls, strict=True), strict=True))


def _table(series: bytes | None, where: str) -> pa.Table:
    with suppress(pa.ArrowInvalid):
        return pa.ipc.open_stream(series).read_all()
    raise LogError("a worker sent series that cannot be read: please report this", path=where)
