"""What comes on topics of users: frames of the messages of foreign clients, and of our own that went to no mailbox."""

import time

import numpy as np

from ray_messaging.addressing.channels import AgentId, parse_channel
from ray_messaging.errors import InvalidAddress
from ray_messaging.model.batch import Batch
from ray_messaging.model.id_column import IdColumn
from ray_messaging.model.payload_column import PayloadColumn
from ray_messaging.mqtt.connection.packets import Arrival
from ray_messaging.mqtt.receiving.unhandled import Kept, UnhandledMessages
from ray_messaging.mqtt.sending import bare_topics as bare
from ray_messaging.mqtt.wire.topics import Filters, channel_of_topic
from ray_messaging.wire.frames import FOREIGN_SENDER, encode

_FRAME_BYTES = 4 * 2**20


class Foreign:
    """Gather publications until somebody reads, and make frames of them; `rows` bounds a frame."""

    def __init__(self, exp_id: str, mailbox: str, epoch: int, rows: int) -> None:
        self.count = 0
        self._exp_id = exp_id
        self._filters = Filters(exp_id)
        self._sender = FOREIGN_SENDER + mailbox
        self._epoch = epoch
        self._rows = rows
        self._keeper = UnhandledMessages()
        self._gathered: list[tuple[AgentId | None, str, bytes, Kept]] = []
        self._nbytes = 0

    @property
    def full(self) -> bool:
        """Tell whether what is gathered fills a frame."""
        return len(self._gathered) >= self._rows or self._nbytes >= _FRAME_BYTES

    def address(self, topic: str) -> tuple[AgentId | None, str]:
        """Take a topic apart as the channel it is."""
        channel = channel_of_topic(self._exp_id, topic)
        try:
            return parse_channel(self._exp_id, channel, self._filters)
        except InvalidAddress:  # a filter may match topics that are no channel of ours
            return None, ":" + channel

    def gather(self, arrival: Arrival) -> None:
        """Take a publication, unless it has come over an earlier connection and is kept since then."""
        kept = self._keeper.unnamed(arrival)
        if kept is not None:
            self._gathered.append((*self.address(arrival.topic), arrival.payload, kept))
            self._nbytes += len(arrival.payload)
            self.count += 1

    def begin_anew(self) -> None:
        """Expect nothing again of what has come: the broker has lost the session."""
        self._keeper.begin_anew()

    def pour(self) -> tuple[bytes, list[Kept]] | None:
        """Make a frame of what is gathered; None: nothing is."""
        if not self._gathered:
            return None
        gathered, self._gathered, self._nbytes = self._gathered, [], 0
        topics = {topic: number for number, topic in enumerate(dict.fromkeys(topic for _, topic, _, _ in gathered))}
        batch = Batch(
            sender=self._sender,
            epoch=self._epoch,
            first=self.count - len(gathered) + 1,
            from_ids=IdColumn.of([None] * len(gathered)),
            to_ids=IdColumn.of([agent_id for agent_id, _, _, _ in gathered]),
            topics=tuple(topics),
            topic=None if len(topics) == 1 else np.array([topics[topic] for _, topic, _, _ in gathered], np.uint16),
            sent_at=time.time(),
            lines=PayloadColumn.of([payload for _, _, payload, _ in gathered], raw=True),
        )
        return encode(batch), [kept for _, _, _, kept in gathered]

    def told(self, arrival: Arrival) -> bare.Told | None:
        """Return what one of our own senders tells of a publication; None: it is a foreign client's."""
        return bare.read(arrival.properties) if arrival.properties else None

    def keep(self, told: bare.Told, arrival: Arrival) -> Kept | None:
        """Keep a message of our own; None: it has come before, and goes on waiting under this arrival."""
        return self._keeper.named(f"{told.sender}-{told.epoch}-{told.number}", arrival)

    def frame(self, told: bare.Told, arrival: Arrival) -> bytes:
        """Make a frame of one message of our own."""
        agent_id, topic = self.address(arrival.topic)
        batch = Batch(
            sender=told.sender,
            epoch=told.epoch,
            first=told.number,
            from_ids=IdColumn.of([told.from_id]),
            to_ids=IdColumn.of([told.to_id if agent_id is None else agent_id]),
            topics=(topic,),
            step=told.step,
            sent_at=told.sent_at,
            lines=PayloadColumn.of([arrival.payload], raw=True),
        )
        return encode(batch)
