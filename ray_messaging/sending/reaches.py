"""The mailboxes of broadcasts that are sent as they are: no pair is looked at, only how many there are."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import Record
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import agents_digest
from ray_messaging.model.columns import IdColumn


class Senders(Protocol):
    """The agents that may broadcast, each with a place."""

    column: IdColumn

    def find(self, column: IdColumn) -> NDArray[np.int64]:
        """Return the place of each id."""


class Reach(NamedTuple):
    """The agents of a mailbox, by their digest, and how many of them hear each sender, by its place."""

    record: Record
    agents: bytes
    hearers: NDArray[np.int64]


class Reaches:
    """The reach of some senders, in one audience's version and under one subtopic, into each mailbox.

    It is found once for each record. `hearers` is how many each sender has in all.
    """

    def __init__(self, edges: Edges, senders: Senders, topic: str) -> None:
        self.edges = edges
        self.senders = senders
        self.hearers = edges.counts(senders.column)
        self._topic = topic
        self._found: dict[str, Reach] = {}

    def of(self, record: Record) -> Reach:
        """Return the reach into a mailbox."""
        found = self._found.get(record.mailbox)
        if found is None or found.record is not record:
            agents = record.agents(self._topic)
            hearers = self.edges.toward(agents).counts(self.senders.column)
            found = self._found[record.mailbox] = Reach(record, agents_digest(agents), hearers)
        return found
