"""A fetched batch: a sequence of messages over frames, taken apart when it is looked at."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.tables import data_frame
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch


class Slice(NamedTuple):
    """Some rows of one frame, `low` to `high`."""

    batch: Batch
    low: int
    high: int
    pattern: bytes | None = None


class Messages(Sequence[Message]):
    """Be a batch of received messages, in the order they came; columns as numpy arrays, an item when looked at.

    `more` says whether there is more than this. False: when the reader last asked the server, it had nothing behind
    these. True: there is more, or the reader has not asked since. Only a fetch with `complete=True` asks by itself.
    """

    __slots__ = ("_ends", "exp_id", "more", "slices")

    def __init__(self, exp_id: str, slices: Sequence[Slice], more: bool = False) -> None:  # noqa: FBT001 - as unpickled
        self.exp_id = exp_id
        self.slices = list(slices)
        self.more = more
        self._ends = [*accumulate([part.high - part.low for part in self.slices])]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"message {index} of {len(self)}")
        at = bisect_right(self._ends, row)
        part = self.slices[at]
        return Message(self.exp_id, part.batch, row - self._ends[at] + part.high, part.pattern)

    def __iter__(self) -> Iterator[Message]:
        for batch, low, high, pattern in self.slices:
            for row in range(low, high):
                yield Message(self.exp_id, batch, row, pattern)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Messages | list):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # as a list's

    def __add__(self, other: Iterable[Message]) -> list[Message]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Message]) -> list[Message]:
        return [*other, *self]

    @property
    def from_ids(self) -> NDArray[Any]:
        """Return the senders: int64 (n,), or object where some are str or None."""
        return _joined([part.batch.from_ids.take(slice(part.low, part.high)).to_numpy() for part in self.slices])

    @property
    def to_ids(self) -> NDArray[Any]:
        """Return the recipients: int64 (n,), or object where some are str or None."""
        return _joined([part.batch.to_ids.take(slice(part.low, part.high)).to_numpy() for part in self.slices])

    @property
    def sent_at(self) -> NDArray[np.float64]:
        """Return when they were sent, float64 (n,), unix seconds."""
        return np.array(_joined([_column(part, part.batch.sent_at) for part in self.slices]), np.float64)

    @property
    def steps(self) -> NDArray[Any]:
        """Return their senders' simulation steps: int64 (n,), or object where some have none."""
        return _joined([_column(part, part.batch.step) for part in self.slices])

    @property
    def payloads(self) -> list[Any]:
        """Return the payloads, decoded; raise FrameError where a foreign client sent no JSON."""
        return [message.payload for message in self]

    @property
    def data(self) -> list[bytes]:
        """Return the payloads as they travelled."""
        found: list[bytes] = []
        for part in self.slices:
            lines = part.batch.lines
            if lines is not None and lines.index is None:
                found += lines.list[part.low : part.high]
            elif lines is not None:
                found += [lines.row(row) for row in range(part.low, part.high)]
        return found

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame of id, channel, from_id, to_id, step, sent_at (unix s), payload."""
        return data_frame(
            {
                "id": [message.id for message in self],
                "channel": [message.channel for message in self],
                "from_id": self.from_ids,
                "to_id": self.to_ids,
                "step": self.steps,
                "sent_at": self.sent_at,
                "payload": self.payloads,
            }
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Messages, (self.exp_id, self.slices, self.more)

    def __repr__(self) -> str:
        return f"Messages({len(self):,} messages)"


def _column(part: Slice, values: Any) -> NDArray[Any]:  # noqa: ANN401 - a column, or one value for all
    if isinstance(values, np.ndarray):
        return values[part.low : part.high]
    return np.full(part.high - part.low, values, None if values is not None else object)


def _joined(columns: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)
