"""Encoding of the values that a run collects in a step by `collect=`: a row for each agent, or aggregates.

The bytes begin with the shape, which is a line of JSON. It says whether there are rows or aggregates, and the kind of
each column. The server checks that the shape is the same in all steps and groups of an experiment.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.aggregates import merged_column
from ray_messaging.model.series_columns import AGENT, TAKEN, UnfitValue, Value, Values, column_of, is_text

ROWS, AGGREGATES = "rows", "aggregates"

_encode = msgspec.msgpack.encode


class StepSeries(NamedTuple):
    """The values that one group has collected by `collect=` in a step.

    `columns` has the kind and the values of each column. `agents` has the agent of each row. If `agents` is None, the
    columns are aggregates, and the values of a column are a partial result.
    """

    agents: NDArray[Any] | None
    columns: dict[str, tuple[str, Any]]


def encode_rows(agents: NDArray[Any], columns: Mapping[str, Values]) -> bytes:
    """Encode one row for each agent. The columns are in alphabetical order, which is the same in all groups.

    Raises: UnfitValue for a value that cannot be collected.
    """
    for name in columns:
        if type(name) is not str or not name or name in TAKEN or not is_text(name):
            raise UnfitValue(
                f"collect returned the column name {name!r}: a column name must be a str of valid Unicode, not empty, "
                f"and none of the reserved names {', '.join(TAKEN)}"
            )
    found = {name: column_of(name, columns[name]) for name in sorted(columns)}
    ids = np.ascontiguousarray(agents).data if agents.dtype != object else agents.tolist()
    listed = [
        (column.dtype.str, np.ascontiguousarray(column).data) if isinstance(column, np.ndarray) else ("text", column)
        for _, column in found.values()
    ]
    return _shape(ROWS, {name: kind for name, (kind, _) in found.items()}) + _encode((ids, listed))


def encode_aggregates(partials: Mapping[str, tuple[str, Any]]) -> bytes:
    """Encode the aggregates of a group. `partials` has, by name, what `Aggregate.partial` returned."""
    kinds = {name: kind for name, (kind, _) in partials.items()}
    return _shape(AGGREGATES, kinds) + _encode((None, [partial for _, partial in partials.values()]))


def _shape(what: str, kinds: Mapping[str, str]) -> bytes:
    return msgspec.json.encode((what, list(kinds.items()))) + b"\n"


def shape_in_words(data: bytes) -> str:
    """Describe encoded values for an error: their columns, and whether there is a value for each agent or each step."""
    what, kinds = msgspec.json.decode(data.partition(b"\n")[0])
    listed = ", ".join(f"{name!r} ({kind})" for name, kind in kinds)
    return f"{listed} for each {'agent' if what == ROWS else 'step'}"


def decode_series(data: bytes) -> StepSeries:
    """Decode the bytes of `encode_rows` or `encode_aggregates`."""
    line, _, rest = data.partition(b"\n")
    what, kinds = msgspec.json.decode(line)
    ids, listed = msgspec.msgpack.decode(rest)
    if what == AGGREGATES:
        return StepSeries(None, {name: (kind, values) for (name, kind), values in zip(kinds, listed, strict=True)})
    agents = np.frombuffer(ids, np.int64) if isinstance(ids, bytes) else np.array(ids, object)
    columns = {
        name: (kind, values if dtype == "text" else np.frombuffer(values, np.dtype(dtype)))
        for (name, kind), (dtype, values) in zip(kinds, listed, strict=True)
    }
    return StepSeries(agents, columns)


def merged(parts: Sequence[StepSeries]) -> dict[str, Value]:
    """Return, by column name, the aggregates of one step, from the partial results of all groups."""
    found: dict[str, Value] = {}
    for name, (kind, _) in parts[0].columns.items():
        found |= merged_column(name, kind, [part.columns[name][1] for part in parts])
    return found


def values_of(parts: Sequence[StepSeries]) -> dict[str, Any]:
    """Return, by column, the values that all groups have collected in one step.

    If the columns are aggregates, each has a single value. Otherwise each column is an array with a value for each
    agent, and the column `agent` has the ids. The order is by agent, with int ids before str ids.
    """
    if not parts or parts[0].agents is None:
        return {**merged(parts)} if parts else {}
    ids = [agent for part in parts if part.agents is not None for agent in part.agents.tolist()]
    order = np.array(sorted(range(len(ids)), key=lambda place: (isinstance(ids[place], str), ids[place])))
    found: dict[str, Any] = {AGENT: _array(ids)[order]}
    for name, (kind, _) in parts[0].columns.items():
        columns = [part.columns[name][1] for part in parts]
        whole = np.array([text for texts in columns for text in texts], object) if kind == "text" else None
        found[name] = (np.concatenate(columns) if whole is None else whole)[order]
    return found


def _array(ids: list[Any]) -> NDArray[Any]:
    return np.array(ids, object if any(isinstance(agent, str) for agent in ids) else np.int64)
