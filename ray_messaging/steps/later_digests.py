"""Digests of a group's steps. They take a third of a step's time, so they are computed only when they are asked for."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ray_messaging.model.batch import Batch
from ray_messaging.steps.row_sums import sum_of_batch

KEPT_BYTES: Final = 64 * 2**20  # this many bytes hold about two million small messages


class HashedLater(NamedTuple):
    """The rows of a batch with their fates (`codes`), and for blocked rows the rule and the reason (`blocks`)."""

    batch: Batch
    codes: bytes
    blocks: Mapping[int, tuple[str, str]]


class LaterDigests:
    """The rows that a group has sent from this process in its last `count` steps. There are no digests of other steps.

    There are none of steps before `first` either, because the run goes on for so long that nobody asks for them. When
    the rows take more than `KEPT_BYTES`, their digests are computed, and only the sums of the digests are kept.
    """

    def __init__(self, first: int, count: int) -> None:
        self._first, self._count = first, count
        self._kept: dict[int, list[HashedLater]] = {}
        self._sums: dict[int, int] = {}
        self._nbytes = 0

    def keep(self, step: int, rows: list[HashedLater], known: int) -> None:
        """Keep the rows of a step. They replace rows that an earlier attempt at the step has left.

        Args: `known` is the sum of the digests that are computed already.
        """
        if step < self._first:
            return
        self._nbytes += _size(rows) - _size(self._kept.get(step, ()))
        self._kept[step], self._sums[step] = rows, known
        past = step - self._count
        self._nbytes -= _size(self._kept.pop(past, ()))
        self._sums.pop(past, None)
        if self._nbytes > KEPT_BYTES:
            for number in [*self._kept]:
                self.sum_of(number)

    def sum_of(self, step: int) -> int:
        """Return the sum of the digests of a step's rows, and delete the rows."""
        for each in self._kept.pop(step, ()):
            self._sums[step] += sum_of_batch(each.batch, each.codes, each.blocks, {})
            self._nbytes -= each.batch.nbytes
        return self._sums.get(step, 0)


def _size(rows: Iterable[HashedLater]) -> int:
    return sum(each.batch.nbytes for each in rows)
