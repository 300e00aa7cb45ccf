"""A messager's subscription: its channels and agents, its mailbox, and the end of both."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import Directory
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import Closed, ConnectionFailed, Fenced, MessagingError, TransitError
from ray_messaging.receiving.commits import Commits
from ray_messaging.receiving.fetcher import Fetcher
from ray_messaging.receiving.foreign_messages import ForeignMessages
from ray_messaging.receiving.mailbox_lease import IsDead, MailboxLease, outlast
from ray_messaging.receiving.reader import Reader
from ray_messaging.receiving.subscription_spec import SubscriptionSpec, check_claims
from ray_messaging.transports.transport import Held, Limits, Transport

logger = logging.getLogger(__name__)

# Seconds that closing a messager waits for a server that is away.
_LEAVE_S = 5.0


class Subscription:
    """The listening side of one messager; its mailbox opens with the first channel, and then feeds `fetcher`."""

    def __init__(
        self, transport: Transport, directory: Directory, fetcher: Fetcher, settings: MessagingConfig, *, named: bool
    ) -> None:
        self.fetcher = fetcher
        self.inbox = fetcher.inbox
        self.name = fetcher.name
        self._transport = transport
        self._directory = directory
        self._settings = settings
        self._named = named
        self._spec = SubscriptionSpec(directory.exp_id, directory.patterns)
        self._changing = asyncio.Lock()
        self._epoch: int | None = None
        self._reader: Reader | None = None
        self._commits: Commits | None = None
        self._foreign = ForeignMessages(self.inbox, directory, self.name, settings.mailbox_bytes)
        self._lease = MailboxLease(transport, self.name, settings.lease_s, lambda: self._epoch, self.stop, named=named)
        self._renewing = asyncio.create_task(self._lease.run(), name=f"ray_messaging lease of {self.name}")

    # -- listening ------------------------------------------------------------------------------------------------

    async def subscribe(self, channels: Iterable[str]) -> None:
        """Listen on channels and patterns."""
        async with self._changing:
            await self._listen(self._spec.with_channels(channels))

    async def host(
        self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str, gone: IsDead | None = None
    ) -> None:
        """Claim agents exclusively and listen on their channels; `gone` returns whether another owner is dead."""
        async with self._changing:
            await self._listen(self._spec.with_agents(agents, subtopics, owner), gone)

    async def _listen(self, spec: SubscriptionSpec, is_dead: IsDead | None = None) -> None:
        settings = self._settings
        limits = Limits(settings.mailbox_messages, settings.mailbox_bytes, settings.lease_s, not self._named)
        record, over = spec.record(self.name, settings), ""
        while True:
            delta = await self._transport.load_directory(self._directory.version)
            self._directory.update(*delta)
            check_claims(record, self._directory)
            listening = await self._transport.listen(
                record, self._directory.version, limits, owner=spec.owner, epoch=self._epoch, over=over
            )
            if isinstance(listening, Held):
                over = await outlast(self._transport, self.name, listening, is_dead)
            elif listening is not None:
                break
        self._spec = spec
        if self._epoch is None:
            self._epoch = self._foreign.epoch = listening.epoch
            self._commits = Commits(self._transport, self.name, listening.epoch, listening.cursor, listening.acked)
            self._reader = Reader(self._transport, self.name, self.inbox, listening.cursor, record.frame_rows)
            self.fetcher.gate.state = listening.state
            self.fetcher.start(self._commits, self._lease)
        await self._transport.subscribe(spec.fresh, spec.fresh_globs, self._foreign.arrived)

    # -- life -----------------------------------------------------------------------------------------------------

    async def stop(self, error: MessagingError) -> None:
        """Stop listening; waiting fetches raise the error."""
        if self._reader is not None:
            self._reader.stop(error)
        # Else foreign publications would still be taken, and never be fetched.
        await self._transport.unsubscribe()

    async def close(self, *, commit: bool) -> None:
        """Stop listening; a mailbox without a given name leaves the directory."""
        await end(self._renewing)
        if self._reader is None or self._commits is None or self._epoch is None:
            return
        await self._transport.unsubscribe()
        stopped = self.inbox.error
        await self._reader.close()
        if isinstance(stopped, Closed):
            if commit:
                self._commits.acknowledge()
            self._report_unleft(self._commits, stopped)
        if stopped is not None:
            return
        self._reader.stop(Closed("this messager was closed while you waited for its messages: make another one"))
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave(self._commits, self._epoch, commit=commit)
        except (TimeoutError, ConnectionFailed, Closed) as error:
            self._report_unleft(self._commits, error)
        except Fenced as error:  # the remedy for it is to close
            logger.info("%s was closed after a newer messager took its mailbox over: %s", self.name, error)

    def _report_unleft(self, commits: Commits, error: Exception) -> None:
        """Log that the mailbox could not be left; raise if handled messages will be delivered again because of it."""
        late = isinstance(error, TimeoutError)
        why = f"it took longer than {_LEAVE_S:g} s (is the server away?)" if late else str(error)
        if self._named and commits.unwritten:
            raise (Closed if isinstance(error, Closed) else TransitError)(
                f"{self.name!r} could not commit what was fetched last when it was closed, so its next messager gets "
                f"that again: {why}"
            ) from error
        level = logging.INFO if isinstance(error, Closed) else logging.WARNING  # the experiment has ended anyway
        logger.log(level, "%s could not leave, so its lease ends by itself: %s", self.name, why)

    async def _leave(self, commits: Commits, epoch: int, *, commit: bool) -> None:
        if commit:
            commits.acknowledge()
        await commits.close()
        await commits.write()
        if self._named:
            # A successor under this name need not wait for the lease to end.
            await self._transport.renew(self.name, self.name, epoch, lease_s=0, keep_s=0)
        else:
            await self._transport.remove(self.name, epoch)

    def loops(self) -> list[TaskHealth]:
        """Return the health of reading, and of renewing the lease."""
        lease = self._lease.loop(self._renewing)
        return [lease] if self._reader is None else [self._reader.loop(), lease]

    def stats(self) -> dict[str, Any]:
        """Return counters."""
        return {
            "inbox": self.inbox.size,
            "unreadable": 0 if self._reader is None else self._reader.unreadable,
            "ingress": self._foreign.count + (0 if self._reader is None else self._reader.foreign),
            "ingress_dropped": self._foreign.dropped,
        }
