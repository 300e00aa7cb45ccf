"""Fetching from one mailbox: many messages in one call, one by one, or in a transaction that may put them back."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from ray_messaging.config import MessagingConfig
from ray_messaging.errors import FetchTooLarge, MessagingError, NotListening, TransactionError
from ray_messaging.message import Handled, Message
from ray_messaging.messages import Messages, Slice, slice_of
from ray_messaging.observability.observer import Observer
from ray_messaging.observability.tracing.untraced import UNTRACED, AnyTracer
from ray_messaging.receiving.ack_ranges import Acked, spans_of
from ray_messaging.receiving.call_checks import CommitMode, check_fetch, check_timeout
from ray_messaging.receiving.commits import Commits, InFlight
from ray_messaging.receiving.inbox import Inbox
from ray_messaging.receiving.mailbox_lease import MailboxLease
from ray_messaging.transports.transport_values import Conclusion

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

_UNLIMITED = nullcontext()
_TRANSACTION_OPEN = (
    "a transaction of this messager is open: fetch by `tx.fetch_messages()` in its block, and leave the block before "
    "you fetch or commit in another way, or open another transaction"
)


class FetchedRows(NamedTuple):
    """Messages taken out of the inbox, as slices of batches. They are the rows `low` to `high` - 1 of the mailbox.

    The rows of a mailbox are numbered in the order in which they are taken. `passed` is true if messages, or frames
    without messages, were taken, so that the cursor can move.
    """

    slices: list[Slice]
    low: int
    high: int
    passed: bool


class FetchGate:
    """Exclusive access to a messager's messages, for one transaction at a time.

    `state` is the mailbox's state, as the last transaction left it. If the outcome of the last transaction is unknown,
    the next call of `wait_free` asks the server for the outcome.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.state: bytes | None = None
        self.free = True  # whether no transaction is open and the outcome of the last one is known
        self._inbox = inbox
        self._commits: Commits | None = None  # None if no transaction is open
        self._before: InFlight | None = None  # a copy of the commits' InFlight, made when the transaction was opened
        self._find_out: Callable[[], Awaitable[None]] | None = None
        self._finding_out = asyncio.Lock()
        self._ended = asyncio.Event()

    async def wait_ended(self) -> None:
        """Wait until no transaction is open, and the outcome of the last transaction is known."""
        while not self.free:
            if self._commits is None:
                await self.wait_free()
            else:
                self._ended.clear()
                await self._ended.wait()

    async def wait_free(self) -> None:
        """Find out the outcome of the last transaction; raise TransactionError if a transaction is open."""
        if self._commits is None and self._find_out is not None:
            async with self._finding_out:
                if self._find_out is not None:
                    await self._find_out()
        if self._commits is not None:
            raise TransactionError(_TRANSACTION_OPEN)

    async def open(self, commits: Commits) -> None:
        """Begin a transaction: commit what was fetched before, and keep what is fetched from now on.

        If the transaction fails, `roll_back` returns the kept messages to the inbox.
        """
        if self._inbox.paused:
            await self._inbox.flowing.wait()
        self._commits, self.free = commits, False
        self._inbox.keep()
        commits.acknowledge()
        self._before = commits.in_flight.copy()
        try:
            await commits.write()
        except BaseException:
            self.roll_back()
            raise

    def conclusion(self, state: bytes | None, *, sends: bool) -> Conclusion | None:
        """Acknowledge the transaction's messages; return what the server must write about the mailbox.

        Return None if the transaction has fetched nothing, sends nothing, and leaves the mailbox's state as it was.

        Args: `state` is the mailbox's new state. `sends` is true if the transaction sends messages.
        """
        assert self._commits is not None
        assert self._before is not None
        flight, changed = self._commits.in_flight, state != self.state
        fetched = flight.at != self._before.at
        flight.ack(self._before.taken, flight.taken)
        if not fetched and not changed and not sends:
            return None
        return self._commits.conclusion(state, fetched=fetched, state_changed=changed)

    def roll_back(self) -> None:
        """End the transaction without a commit, so that its messages can be fetched again."""
        self._inbox.put_back()
        if self._commits is not None and self._before is not None:
            self._commits.in_flight = self._before
        self._commits, self.free = None, True
        self._ended.set()

    def commit(self, conclusion: Conclusion | None) -> None:
        """End the transaction, after the server has written its changes.

        Args: `conclusion` is what the server has written about the mailbox; None: there was nothing to write.
        """
        self._inbox.discard_kept()
        if conclusion is not None and self._commits is not None:
            self._commits.concluded(conclusion)
            self.state = conclusion.state
        self._commits, self.free = None, True
        self._ended.set()

    def resolve_later(self, conclusion: Conclusion, was_committed: Callable[[], Awaitable[bool]]) -> None:
        """End the transaction, whose outcome is unknown. The next `wait_free` asks `was_committed` for the outcome."""
        commits, self._commits = self._commits, None

        async def find_out() -> None:
            committed = await was_committed()
            self._commits, self._find_out = commits, None
            if committed:
                self.commit(conclusion)
            else:
                self.roll_back()

        self._find_out = find_out
        self._ended.set()


class Iteration(AsyncIterator[Message]):
    """Iterator over messages. A message counts as being handled until the next message is requested.

    When an `async for` block is left, Python frees this iterator at once, so a message that is sent after the block
    does not count as caused by the last message of the loop. A generator in place of this class would not end until
    later, and it could not be used again after a cancelled request.
    """

    def __init__(self, next_one: Callable[[], Awaitable[Message]]) -> None:
        self._next = next_one
        self._handled: Handled | None = None

    async def __anext__(self) -> Message:
        self._end()
        message = await self._next()
        self._handled = Handled(message)
        return message

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._handled is not None:
            self._handled.over = True


class Fetcher:
    """The part of a messager that fetches. After the first subscription, messages come into its inbox.

    `unavailable` builds the error for a messager that is not open, and so cannot fetch. It is None while the messager
    can fetch.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        name: str,
        settings: MessagingConfig,
        observer: Observer | None = None,
        tracer: AnyTracer = UNTRACED,
    ) -> None:
        self.name = name
        self._observer = observer
        self._tracer = tracer
        self.inbox = Inbox(settings.inbox_messages)
        self.gate = FetchGate(self.inbox)
        self.unavailable: Callable[[], MessagingError] | None = None
        self._exp_id = transport.exp_id
        self._transport = transport
        self._settings = settings
        self._commits: Commits | None = None
        self._lease: MailboxLease | None = None
        self._fetching = asyncio.Lock()

    def start(self, commits: Commits, lease: MailboxLease) -> None:
        """Let fetches take messages from this messager's mailbox, which has just been opened."""
        self._commits, self._lease = commits, lease

    @property
    def commits(self) -> Commits:
        """Return the `Commits`, which knows which messages of the mailbox are taken, acknowledged and committed.

        Raises: the error of a messager that is not open; NotListening before the first subscription; the error that
        stopped the reader, such as Fenced or Closed.
        """
        if self.unavailable is not None:
            raise self.unavailable()
        if self._commits is None:
            raise NotListening(
                "this messager does not listen on any channel: `await messager.subscribe_and_start_listening([...])` "
                "first"
            )
        if self.inbox.error is not None:
            raise self.inbox.error.with_traceback(None)
        return self._commits

    @property
    def listens(self) -> bool:
        """Return whether this messager has subscribed to something."""
        return self._commits is not None

    async def fetch(
        self, limit: int | None, timeout: float | None, commit: CommitMode = "next", *, complete: bool = False
    ) -> Messages:
        """Commit messages of the last fetch, and return new messages; wait up to `timeout` seconds for the first."""
        if limit is not None or commit != "next":
            check_fetch(limit, commit, complete=complete)
        # This quick check accepts most timeouts without a call.
        if not (type(timeout) is float and 0.0 <= timeout < math.inf):
            check_timeout(timeout)
        if self._commits is None and self.unavailable is None and timeout == 0:
            # Programs written for AgentSociety, a simulator, may poll in a loop before they have subscribed. Such a
            # poll raises no error, and lets other tasks run.
            await asyncio.sleep(0)
            return Messages(self._exp_id, [])
        async with self._fetching:
            commits = self.commits
            if not self.gate.free:
                await self.gate.wait_free()
            due = monotonic() + timeout if timeout else None
            while True:
                self._tracer.committed()
                if commits.acknowledge():
                    await commits.write()
                taken = await self.take(limit, timeout, complete=complete)
                if commit == "next":
                    commits.handed_out.append((taken.low, taken.high))
                    self._tracer.hold(taken.slices)
                if taken.slices or not taken.passed:
                    return self.messages(taken.slices)
                timeout = timeout if due is None else max(0.0, due - monotonic())

    def messages(self, slices: Sequence[Slice], *, more: bool = False) -> Messages:
        """Return slices of batches as Messages, whose `more` says whether the mailbox may have other messages."""
        return Messages(self._exp_id, slices, more or self.inbox.size > 0 or self.inbox.behind)

    async def take(
        self,
        limit: int | None,
        timeout: float | None,
        check: Callable[[], object] | None = None,
        *,
        complete: bool = False,
    ) -> FetchedRows:
        """Take messages out of the inbox; wait for the first message.

        The wait also ends if a frame without messages arrives, because such frames fill the mailbox until they are
        committed.

        Args:
            limit: How many messages are taken at most; None: no limit.
            timeout: Seconds to wait for the first message; None: no limit.
            check: A function that raises an error if the caller may not take messages any more. If it returns True, no
                messages are taken.
            complete: Take all messages that the mailbox has now.
        """
        if complete:
            await self.inbox.undisturbed.wait()
            await self._read_to_end()
        deadline, polled = None, False
        while True:
            flight = self.commits.in_flight
            low, changes = flight.taken, flight.changes
            lease = self._lease
            if lease is not None and lease.has_stood_still() and not await self._confirm(lease, timeout, complete):
                return FetchedRows([], low, low, False)
            if check is not None and check() is True:
                return FetchedRows([], low, low, False)
            slices = self.inbox.take(limit, flight)
            passed = bool(slices) or flight.taken > low or flight.changes != changes
            if not passed and self.inbox.trouble is not None:
                raise self.inbox.trouble.with_traceback(None)
            if passed or polled:
                break
            if timeout == 0:
                polled = True
                await asyncio.sleep(0)  # A caller that polls without waiting must let the reader run.
                continue
            deadline = deadline or (asyncio.get_running_loop().time() + timeout if timeout else None)
            if not await self._arrival(deadline, complete=complete):
                break
        if self._observer is not None and slices:
            self._observer.messages_fetched(sum(part.high - part.low for part in slices))
            batch, row, *_ = slices[0]
            self._observer.fetch_delayed(max(0.0, time() - batch.sent_time(row)))
        self._tracer.fetched(slices)
        return FetchedRows(slices, low, flight.taken, passed)

    async def _confirm(self, lease: MailboxLease, timeout: float | None, complete: bool) -> bool:  # noqa: FBT001
        """Confirm the mailbox's lease after this process stood still. Return False if no answer came in time.

        With `complete`, never return False: try again until the server confirms the lease, or until an error is raised,
        such as FetchTooLarge.
        """
        while not await lease.confirm(timeout, lambda: self.commits):
            if not complete:
                return False
            await self._read_to_end()
        return True

    def take_at_once(self) -> list[Slice]:
        """Take all messages in the inbox, without waiting.

        Return [] if this messager does not listen, if its reader has stopped, or if the mailbox's lease must be
        confirmed first, which only `take` does.
        """
        if (
            self._commits is None
            or self.inbox.error is not None
            or self._lease is None
            or self._lease.has_stood_still()
        ):
            return []
        return self.inbox.take(None, self._commits.in_flight)

    async def _arrival(self, deadline: float | None, *, complete: bool) -> bool:
        """Wait until something is in the inbox; return whether it arrived before the deadline (None: no deadline).

        Args: with `complete`, if something has arrived in time, also wait until the inbox has all messages of the
        mailbox.
        """
        try:
            async with _UNLIMITED if deadline is None else asyncio.timeout_at(deadline):
                await self.inbox.arrival()
        except TimeoutError:
            return False
        if complete:  # the timeout is for the first message only
            await self._read_to_end()
        return True

    async def _read_to_end(self) -> None:
        """Wait until the inbox has all messages that are in the mailbox now; raise FetchTooLarge above the limits."""
        settings, flight = self._settings, self.commits.in_flight
        end = await self._transport.end_of(self.name)
        there, nbytes = end.messages - flight.waiting, end.nbytes - flight.waiting_bytes
        fits = there <= settings.complete_messages and nbytes <= settings.complete_bytes
        if not fits or not await self.inbox.reach(end.entry, settings.complete_messages, lambda: self.commits):
            raise FetchTooLarge(
                f"{max(there, self.inbox.size):,} messages with {nbytes:,} bytes wait in {self.name!r}, and a fetch "
                f"with complete=True takes at most {settings.complete_messages:,} messages with "
                f"{settings.complete_bytes:,} bytes. Nothing was fetched: fetch in parts, while `messages.more` is "
                "True, or raise "
                "MessagingConfig.complete_messages or complete_bytes",
                messages=max(there, self.inbox.size),
                size=nbytes,
                limit_messages=settings.complete_messages,
                limit=settings.complete_bytes,
            )

    async def ack(self, messages: Acked | None = None) -> None:
        """Commit some messages, or all messages that were fetched (None)."""
        commits, spans = self.commits, None
        if messages is not None:
            spans = spans_of(messages, self.name)
        if not self.gate.free:
            await self.gate.wait_free()
        if spans is None:
            self._tracer.committed()
            commits.acknowledge(everything=True)
        else:
            commits.acknowledge_some(spans)
        await commits.write()

    def is_committed(self, message: Message) -> bool:
        """Return whether a fetched message is committed; False for a message from another mailbox."""
        part = slice_of(message)
        origin = part.batch.origin
        if self._commits is None or origin is None or origin.mailbox != self.name:
            return False
        return not self._commits.in_flight.unacked([part])

    def iterate(self) -> AsyncIterator[Message]:
        """Yield message by message. Each message is committed in the background when the next one is requested."""
        return Iteration(self._next)

    async def _next(self) -> Message:
        while True:
            async with self._fetching:
                commits = self.commits
                await self.gate.wait_free()
                self._tracer.committed()
                commits.acknowledge()
                commits.write_soon()
                taken = await self.take(1, None)
                commits.handed_out.append((taken.low, taken.high))
                self._tracer.hold(taken.slices)
            for batch, low, _, pattern in taken.slices:
                return Message(self._exp_id, batch, low, pattern)

    # -- transactions ---------------------------------------------------------------------------------------------

    async def open_transaction(self) -> FetchGate:
        """Give a transaction exclusive access to the messages, and commit earlier fetches.

        Raises: TransactionError if another transaction is open, or if a fetch is waiting; the errors of `commits`, such
        as NotListening.
        """
        commits = self.commits
        await self.gate.wait_free()
        if self._fetching.locked():
            raise TransactionError(
                "another fetch or iteration is waiting for messages of this messager: let it end first"
            )
        await self.gate.open(commits)
        return self.gate

    async def fetch_in_transaction(
        self, limit: int | None, timeout: float | None, check: Callable[[], object], *, complete: bool = False
    ) -> Messages:
        """Return messages for the open transaction; wait up to `timeout` seconds for the first message.

        Args: `check` raises an error if the transaction has ended while this call waited.
        """
        check_fetch(limit, complete=complete)
        check_timeout(timeout)
        due = monotonic() + timeout if timeout else None
        taken = await self.take(limit, timeout, check, complete=complete)
        while not taken.slices and taken.passed:
            timeout = timeout if due is None else max(0.0, due - monotonic())
            taken = await self.take(limit, timeout, check, complete=complete)
        return self.messages(taken.slices)
