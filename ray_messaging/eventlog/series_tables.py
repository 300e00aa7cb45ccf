"""Tables of the values that a run records with `collect=`, called series, from files and from the server."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ray_messaging.common.tables import with_exact_integers
from ray_messaging.eventlog.collected import NOTHING, Unwritten
from ray_messaging.eventlog.folder import Folder
from ray_messaging.model.series import StepSeries, decode_series, merged
from ray_messaging.model.series_columns import AGENT, AGENT_NAME, STEP
from ray_messaging.transports.step_values import Collected, CollectedKind

_EMPTY = pa.table({STEP: pa.array([], pa.int64())})


def series_table(entries: Sequence[Collected]) -> pa.Table:
    """Return a table of the values that groups have collected in some steps.

    The rows are sorted by step and agent; int ids come before str ids.
    """
    ordered = sorted((entry for entry in entries if entry.kind is CollectedKind.SERIES), key=lambda entry: entry.step)
    if not ordered:
        return _EMPTY
    by_step = {
        step: [decode_series(each.data) for each in some] for step, some in groupby(ordered, lambda each: each.step)
    }
    if all(part.agents is None for parts in by_step.values() for part in parts):
        rows = [{STEP: step} | merged(parts) for step, parts in by_step.items()]
        return pa.table(
            {name: [row.get(name, 0) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
        )
    return joined([_rows(step, parts) for step, parts in by_step.items()])


def _rows(step: int, parts: Sequence[StepSeries]) -> pa.Table:
    ids = [agent for part in parts if part.agents is not None for agent in part.agents.tolist()]
    order = sorted(range(len(ids)), key=lambda place: (isinstance(ids[place], str), ids[place]))
    agents = [ids[place] for place in order]
    columns = {
        STEP: pa.array(np.full(len(ids), step)),
        AGENT: pa.array([None if isinstance(agent, str) else agent for agent in agents], pa.int64()),
    }
    if any(isinstance(agent, str) for agent in agents):
        columns[AGENT_NAME] = pa.array([agent if isinstance(agent, str) else None for agent in agents], pa.string())
    places = np.array(order)
    for name, (kind, _) in parts[0].columns.items():
        values = [part.columns[name][1] for part in parts]
        if kind == "text":
            texts = [text for some in values for text in some]
            columns[name] = pa.array([texts[place] for place in order])
        else:
            columns[name] = pa.array(np.concatenate(values)[places])
    return pa.table(columns)


def values_in(table: pa.Table, step: int) -> dict[str, Any]:
    """Return the values that a run collected in a step, as {column: values}; {} if it collected none in this step.

    In a table by agent, the values are arrays, and a column has the agents' ids.
    """
    rows = table.filter(pc.equal(table[STEP], step)).drop_columns([STEP])
    if not len(rows):
        return {}
    if AGENT not in rows.column_names:
        return {name: values[0] for name, values in rows.to_pydict().items()}
    ids = rows[AGENT].to_numpy()
    if AGENT_NAME in rows.column_names:
        pairs = zip(rows[AGENT].to_pylist(), rows[AGENT_NAME].to_pylist(), strict=True)
        ids = np.array([agent if name is None else name for agent, name in pairs], object)
    columns = [name for name in rows.column_names if name not in (AGENT, AGENT_NAME)]
    return {AGENT: ids} | {name: rows[name].to_numpy() for name in columns}


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables of consecutive steps. If a table lacks a column of counts, its rows get the count 0.

    A column that has ints in one table and floats in another becomes floats.
    """
    found = [table for table in tables if len(table)] or tables[:1] or [_EMPTY]
    whole = pa.concat_tables(found, promote_options="permissive")
    for place, field in enumerate(whole.schema):
        if field.name not in (AGENT, AGENT_NAME) and whole[place].null_count:
            whole = whole.set_column(place, field.name, whole[place].fill_null(0))
    return whole


def series_file(table: pa.Table) -> pa.Buffer:
    """Return the content of a Parquet file for a table from `series_table`."""
    sink = pa.BufferOutputStream()
    pq.write_table(with_exact_integers(table), sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue()


def read_series(folder: Folder, unwritten: Unwritten = NOTHING) -> pa.Table:
    """Return all values that a run collected, as a table; raise LogError if a file cannot be read."""
    files, entries = unwritten.beside_files(folder, CollectedKind.SERIES)
    return joined([*(_read(folder, file) for file in files), series_table(entries)])


def _read(folder: Folder, file: str) -> pa.Table:
    try:
        return pq.read_table(file, filesystem=folder.filesystem, partitioning=None, page_checksum_verification=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise folder.damaged(file, error) from error
