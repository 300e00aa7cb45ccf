"""Questions and answers among the messages of a step."""

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import AskedOutside, OutsideQuestion
from ray_messaging.model.message_ids import MessageIdColumn


class Replied(NamedTuple):
    """Questions that messages of a step answer; of those from outside, also the names that their askers gave them."""

    ids: MessageIdColumn
    outside: AskedOutside

    @classmethod
    def of(cls, replies: Sequence[tuple[str, OutsideQuestion | None]]) -> "Replied":
        """Build from the question of each row, and its name outside (None: it came from a step)."""
        outside = {row: asked for row, (_, asked) in enumerate(replies) if asked is not None}
        return cls(MessageIdColumn.of([question for question, _ in replies]), outside)

    def take(self, rows: NDArray[np.intp]) -> "Replied":
        """Return the questions of some rows."""
        named = {at: self.outside[row] for at, row in enumerate(rows.tolist()) if row in self.outside}
        return Replied(self.ids.take(rows), named if self.outside else {})


class StepQuestionIds(Sequence[str]):
    """The ids of questions that were asked in a step, in the order of their columns."""

    def __init__(self, step: int, from_ids: IdColumn, ordinals: NDArray[np.uint32]) -> None:
        self._step = step
        self._from_ids = from_ids
        self._ordinals = ordinals

    def __len__(self) -> int:
        return len(self._ordinals)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        """Return the id of one question."""
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        return question_id(self._step, int(self._ordinals[row]), self._from_ids[row])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} questions of step {self._step})"


def rows_by_route(replies: Batch, outside: AskedOutside) -> dict[tuple[int, str], NDArray[np.intp]]:
    """Return the rows of answers by topic, as a place, and by the mailbox of an asker outside ("": there is none)."""
    topics = np.zeros(replies.rows, np.intp) if replies.topic is None else replies.topic.astype(np.intp)
    if not outside:
        return {(place, ""): np.flatnonzero(topics == place) for place in np.unique(topics).tolist()}
    askers = [outside[row].mailbox if row in outside else "" for row in range(replies.rows)]
    found: dict[tuple[int, str], list[int]] = {}
    for row, key in enumerate(zip(topics.tolist(), askers, strict=True)):
        found.setdefault(key, []).append(row)
    return {key: np.array(rows, np.intp) for key, rows in found.items()}


def question_id(step: int, ordinal: int, from_id: object) -> str:
    """Return the id of a message of a step (see `Batch.message_id`)."""
    return f"{step}-{ordinal}-{from_id}"
