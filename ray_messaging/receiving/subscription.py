"""A messager's receiving side: what it listens on, its mailbox, its inbox, and foreign clients' messages."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from ray_messaging.channels import AgentId
from ray_messaging.config import MessagingConfig
from ray_messaging.directory import Directory, Record
from ray_messaging.errors import (
    AlreadyExists,
    Closed,
    ConfigError,
    ConnectionFailed,
    Fenced,
    MessagingError,
    NotListening,
    TransitError,
)
from ray_messaging.message import Message
from ray_messaging.messages import Messages, Slice
from ray_messaging.receiving.commits import Commits
from ray_messaging.receiving.foreign import batch_of
from ray_messaging.receiving.inbox import NOTHING, Handled, Inbox, Piece
from ray_messaging.receiving.reader import Reader
from ray_messaging.receiving.wishes import Wishes
from ray_messaging.transports.base import START, Cursor, Ingress, Limits, Transport

logger = logging.getLogger(__name__)

# A server that is away when a messager closes is not waited for any longer, in seconds.
_LEAVE_S = 5.0
# The state of a nameless sender outlives it by this much, in seconds: longer than any retry.
KEEP_S = 86_400.0


class Subscription:
    """Listen for one messager; the mailbox opens with the first channel."""

    def __init__(
        self, transport: Transport, directory: Directory, name: str, settings: MessagingConfig, *, named: bool
    ) -> None:
        self.inbox = Inbox(settings.inbox_messages)
        self.ingress_dropped = 0
        self._transport = transport
        self._directory = directory
        self._name = name
        self._settings = settings
        self._named = named
        self._wishes = Wishes(directory.exp_id, directory.patterns)
        self._changing = asyncio.Lock()
        self._epoch: int | None = None
        self._reader: Reader | None = None
        self._commits: Commits | None = None
        self.cursor = START  # the durable one, as of the start
        self._fetching = asyncio.Lock()
        self._ingress_count = 0
        self._renewing = asyncio.create_task(self._renew(), name=f"ray_messaging lease of {name}")

    # -- listening ------------------------------------------------------------------------------------------------

    async def subscribe(self, channels: Iterable[str]) -> None:
        """Listen on channels and patterns."""
        async with self._changing:
            await self._listen(self._wishes.with_channels(channels))

    async def host(self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str) -> None:
        """Claim agents exclusively and listen on their channels."""
        async with self._changing:
            await self._listen(self._wishes.with_agents(agents, subtopics, owner))

    async def _listen(self, wishes: Wishes) -> None:
        settings = self._settings
        limits = Limits(settings.mailbox_messages, settings.mailbox_bytes, settings.lease_s, not self._named)
        record = wishes.record(self._name, settings)
        while True:
            delta = await self._transport.load_directory(self._directory.version)
            self._directory.update(*delta)
            self._check_claims(record)
            listening = await self._transport.listen(
                record, self._directory.version, limits, owner=wishes.owner, epoch=self._epoch
            )
            if listening is not None:
                break
        self._wishes = wishes
        if self._epoch is None:
            self._epoch = listening.epoch
            self.cursor = listening.cursor
            self._commits = Commits(self._transport, self._name, listening.epoch)
            self._reader = Reader(self._transport, self._name, self.inbox, listening.cursor, record.frame_rows)
        await self._transport.subscribe(wishes.fresh, wishes.fresh_globs, self._arrived)

    def _check_claims(self, record: Record) -> None:
        if not record.exclusive:
            return
        taken = self._directory.owner_of(record.agents(), besides=self._name)
        if taken is not None:
            agent_id, owner = taken
            raise AlreadyExists(
                f"agent {agent_id!r} lives in group {owner!r} already: leave it out of {self._name!r}, or remove that "
                "group first",
                kind="agent",
                value=agent_id,
                owner=owner,
            )

    def _arrived(self, ingress: Ingress) -> None:
        """Take what a foreign client published."""
        if self.inbox.size >= self.inbox.limit:
            self.ingress_dropped += 1
            if self.ingress_dropped in {1, 1000} or self.ingress_dropped % 1_000_000 == 0:
                logger.warning(
                    "the inbox of %s is full: %d messages of foreign clients were dropped",
                    self._name,
                    self.ingress_dropped,
                )
            return
        self._ingress_count += 1
        batch = batch_of(ingress, self._directory, self._name, self._epoch or 0, self._ingress_count)
        pattern = None if ingress.pattern is None else ingress.pattern.encode()
        self.inbox.put(Piece(None, batch, 0, 1, len(ingress.data), pattern))

    # -- fetching -------------------------------------------------------------------------------------------------

    def _ready(self) -> tuple[Reader, Commits]:
        if self._reader is None or self._commits is None:
            raise NotListening(
                "this messager listens on nothing: `await messager.subscribe_and_start_listening([...])` first"
            )
        if self._reader.error is not None:
            raise self._reader.error.with_traceback(None)
        return self._reader, self._commits

    async def fetch(self, limit: int | None, timeout: float | None) -> Messages:
        """Commit what was handed out, and hand out what is there; wait for the first."""
        if limit is not None and limit < 1:
            raise ConfigError(f"limit must be at least 1, not {limit!r}: leave it out to fetch all that is there")
        if self._reader is None and timeout == 0:
            await asyncio.sleep(0)  # AgentSociety's loops may poll before they subscribe: nothing has come, so far
            return Messages(self._directory.exp_id, [])
        async with self._fetching:
            _, commits = self._ready()
            commits.acknowledge()
            await commits.write()
            slices, handled = await self.take(limit, timeout)
            commits.hand(handled)
            return Messages(self._directory.exp_id, slices)

    async def take(self, limit: int | None, timeout: float | None) -> tuple[list[Slice], Handled]:
        """Take messages out of the inbox, and what committing them means; wait for the first."""
        slices, handled = self.inbox.take(limit)
        if not slices and timeout == 0:
            await asyncio.sleep(0)  # whoever polls must let the reader run
            slices, handled = self._take_more(limit, handled)
        elif not slices:
            try:
                async with asyncio.timeout(timeout):
                    while not slices:
                        await self.inbox.arrival()
                        slices, handled = self._take_more(limit, handled)
            except TimeoutError:
                pass
        return slices, handled

    def _take_more(self, limit: int | None, before: Handled) -> tuple[list[Slice], Handled]:
        self._ready()
        slices, handled = self.inbox.take(limit)
        return slices, before.plus(handled)

    async def drop(self, end: Cursor, wanted: Callable[[], bool]) -> Handled:
        """Take out what lies before a cursor, and hand it to nobody; wait for it as long as it is wanted."""
        handled = self.inbox.drop(end)
        while handled == NOTHING and wanted() and not self.inbox.reaches(end):
            await self.inbox.arrival()
            self._ready()
            handled = self.inbox.drop(end)
            await asyncio.sleep(0)  # what foreign clients published stays, so that something always is there
        return handled

    async def ack(self) -> None:
        """Commit what was handed out."""
        _, commits = self._ready()
        commits.acknowledge()
        await commits.write()

    def note_handled(self, handled: Handled) -> None:
        """Note that what was taken by `take` is handled, and what was fetched before it; `write` commits it."""
        _, commits = self._ready()
        commits.acknowledge()  # later, it would set the cursor back
        commits.add(handled)

    async def write(self) -> None:
        """Commit what is noted as handled."""
        _, commits = self._ready()
        await commits.write()

    async def iterate(self) -> AsyncIterator[Message]:
        """Hand out message by message; each is committed, in the background, when the next one is asked for."""
        while True:
            async with self._fetching:
                _, commits = self._ready()
                commits.acknowledge()
                commits.write_soon()
                slices, handled = await self.take(1, None)
                commits.hand(handled)
            for batch, low, _, pattern in slices:
                yield Message(self._directory.exp_id, batch, low, pattern)

    # -- life -----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_s / 3)
            mailbox = None if self._epoch is None else self._name
            try:
                there = await self._transport.renew(
                    self._name,
                    mailbox,
                    self._epoch or 0,
                    lease_s=self._settings.lease_s,
                    keep_s=0 if self._named else KEEP_S,
                )
            except ConnectionError as error:
                logger.warning("cannot renew the lease of %s: %s", self._name, error)
                continue
            except MessagingError as error:
                await self._stop(error)
                return
            except Exception as error:
                logger.exception("the lease of %s is not renewed any more", self._name)
                await self._stop(
                    MessagingError(f"the lease failed ({type(error).__name__}: {error}): please report this")
                )
                return
            if not there:
                await self._stop(
                    NotListening(
                        f"mailbox {self._name!r} was removed, or this process stood still for longer than its lease of "
                        f"{self._settings.lease_s:g} s: open a new messager; unread messages are among the dead letters"
                    )
                )
                return

    async def _stop(self, error: MessagingError) -> None:
        if self._reader is not None:
            self._reader.stop(error)
        # Else it would go on taking what is published, and nobody would see it.
        await self._transport.unsubscribe()

    async def close(self, *, commit: bool) -> None:
        """Stop listening; a mailbox without a given name leaves the directory."""
        self._renewing.cancel()
        await asyncio.gather(self._renewing, return_exceptions=True)
        if self._reader is None or self._commits is None or self._epoch is None:
            return
        await self._transport.unsubscribe()
        fenced = self._reader.error is not None
        await self._reader.close()
        if fenced:
            return
        self._reader.stop(Closed("this messager was closed while you waited for its messages: make another one"))
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave(self._commits, self._epoch, commit=commit)
        except (TimeoutError, ConnectionFailed) as error:
            self._left_alone(self._commits, error)
        except Fenced as error:  # its remedy is to close, which is what happens here
            logger.info("%s was closed after somebody newer took its mailbox over: %s", self._name, error)

    def _left_alone(self, commits: Commits, error: Exception) -> None:
        """Say that the server was away when we left; raise where messages that were handled come again for it."""
        if self._named and commits.open:
            raise TransitError(
                f"leaving took longer than {_LEAVE_S:g} s when {self._name!r} was closed (is the server away?): its "
                "next messager gets again what was fetched last"
            ) from error
        logger.warning("%s could not leave in time (is the server away?): its lease ends by itself", self._name)

    async def _leave(self, commits: Commits, epoch: int, *, commit: bool) -> None:
        if commit:
            commits.acknowledge()
        await commits.close()
        await commits.write()
        if self._named:
            # Whoever comes next under this name need not wait for the lease to end.
            await self._transport.renew(self._name, self._name, epoch, lease_s=0.001, keep_s=0)
        else:
            await self._transport.remove(self._name, epoch)

    def stats(self) -> dict[str, Any]:
        """Return counters."""
        return {
            "inbox": self.inbox.size,
            "unreadable": 0 if self._reader is None else self._reader.unreadable,
            "ingress": self._ingress_count + (0 if self._reader is None else self._reader.foreign),
            "ingress_dropped": self.ingress_dropped,
        }
