"""Messages on topics of users: those of foreign clients, and our own that went to no mailbox."""

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ray_messaging.addressing.channels import AgentId, parse_channel
from ray_messaging.errors import InvalidAddress
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.mqtt.connection.packets import Arrival
from ray_messaging.mqtt.wire.properties import MessageProperties, decode_properties
from ray_messaging.mqtt.wire.topics import Filters, channel_of_topic
from ray_messaging.wire.frames import FOREIGN_SENDER, encode

_FRAME_BYTES = 4 * 2**20
_MAX_NAMES = 10_000
_MAX_OWED = 10_000


class ForeignFrame(NamedTuple):
    """Frame of publications, with a token each to acknowledge."""

    frame: bytes
    tokens: list["Unhandled"]


class ForeignMessages:
    """Publications that wait for a reader, and the frames made of them; `rows` bounds a frame."""

    def __init__(self, exp_id: str, mailbox: str, epoch: int, rows: int) -> None:
        self.count = 0
        self._exp_id = exp_id
        self._filters = Filters(exp_id)
        self._sender = FOREIGN_SENDER + mailbox
        self._epoch = epoch
        self._rows = rows
        self.unhandled = UnhandledMessages()
        self._gathered: list[tuple[AgentId | None, str, bytes, Unhandled]] = []
        self._nbytes = 0

    def take(self, arrival: Arrival) -> list[ForeignFrame]:
        """Take a publication, unless it came before; return the frames that are complete by now.

        A foreign client's is gathered with others. One of our own is a frame, or is dropped if a mailbox has it.
        """
        fields = decode_properties(arrival.properties) if arrival.properties else None
        if fields is None:
            self._gather(arrival)
            return self.flush() if len(self._gathered) >= self._rows or self._nbytes >= _FRAME_BYTES else []
        if fields.mirror:
            arrival.acknowledge()
            return []
        token = self.unhandled.add_named(f"{fields.sender}-{fields.epoch}-{fields.number}", arrival)
        return [] if token is None else [*self.flush(), ForeignFrame(self._own_frame(fields, arrival), [token])]

    def address(self, topic: str) -> tuple[AgentId | None, str]:
        """Return the agent and the topic of a channel, by its MQTT topic."""
        channel = channel_of_topic(self._exp_id, topic)
        try:
            return parse_channel(self._exp_id, channel, self._filters)
        except InvalidAddress:  # a filter may match topics that are no channel of ours
            return None, ":" + channel

    def _gather(self, arrival: Arrival) -> None:
        token = self.unhandled.add_unnamed(arrival)
        if token is not None:
            self._gathered.append((*self.address(arrival.topic), arrival.payload, token))
            self._nbytes += len(arrival.payload)
            self.count += 1

    def flush(self) -> list[ForeignFrame]:
        """Return a frame of the gathered publications, if there are any."""
        if not self._gathered:
            return []
        gathered, self._gathered, self._nbytes = self._gathered, [], 0
        topics = {topic: number for number, topic in enumerate(dict.fromkeys(topic for _, topic, _, _ in gathered))}
        batch = Batch(
            sender=self._sender,
            epoch=self._epoch,
            first=self.count - len(gathered) + 1,
            from_ids=IdColumn.of([None] * len(gathered)),
            rows=len(gathered),
            to_ids=IdColumn.of([agent_id for agent_id, _, _, _ in gathered]),
            topics=tuple(topics),
            topic=None if len(topics) == 1 else np.array([topics[topic] for _, topic, _, _ in gathered], np.uint16),
            sent_at=time.time(),
            lines=PayloadColumn.of([payload for _, _, payload, _ in gathered], raw=True),
        )
        return [ForeignFrame(encode(batch), [token for _, _, _, token in gathered])]

    def _own_frame(self, fields: MessageProperties, arrival: Arrival) -> bytes:
        agent_id, topic = self.address(arrival.topic)
        batch = Batch(
            sender=fields.sender,
            epoch=fields.epoch,
            first=fields.number,
            from_ids=IdColumn.of([fields.from_id]),
            rows=1,
            to_ids=IdColumn.of([fields.to_id if agent_id is None else agent_id]),
            topics=(topic,),
            step=fields.step,
            sent_at=fields.sent_at,
            lines=PayloadColumn.of([arrival.payload], raw=True),
        )
        return encode(batch)


@dataclass(slots=True, eq=False)
class Unhandled:
    """Unhandled publication, with its newest arrival."""

    _messages: "UnhandledMessages"
    key: int
    _arrival: Arrival | None

    @property
    def over(self) -> bool:
        """Return whether its connection has ended, so that the broker sends it again."""
        return self._arrival is None or self._arrival.over()

    def renew(self, arrival: Arrival) -> None:
        """Replace the arrival by a newer one; acknowledge the newer one at once if it is handled already."""
        older, self._arrival = (arrival, None) if self._arrival is None else (self._arrival, arrival)
        older.acknowledge()

    def acknowledge(self) -> None:
        """Mark it as handled."""
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self._messages.handled(self, owed=arrival.over())
            arrival.acknowledge()


class UnhandledMessages:
    """Unhandled publications on topics of users, to recognize redeliveries.

    Messages of our own have names. A foreign client's has none, and two of them may be equal. So a publication marked
    as a duplicate is matched by topic and payload with one that came over an ended connection.
    """

    def __init__(self) -> None:
        self._named: OrderedDict[str, Unhandled] = OrderedDict()
        self._alike: dict[int, OrderedDict[Unhandled, None]] = {}  # first those of ended connections
        self._owed: OrderedDict[Unhandled, None] = OrderedDict()  # handled, but not acknowledged to the broker

    def add_named(self, name: str, arrival: Arrival) -> Unhandled | None:
        """Add a publication; None: it came before, and now waits with this arrival."""
        known = self._named.get(name)
        if known is not None:
            known.renew(arrival)
            return None
        added = self._named[name] = Unhandled(self, 0, arrival)
        if len(self._named) > _MAX_NAMES:
            self._named.popitem(last=False)
        return added

    def add_unnamed(self, arrival: Arrival) -> Unhandled | None:
        """Add a publication; None as in `add_named`."""
        key = hash((arrival.topic, arrival.payload))
        alike = self._alike.get(key)
        if arrival.duplicate and alike:
            known = next(iter(alike))
            if known.over:
                known.renew(arrival)
                if known in self._owed:
                    self._drop(known)
                else:
                    alike.move_to_end(known)
                return None
        added = Unhandled(self, key, arrival)
        if arrival.qos:
            self._alike.setdefault(key, OrderedDict())[added] = None
        return added

    def handled(self, message: Unhandled, *, owed: bool) -> None:
        """Forget a publication, unless the broker still sends it again."""
        if not owed:
            self._drop(message)
        elif message in self._alike.get(message.key, ()):
            self._owed[message] = None
            if len(self._owed) > _MAX_OWED:
                self._drop(next(iter(self._owed)))

    def session_lost(self) -> None:
        """Expect no redeliveries."""
        self._alike.clear()
        self._owed.clear()

    def _drop(self, message: Unhandled) -> None:
        self._owed.pop(message, None)
        alike = self._alike.get(message.key)
        if alike is not None:
            alike.pop(message, None)
            if not alike:
                del self._alike[message.key]
