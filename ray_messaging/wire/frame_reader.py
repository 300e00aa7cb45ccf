"""Reading of a frame's columns one after the other."""

from typing import Any

import msgspec
import numpy as np

from ray_messaging.errors import FrameError

ALIGNMENT = 8  # of typed columns, from the start of the frame


class FrameReader(msgspec.Struct):
    """Reader that returns the columns of a frame one after the other, and never reads past the end.

    `checked` says that another process has decoded the frame, so that its values are not checked again.
    """

    frame: bytes
    view: memoryview
    at: int
    rows: int
    checked: bool

    def column(self, dtype: Any, rows: int | None = None) -> Any:  # noqa: ANN401 - numpy's dtype and array
        """Return the next column, of a value for each of the frame's rows, or of `rows` values."""
        count = self.rows if rows is None else rows
        return np.frombuffer(self.cut(count * dtype.itemsize), dtype)

    def aligned_column(self, dtype: Any, rows: int) -> Any:  # noqa: ANN401 - as above
        """Return the next column that begins at a multiple of 8 bytes."""
        self.at += -self.at % ALIGNMENT
        return self.column(dtype, rows)

    def cut(self, nbytes: int) -> memoryview:
        """Return the next `nbytes` bytes."""
        at, end = self.at, self.at + nbytes
        if end > len(self.view):
            raise invalid("it ends within a column")
        self.at = end
        return self.view[at:end]


def invalid(reason: str) -> FrameError:
    """Build the error for a frame."""
    return FrameError(f"invalid frame: {reason}; drop it, and find the client that wrote it")
