"""Columns as a pandas.DataFrame, for those who have pandas."""

from typing import Any


def data_frame(columns: dict[str, Any]) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
    """Build a pandas.DataFrame; raise ImportError that says how to install pandas."""
    try:
        import pandas as pd  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install 'ray-messaging[pandas]'") from error
    return pd.DataFrame(columns)
