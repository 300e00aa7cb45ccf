"""What a foreign client published, as a batch of one message."""

import time

from ray_messaging.channels import parse_channel
from ray_messaging.directory import Directory
from ray_messaging.errors import InvalidAddress
from ray_messaging.frames import FOREIGN_SENDER, Batch
from ray_messaging.ids import Ids
from ray_messaging.lines import Lines
from ray_messaging.transports.base import Ingress


def batch_of(ingress: Ingress, directory: Directory, mailbox: str, epoch: int, number: int) -> Batch:
    """Build the batch of a publication, the `number`th that a mailbox has got."""
    try:
        agent_id, topic = parse_channel(directory.exp_id, ingress.channel, directory.patterns)
    except InvalidAddress:  # a pattern may match channels that are none of ours
        agent_id, topic = None, ":" + ingress.channel
    return Batch(
        sender=FOREIGN_SENDER + mailbox,
        epoch=epoch,
        first=number,
        from_ids=Ids.of([None]),
        to_ids=Ids.of([agent_id]),
        topics=(topic,),
        sent_at=time.time(),
        lines=Lines.of([ingress.data], raw=True),
    )
