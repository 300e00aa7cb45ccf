"""Inboxes of a messager's agents: fetched messages wait here until they are handled, and are committed one by one."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Protocol

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.task_health import end
from ray_messaging.errors import Closed, MessagingError, NotListening
from ray_messaging.message import Handled, Message
from ray_messaging.messages import Messages
from ray_messaging.receiving.call_checks import CommitMode
from ray_messaging.receiving.commits import MOST_RANGES

logger = logging.getLogger(__name__)

# At most this many messages are fetched and not yet committed. Each of them may be a gap between two ranges of
# acknowledged messages, and a commit has at most MOST_RANGES ranges.
_MOST = MOST_RANGES // 2


class Fetch(Protocol):
    """The type of functions that fetch a messager's new messages."""

    def __call__(self, *, limit: int | None, timeout: float | None, commit: CommitMode) -> Awaitable[Messages]:
        """Return new messages; wait up to `timeout` seconds for the first one."""


class HandOut:
    """Messages that were fetched, but not yet committed on the server. There are at most `most`.

    Each message is passed to the callback `take`, and committed after it was handled. So at most `most` messages are
    delivered again after a crash. Messages that are handled during a commit are all in the next commit.
    """

    def __init__(
        self,
        fetch: Fetch,
        ack: Callable[[Iterable[Message]], Awaitable[None]],
        take: Callable[[Message], None],
        most: int,
    ) -> None:
        self._fetch_messages = fetch
        self._ack = ack
        self._take = take
        self._most = most
        self._in_hand = 0
        self._stopped = False
        self._handled: list[Message] = []  # messages that were handled, but are not committed yet
        self._news = asyncio.Event()  # set when a message was handled, or `run` may have to end
        self._room = asyncio.Event()

    @property
    def full(self) -> bool:
        """Return whether one of the fetched messages must be handled before more messages are fetched."""
        return self._in_hand >= self._most

    def handled(self, message: Message) -> None:
        """Mark a message as handled, so that it is committed soon."""
        self._handled.append(message)
        self._news.set()

    def release(self, messages: int = 1) -> None:
        """Count fewer messages as fetched and not committed, so that more can be fetched."""
        self._in_hand -= messages
        self._room.set()
        self._news.set()

    def stop(self) -> None:
        """Stop fetching. `run` returns when all fetched messages are committed or put back."""
        self._stopped = True
        self._news.set()

    async def run(self, first: deque[Message]) -> None:
        """Fetch messages, and commit those that are handled, until `stop` is called.

        If fetching fails before `stop` is called, raise the error.

        Args: `first` has messages that were fetched earlier. These are handed out first, and are removed from `first`.
        """
        fetching = asyncio.create_task(self._fetch(first), name="ray_messaging fetch")
        fetching.add_done_callback(lambda _: self._news.set())
        try:
            while self._in_hand or not self._stopped:
                await self._news.wait()
                self._news.clear()
                if self._stopped:
                    await end(fetching)
                elif fetching.done():
                    fetching.result()
                await self.commit()
        finally:
            await end(fetching)

    async def commit(self) -> None:
        """Commit the messages that were handled."""
        handled = self._handled[:]
        if handled:
            await self._ack(handled)
            # The messages are removed only after the await. So if `_ack` is cancelled, a later call commits them.
            del self._handled[: len(handled)]
            self.release(len(handled))

    async def _wait_for_room(self) -> None:
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def _fetch(self, first: deque[Message]) -> None:
        """Pass the messages in `first` to the callback `take`, and then all messages that are fetched, without end."""
        while first:
            await self._wait_for_room()
            self._in_hand += 1
            self._take(first.popleft())
        while True:
            await self._wait_for_room()
            free = self._most - self._in_hand
            for message in await self._fetch_messages(limit=free, timeout=None, commit="acked"):
                self._in_hand += 1
                self._take(message)
            # The first turn of the event loop runs the handlers of these messages. The second turn sends the handlers'
            # own messages.
            for _ in range(2):
                await asyncio.sleep(0)


class AgentInbox(msgspec.Struct, eq=False):
    """The fetched messages of one agent that no reader handles yet.

    `error` says why no more messages will arrive. It is None if more may arrive.
    """

    messages: deque[Message] = msgspec.field(default_factory=deque)
    news: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    readers: int = 0
    error: MessagingError | None = None


class Inboxes:
    """The inboxes of one messager's agents, which one task fills. Each message is committed separately.

    Args: `is_committed` returns whether a message was already committed by `ack`.
    """

    def __init__(
        self,
        fetch: Fetch,
        ack: Callable[[Iterable[Message]], Awaitable[None]],
        is_committed: Callable[[Message], bool],
    ) -> None:
        self.hand_out = HandOut(fetch, ack, self._take, _MOST)
        self._is_committed = is_committed
        self._inboxes: dict[AgentId | None, AgentInbox] = {}
        self._filling: asyncio.Task[None] | None = None
        self._error: MessagingError | None = None  # the error because of which no more messages arrive
        self._warned = False

    def messages_of(self, agent_id: AgentId | None) -> "InboxMessages":
        """Return an iterator over an agent's messages."""
        inbox = self._inboxes.setdefault(agent_id, AgentInbox())
        inbox.error = None
        return InboxMessages(self, inbox)

    def fill(self) -> None:
        """Begin to fetch messages, unless a task fetches them already."""
        if self._filling is None or self._filling.done():
            self._error = None
            self._filling = asyncio.create_task(self.hand_out.run(deque()), name="ray_messaging inboxes")
            self._filling.add_done_callback(self._ended)

    async def take_from(self, inbox: AgentInbox) -> Message:
        """Return the next message of an inbox. If there is none, wait for it."""
        while not inbox.messages and self._error is None and inbox.error is None:
            inbox.news.clear()
            await inbox.news.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)
        if not inbox.messages and inbox.error is not None:
            raise inbox.error.with_traceback(None)
        return inbox.messages.popleft()

    def agents_changed(self, name: str, listens_for: Callable[[AgentId], bool]) -> None:
        """End the wait of readers whose agents have left this mailbox.

        If agents have come back, their inboxes can be read again.

        Args: `listens_for` says whether messages for an agent may arrive here. `name` is the mailbox's name, for
        errors.
        """
        for agent, inbox in self._inboxes.items():
            inbox.error = None
            if agent is not None and not listens_for(agent):
                inbox.error = NotListening(
                    f"agent {agent!r} is not in {name!r} any more: open its inbox at the messager that hosts it now"
                )
                inbox.news.set()

    def put_back(self, inbox: AgentInbox, message: Message) -> None:
        """Put back a message that was not handled to its end, so that the next reader gets it.

        A message that is already committed is not put back.
        """
        if self._is_committed(message):
            self.hand_out.release()
        else:
            inbox.messages.appendleft(message)
            inbox.news.set()

    def _take(self, message: Message) -> None:
        inbox = self._inboxes.setdefault(message.to_id, AgentInbox())
        inbox.messages.append(message)
        inbox.news.set()
        if self.hand_out.full and not self._warned:
            self._warn()

    def _warn(self) -> None:
        idle = {agent: len(inbox.messages) for agent, inbox in self._inboxes.items() if not inbox.readers}
        most = max(idle, key=idle.__getitem__, default=None)
        if idle.get(most):
            self._warned = True
            logger.warning(
                "no inbox gets further messages, because %d messages are fetched but not handled, and that is the "
                "limit. %d of them are for agent %r, whose inbox nobody reads. Open messager.inbox(%r), or let another "
                "messager host that agent",
                _MOST,
                idle[most],
                most,
                most,
            )

    def _ended(self, filling: "asyncio.Task[None]") -> None:
        error = Closed("this messager was closed while you waited for its messages: open another one")
        found = error if filling.cancelled() else filling.exception()
        if not isinstance(found, MessagingError):
            found = MessagingError(
                f"the task that fills the inboxes failed ({type(found).__name__}: {found}): please report this"
            )
        self._error = found
        for inbox in self._inboxes.values():
            inbox.news.set()

    async def close(self, *, commit: bool) -> None:
        """Stop fetching. With `commit`, commit the handled messages."""
        if self._filling is None:
            return
        await end(self._filling)
        if commit:
            with suppress(MessagingError):  # if the commit fails, the messages are delivered again
                await self.hand_out.commit()


class InboxMessages(AsyncIterator[Message]):
    """Iterator over the messages of one agent as they arrive.

    A request for the next message means that the previous message was handled. When a `for` block is left, Python frees
    this iterator, which then at once puts back the message that was being handled. A generator would not
    do this until later, when the next reader may already have later messages.
    """

    def __init__(self, inboxes: Inboxes, inbox: AgentInbox) -> None:
        self._inboxes = inboxes
        self._inbox = inbox
        self._in_hand: Handled | None = None
        self._reads = False

    async def __anext__(self) -> Message:
        if (handled := self._end()) is not None:
            self._inboxes.hand_out.handled(handled)
        if not self._reads:
            self._reads = True
            self._inbox.readers += 1
            self._inboxes.fill()
        message = await self._inboxes.take_from(self._inbox)
        self._in_hand = Handled(message)
        return message

    async def aclose(self) -> None:
        """Stop reading. The message that is being handled goes back to the inbox, unless it is already committed."""
        self._leave()

    def __del__(self) -> None:
        self._leave()

    def _leave(self) -> None:
        if self._reads:
            self._reads = False
            self._inbox.readers -= 1
        if (message := self._end()) is not None:
            self._inboxes.put_back(self._inbox, message)

    def _end(self) -> Message | None:
        """Take away the message that the reader is handling, and return it; None if there is no such message."""
        handled, self._in_hand = self._in_hand, None
        if handled is None:
            return None
        handled.over = True
        return handled.message
