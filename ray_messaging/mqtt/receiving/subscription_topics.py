"""What a mailbox listens on, as topics and filters of the broker."""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np

from ray_messaging.addressing.channels import agent_channel
from ray_messaging.addressing.directory import Record
from ray_messaging.mqtt.receiving.filter_cover import cover
from ray_messaging.mqtt.wire.topics import channel_of_topic, compile_filter, topic_of_channel

_KNOWN = 100_000  # topics that were looked at


class SubscriptionTopics:
    """Say what one record listens on."""

    def __init__(self, exp_id: str, record: Record) -> None:
        self._exp_id = exp_id
        self._record = record
        self._topics: frozenset[str] | None = None
        self._filters: list[Callable[[str], bool]] = []
        self.has = lru_cache(_KNOWN)(self._has)

    def _all_topics(self) -> Iterator[str]:
        record = self._record
        for claim in record.claims:
            for agent_id in (*np.frombuffer(claim.ints, "<i8").tolist(), *claim.strings):
                for subtopic in claim.subtopics:
                    yield topic_of_channel(self._exp_id, agent_channel(self._exp_id, agent_id, subtopic))
        for channel in record.channels:
            yield topic_of_channel(self._exp_id, channel)

    def subscriptions(self) -> dict[str, None]:
        """Return what to subscribe to, each topic by one subscription where that can be."""
        topics, filters = cover(self._all_topics(), self._record.globs)
        return dict.fromkeys([*topics, *filters])

    def _has(self, topic: str) -> bool:
        """Tell whether a topic is listened on."""
        if self._topics is None:
            self._topics = frozenset(self._all_topics())
            self._filters = [compile_filter(filter_) for filter_ in self._record.globs]
        channel = channel_of_topic(self._exp_id, topic)
        return topic in self._topics or any(matches(channel) for matches in self._filters)
