"""Messages that are judged by a call of AgentSociety's `forward`. Each becomes a batch of one message."""

from contextlib import suppress
from typing import Any

import msgspec

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.compat.msg import Msg
from ray_messaging.default_limits_and_leases import PAYLOAD_LIMIT
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload


def forwarded(from_id: AgentId | None, to_id: AgentId | None, message: object, *, epoch: int, number: int) -> Batch:
    """Build the batch of one message.

    Raises: InvalidAddress, InvalidPayload or PayloadTooLarge if an id or the payload is not valid.
    """
    return Batch(
        sender=":forward",  # a name that no messager can have, because it has a colon
        epoch=epoch,
        first=number,
        from_ids=IdColumn.of([None if from_id is None else check_id(from_id)]),
        rows=1,
        to_ids=IdColumn.of([None if to_id is None else check_id(to_id)]),
        topics=(AGENT_CHAT,),
        lines=PayloadColumn.of([encode_payload(_payload(message), PAYLOAD_LIMIT)]),
    )


def _payload(message: object) -> object:
    """Return the payload of a message, which AgentSociety passes as JSON text.

    A text that is not JSON becomes the field "content".
    """
    if isinstance(message, dict | Msg):
        return message
    if isinstance(message, str):
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(message, type=dict[str, Any])
    return {"content": message}
