"""Topics and filters to subscribe to for one record."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

import numpy as np

from ray_messaging.addressing.channels import agent_channel
from ray_messaging.addressing.directory import Record
from ray_messaging.mqtt.wire.topics import channel_of_topic, compile_filter, topic_of_channel

_CACHED_TOPICS = 100_000


class Subscriptions:
    """Topics and filters of one record."""

    def __init__(self, exp_id: str, record: Record) -> None:
        self._exp_id = exp_id
        self._record = record
        self._topics: frozenset[str] | None = None
        self._filters: list[Callable[[str], bool]] = []
        self.has = lru_cache(_CACHED_TOPICS)(self._has)

    def _all_topics(self) -> Iterator[str]:
        record = self._record
        for claim in record.claims:
            for agent_id in (*np.frombuffer(claim.ints, "<i8").tolist(), *claim.strings):
                for subtopic in claim.subtopics:
                    yield topic_of_channel(self._exp_id, agent_channel(self._exp_id, agent_id, subtopic))
        for channel in record.channels:
            yield topic_of_channel(self._exp_id, channel)

    def to_make(self) -> dict[str, None]:
        """Return the topics and filters to subscribe to, with as little overlap as possible."""
        topics, filters = cover(self._all_topics(), self._record.globs)
        return dict.fromkeys([*topics, *filters])

    def _has(self, topic: str) -> bool:
        """Return whether the record asks for a topic."""
        if self._topics is None:
            self._topics = frozenset(self._all_topics())
            self._filters = [compile_filter(filter_) for filter_ in self._record.globs]
        channel = channel_of_topic(self._exp_id, topic)
        return topic in self._topics or any(matches(channel) for matches in self._filters)


def cover(exact: Iterable[str], filters: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the topics and filters that no other filter covers, each once and in order.

    A broker may send a message once for each of a client's matching subscriptions.
    """
    wanted = {_levels(text): text for text in filters}
    tree = _FilterTree()
    for levels in wanted:
        tree.add(levels)
    kept = [text for levels, text in wanted.items() if all(found == levels for found in tree.covering(levels))]
    uncovered = [
        topic for topic in dict.fromkeys(exact) if not (wanted and any(tree.covering(tuple(topic.split("/")))))
    ]
    return uncovered, kept


def _levels(text: str) -> tuple[str, ...]:
    return ("+", "#") if text == "#" else tuple(text.split("/"))  # "#" and "+/#" match the same topics


class _FilterTree:
    """Filters, level by level."""

    __slots__ = ("below", "end")

    def __init__(self) -> None:
        self.below: dict[str, _FilterTree] = {}
        self.end: tuple[str, ...] | None = None

    def add(self, levels: tuple[str, ...]) -> None:
        node = self
        for level in levels:
            node = node.below.setdefault(level, _FilterTree())
        node.end = levels

    def covering(self, levels: tuple[str, ...], at: int = 0) -> Iterator[tuple[str, ...]]:
        """Yield the filters that match everything that a topic or filter matches."""
        deeper = self.below.get("#")
        if deeper is not None and deeper.end is not None:
            yield deeper.end
        if at == len(levels):
            if self.end is not None:
                yield self.end
        elif levels[at] != "#":
            hidden = at == 0 and levels[0][:1] == "$"
            for step in {levels[at]} if hidden else {levels[at], "+"}:
                if step in self.below:
                    yield from self.below[step].covering(levels, at + 1)
