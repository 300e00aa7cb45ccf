"""Serving: a handler is called for each message, and many handlers run at the same time."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from typing import Literal, NamedTuple, Protocol, get_args

from ray_messaging.common.awaitables import call_problem
from ray_messaging.common.backoff import HANDLER_RETRY, Backoff
from ray_messaging.common.task_health import end
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.handling import HandlerFailure, Handling, Waits
from ray_messaging.conversations.inboxes import Fetch, HandOut
from ray_messaging.errors import (
    Closed,
    ConfigError,
    Fenced,
    InvalidPayload,
    MessagingError,
    NoQuestion,
    PayloadTooLarge,
)
from ray_messaging.message import Message
from ray_messaging.model.fates import BLOCKED, FATES
from ray_messaging.model.whole_numbers import whole_number
from ray_messaging.observability.tracing.untraced import UNTRACED, AnyTracer
from ray_messaging.receipt import Receipt
from ray_messaging.receiving.call_checks import check_timeout

logger = logging.getLogger(__name__)

Handler = Callable[[Message], Awaitable[Payload | None]]
OnError = Literal["dead_letter", "end"]

_NO_CONTEXT = nullcontext()
# If a handler raises one of these errors, the cause is that the messager can no longer work, and not the message.
_OURS = (Closed, Fenced)
# Errors of a reply that cannot be sent, because of what the handler has returned.
_OF_THE_ANSWER = (NoQuestion, InvalidPayload, PayloadTooLarge)


class Serving(NamedTuple):
    """Settings of `serve`.

    They say how many handlers may run at once, how often a message is tried again, how many seconds each try may take
    (None: no limit), and what happens after an error.
    """

    concurrency: int = 1000
    retries: int = 0
    timeout: float | None = None
    on_error: OnError = "dead_letter"

    @classmethod
    def checked(cls, concurrency: object, retries: object, timeout: float | None, on_error: object) -> "Serving":
        """Build the settings from the arguments of `serve`; raise ConfigError if one is not valid."""
        check_timeout(timeout)
        if on_error not in get_args(OnError):
            raise ConfigError(f"on_error={on_error!r} must be one of {', '.join(map(repr, get_args(OnError)))}")
        if (tries := whole_number(retries)) is None:
            raise ConfigError(f"retries={retries!r} must be a number of tries after the first one, 0 or more")
        if not (most := whole_number(concurrency)):
            raise ConfigError(f"concurrency={concurrency!r} must be a number of handlers, at least 1")
        return cls(most, tries, timeout, on_error)  # type: ignore[arg-type]  # `on_error` was checked


class Service(Protocol):
    """The messager whose messages a MessageServer handles.

    The MessageServer tells this object which handlers have failed.
    """

    name: str  # the service's name, which no other service of the mailbox has

    @property
    def waits(self) -> Waits | None:
        """Return the record of which handlers of this process wait, or None if the group's actor has the record."""

    async def begin(self) -> Sequence[Message]:
        """Begin to serve. Return the messages that an earlier service of this messager has left unhandled."""

    async def keep_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Turn a message into a dead letter, because its handler has failed."""

    async def tell_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Report to the asker of a message that its handler has failed."""

    async def end(self, left: Sequence[Message], ended: str) -> None:
        """Stop serving.

        Take back the unhandled messages `left`. `ended` says why this service has ended ("": its caller has ended it).
        """


class MessageServer:
    """A loop that fetches messages and runs a handler for each, many at once. Each message is committed separately.

    `serving.on_error` says what happens if a handler fails. Either its message becomes a dead letter, the asker is
    told, and the other handlers go on, or else the whole service ends.
    """

    def __init__(
        self,
        service: Service,
        fetch: Fetch,
        ack: Callable[[Iterable[Message]], Awaitable[None]],
        reply: Callable[[Message, Payload], Awaitable[Receipt]],
        handler: Handler,
        serving: Serving,
        tracer: AnyTracer = UNTRACED,
    ) -> None:
        problem = None if callable(handler) else "it cannot be called"
        # This is checked before serving, because otherwise each message would become a dead letter.
        if problem := problem or call_problem(handler, 1):
            raise ConfigError(f"handler={handler!r} must take one argument, async def answer(message), but {problem}")
        self._service = service
        self._tracer = tracer
        self._reply = reply
        self._handler = handler
        self._serving = serving
        self._hand_out = HandOut(fetch, ack, self._begin, serving.concurrency)
        self._running: dict[asyncio.Task[None], Message] = {}
        self._left: list[Message] = []  # messages whose handlers have ended without handling them
        self._error: BaseException | None = None
        self._over = False

    async def run(self) -> None:
        """Handle messages until the messager closes, or an error ends the service.

        Then end all handlers, and raise the error.
        """
        first = deque(await self._service.begin())
        try:
            await self._hand_out.run(first)
        finally:
            self._over = True
            for task in [*self._running]:
                await end(task)
                self._ended(task)
            self._left += first
            with suppress(MessagingError):  # if the commit fails, the messages are delivered again
                await self._hand_out.commit()
            await self._end()
        assert self._error is not None
        raise self._error

    async def _end(self) -> None:
        error = self._error
        ended = "" if error is None or isinstance(error, _OURS) else HandlerFailure.of(error).told
        try:
            await self._service.end(self._left, ended)
        except MessagingError as late:
            logger.warning(
                "the server could not record that `serve` has ended, so callers that ask its agents wait until their "
                "timeout: %s",
                late,
            )

    def _begin(self, message: Message) -> None:
        task = asyncio.create_task(self._handle(message), name="ray_messaging handler")
        self._running[task] = message
        task.add_done_callback(self._ended)

    async def _handle(self, message: Message) -> None:
        handling = Handling(message, self._service.name, self._serving.concurrency, self._service.waits)
        try:
            with self._tracer.handling(message):
                await self._try(message)
        # If the task ended with one of these errors, the event loop would stop at once, and with it this service.
        except (SystemExit, KeyboardInterrupt) as error:
            await self._tell(message, HandlerFailure.of(error))
            raise _Fatal(error) from error
        finally:
            handling.over = True
        self._hand_out.handled(message)

    async def _try(self, message: Message) -> None:
        """Handle a message, and try again if that fails. Raise the errors that end the service."""
        backoff: Backoff | None = None
        attempts = 0
        while True:
            attempts += 1
            try:
                return await self._answer(message)
            except _OURS:
                raise
            except _Fatal as fatal:
                raise fatal.error from None  # the traceback must show the error, and not its wrapper
            except asyncio.CancelledError as error:
                if self._over:
                    raise
                made = MessagingError("a handler of `serve` was cancelled, by itself or by a call of its own")
                made.__cause__ = error
                return await self._fail(message, made, attempts)
            except Exception as error:  # noqa: BLE001 - a handler is the user's own code
                if attempts > self._serving.retries:
                    return await self._fail(message, error, attempts)
                logger.warning("a handler of message %s failed, and is tried again: %r", message.id, error)
            backoff = backoff or Backoff(HANDLER_RETRY)
            await backoff.sleep()

    async def _answer(self, message: Message) -> None:
        limit = self._serving.timeout
        called = self._handler(message)
        if not hasattr(called, "__await__"):
            text = f"the handler of `serve` must be an async function, and returned {type(called).__name__}: async def"
            raise _Fatal(ConfigError(text))
        async with _NO_CONTEXT if limit is None else asyncio.timeout(limit):
            answer = await called
        if answer is None:
            return
        try:
            receipt = await self._reply(message, answer)
        except _OF_THE_ANSWER:
            raise
        except MessagingError as error:
            raise _Fatal(error) from error
        if not receipt and receipt.fate == FATES[BLOCKED]:  # an asker that is not told would wait in vain
            # The rule's reason is left out, because the rule might block a text that quotes the reason, too.
            told = HandlerFailure("AnswerBlocked", f"rule {receipt.rule!r} blocked it")
            await self._tell(message, told)

    async def _fail(self, message: Message, error: BaseException, attempts: int) -> None:
        """Give up a message whose handler has failed. If the error must end the service, raise it."""
        failure = HandlerFailure.of(error, attempts)
        logger.error("the handler of message %s failed", message.id, exc_info=error)
        if self._serving.on_error == "end":
            await self._tell(message, failure)
            raise error
        await self._service.keep_failed(message, failure)
        await self._tell(message, failure)

    async def _tell(self, message: Message, failure: HandlerFailure) -> None:
        try:
            await self._service.tell_failed(message, failure)
        except MessagingError as error:
            logger.warning("the asker of message %s is not told that its handler failed: %s", message.id, error)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        message = self._running.pop(task, None)
        if message is None:  # `run` has already called this method for the task
            return
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._error = self._error or (error.error if isinstance(error, _Fatal) else error)
            self._hand_out.stop()
        if error is not None or task.cancelled():  # the message will be delivered again
            self._left.append(message)
            self._hand_out.release()


class _Fatal(Exception):
    """Wrapper of an error that ends the service: a reply failed, a handler is not async, or a handler wants to exit."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error
