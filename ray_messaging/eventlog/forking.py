"""Copy of a run's folder up to a checkpoint, from which a new run, called a fork, goes on.

The fork does not need the folder of the first run afterwards.
"""

import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from errno import EEXIST, ENOTDIR, ENOTEMPTY
from heapq import merge
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_messaging.errors import AlreadyExists, ConfigError, LogError
from ray_messaging.eventlog.call_rows import calls_file, stored_calls
from ray_messaging.eventlog.checkpoint_files import read_checkpoint, write_checkpoint
from ray_messaging.eventlog.event_log import EventLog, FolderSource
from ray_messaging.eventlog.folder import AUDIENCES, Folder, StepPosition
from ray_messaging.eventlog.folder_records import FORMAT, Parent, RunRecord, read_run, unended, write_run
from ray_messaging.eventlog.log_schema import POSITION, channel_head, head_of
from ray_messaging.eventlog.reading.event_rows import LogRow, rows_of
from ray_messaging.eventlog.series_tables import read_series, series_file
from ray_messaging.model.series_columns import STEP
from ray_messaging.steps.box_frames import FIRST_OUTSIDE
from ray_messaging.transports.step_values import CollectedKind


def checkpoint_before(parent: Folder, at_step: int | None) -> int:
    """Return the last step before `at_step` that has a checkpoint, or the last that has one if `at_step` is None.

    While the run goes on, checkpoints of steps that are not yet in its log do not count.

    Raises: ConfigError if there is no such step, or if the run does not have the steps before `at_step`.
    """
    segments = parent.segments()
    logged = max((segment.steps.handled for segment in segments if segment.steps is not None), default=-1)
    ended = unended(parent) is None  # while a run goes on, rows of its last steps may be missing
    found = [step for step in parent.checkpoints() if ended or step <= logged]
    last = max(logged, *found, -1)
    if at_step is not None and at_step > last + 1:
        raise ConfigError(
            f"{parent.where} has only the steps up to {last}, so it cannot be forked at step {at_step}: fork at an "
            "earlier step, or leave out at_step= to fork after the last checkpoint"
        )
    early = [step for step in found if at_step is None or step < at_step]
    if not found:
        raise ConfigError(
            f"{parent.where} has no checkpoint, so it cannot be forked: run with log_dir= and Steps(checkpoint=10), "
            "which keeps a checkpoint after every tenth step"
        )
    if not early:
        raise ConfigError(
            f"{parent.where} has no checkpoint before step {at_step}: its first checkpoint is after step {found[0]}, "
            f"so fork at step {found[0] + 1} or later"
        )
    return max(early)


def record_of(parent: Folder) -> RunRecord:
    """Return the record of the run in a folder; raise LogError if there is none."""
    record = read_run(parent)
    if record is None:
        raise LogError(f"{parent.where} has no record of a run: pass the log_dir of a run", path=parent.where)
    return record


def check_rows(parent: Folder) -> None:
    """Raise LogError if a file with rows of a run's log is gone."""
    if absent := FolderSource(parent.where).absent:
        raise LogError(f"{parent.where} cannot be forked: {absent}", path=parent.where)


def copy_run(parent: Folder, folder: Folder, exp_id: str, step: int) -> None:
    """Copy a run's files and rows up to a checkpoint into another experiment's folder, which must not have a log yet.

    In a local file system the copy is made beside the folder and then renamed, so that it appears as a whole.

    Raises: AlreadyExists if the folder has a log, or is local and not empty; LogError if a folder cannot be used.
    """
    if folder.segments() or read_run(folder) is not None:
        raise _taken(folder, "contains the log of a run")
    if not folder.local:
        try:
            _copy(parent, folder, exp_id, step)
        except BaseException:
            folder.erase(records=True)
            raise
        return
    path = Path(folder.path)
    made = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        _copy(parent, Folder(str(made)), exp_id, step)
        made.rename(path)
    except OSError as error:
        if error.errno not in {ENOTEMPTY, EEXIST, ENOTDIR}:
            raise
        raise _taken(folder, "is not empty") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _taken(folder: Folder, why: str) -> AlreadyExists:
    text = f"{folder.where} {why}: a fork needs a log_dir of its own"
    return AlreadyExists(text, kind="log", value=folder.where, owner=None)


def _copy(parent: Folder, folder: Folder, exp_id: str, step: int) -> None:
    folder.prepare(exp_id)
    record = record_of(parent)
    write_checkpoint(folder, step, [*read_checkpoint(parent, step)])
    _copy_collected(parent, folder, step)
    for digest in parent.agent_sets():
        folder.write_file(name := f"_agents-{digest}.bin", parent.read_file(name))
    if AUDIENCES in parent.subfolders(""):
        pafs.copy_files(
            f"{parent.path.rstrip('/')}/{AUDIENCES}",
            f"{folder.path.rstrip('/')}/{AUDIENCES}",
            source_filesystem=parent.filesystem,
            destination_filesystem=folder.filesystem,
        )
    _copy_rows(parent, folder, record.experiment, exp_id, step)
    of_parent = Parent(parent.where, record.experiment, step)
    write_run(
        folder,
        RunRecord(FORMAT, exp_id, steps=record.steps, groups=record.groups, model=record.model, parent=of_parent),
    )


def outside_of(log: EventLog, step_read: int | slice) -> list[LogRow]:
    """Return the messages from outside of steps that agents read in the steps `step_read`, or that rules blocked.

    The messages are in the order of arrival. A blocked message did not arrive, so it is ordered by the time at which it
    was sent. A broadcast may have several rows in the log, such as one for each mailbox. It is returned once, without
    `to_id`.

    Raises: LogError if equal broadcasts can be told apart only by their hearers, and these are not known.
    """
    rows: list[LogRow] = []
    for page in log.pages(step_read=step_read, text=True):
        ordinals = page["ordinal"].to_numpy()  # NaN in rows without an ordinal
        rows += rows_of(page.filter(pa.array(~(ordinals < FIRST_OUTSIDE))))
    in_steps = [row for row in rows if row.step is not None]
    placed = [row for row in in_steps if row.ordinal is not None]
    placed.sort(key=lambda row: (row.step_read, row.ordinal))
    noted = sorted((row for row in in_steps if row.ordinal is None), key=lambda row: (row.step_read, row.position))
    found = [*merge(placed, noted, key=lambda row: (row.step_read, row.sent_at))]
    broadcasts = defaultdict[tuple[object, ...], list[LogRow]](list)
    for row in found:
        if row.audience is not None:
            broadcasts[_broadcast(row)].append(row)
    once = _rows_of_one_hearer(log, [*broadcasts.values()])
    return [
        row if row.audience is None else replace(row, to_id=None)
        for row in found
        if row.audience is None or row.position in once
    ]


def _broadcast(row: LogRow) -> tuple[object, ...]:
    """Return the values that are equal in all rows of a broadcast.

    They are also equal in the rows of equal broadcasts that were sent at the same time.
    """
    said = row.text if row.text_before is None else row.text_before
    return row.audience, row.audience_version, row.from_id, row.subtopic, row.sent_at, said, row.sender


def _rows_of_one_hearer(log: EventLog, broadcasts: Sequence[Sequence[LogRow]]) -> set[int]:
    """Choose one hearer for each set of equal broadcasts; return the positions of the rows that this hearer has.

    A hearer has one row for each broadcast that it hears. So the rows of one hearer say how many equal broadcasts there
    are. The hearer with the most rows is chosen. Among several such hearers, one whose rows have ordinals (numbers in
    the order of arrival) is chosen.
    """
    found, unclear, steps = set[int](), dict[int, int](), set[int | None]()
    for number, rows in enumerate(broadcasts):
        # If all rows have ordinals, and no mailbox has two of the rows, there is only one broadcast in this set.
        if len({row.mailbox for row in rows if row.ordinal is not None}) == len(rows):
            found.add(rows[0].position)
        else:
            unclear |= {row.position: number for row in rows}
            steps |= {row.step_read for row in rows}
    if not unclear:
        return found
    places, parts = pa.array(sorted(unclear), POSITION.type), []
    speakers = {broadcasts[number][0].from_id for number in unclear.values()}
    for page in log.pages(step_read=steps, from_id=speakers, text=True, expand=True):
        part = page.filter(pc.is_in(page[POSITION.name], places)).select([POSITION.name, "to_id", "ordinal"])
        parts.append(part.set_column(1, "to_id", part["to_id"].cast(pa.string())))
    pairs = pa.concat_tables(parts)
    numbers = np.array([unclear[place] for place in places.to_pylist()])
    own = numbers[np.searchsorted(places.to_numpy(), pairs[POSITION.name].to_numpy())]
    pairs = pairs.append_column("broadcast", pa.array(own))
    wanted = [(POSITION.name, "list"), (POSITION.name, "count"), ("ordinal", "count")]
    hearers = pairs.group_by(["broadcast", "to_id"], use_threads=False).aggregate(wanted)
    of = hearers["to_id"].combine_chunks().dictionary_encode("encode").indices.to_numpy()
    # For each row of `hearers`, which is one hearer in one set: how many log rows with an ordinal this hearer has in
    # all sets together.
    placed = np.bincount(of, hearers["ordinal_count"].to_numpy())[of]
    hearers = hearers.append_column("placed", pa.array(placed))
    best = [(name, "descending") for name in ("position_count", "ordinal_count", "placed")]
    # If two hearers have equal numbers of rows and of ordinals in a set, the hearer with more ordinals in all sets
    # comes first. So the same hearer is chosen for many sets, and its ordinals give the order of these broadcasts.
    hearers = hearers.sort_by([("broadcast", "ascending"), *best, ("to_id", "ascending")])
    _, firsts = np.unique(hearers["broadcast"].to_numpy(), return_index=True)
    return found.union(*hearers["position_list"].take(pa.array(firsts)).to_pylist())


def _copy_collected(parent: Folder, folder: Folder, step: int) -> None:
    tables = (CollectedKind.SERIES, read_series, series_file), (CollectedKind.CALLS, stored_calls, calls_file)
    for kind, read, encoded in tables:
        files, table = parent.collected_files(kind), read(parent)
        table = table.filter(pc.less_equal(table[STEP], step))
        if files and len(table):
            born, steps = files[-1].split("/")[-2], pc.min_max(table[STEP]).as_py()
            folder.write_collected(kind, born, (steps["min"], steps["max"]), encoded(table), epoch=0)


def _copy_rows(parent: Folder, folder: Folder, former: str, exp_id: str, step: int) -> None:
    first_row, position = 0, StepPosition(step, {})
    number, before = 0, -1
    for segment in parent.segments():
        if before > step:
            break
        before = -1 if segment.steps is None else segment.steps.handled
        table = _rows(parent, segment.path, former, exp_id, step)
        if len(table):
            number += 1
            meta = {"exp_id": exp_id, "epoch": 0, "first_row": first_row, "cursors": {}, "steps": position}
            meta |= {"first_s": segment.first_s, "last_s": segment.last_s}
            first_row += folder.write(number, table, meta).rows


def _rows(parent: Folder, path: str, former: str, exp_id: str, step: int) -> pa.Table:
    """Return the rows of a log file that a fork needs.

    These are the messages that groups sent up to `step`, and the messages from outside of steps that were read up to
    `step`.
    """
    table = _read(parent, path)
    sent, ordinals, read = (_numbers(table, name) for name in ("step", "ordinal", "step_read"))
    logged_with = np.where(ordinals >= FIRST_OUTSIDE, read, sent)
    last = np.flatnonzero(logged_with <= step)
    # Rows are logged in order. So a message that belongs to no step came before the checkpoint if some later row
    # belongs to a step up to the checkpoint.
    kept = (logged_with <= step) | (np.isnan(logged_with) & (np.arange(len(table)) <= (last[-1] if len(last) else -1)))
    table = table.filter(pa.array(kept)).drop_columns([POSITION.name])
    at = table.schema.get_field_index("channel")
    if at >= 0:
        table = table.set_column(at, table.schema.field(at), _renamed(table.column(at), former, exp_id))
    head = channel_head(pq.read_metadata(path, filesystem=parent.filesystem))
    return table.replace_schema_metadata(head_of(exp_id)) if head else table


def _read(parent: Folder, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the table in a file of the log.

    If `columns` are given, the table has only those of them that the file has.
    """
    try:
        file = pq.ParquetFile(path, filesystem=parent.filesystem, page_checksum_verification=True)
        there = set(file.schema_arrow.names)
        return file.read(None if columns is None else [name for name in columns if name in there])
    except (OSError, pa.ArrowInvalid) as error:
        raise parent.damaged(path, error) from error


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    """Return a column as floats. Rows without a value have NaN. If the table lacks the column, all rows have NaN."""
    if name not in table.column_names:
        return np.full(len(table), np.nan)
    return np.asarray(table[name].cast(pa.float64()).to_numpy(), np.float64)


def _renamed(channels: pa.ChunkedArray, former: str, exp_id: str) -> pa.ChunkedArray:
    kind = channels.type
    texts = channels.cast(kind.value_type) if pa.types.is_dictionary(kind) else channels
    texts = pc.replace_substring_regex(texts, f"^exps:{re.escape(former)}:", f"exps:{exp_id}:")
    return texts.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else texts
