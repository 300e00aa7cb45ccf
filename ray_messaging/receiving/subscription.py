"""A messager's receiving side: what it listens on, its mailbox, its inbox, and foreign clients' messages."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import Directory
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import (
    Closed,
    ConfigError,
    ConnectionFailed,
    Fenced,
    FetchTooLarge,
    MessagingError,
    NotListening,
    TransactionError,
    TransitError,
)
from ray_messaging.message import Message, Messages, Slice
from ray_messaging.receiving.ack_ranges import Acked, spans_of
from ray_messaging.receiving.commits import Commits
from ray_messaging.receiving.fetch_gate import FetchGate
from ray_messaging.receiving.fetch_options import Commit, check_commit, check_limit, left_of
from ray_messaging.receiving.foreign_messages import ForeignMessages
from ray_messaging.receiving.inbox import Inbox
from ray_messaging.receiving.lease_watch import Gone, outlast
from ray_messaging.receiving.mailbox_lease import MailboxLease
from ray_messaging.receiving.reader import Reader
from ray_messaging.receiving.subscription_spec import SubscriptionSpec, check_claims
from ray_messaging.transports.base import Cursor, Held, Limits, Transport

logger = logging.getLogger(__name__)

# A server that is away when a messager closes is not waited for any longer, in seconds.
_LEAVE_S = 5.0
_UNLIMITED = nullcontext()


class Taken(NamedTuple):
    """What was taken out of the inbox, the numbers of its rows, and whether anything of the mailbox was."""

    slices: list[Slice]
    low: int
    high: int
    passed: bool

    def after(self, earlier: "Taken") -> "Taken":
        """Return this one, behind another that had no messages."""
        return self._replace(passed=self.passed or earlier.passed)


class Subscription:
    """Listen for one messager; the mailbox opens with the first channel."""

    def __init__(
        self, transport: Transport, directory: Directory, name: str, settings: MessagingConfig, *, named: bool
    ) -> None:
        self.inbox = Inbox(settings.inbox_messages)
        self._transport = transport
        self._directory = directory
        self._name = name
        self._settings = settings
        self._named = named
        self._wishes = SubscriptionSpec(directory.exp_id, directory.patterns)
        self._changing = asyncio.Lock()
        self._epoch: int | None = None
        self._reader: Reader | None = None
        self._commits: Commits | None = None
        self._fetching = asyncio.Lock()
        self._foreign = ForeignMessages(self.inbox, directory, name, settings.mailbox_bytes)
        self._holding = FetchGate(self.inbox)
        self._renewal = MailboxLease(transport, name, settings.lease_s, lambda: self._epoch, self.stop, named=named)
        self._renewing = asyncio.create_task(self._renewal.run(), name=f"ray_messaging lease of {name}")

    # -- listening ------------------------------------------------------------------------------------------------

    async def subscribe(self, channels: Iterable[str]) -> None:
        """Listen on channels and patterns."""
        async with self._changing:
            await self._listen(self._wishes.with_channels(channels))

    async def host(
        self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str, gone: Gone | None = None
    ) -> None:
        """Claim agents exclusively and listen on their channels; `gone` tells whether another owner is dead."""
        async with self._changing:
            await self._listen(self._wishes.with_agents(agents, subtopics, owner), gone)

    async def _listen(self, wishes: SubscriptionSpec, gone: Gone | None = None) -> None:
        settings = self._settings
        limits = Limits(settings.mailbox_messages, settings.mailbox_bytes, settings.lease_s, not self._named)
        record, over = wishes.record(self._name, settings), ""
        while True:
            delta = await self._transport.load_directory(self._directory.version)
            self._directory.update(*delta)
            check_claims(record, self._directory)
            listening = await self._transport.listen(
                record, self._directory.version, limits, owner=wishes.owner, epoch=self._epoch, over=over
            )
            if isinstance(listening, Held):
                over = await outlast(self._transport, self._name, listening, gone)
            elif listening is not None:
                break
        self._wishes = wishes
        if self._epoch is None:
            self._epoch = self._foreign.epoch = listening.epoch
            self._holding.state = listening.state
            self._commits = Commits(self._transport, self._name, listening.epoch, listening.cursor, listening.acked)
            self._reader = Reader(self._transport, self._name, self.inbox, listening.cursor, record.frame_rows)
        await self._transport.subscribe(wishes.fresh, wishes.fresh_globs, self._foreign.arrived)

    # -- fetching -------------------------------------------------------------------------------------------------

    def _ready(self) -> tuple[Reader, Commits]:
        if self._reader is None or self._commits is None:
            raise NotListening(
                "this messager listens on nothing: `await messager.subscribe_and_start_listening([...])` first"
            )
        if self._reader.error is not None:
            raise self._reader.error.with_traceback(None)
        return self._reader, self._commits

    async def fetch(
        self, limit: int | None, timeout: float | None, commit: Commit = "next", *, complete: bool = False
    ) -> Messages:
        """Commit what the last fetch handed out to be committed, and hand out what is there; wait for the first."""
        self._check(limit, commit, complete=complete)
        if self._reader is None and timeout == 0:
            await asyncio.sleep(0)  # AgentSociety's loops may poll before they subscribe: nothing has come, so far
            return Messages(self._directory.exp_id, [])
        async with self._fetching:
            _, commits = self._ready()
            if not self._holding.is_free:
                await self._holding.free()
            left = left_of(timeout)
            while True:
                commits.acknowledge()
                if commits.open:
                    await commits.write()
                taken = await self.take(limit, left(), complete=complete)
                if commit == "next":
                    commits.hand(taken.low, taken.high)
                if taken.slices or not taken.passed:
                    return self.messages(taken.slices)

    def _check(self, limit: int | None, commit: Commit, *, complete: bool) -> None:
        check_limit(limit, complete=complete)
        check_commit(commit)
        if commit == "acked":
            self._check_acks()

    def _check_acks(self) -> None:
        if not self._transport.acks_apart:
            raise ConfigError(
                "an MQTT broker keeps no acknowledgement of single messages: commit='acked', and ack of some messages, "
                "need Redis or Valkey. Handle what a fetch returned, then ack() all of it"
            )

    def messages(self, slices: Sequence[Slice], *, more: bool = False) -> Messages:
        """Return what was taken as messages, and whether there is more."""
        behind = self._reader is not None and self._reader.behind
        return Messages(self._directory.exp_id, slices, more or self.inbox.size > 0 or behind)

    async def take(
        self,
        limit: int | None,
        timeout: float | None,
        check: Callable[[], object] | None = None,
        *,
        complete: bool = False,
    ) -> Taken:
        """Take messages out of the inbox; wait for the first.

        Nor does it wait longer once a frame without any has come: it fills the mailbox until it is committed. `check`
        raises where nothing may be taken any more. With `complete` all is taken that the mailbox has.
        """
        if complete:
            await self._read_up()
        taken = await self._look_in(limit, check)
        try:
            if not taken.slices and timeout == 0:
                await asyncio.sleep(0)  # whoever polls must let the reader run
                taken = (await self._look_in(limit, check)).after(taken)
            elif not taken.slices and not taken.passed:
                deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
                while not taken.slices and not taken.passed:
                    async with _UNLIMITED if deadline is None else asyncio.timeout_at(deadline):
                        await self.inbox.arrival()
                    if complete:  # the time is for the first one alone
                        await self._read_up()
                    taken = await self._look_in(limit, check)
        except TimeoutError:
            pass
        except ConnectionFailed:
            if not taken.passed:  # else the cursor must pass what was taken
                raise
        return taken

    async def _look_in(self, limit: int | None, check: Callable[[], object] | None) -> Taken:
        _, commits = self._ready()
        if self._renewal.look():
            await self._renewal.confirm()
        if check is not None:
            check()
        flight = commits.in_flight
        low, changes = flight.taken, flight.changes
        slices = self.inbox.take(limit, flight)
        return Taken(slices, low, flight.taken, flight.taken > low or flight.changes != changes)

    async def _read_up(self) -> None:
        """Wait until all is in the inbox that the mailbox has now; raise FetchTooLarge."""
        _, commits = self._ready()
        settings, flight = self._settings, commits.in_flight
        end = await self._transport.end_of(self._name)
        there, nbytes = end.messages - flight.waiting, end.nbytes - flight.waiting_bytes
        fits = there <= settings.complete_messages and nbytes <= settings.complete_bytes
        if not fits or not await self.inbox.reach(end.entry, settings.complete_messages, self._ready):
            raise FetchTooLarge(
                f"{max(there, self.inbox.size):,} messages wait in {self._name!r}, of {nbytes:,} bytes, and a complete "
                f"fetch takes {settings.complete_messages:,} of {settings.complete_bytes:,} bytes. Nothing was taken: "
                "fetch in parts, while `messages.more` says that there is more, or raise "
                "MessagingConfig.complete_messages or complete_bytes",
                messages=max(there, self.inbox.size),
                size=nbytes,
                limit_messages=settings.complete_messages,
                limit=settings.complete_bytes,
            )

    async def ack(self, messages: Acked | None = None) -> None:
        """Commit what was handed out; or some messages of it alone."""
        _, commits = self._ready()
        if messages is None:
            await self._holding.free()
            commits.acknowledge_all()
        else:
            self._check_acks()
            spans = spans_of(messages, self._name)
            if not self._holding.is_free:
                await self._holding.free()
            commits.acknowledge_some(spans)
        if commits.open:
            await commits.write()

    @property
    def commits(self) -> Commits:
        """Return what is handed out, and committed; raise NotListening, Fenced."""
        return self._ready()[1]

    @property
    def cursor(self) -> Cursor:
        """Return the cursor behind all that is handled without a gap."""
        return self.commits.in_flight.cursor

    @property
    def name(self) -> str:
        """Return the mailbox."""
        return self._name

    async def iterate(self) -> AsyncIterator[Message]:
        """Hand out message by message; each is committed, in the background, when the next one is asked for."""
        while True:
            async with self._fetching:
                _, commits = self._ready()
                await self._holding.free()
                commits.acknowledge()
                commits.write_soon()
                taken = await self.take(1, None)
                commits.hand(taken.low, taken.high)
            for batch, low, _, pattern in taken.slices:
                yield Message(self._directory.exp_id, batch, low, pattern)

    # -- transactions ---------------------------------------------------------------------------------------------

    async def hold(self) -> FetchGate:
        """Give the mailbox to a transaction, and commit what was fetched before."""
        _, commits = self._ready()
        await self._holding.free()
        if self._fetching.locked():
            raise TransactionError("somebody waits for this messager's messages, by fetch or iteration: let that end")
        await self._holding.open(commits)
        return self._holding

    async def fetch_held(
        self, limit: int | None, timeout: float | None, check: Callable[[], object], *, complete: bool = False
    ) -> Messages:
        """Hand out what is there to the transaction that holds the mailbox; wait for the first.

        `check` raises once it does so no more: what comes then is another one's.
        """
        check_limit(limit, complete=complete)
        self._ready()
        left = left_of(timeout)
        taken = await self.take(limit, left(), check, complete=complete)
        while not taken.slices and taken.passed:
            taken = await self.take(limit, left(), check, complete=complete)
        return self.messages(taken.slices)

    # -- life -----------------------------------------------------------------------------------------------------

    async def stop(self, error: MessagingError) -> None:
        """Listen no more; whoever fetches gets the error."""
        if self._reader is not None:
            self._reader.stop(error)
        # Else it would go on taking what is published, and nobody would see it.
        await self._transport.unsubscribe()

    async def close(self, *, commit: bool) -> None:
        """Stop listening; a mailbox without a given name leaves the directory."""
        await end(self._renewing)
        if self._reader is None or self._commits is None or self._epoch is None:
            return
        await self._transport.unsubscribe()
        stopped = self._reader.error
        await self._reader.close()
        if isinstance(stopped, Closed):
            if commit:
                self._commits.acknowledge()
            self._left_alone(self._commits, stopped)
        if stopped is not None:
            return
        self._reader.stop(Closed("this messager was closed while you waited for its messages: make another one"))
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave(self._commits, self._epoch, commit=commit)
        except (TimeoutError, ConnectionFailed, Closed) as error:
            self._left_alone(self._commits, error)
        except Fenced as error:  # its remedy is to close, which is what happens here
            logger.info("%s was closed after somebody newer took its mailbox over: %s", self._name, error)

    def _left_alone(self, commits: Commits, error: Exception) -> None:
        """Say that we could not leave; raise where messages that were handled come again for it."""
        late = isinstance(error, TimeoutError)
        why = f"it took longer than {_LEAVE_S:g} s (is the server away?)" if late else str(error)
        if self._named and commits.open:
            raise (Closed if isinstance(error, Closed) else TransitError)(
                f"{self._name!r} could not commit what was fetched last when it was closed, so its next messager gets "
                f"that again: {why}"
            ) from error
        level = logging.INFO if isinstance(error, Closed) else logging.WARNING  # nobody waits for it to leave
        logger.log(level, "%s could not leave, so its lease ends by itself: %s", self._name, why)

    async def _leave(self, commits: Commits, epoch: int, *, commit: bool) -> None:
        if commit:
            commits.acknowledge()
        await commits.close()
        await commits.write()
        if self._named:
            # Whoever comes next under this name need not wait for the lease to end.
            await self._transport.renew(self._name, self._name, epoch, lease_s=0, keep_s=0)
        else:
            await self._transport.remove(self._name, epoch)

    def loops(self) -> list[TaskHealth]:
        """Tell how reading, and renewing the lease, are doing."""
        lease = self._renewal.loop(self._renewing)
        return [lease] if self._reader is None else [self._reader.loop(), lease]

    def stats(self) -> dict[str, Any]:
        """Return counters."""
        return {
            "inbox": self.inbox.size,
            "unreadable": 0 if self._reader is None else self._reader.unreadable,
            "ingress": self._foreign.count + (0 if self._reader is None else self._reader.foreign),
            "ingress_dropped": self._foreign.dropped,
        }
