"""The event log of a running experiment, read through the log's actor, and an iterator over blocked messages."""

import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import pyarrow as pa
from ray.exceptions import RayActorError, RayTaskError

from ray_messaging.cluster.handles.connection import result, translated
from ray_messaging.cluster.ray_calls import wait
from ray_messaging.common.backoff import BLOCKED_LISTENER_RETRY
from ray_messaging.default_limits_and_leases import LOG_NEWS_TIMEOUT_S
from ray_messaging.errors import Closed, MessagingError
from ray_messaging.eventlog.reading.event_rows import LogRow, rows_of

logger = logging.getLogger(__name__)

_ACTOR_NAME = "the event log"
_GLANCE_S = 0.5  # a listener checks at this interval, in seconds, whether it was closed


class Seen(NamedTuple):
    """The last position in the event log that was read, and the process that gave the position to its row.

    The process is one of the actor that writes the log. If the actor is restarted, the actor's next process may give
    some rows other positions.
    """

    process: str
    position: int


class RemoteSource:
    """The event log of a running experiment as a source for queries: it passes each query to the log's actor."""

    live = True

    def __init__(self, log: Any, exp_id: str) -> None:  # noqa: ANN401 - a Ray actor handle
        self._log = log
        self._actor_name = f"the event log of experiment {exp_id!r}"
        self._process = ""  # the process of the log's actor that answered the last call of `since`

    def follower(self) -> "RemoteSource":
        """Return a copy of this source for another reader.

        Each reader needs its own copy, because the copy remembers which process of the log's actor gave the position
        that the reader has reached.
        """
        return copy(self)

    def ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401 - each question has its own
        """Return the answer of the log's actor to a query."""
        if question == "since":
            seen = Seen(self._process, arguments.pop("position"))
            page, (self._process, _) = self._result(self._log.since.remote(seen, arguments))
            return page
        if question == "end" and not self._process:  # `since` returns the end and the actor's process
            self._process, end = self._result(self._log.since.remote(Seen("", -1), {"limit": 0}))[1]
            return end
        return self._result(self._log.ask.remote(question, arguments))

    def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until there are rows after a position; return False if none came within `timeout_s`."""
        return bool(self._result(self._log.wait.remote(position, timeout_s)))

    def _result(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        return result(ref, actor_name=self._actor_name)


@dataclass(frozen=True, slots=True)
class BlockedMessage(LogRow):
    """A message that a rule blocked, with the fields of a `LogRow`, such as `rule` and `reason`.

    `cursor` is the message's number among the blocked messages. To continue with the next blocked message, also in
    another process, pass `cursor` as `after` to `Messaging.blocked` or `Messaging.on_blocked`.
    """

    cursor: int


class BlockedMessages(AsyncIterator[BlockedMessage]):
    """Async iterator over blocked messages after a cursor (None: only new ones).

    Each message comes as soon as the log has it.
    """

    def __init__(self, log: Any, after: int | None) -> None:  # noqa: ANN401 - a Ray actor handle
        self._log = log
        self._cursor: int = result(log.count_blocked.remote(), actor_name=_ACTOR_NAME) if after is None else after
        self._seen: Seen | None = None
        self._found: Iterator[BlockedMessage] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BlockedMessage:
        try:
            while (event := next(self._found, None)) is None:
                page, self._seen = _taken(await self._log.blocked.remote(self._cursor, self._seen, LOG_NEWS_TIMEOUT_S))
                self._found = _events(page, self._cursor)
        except (RayTaskError, RayActorError) as error:
            raise translated(error, actor_name=_ACTOR_NAME) from error
        self._cursor = event.cursor
        return event


class BlockedListener(AbstractContextManager["BlockedListener"]):
    """Thread that calls a function with each blocked message.

    `cursor` counts the blocked messages up to the last one that was handled. If the function raises an error, a logger
    reports it, and the thread goes on with the next message. If the actor that writes the event log does not answer,
    the thread asks the actor again. The thread ends after `close` was called, when the experiment ends, or after an
    unexpected error outside of the function, which is logged.
    """

    def __init__(self, log: Any, callback: Callable[[BlockedMessage], object], after: int | None) -> None:  # noqa: ANN401 - a Ray actor handle
        self._log = log
        self._callback = callback
        self._closing = threading.Event()
        self.cursor: int = self._ask(log.count_blocked.remote()) if after is None else after
        self._thread = threading.Thread(target=self._run, name="ray_messaging blocked listener", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; a second call does nothing."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        return result(ref, actor_name=_ACTOR_NAME)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._listen()
            except Closed:
                logger.info("the experiment has ended, so the listener for blocked messages has ended too")
                return
            except MessagingError as error:
                logger.warning("the listener for blocked messages waits until the log answers again: %s", error)
                self._closing.wait(BLOCKED_LISTENER_RETRY.first_s)
            except Exception:
                if not self._closing.is_set():
                    logger.exception("the listener for blocked messages stopped at cursor %d", self.cursor)
                return

    def _listen(self) -> None:
        seen: Seen | None = None
        while not self._closing.is_set():
            ref = self._log.blocked.remote(self.cursor, seen, LOG_NEWS_TIMEOUT_S)
            while not wait([ref], timeout=_GLANCE_S)[0]:
                if self._closing.is_set():
                    return
            page, seen = _taken(self._ask(ref))
            for event in _events(page, self.cursor):
                if self._closing.is_set():
                    return
                try:
                    self._callback(event)
                except Exception:
                    logger.exception("the callback failed on blocked message %s", event.message_id)
                self.cursor = event.cursor


def _taken(answer: tuple[pa.Table, Seen] | MessagingError) -> tuple[pa.Table, Seen]:
    """Return an answer of the log, or raise it if it is an error."""
    if isinstance(answer, MessagingError):
        raise answer
    return answer


def _events(page: pa.Table, cursor: int) -> Iterator[BlockedMessage]:
    names = [field.name for field in fields(LogRow)]
    for number, row in enumerate(rows_of(page), cursor + 1):
        yield BlockedMessage(**{name: getattr(row, name) for name in names}, cursor=number)
