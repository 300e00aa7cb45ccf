"""Serving: a handler for each message, many at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ray_messaging.common.task_health import end
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.hand_out import Fetch, HandOut
from ray_messaging.errors import MessagingError
from ray_messaging.message import Message
from ray_messaging.receipt import Receipt

if TYPE_CHECKING:
    from ray_messaging.observability.tracing.tracer import Tracer

Handler = Callable[[Message], Awaitable[Payload | None]]


class MessageServer:
    """Handlers of messages, at most `concurrency` at once; each message is committed by itself."""

    def __init__(
        self,
        fetch: Fetch,
        ack: Callable[[Iterable[Message]], Awaitable[None]],
        reply: Callable[[Message, Payload], Awaitable[Receipt]],
        handler: Handler,
        concurrency: int,
        tracer: "Tracer | None" = None,
    ) -> None:
        self._tracer = tracer
        self._reply = reply
        self._handler = handler
        self._hand_out = HandOut(fetch, ack, self._begin, concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._over = False

    async def run(self) -> None:
        """Handle messages until the messager closes, or a handler fails: then wait for the others, and raise."""
        try:
            await self._hand_out.run()
        finally:
            self._over = True
            for task in (*self._running,):
                await end(task)
            with suppress(MessagingError):  # what is not committed comes again
                await self._hand_out.commit()
        assert self._error is not None
        raise self._error

    def _begin(self, message: Message) -> None:
        task = asyncio.create_task(self._handle(message), name="ray_messaging handler")
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def _handle(self, message: Message) -> None:
        if self._tracer is None:
            await self._answer(message)
        else:
            with self._tracer.handling(message):
                await self._answer(message)
        self._hand_out.handled(message)

    async def _answer(self, message: Message) -> None:
        answer = await self._handler(message)
        if answer is not None:
            await self._reply(message, answer)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        error = _cancelled(self._over) if task.cancelled() else task.exception()
        if error is not None:
            self._error = self._error or error
            self._hand_out.stop()
        if error is not None or task.cancelled():  # the message comes again
            self._hand_out.release()


def _cancelled(over: bool) -> MessagingError | None:  # noqa: FBT001 - of the server
    """Return the error for a handler that was cancelled; None: with its server."""
    if over:
        return None
    return MessagingError(
        "a handler of `serve` was cancelled, by itself or by a call of its own; its message is not committed"
    )
