"""Typed columns of payloads, any that a sender may make."""

import numpy as np
from hypothesis import strategies as st

from ray_messaging.model.typed.column import NUMBERS
from ray_messaging.model.typed.input import columns
from ray_messaging.model.typed.typed_table import TypedColumns

NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@st.composite
def arrays(draw, rows):
    dtype = NUMBERS[draw(st.sampled_from([*NUMBERS]))]
    shape = draw(st.sampled_from([(rows,), (rows, 1), (rows, 3)]))
    size = int(np.prod(shape)) * dtype.itemsize
    drawn = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)
    return (drawn % 2 if dtype.name == "bool" else drawn).view(dtype).reshape(shape)


@st.composite
def tables(draw, rows, *, names=None):
    found = names or draw(st.lists(NAME, min_size=1, max_size=4, unique=True))
    strings = st.lists(STRINGS, min_size=rows, max_size=rows)
    return columns({name: draw(st.one_of(arrays(rows), strings)) for name in found})


def all_typed(messages):
    """Return whether all messages of a fetch have their payloads as typed columns."""
    return all(isinstance(part.batch.lines, TypedColumns) for part in messages.slices)


def unread(lines):
    """Return whether payloads are typed columns that nobody has read as rows of JSON."""
    return isinstance(lines, TypedColumns) and lines._list is None


def values_of(table):
    """Return the columns of a table as bytes, and strings, so that NaN equals itself."""
    return {
        name: (column.type, column.tolist() if column.type.name == "string" else column.to_numpy().tobytes())
        for name, column in table.columns.items()
    }
