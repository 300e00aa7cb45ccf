"""The routes of a step's messages: topic, step of delivery, kind."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.extension import Audience

Numbers = NDArray[np.int64]


class Route(NamedTuple):
    """The common part of some messages of a step: topic, step of delivery, kind.

    `audience`: they are broadcasts to it. `asks`: they are questions. `replies`: they are answers; `asker` is a mailbox
    outside of the steps that gets them ("": the agents do).
    """

    topic: str
    deliver: int
    asks: bool = False
    replies: bool = False
    asker: str = ""
    audience: Audience | None = None

    @property
    def lane(self) -> "Route":
        """Return the part in which all messages of a batch agree; broadcasts agree in all of it.

        An answer to a question of a step may be among other messages: each of them has a place for a question.
        """
        return self if self.audience is not None else self._replace(topic="", asks=False, replies=bool(self.asker))


class RowRoutes(NamedTuple):
    """Messages of one lane: their topics, the place of each one's topic, and which ones are questions.

    None: all have the only topic; none is a question.
    """

    lane: Route
    topics: tuple[str, ...]
    topic: NDArray[np.uint16] | None
    asks: NDArray[np.bool_] | None

    @classmethod
    def same(cls, route: Route, rows: int) -> "RowRoutes":
        """Return the routes of messages that all have one."""
        return cls(route.lane, (route.topic,), None, np.ones(rows, np.bool_) if route.asks else None)

    @classmethod
    def of(cls, routes: Sequence[Route], numbers: Numbers) -> "RowRoutes":
        """Return the routes of messages of one lane, each given by its number among all routes."""
        used, places = np.unique(numbers, return_inverse=True)
        found = [routes[number] for number in used.tolist()]
        if len(found) == 1:
            return cls.same(found[0], len(numbers))
        topics = {route.topic: None for route in found}
        table = {name: place for place, name in enumerate(topics)}
        topic = np.array([table[route.topic] for route in found], np.uint16)[places] if len(table) > 1 else None
        asks = np.array([route.asks for route in found])[places]
        return cls(found[0].lane, tuple(table), topic, asks if asks.any() else None)

    def part(self, low: int, high: int) -> "RowRoutes":
        """Return the routes of some of the messages."""
        return self._replace(
            topic=None if self.topic is None else self.topic[low:high],
            asks=None if self.asks is None else self.asks[low:high],
        )


def rows_in_order(
    senders: Numbers, numbers: Numbers, lengths: Numbers, routes: Sequence[Route]
) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of each batch, where some runs of rows have different routes.

    The rows of a batch are of one lane. Of each sender's rows a later one is never in an earlier batch: rules judge
    them in the order in which they were sent, with whichever agents the sender shares its group.

    Args: senders, numbers and lengths (r,) are the runs' senders, the places of their routes, and their rows.
    """
    lanes: dict[Route, int] = {}
    lane = np.array([lanes.setdefault(route.lane, len(lanes)) for route in routes])[numbers]
    # A sender begins another round where its next lane is an earlier one.
    order = np.argsort(senders, kind="stable")
    sender, along = senders[order], lane[order]
    begins = np.diff(sender, prepend=-1) != 0
    rounds = np.cumsum((np.diff(along, prepend=0) < 0) & ~begins)
    firsts = np.flatnonzero(begins)
    rounds -= rounds[firsts].repeat(np.diff(firsts, append=len(order)))
    batch = np.empty(len(order), np.int64)
    batch[order] = rounds * len(lanes) + along
    of_row = batch.repeat(lengths)
    rows = np.argsort(of_row, kind="stable")
    yield from np.split(rows, np.flatnonzero(np.diff(of_row[rows])) + 1)
