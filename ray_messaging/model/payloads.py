"""The port of the payloads of a batch."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.columns import PayloadColumn


class Payloads(Protocol):
    """Payloads of a batch: JSON lines (`PayloadColumn`), or `TypedColumns`, from which lines are made on first use.

    There are `count` lines. Row i has the line `index[i]` (uint32; None: row i has line i). `raw` lines come from
    foreign clients, need not be JSON, and may contain newlines.
    """

    @property
    def count(self) -> int:
        """Return the number of lines."""

    @property
    def index(self) -> NDArray[np.uint32] | None:
        """Return the number of each row's line, or None if row i has line i."""

    @property
    def raw(self) -> bool:
        """Return whether the lines come from a foreign client."""

    @property
    def small(self) -> bool:
        """Return whether rows are small and need no object each, so that a frame may have more of them."""

    @property
    def nbytes(self) -> int:
        """Return the bytes that the payloads take in a frame."""

    @property
    def weights(self) -> NDArray[np.int64]:
        """Return the bytes that each line takes in a frame, int64 (count,)."""

    @property
    def volumes(self) -> NDArray[np.int64]:
        """Return, for each line, the bytes that it and all lines before it take in a frame, int64 (count,)."""

    @property
    def json(self) -> PayloadColumn:
        """Return the payloads as JSON lines."""

    @property
    def list(self) -> list[bytes]:
        """Return the lines as JSON, without newlines."""

    @property
    def by_row(self) -> Sequence[bytes]:
        """Return the line of each row."""

    def row(self, row: int) -> bytes:
        """Return the line of a row."""

    def take(self, rows: NDArray[np.intp]) -> "Payloads":
        """Return the payloads of some rows."""

    def replaced(self, changed: dict[int, bytes], rows: int) -> "Payloads":
        """Return the payloads with the lines of some of the `rows` rows replaced."""

    def pack(self) -> None:
        """Drop everything that can be made again, so that payloads that are kept for long stay small."""
