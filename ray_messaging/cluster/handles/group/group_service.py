"""The service of a group by one of its handles, as far as handlers fail or wait: the group's actor keeps it."""

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


class GroupService:
    """The service of one handle; `name` is that of the handle at the actor."""

    waits = None

    def __init__(self, group: "AsyncGroup", name: str) -> None:
        self.name = name
        self._group = group

    async def begin(self) -> Sequence[Message]:
        """Begin to serve."""
        await self._group._insist(self._group.actor.begin_service.remote)
        return ()

    async def keep_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Make a message whose handler has failed a dead letter."""
        batch, row, *_ = slice_of(message)
        frame, origin = encode(batch.take(np.array([row]))), batch.origin
        if origin is not None:
            arguments = (origin.mailbox, origin.entry, row, frame, failure.reason)
            await self._group._insist(lambda: self._group.actor.keep_failed.remote(*arguments))

    async def tell_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Tell the asker of a message that its handler has failed; where it has none, or has an answer, do nothing."""
        question = slice_of(message)
        if waits_for_failure(question):
            await self._group.reply_to([question], failure.payload, failed=True)

    async def end(self, left: Sequence[Message], ended: str) -> None:  # noqa: ARG002 - a Service's
        """Serve no more: what is not handled goes to the next fetch at once."""
        if ray.is_initialized():  # else the group has ended, or will with its driver
            await self._group.give_up_unacked()
            if ended:
                await self._group._insist(lambda: self._group.actor.end_service.remote(self.name, ended))
