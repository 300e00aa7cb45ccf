"""Helpers for our Ray actors: calls of the plain object that does an actor's work, and a start that is repeated."""

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from inspect import isawaitable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import ray

from ray_messaging.common.backoff import ACTOR_RECONNECT, ACTOR_START_RETRY
from ray_messaging.common.task_health import end
from ray_messaging.errors import ConnectionFailed, MailboxFull, MessagingError, ServerRefused

logger = logging.getLogger(__name__)

Host = TypeVar("Host")
P = ParamSpec("P")


class OfHost(Generic[Host]):
    """Maker of an actor's methods from its host's methods, as in `fetch = of_host(lambda host: host.fetch)`.

    Ray wraps every method of an actor's class, which makes calls slow. So the actor's work is done by a plain object,
    the host. The actor's property `_host` returns the host, or raises the error that prevents the host's start.
    """

    def __call__(
        self, call: Callable[[Host], Callable[P, object]]
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, Any]]:
        """Return an actor's method that calls the host's method, plain or async, with the same arguments."""

        async def method(actor: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 - an actor
            found = call(actor._host)(*args, **kwargs)
            return await found if isawaitable(found) else found

        return method


def restarted() -> bool:
    """Return whether an earlier process of this actor died."""
    with warnings.catch_warnings(action="ignore"):  # in Ray 2.60 this property warns about another property
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def unreachable(failure: MessagingError | None) -> bool:
    """Return whether a start failed because the server did not answer."""
    return isinstance(failure, ConnectionFailed) and not isinstance(failure, ServerRefused)


def worth_a_retry(failure: MessagingError | None) -> bool:
    """Return whether another try may succeed, because the server did not answer or had no memory left."""
    return unreachable(failure) or isinstance(failure, MailboxFull)


class ActorStart:
    """The start of the plain object that does an actor's work, its host.

    `failure` is the error of the last try, which the actor's calls raise. The error is kept, because an error that an
    actor's __init__ raises would kill the actor and lose its type.
    """

    def __init__(
        self, actor_name: str, begin: Callable[[], Awaitable[None]], passes: Callable[[MessagingError], bool]
    ) -> None:
        self.failure: MessagingError | None = None
        self._actor_name = actor_name
        self._begin = begin
        self._passes = passes
        self._retrying: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Start the actor's host, the plain object that does the actor's work.

        If the actor was restarted by Ray and the start fails, call `passes`, an argument of the constructor, with the
        error. If `passes` returns True, wait and try again. Otherwise return, and try again in the background.
        """
        await self._try()
        if not restarted():
            return
        while self.failure is not None and self._passes(self.failure):
            await asyncio.sleep(ACTOR_RECONNECT.first_s)
            await self._try()
        if self.failure is not None:
            # Messages wait during the retries. The cause of the failure, such as a full memory, may go away.
            self._retrying = asyncio.create_task(self._retry(), name=f"ray_messaging restart of {self._actor_name}")

    async def _retry(self) -> None:
        while self.failure is not None:
            await asyncio.sleep(ACTOR_START_RETRY.first_s)
            await self._try()

    async def _try(self) -> None:
        try:
            await self._begin()
        except MessagingError as error:
            failure = error
        except Exception as error:  # an unexpected error must not end the retries
            logger.exception("%s cannot start", self._actor_name)
            failure = MessagingError(f"{self._actor_name} cannot start ({type(error).__name__}: {error})")
        else:
            self.failure = None
            return
        # The failure of a first start is not logged, because the driver raises it.
        if restarted() and str(failure) != str(self.failure):
            logger.error("%s does not work: %s", self._actor_name, failure)
        self.failure = failure

    def check(self) -> None:
        """Raise the error of the actor's last try to start, if that try failed."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    async def stop(self) -> bool:
        """Stop retries in the background; return whether there have been any since the actor restarted."""
        if self._retrying is None:
            return False
        await end(self._retrying)
        return True
