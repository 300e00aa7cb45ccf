"""The actor's record of a handle that serves a group: who serves, and which handlers failed."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import ray

from ray_messaging.conversations.handling import HandlerFailure
from ray_messaging.conversations.replies import waits_for_failure
from ray_messaging.message import Message
from ray_messaging.messages import slice_of
from ray_messaging.wire.frames import encode

if TYPE_CHECKING:
    from ray_messaging.cluster.handles.group.async_group import AsyncGroup

logger = logging.getLogger(__name__)


class GroupService:
    """The service of one handle. The group's actor knows the handle by `name`."""

    waits = None

    def __init__(self, group: "AsyncGroup", name: str) -> None:
        self.name = name
        self._group = group

    async def begin(self) -> Sequence[Message]:
        """Record at the group's actor that this handle serves. Return no messages to handle first."""
        await self._group._insist(self._group.actor.begin_service.remote)
        return ()

    async def keep_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Turn a message whose handler has failed into a dead letter."""
        batch, row, *_ = slice_of(message)
        if batch.origin is None:
            logger.warning("a message of a foreign client is lost: %s", failure.reason)
        else:
            arguments = batch.origin.mailbox, batch.origin.entry, encode(batch.take(np.array([row]))), failure.reason
            await self._group._insist(lambda: self._group.actor.keep_failed.remote(*arguments, row=row))

    async def tell_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Send an AnswerFailed to the asker of a message; do nothing if nobody asks, or the asker has an answer."""
        question = slice_of(message)
        if waits_for_failure(question):
            await self._group.reply_to([question], failure.payload, failed=True)

    async def end(self, left: Sequence[Message], ended: str) -> None:  # noqa: ARG002 - a Service's
        """Serve no longer. Messages that are not handled are delivered to the next fetch at once.

        Args: `ended` is the reason for askers, or "" if there is nothing to record.
        """
        if ray.is_initialized():  # otherwise the group has ended, or will end with its driver
            await self._group.give_up_unacked()
            if ended:
                await self._group._insist(lambda: self._group.actor.end_service.remote(self.name, ended))
