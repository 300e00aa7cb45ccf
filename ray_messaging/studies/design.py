"""The design of a study: rows of parameters, each run several times (its replicates), and the seeds of the runs."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count, islice, product
from typing import Any, NamedTuple

import numpy as np

from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError
from ray_messaging.model.places import NOT_UNICODE
from ray_messaging.model.series_columns import TAKEN as OF_SERIES

KEY, REPLICATE, SEED, DIGEST, SECONDS, ERROR, RUN, ROW, CALLS, MADE, SAVED = TAKEN = (
    *("key", "replicate", "seed", "digest", "seconds", "error", "run", "row", "call counts"),
    *("calls made", "calls saved"),  # earlier versions wrote these in place of "call counts"
)
_SEED_BITS = 32  # numpy's RandomState, which networkx and others use, refuses seeds of more bits

Row = dict[str, Any]


class PlannedRun(NamedTuple):
    """One run of a design.

    `key`, a digest of the run's parameters and `replicate`, is the name of the run in the study's folder.
    """

    key: str
    row: Row
    replicate: int
    seed: int


def design_of(parameters: object, replicates: object, seed: int) -> list[PlannedRun]:
    """Return the runs of a design, row by row; raise ConfigError for parameters or replicates that are invalid.

    The seed of a run depends only on the run's replicate number. So two runs with the same number, which a study
    compares, differ only in their parameters.
    """
    if isinstance(replicates, bool) or not isinstance(replicates, int | np.integer) or replicates < 1:
        raise ConfigError(f"replicates={replicates!r} must be a whole number of runs of each row, at least 1")
    rows = _checked(_rows_of(parameters))
    found = [*islice(_seeds(seed), int(replicates))]
    return [
        PlannedRun(key_of(row, replicate), row, replicate, drawn)
        for row in rows
        for replicate, drawn in enumerate(found)
    ]


def plain_value(value: Any) -> Any:  # noqa: ANN401 - any value
    """Return a numpy number, bool or str as Python's own type. Return any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _rows_of(parameters: Any) -> list[Row]:  # noqa: ANN401 - as the user has written it
    if hasattr(parameters, "itertuples"):
        names = [*parameters.columns]
        if not parameters.columns.is_unique:
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two columns of parameters= have the name {twice!r}: rename one")
        return [dict(zip(names, row, strict=True)) for row in parameters.itertuples(index=False, name=None)]
    if isinstance(parameters, Mapping):
        levels = [_levels(name, values) for name, values in parameters.items()]
        return [dict(zip(parameters, row, strict=True)) for row in product(*levels)]
    if isinstance(parameters, Sequence) and all(isinstance(row, Mapping) for row in parameters):
        if not parameters:
            raise ConfigError("parameters=[] is empty: for runs without parameters leave parameters= out")
        return [dict(row) for row in parameters]
    raise ConfigError(
        f"parameters={short_repr(parameters)} must be a dict of lists such as {{'chance': [0.1, 0.2]}} (each "
        "combination of their values becomes a row), or a list of rows as dicts, or a DataFrame of rows"
    )


def _levels(name: object, values: Any) -> list[Any]:  # noqa: ANN401 - as the user has written it
    """Return the list of a parameter's values. A single value that is not a list becomes a list of one."""
    if isinstance(values, str | bytes | bytearray | Mapping) or not hasattr(values, "__iter__"):
        return [values]
    found = [*values]
    if not found:
        raise ConfigError(
            f"the parameter {name!r} has no value in parameters=, so there is nothing to run: give at least one value"
        )
    return found


def _checked(rows: list[Row]) -> list[Row]:
    """Return rows of parameters with their values as plain Python types.

    Raises: ConfigError for an invalid name or value, for rows with different parameters, and for equal rows.
    """
    names, seen = [*rows[0]] if rows else [], dict[str, int]()
    if not rows:
        raise ConfigError("parameters= is a DataFrame without a row: for runs without parameters leave parameters= out")
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(f"the parameter {name!r} is not a valid name for an argument of a function: rename it")
        if name in (*TAKEN, *OF_SERIES):
            raise ConfigError(f"the parameter {name!r} has the same name as a column of the study's table: rename it")
    for place, row in enumerate(rows):
        if row.keys() != {*names}:
            raise ConfigError(
                f"row {place} of parameters= has {_listed(row)}, and row 0 has {_listed(names)}: all rows must have "
                "the same parameters"
            )
        for name in names:
            row[name] = parameter_value(row[name], f"row {place} of parameters= has {name}=")
        if (other := seen.setdefault(_text(row), place)) != place:
            raise ConfigError(f"rows {other} and {place} of parameters= are equal: to repeat runs, use replicates=")
    return [{name: row[name] for name in names} for row in rows]


def parameter_value(value: Any, where: str) -> Any:  # noqa: ANN401 - any value
    """Return the value of a parameter as Python's own type.

    Raises: ConfigError unless a table can have the value. The error's text begins with `where`.
    """
    value = plain_value(value)
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f"{where}nan, which means that there is no value: give each row a value")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}{short_repr(value)}, which {NOT_UNICODE}") from None
    except (TypeError, ValueError):
        raise ConfigError(
            f"{where}{short_repr(value)}, but a table can have only numbers, bools, strs, None and lists of them: use "
            "a name, and make the object from the name, such as rules=lambda rule: RULES[rule]"
        ) from None
    return value


def _listed(names: object) -> str:
    return ", ".join(map(repr, names)) or "none"  # type: ignore[call-overload]


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def key_of(row: Row, replicate: int) -> str:
    """Return the key of a run, which is its name in the study's folder."""
    return blake2b(_text([row, replicate]).encode(), digest_size=12).hexdigest()


def _seeds(seed: int) -> Iterator[int]:
    """Yield seeds, one for each replicate.

    No two seeds are equal. A replicate keeps its seed if a later call has more replicates.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise ConfigError(f"seed={seed!r} must be a whole number")
    drawn = set[int]()
    for number in count():
        found = blake2b(f"{int(seed)} {number}".encode(), digest_size=_SEED_BITS // 8).digest()
        value = int.from_bytes(found, "little")
        if value not in drawn:
            drawn.add(value)
            yield value
