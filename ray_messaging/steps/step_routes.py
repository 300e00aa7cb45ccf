"""The routes of a step's messages (topic, step of delivery, kind), and the questions that the messages answer."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.batch import Batch, TopicColumn, topic_column
from ray_messaging.model.columns import IdColumn
from ray_messaging.model.extension import AskedOutside, AudiencePairs, OutsideQuestion
from ray_messaging.model.message_ids import MessageIdColumn

Numbers = NDArray[np.int64]


class Route(NamedTuple):
    """The facts that some messages of a step have in common: topic, step of delivery, kind.

    With an `audience`, the messages are broadcasts to the audience. With `asks`, the messages are questions. With
    `replies`, the messages are answers. If `asker` is not "", the questions came from outside of the steps, and `asker`
    is the mailbox that gets the answers.
    """

    topic: str
    deliver: int
    asks: bool = False
    replies: bool = False
    asker: str = ""
    audience: AudiencePairs | None = None

    @property
    def lane(self) -> "Route":
        """Return the lane: the part of a route that all messages of a batch must have in common.

        For broadcasts, the lane is the whole route. An answer to a question that was asked in a step may be in a batch
        with other messages, because each row has a field for the id of the question that it answers.
        """
        return self if self.audience is not None else self._replace(topic="", asks=False, replies=bool(self.asker))


class RowRoutes(NamedTuple):
    """The routes of one batch's messages. All of them have the same lane (see `Route.lane`).

    `topic` has, for each message, an index into `topics`, or is None if there is only one topic. `asks` says which
    messages are questions, or is None if no message is.
    """

    lane: Route
    topics: tuple[str, ...]
    topic: TopicColumn | None
    asks: NDArray[np.bool_] | None

    @classmethod
    def same(cls, route: Route, rows: int) -> "RowRoutes":
        """Return the routes of messages that all have the same route."""
        return cls(route.lane, (route.topic,), None, np.ones(rows, np.bool_) if route.asks else None)

    @classmethod
    def of(cls, routes: Sequence[Route], numbers: Numbers) -> "RowRoutes":
        """Return the routes of messages that have one lane. `numbers` has, for each message, its index in `routes`."""
        used, places = np.unique(numbers, return_inverse=True)
        found = [routes[number] for number in used.tolist()]
        if len(found) == 1:
            return cls.same(found[0], len(numbers))
        topics = {route.topic: None for route in found}
        table = {name: place for place, name in enumerate(topics)}
        topic = topic_column([table[route.topic] for route in found], len(table))[places] if len(table) > 1 else None
        asks = np.array([route.asks for route in found])[places]
        return cls(found[0].lane, tuple(table), topic, asks if asks.any() else None)

    def part(self, low: int, high: int) -> "RowRoutes":
        """Return the routes of the messages from `low` to `high`."""
        topics, topic = self.topics, None if self.topic is None else self.topic[low:high]
        # A frame contains all topics of its batch, so topics that none of the messages has are left out.
        if topic is not None and len(topics) > len(topic):
            used, places = np.unique(topic, return_inverse=True)
            topics, topic = tuple(topics[place] for place in used.tolist()), topic_column(places, len(used))
        return RowRoutes(self.lane, topics, topic, None if self.asks is None else self.asks[low:high])


def rows_in_order(senders: Numbers, numbers: Numbers, routes: Sequence[Route]) -> Iterator[NDArray[np.intp]]:
    """Divide rows with different routes into batches; yield the rows of each batch.

    The rows of a batch have the same lane (see `Route.lane`). The rows of a sender keep their order over the batches.
    So rules judge a sender's messages in the order of sending, whatever other agents are in the sender's group.

    Args: `senders` (n,) has the sender of each row; `numbers` (n,) has the index of the row's route in `routes`.
    """
    lanes: dict[Route, int] = {}
    lane = np.array([lanes.setdefault(route.lane, len(lanes)) for route in routes])[numbers]
    # Batches are made in rounds. A round has one batch for each lane, and the lanes have a fixed order. If a sender's
    # next row has a lane that comes before the lane of the sender's last row, the next row waits for the next round.
    order = np.argsort(senders, kind="stable")
    sender, along = senders[order], lane[order]
    begins = np.diff(sender, prepend=-1) != 0
    rounds = np.cumsum((np.diff(along, prepend=0) < 0) & ~begins)
    firsts = np.flatnonzero(begins)
    rounds -= rounds[firsts].repeat(np.diff(firsts, append=len(order)))
    batch = np.empty(len(order), np.int64)
    batch[order] = rounds * len(lanes) + along
    rows = np.argsort(batch, kind="stable")
    yield from np.split(rows, np.flatnonzero(np.diff(batch[rows])) + 1)


class Replied(NamedTuple):
    """The questions that messages of a step answer.

    `ids` has the question's id for each message, or None for a message that is no answer. `outside` has, for answers to
    questions that were asked outside of the steps, the question and its id outside of the steps.
    """

    ids: MessageIdColumn
    outside: AskedOutside

    @classmethod
    def of(cls, replies: Sequence[tuple[str | None, OutsideQuestion | None]]) -> "Replied":
        """Build a `Replied` from a pair for each reply: the question's id, and the question if it came from outside."""
        outside = {row: asked for row, (_, asked) in enumerate(replies) if asked is not None}
        return cls(MessageIdColumn.of([question for question, _ in replies]), outside)

    def take(self, rows: NDArray[np.intp]) -> "Replied":
        """Return the questions that the messages in some rows answer."""
        named = {at: self.outside[row] for at, row in enumerate(rows.tolist()) if row in self.outside}
        return Replied(self.ids.take(rows), named if self.outside else {})


class StepQuestionIds(Sequence[str]):
    """The ids of the questions that one call of `ask_columns` has asked, in the order of the columns."""

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
        """Return the id of one question, or a list of ids for a slice."""
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        return question_id(self._step, int(self._ordinals[row]), self._from_ids[row])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} questions of step {self._step})"


def routes_of(replies: Batch, outside: AskedOutside, deliver: int) -> tuple[list[Route], Numbers]:
    """Return the routes of answers that are read in step `deliver`, and the index of each answer's route, (n,)."""
    topics = np.zeros(replies.rows, np.int64) if replies.topic is None else replies.topic.astype(np.int64)
    if not outside:
        used, numbers = np.unique(topics, return_inverse=True)
        return [Route(replies.topics[place], deliver, replies=True) for place in used.tolist()], numbers
    askers = [outside[row].mailbox if row in outside else "" for row in range(replies.rows)]
    found: dict[tuple[int, str], int] = {}
    numbers = np.array([found.setdefault(key, len(found)) for key in zip(topics.tolist(), askers, strict=True)])
    return [Route(replies.topics[place], deliver, replies=True, asker=asker) for place, asker in found], numbers


def question_id(step: int, ordinal: int, from_id: object) -> str:
    """Return the id of a message of a step, in the form that `Batch.message_id` has."""
    return f"{step}-{ordinal}-{from_id}"
