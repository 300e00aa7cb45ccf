"""Columns of results for pandas."""

from typing import Any

import numpy as np

_FIRST, _LAST = -62_135_596_800.0, 253_402_300_800.0  # the years 1 and 10,000


def data_frame(columns: dict[str, Any]) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
    """Build a pandas.DataFrame; without pandas raise an ImportError that says how to install it."""
    try:
        import pandas as pd  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install 'ray-messaging[pandas]'") from error
    return pd.DataFrame(columns)


def utc_times(seconds: Any) -> Any:  # noqa: ANN401 - numbers; a pyarrow.Array
    """Return times (unix s) as a column of timestamps in UTC, in microseconds; null where no date can represent one."""
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a group need not load

    given = np.asarray(seconds, np.float64)
    there = (given >= _FIRST) & (given < _LAST)  # not NaN, either
    return pa.array((np.where(there, given, 0) * 1e6).round().astype(np.int64), mask=~there).cast(
        pa.timestamp("us", "UTC")
    )
