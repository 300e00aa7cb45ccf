"""All agents in one step: a collected value of each agent, its place, and who sent messages to whom."""

from math import ceil, isfinite, sqrt
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_boolean, is_floating, is_integer

from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.inspector.page_values import Series, SocietyInStep, name
from ray_messaging.model.fates import STORED
from ray_messaging.model.series_columns import AGENT, AGENT_NAME, STEP, TAKEN

MOST_DRAWN = 10_000
_MOST_LINKED = 150  # with more agents, no lines are drawn between them: so many lines cannot be told apart
_MOST_KINDS = 9
_MEAN = "mean"


def measures_of(series: pa.Table) -> list[str]:
    """Return the names of the values that a run collected of each agent; [] if it collected none."""
    if AGENT not in series.column_names:
        return []
    return [column for column in series.column_names if column not in TAKEN]


def society_in_step(
    series: pa.Table, log: EventLog | None, measure: str, step: int | None, columns: int | None
) -> SocietyInStep:
    """Return all agents in one step, each with its collected value of the name `measure`.

    Args:
        series: The collected values of the run, in the order of the steps, with a row for each agent in each step.
        log: The log of the messages (None: the result has no messages).
        measure: The name of a collected value ("": the first one).
        step: A step (None: the last one). If no values were collected in this step, the last step before it with values
            is taken, or the first step with values if there is none before.
        columns: The number of agents in a row of the lattice in which agents without positions are drawn (None: so many
            that the lattice is a square).

    Raises: InvalidQuery if the run has collected no value of this name.
    """
    measures = measures_of(series)
    measure = measure_of(measures, measure)
    column_of_steps = series[STEP].to_numpy()
    steps = np.unique(column_of_steps)
    at = steps[-1] if step is None else steps[max(0, int(np.searchsorted(steps, step, "right")) - 1)]
    first, end = np.searchsorted(column_of_steps, [at, at + 1])
    rows = series.slice(first, end - first)
    total = len(rows)
    chosen = np.arange(0, total, ceil(total / MOST_DRAWN))
    placed, bounds = _places(series, rows, columns)
    rows = rows.take(pa.array(chosen))
    ids = _ids(rows)
    linked = log is not None and total <= _MOST_LINKED
    return SocietyInStep(
        steps.tolist(),
        [name(each) for each in measures],
        int(at),
        name(measure),
        [name(agent) for agent in ids],
        _values(rows[measure]),
        [placed[place] for place in chosen],
        bounds,
        not _has_positions(series),
        linked,
        _edges(log, int(at), ids) if log is not None and linked else [],
        _scale(series[measure]),
        total,
    )


def over_steps(series: pa.Table, measure: str) -> Series:
    """Return, by step, the mean of a value over the agents.

    If the values are strs or bools, return, by step, how many agents have each value. If there are more than
    `_MOST_KINDS` values, return only those with the highest numbers of agents in a step.

    The arguments and errors are those of `society_in_step`.
    """
    measure = measure_of(measures_of(series), measure)
    column = series[measure]
    if is_integer(column.type) or is_floating(column.type):
        means = series.group_by(STEP).aggregate([(measure, "mean")]).sort_by(STEP)
        return Series(
            means[STEP].to_pylist(), {_MEAN: [_finite(each) for each in means[f"{measure}_mean"].to_pylist()]}
        )
    texts = pa.table({STEP: series[STEP], measure: column.cast(pa.string())})
    counts = texts.group_by([STEP, measure]).aggregate([([], "count_all")])
    steps = sorted({*counts[STEP].to_pylist()})
    rows = {step: row for row, step in enumerate(steps)}
    lines: dict[str, list[float | None]] = {}
    for step, text, count in zip(*(counts[key].to_pylist() for key in (STEP, measure, "count_all")), strict=True):
        line = lines.setdefault(name(text), [0] * len(steps))
        line[rows[step]] = (line[rows[step]] or 0) + count  # `name` may shorten several strs to the same name
    most = sorted(lines, key=lambda text: (-max(each or 0 for each in lines[text]), text))[:_MOST_KINDS]
    return Series(steps, {text: lines[text] for text in sorted(most)})


def measure_of(measures: list[str], asked: str) -> str:
    """Return the name of a collected value. `asked` is this name, or the name as pages show it, or "" for the first."""
    found = next((each for each in measures if asked in {"", each, name(each)}), None)
    if found is None:
        raise InvalidQuery(
            f"the run has not collected {asked!r} of its agents: it has {', '.join(map(repr, measures))}",
            field="measure",
            value=asked,
        )
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def _ids(rows: pa.Table) -> list[Any]:
    numbers = rows[AGENT].to_pylist()
    texts = rows[AGENT_NAME].to_pylist() if AGENT_NAME in rows.column_names else [None] * len(numbers)
    return [number if text is None else text for number, text in zip(numbers, texts, strict=True)]


def _values(column: pa.ChunkedArray) -> list[float | str]:
    if is_integer(column.type) or is_floating(column.type):
        numbers: list[float | str] = column.to_pylist()
        return numbers
    return [name(value) for value in column.cast(pa.string()).to_pylist()]


def _scale(column: pa.ChunkedArray) -> tuple[float, float] | list[str]:
    if not (is_integer(column.type) or is_floating(column.type)):
        kinds = {name(value) for value in pc.unique(column.cast(pa.string())).to_pylist()}
        return sorted(kinds) if is_boolean(column.type) or len(kinds) <= _MOST_KINDS else sorted(kinds)[:_MOST_KINDS]
    return _range(column)


def _range(column: pa.ChunkedArray) -> tuple[float, float]:
    finite = column.filter(pc.is_finite(column))
    low, high = (pc.min_max(finite)[end].as_py() for end in ("min", "max"))
    return (0.0, 1.0) if low is None else (low, high)


def _has_positions(series: pa.Table) -> bool:
    return all(
        axis in series.column_names and (is_integer(series[axis].type) or is_floating(series[axis].type))
        for axis in "xy"
    )


def _places(
    series: pa.Table, rows: pa.Table, columns: int | None
) -> tuple[list[tuple[float, float]], tuple[float, float, float, float]]:
    if _has_positions(series):
        places = [*zip(rows["x"].to_pylist(), rows["y"].to_pylist(), strict=True)]
        return places, (*_range(series["x"]), *_range(series["y"]))
    cells, count = _cells(series, rows)
    columns = columns or ceil(sqrt(count))
    return [(cell % columns, cell // columns) for cell in cells], (0, columns - 1, 0, ceil(count / columns) - 1)


def _cells(series: pa.Table, rows: pa.Table) -> tuple[list[int], int]:
    """Return the cell of each agent in a lattice, and the number of cells.

    If the ids of the run are numbers from 0 on with few gaps, the id of an agent is its cell, so that cells do not move
    when an agent leaves. Otherwise agents fill the cells in the order of their ids.
    """
    named = AGENT_NAME in series.column_names
    low, high = (pc.min_max(series[AGENT])[end].as_py() for end in ("min", "max"))
    if not named and low >= 0 and high < 2 * pc.count_distinct(series[AGENT]).as_py():
        return rows[AGENT].to_pylist(), high + 1
    return [*range(len(rows))], len(rows)


def _edges(log: EventLog, step: int, ids: list[Any]) -> list[tuple[int, int, int]]:
    places = {agent: place for place, agent in enumerate(ids)}
    counts = log.count(by=["from_id", "to_id"], step=step, fate=[*STORED]).to_pylist()
    pairs = ((as_id(row["from_id"]), as_id(row["to_id"]), row["count"]) for row in counts)
    return [
        (places[one], places[other], count)
        for one, other, count in pairs
        if one != other and {one, other} <= places.keys()
    ]
