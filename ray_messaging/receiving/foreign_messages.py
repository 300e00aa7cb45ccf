"""Messages of foreign clients: each publication is a batch of one message, bounded if nothing is fetched."""

import logging
import time

from ray_messaging.addressing.channels import parse_channel
from ray_messaging.addressing.directory import Directory
from ray_messaging.errors import InvalidAddress
from ray_messaging.model.agent_sets import NO_AGENTS
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.receiving.inbox import Inbox, Piece
from ray_messaging.transports.values import Ingress
from ray_messaging.wire.frames import FOREIGN_SENDER

logger = logging.getLogger(__name__)


def batch_of(ingress: Ingress, directory: Directory, mailbox: str, epoch: int, number: int) -> Batch:
    """Build the batch of a publication, the `number`th of a mailbox."""
    try:
        agent_id, topic = parse_channel(directory.exp_id, ingress.channel)
    except InvalidAddress:  # a pattern may match channels outside our scheme
        agent_id, topic = None, ":" + ingress.channel
    return Batch(
        sender=FOREIGN_SENDER + mailbox,
        epoch=epoch,
        first=number,
        from_ids=IdColumn.of([None]),
        rows=1,
        to_ids=IdColumn.of([agent_id]),
        topics=(topic,),
        sent_at=time.time(),
        lines=PayloadColumn.of([ingress.data], raw=True),
    )


class ForeignMessages:
    """Publications on their way into an inbox; those above its limit, or `limit_bytes`, are dropped and counted.

    They are in no mailbox, so that only this bounds them.
    """

    def __init__(self, inbox: Inbox, directory: Directory, mailbox: str, limit_bytes: int) -> None:
        self.epoch = 0  # the reader's
        self.count = 0
        self.dropped = 0
        self.left = NO_AGENTS  # agents that have left the mailbox
        self._inbox = inbox
        self._directory = directory
        self._mailbox = mailbox
        self._limit_bytes = limit_bytes

    def arrived(self, ingress: Ingress) -> None:
        """Put one publication into the inbox."""
        inbox, nbytes = self._inbox, len(ingress.data)
        # A publication above the limit is accepted if the inbox has no other publication.
        too_much = inbox.foreign_bytes > 0 and inbox.foreign_bytes + nbytes > self._limit_bytes
        if inbox.size >= inbox.limit or too_much:
            self.dropped += 1
            if self.dropped in {1, 1000} or self.dropped % 1_000_000 == 0:
                logger.warning(
                    "the inbox of %s is full: %d messages of foreign clients were dropped", self._mailbox, self.dropped
                )
            return
        batch = batch_of(ingress, self._directory, self._mailbox, self.epoch, self.count + 1)
        if self.left and self.left.find(batch.to_ids)[0]:
            return
        self.count += 1
        inbox.put(Piece(None, batch, 0, 1, nbytes, None if ingress.pattern is None else ingress.pattern.encode()))
