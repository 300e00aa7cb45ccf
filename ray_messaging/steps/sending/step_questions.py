"""Questions and answers among the messages of a step."""

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import AskedOutside, OutsideQuestion
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.steps.sending.step_routes import Numbers, Route


class Replied(NamedTuple):
    """Questions that messages of a step answer, None for one that answers none.

    Of those from outside there are also the names that their askers gave them.
    """

    ids: MessageIdColumn
    outside: AskedOutside

    @classmethod
    def of(cls, replies: Sequence[tuple[str | None, OutsideQuestion | None]]) -> "Replied":
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


def routes_of(replies: Batch, outside: AskedOutside, deliver: int) -> tuple[list[Route], Numbers]:
    """Return the routes of answers that are read in a step, and the place of each one's route, (n,)."""
    topics = np.zeros(replies.rows, np.int64) if replies.topic is None else replies.topic.astype(np.int64)
    if not outside:
        used, numbers = np.unique(topics, return_inverse=True)
        return [Route(replies.topics[place], deliver, replies=True) for place in used.tolist()], numbers
    askers = [outside[row].mailbox if row in outside else "" for row in range(replies.rows)]
    found: dict[tuple[int, str], int] = {}
    numbers = np.array([found.setdefault(key, len(found)) for key in zip(topics.tolist(), askers, strict=True)])
    return [Route(replies.topics[place], deliver, replies=True, asker=asker) for place, asker in found], numbers


def question_id(step: int, ordinal: int, from_id: object) -> str:
    """Return the id of a message of a step (see `Batch.message_id`)."""
    return f"{step}-{ordinal}-{from_id}"
