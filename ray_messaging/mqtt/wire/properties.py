"""User properties that carry our message fields on topics of users."""

from typing import NamedTuple

import numpy as np

from ray_messaging.addressing.channels import AgentId, check_id, check_name
from ray_messaging.errors import InvalidAddress
from ray_messaging.model.batch import Batch

UserProperties = tuple[tuple[str, str], ...]

_ID, _FROM, _TO, _STEP, _SENT_AT, _MIRROR = "rm-id", "rm-from", "rm-to", "rm-step", "rm-sent-at", "rm-mirror"


class MessageProperties(NamedTuple):
    """Fields of one message: its id in three parts, and its columns; `mirror`: it also went to a mailbox."""

    sender: str
    epoch: int
    number: int
    from_id: AgentId | None
    to_id: AgentId | None
    step: int | None
    sent_at: float
    mirror: bool


def encode_properties(batch: Batch, row: int, *, mirror: bool) -> UserProperties:
    """Return the user properties of one message of a batch."""
    step, sent_at = batch.step, batch.sent_at
    fields = (
        (_ID, batch.message_id(row)),
        (_FROM, batch.from_ids[row]),
        (_TO, batch.to_ids[row]),
        (_STEP, step if step is None or isinstance(step, int) else int(step[row])),
        (_SENT_AT, float(sent_at[row] if isinstance(sent_at, np.ndarray) else sent_at)),
        (_MIRROR, 1 if mirror else None),
    )
    return tuple((key, str(value)) for key, value in fields if value is not None)


def decode_properties(properties: UserProperties) -> MessageProperties | None:
    """Return the fields of one of our messages; None: a foreign client's, or invalid."""
    found = dict(properties)
    if _ID not in found:
        return None
    try:
        sender, epoch, number = found[_ID].rsplit("-", 2)
        return MessageProperties(
            check_name("sender", sender),
            _checked(int(epoch)),
            _checked(int(number)),
            check_id(found[_FROM]) if _FROM in found else None,
            check_id(found[_TO]) if _TO in found else None,
            _checked(int(found[_STEP])) if _STEP in found else None,
            float(found.get(_SENT_AT, "0")),
            _MIRROR in found,
        )
    except (ValueError, InvalidAddress):
        return None


def _checked(number: int) -> int:
    if not -(2**62) < number < 2**62:
        raise ValueError(f"{number} is out of range")
    return number
