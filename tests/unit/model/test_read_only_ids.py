"""Id columns are read-only: a rule in the sender's process cannot change the sent messages."""

import numpy as np
import pytest

from ray_messaging.model.columns import IdColumn


@pytest.mark.parametrize(
    "column",
    [
        IdColumn.checked(np.arange(3)),
        IdColumn.checked([1, 2, 3]),
        IdColumn.checked(["a", 2]),
        IdColumn.constant(7, 3),
        IdColumn.of([1, None]),
    ],
    ids=["array", "list", "mixed", "constant", "none"],
)
def test_id_columns_are_read_only(column):
    with pytest.raises(ValueError, match="read-only"):
        column.values[0] = 9
