"""Conversion of columns to a pandas.DataFrame."""

from typing import Any


def data_frame(columns: dict[str, Any]) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
    """Build a pandas.DataFrame; without pandas raise an ImportError that says how to install it."""
    try:
        import pandas as pd  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install 'ray-messaging[pandas]'") from error
    return pd.DataFrame(columns)
