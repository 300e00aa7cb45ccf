"""A messager's subscription: its channels, agents and mailbox, from the first channel until the messager closes."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ray_messaging.addressing.channels import AgentId, parse_channel
from ray_messaging.addressing.directory import Directory
from ray_messaging.common.backoff import STALE_DIRECTORY_RETRY, Backoff
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import (
    Closed,
    ConnectionFailed,
    Fenced,
    InvalidAddress,
    MessagingError,
    MoveFailed,
    TransitError,
)
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.receiving.agent_mover import AgentMover, UnreadMessages
from ray_messaging.receiving.commits import Commits
from ray_messaging.receiving.fetcher import Fetcher
from ray_messaging.receiving.inbox import Inbox, Piece
from ray_messaging.receiving.mailbox_lease import IsDead, MailboxLease, outlast
from ray_messaging.receiving.reader import Reader
from ray_messaging.receiving.subscription_spec import SubscriptionSpec, check_claims
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.transports.transport_values import DIRECTORY_CHANGES, HeldMailbox, Ingress, Limits
from ray_messaging.wire.frames import FOREIGN_SENDER

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport


logger = logging.getLogger(__name__)


def batch_of(ingress: Ingress, directory: Directory, mailbox: str, epoch: int, number: int) -> Batch:
    """Build the batch of a message that a foreign client, a program without this library, published.

    Args: `number` is the number of this message among those that foreign clients published for the mailbox.
    """
    try:
        agent_id, topic = parse_channel(directory.exp_id, ingress.channel)
    except InvalidAddress:  # A pattern may match channels that are not built like those of agents.
        agent_id, topic = None, ":" + ingress.channel
    return Batch(
        sender=FOREIGN_SENDER + mailbox,
        epoch=epoch,
        first=number,
        from_ids=IdColumn.of([None]),
        rows=1,
        to_ids=IdColumn.of([agent_id]),
        topics=(topic,),
        sent_at=time.time(),
        lines=PayloadColumn.of([ingress.data], raw=True),
    )


class ForeignMessages:
    """Receiver of messages that foreign clients publish. It puts them into an inbox.

    These messages are in no mailbox, so no mailbox's limit applies to them. Instead, messages that exceed the inbox's
    limit, or `limit_bytes`, are dropped and counted.
    """

    def __init__(self, inbox: Inbox, directory: Directory, mailbox: str, limit_bytes: int) -> None:
        self.epoch = 0  # the reader's epoch
        self.count = 0
        self.dropped = 0
        self.left = NO_AGENTS  # agents that have left the mailbox
        self._inbox = inbox
        self._directory = directory
        self._mailbox = mailbox
        self._limit_bytes = limit_bytes

    def arrived(self, ingress: Ingress) -> None:
        """Put one published message into the inbox."""
        inbox, nbytes = self._inbox, len(ingress.data)
        # A message may exceed `limit_bytes` if the inbox has no other message of a foreign client.
        too_much = inbox.foreign_bytes > 0 and inbox.foreign_bytes + nbytes > self._limit_bytes
        if inbox.size >= inbox.limit or too_much:
            self.dropped += 1
            if self.dropped in {1, 1000} or self.dropped % 1_000_000 == 0:
                logger.warning(
                    "the inbox of %s is full: %d messages of plain Redis clients were dropped",
                    self._mailbox,
                    self.dropped,
                )
            return
        batch = batch_of(ingress, self._directory, self._mailbox, self.epoch, self.count + 1)
        if self.left and self.left.find(batch.to_ids)[0]:
            return
        self.count += 1
        inbox.put(Piece(None, batch, 0, 1, nbytes, None if ingress.pattern is None else ingress.pattern.encode()))


# The longest time, in seconds, for which closing a messager waits for the server.
_LEAVE_S = 5.0


class Subscription:
    """The part of a messager that listens.

    The first subscription opens the messager's mailbox, from which `fetcher` gets messages.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        directory: Directory,
        fetcher: Fetcher,
        settings: MessagingConfig,
        unfolder: Unfolder,
        *,
        named: bool,
    ) -> None:
        self.fetcher = fetcher
        self.inbox = fetcher.inbox
        self.name = fetcher.name
        self._transport = transport
        self._directory = directory
        self._settings = settings
        self._unfolder = unfolder
        unfolder.former = self._former_agents
        self._named = named
        self._spec = SubscriptionSpec(directory.exp_id)
        self._changing = asyncio.Lock()
        self.epoch: int | None = None  # the epoch of this mailbox's reader; None before there is a reader
        self._reader: Reader | None = None
        self._commits: Commits | None = None
        self._unread: UnreadMessages | None = None
        self._leaving = NO_AGENTS
        self._moves: set[asyncio.Task[None]] = set()
        self.stepped = False  # whether the experiment has steps; then moves of agents are valid from a certain step on
        self.agents_changed: Callable[[AgentSet, AgentSet], None] = lambda _came, _went: None
        self._foreign = ForeignMessages(self.inbox, directory, self.name, settings.mailbox_bytes)
        self._lease = MailboxLease(transport, self.name, settings.lease_s, lambda: self.epoch, self.stop, named=named)
        self._renewing = asyncio.create_task(self._lease.run(), name=f"ray_messaging lease of {self.name}")

    # -- listening ------------------------------------------------------------------------------------------------

    async def subscribe(self, channels: Iterable[str]) -> None:
        """Listen on channels. A pattern among `channels` stands for all channels that match it."""
        async with self._changing:
            await self._listen(lambda spec: spec.with_channels(channels))

    async def host(
        self, agents: Iterable[AgentId], subtopics: Sequence[str], *, owner: str, gone: IsDead | None = None
    ) -> None:
        """Claim agents exclusively, and listen on their channels.

        Args: `gone` is a function that says whether another owner of the mailbox is dead.
        """
        hosted = AgentSet.of(agents)
        async with self._changing:
            await self._listen(lambda spec: spec.with_agents(hosted, subtopics, owner), gone)

    @property
    def hosted(self) -> AgentSet:
        """Return the agents of this mailbox."""
        return self._spec.hosted

    @property
    def owner(self) -> str:
        """Return the name of the mailbox's owner."""
        return self._spec.owner

    def listens_for(self, agent_id: AgentId) -> bool:
        """Return whether messages for an agent may arrive here."""
        spec = self._spec
        return bool(spec.globs) or any(agent_id in agents for agents in spec.agents.values())

    def _spec_here(self) -> SubscriptionSpec:
        """Return the subscription's spec with the agents that this mailbox has in the directory of mailboxes.

        Other processes may have moved some agents since the spec was made.
        """
        record = self._directory.records.get(self.name)
        return self._spec.hosting(record) if record is not None and record.moved else self._spec

    async def _listen(
        self, change: Callable[[SubscriptionSpec], SubscriptionSpec], is_dead: IsDead | None = None
    ) -> None:
        settings = self._settings
        limits = Limits(settings.mailbox_messages, settings.mailbox_bytes, settings.lease_s, not self._named)
        over = ""
        change(self._spec)  # this call raises the error for invalid channels or agents
        clock = asyncio.get_running_loop().time
        backoff = Backoff(STALE_DIRECTORY_RETRY, deadline=clock() + settings.send_timeout_s)
        while True:
            delta = await self._transport.load_directory(self._directory.version)
            self._directory.update(*delta)
            here = self._spec_here()
            spec = change(here)
            known, record = self._directory.records.get(self.name), spec.record(self.name, settings)
            if known is not None:
                version = self._directory.version + 1 if self.stepped else 0
                record = record.succeeds(known, version, self._directory.dates)
            check_claims(record, self._directory)
            # The unfolder must know these agents before the server answers, because a broadcast to them may arrive
            # earlier than the answer.
            self._note(spec)
            listening = await self._transport.listen(
                record, self._directory.version, limits, owner=spec.owner, epoch=self.epoch, over=over
            )
            if isinstance(listening, HeldMailbox):
                over = await outlast(self._transport, self.name, listening, is_dead)
                backoff.deadline = clock() + settings.send_timeout_s
            elif listening is not None:
                break
            elif backoff.exhausted:
                raise TransitError(
                    f"{self.name!r} could not begin to listen within {settings.send_timeout_s:g} s "
                    f"(MessagingConfig.send_timeout_s), because {DIRECTORY_CHANGES}"
                )
            else:
                await backoff.sleep()
        before, self._spec = self._spec, spec
        if self.epoch is None:
            self.epoch = self._foreign.epoch = listening.epoch
            self._commits = Commits(self._transport, self.name, listening.epoch, listening.cursor, listening.acked)
            self._reader = Reader(
                self._transport, self.name, self.inbox, listening.cursor, record.frame_rows, self._unfolder, self.adopt
            )
            self.fetcher.gate.state = listening.state
            self._unread = UnreadMessages(
                self._transport, self.fetcher, self._unfolder, listening.epoch, self._settings
            )
            self.fetcher.start(self._commits, self._lease)
        if here is not before:
            await self._transport.subscribe(here.fresh, (), self._foreign.arrived)
        await self._transport.subscribe(spec.fresh, spec.fresh_globs, self._foreign.arrived)

    # -- agents that come and go ----------------------------------------------------------------------------------

    async def let_go(self, agents: AgentSet, target: str | None, timeout: float) -> None:
        """Move agents, with the messages that wait for them, to mailbox `target` (None: to no mailbox).

        Raises: MoveFailed if the agents could not leave within `timeout` seconds, or, outside of steps, if another call
        is moving them; UnknownName if an agent is not here or the target does not exist; Fenced if the mailbox has a
        newer reader.
        """
        leaving_already = self._leaving & agents
        # In an experiment with steps, `AgentMover` raises an error for agents that an earlier call has moved.
        if leaving_already and not self.stepped:
            agent = next(iter(leaving_already))
            raise MoveFailed(
                f"agent {agent!r} is leaving group {self.name!r} already, by another call: wait until that call has "
                "ended",
                group=self.name,
                messages=0,
            )
        # The move goes on even if its caller is cancelled.
        leaving = asyncio.create_task(self._let_go(agents, target, timeout), name=f"ray_messaging move of {self.name}")
        self._moves.add(leaving)
        leaving.add_done_callback(self._moves.discard)
        await asyncio.shield(leaving)

    async def _let_go(self, agents: AgentSet, target: str | None, timeout: float) -> None:
        self._leaving |= agents
        channels, unread = self._spec.channels_of(agents), None if self.stepped else self._unread
        try:
            # Agents that go to no mailbox have no receiver any more. The Redis subscriptions to their channels would
            # still count as receivers, so these subscriptions must end first.
            if target is None:
                await self._transport.unsubscribe(channels)
            await AgentMover(self._transport, self._directory, agents, self.name, target, unread).run(timeout)
            await self.adopt()
            await self._transport.unsubscribe(channels)
        except MessagingError:
            await self._transport.subscribe(self._spec.channels_of(agents), (), self._foreign.arrived)
            raise
        finally:
            self._leaving -= agents

    def _former_agents(self) -> Iterable[AgentSet]:
        record = self._directory.records.get(self.name)
        return () if record is None else record.former()

    def _note(self, spec: SubscriptionSpec) -> None:
        for agents in spec.agents.values():
            self._unfolder.add(agents)

    async def adopt(self) -> None:
        """Host the agents that this mailbox has in the directory of mailboxes.

        Other processes may have moved some agents.
        """
        async with self._changing:
            self._directory.update(*await self._transport.load_directory(self._directory.version))
            hosted = self._spec.hosted
            self._spec = spec = self._spec_here()
            came, went = spec.hosted - hosted, hosted - spec.hosted
            self._foreign.left = (self._foreign.left | went) - came
            self.agents_changed(came, went)
            if came or went:
                self._note(spec)
            if came:
                await self._transport.subscribe(spec.fresh, (), self._foreign.arrived)

    # -- the end --------------------------------------------------------------------------------------------------

    async def stop(self, error: MessagingError) -> None:
        """Stop listening. Waiting fetches raise the error."""
        if self._reader is not None:
            self._reader.stop(error)
        # If the Redis subscriptions went on, messages of foreign clients would arrive, but nobody could fetch them.
        await self._transport.unsubscribe()

    async def close(self, *, commit: bool) -> None:
        """Stop listening. With `commit`, commit fetched messages first.

        Remove the mailbox if its messager has no name.
        """
        await end(self._renewing)
        for leaving in [*self._moves]:
            await end(leaving)
        if self._reader is None or self._commits is None or self.epoch is None:
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
        self._reader.stop(Closed("this messager was closed while you waited for its messages: open another one"))
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._leave(self._commits, self.epoch, commit=commit)
        except (TimeoutError, ConnectionFailed, Closed) as error:
            self._report_unleft(self._commits, error)
        # The error is only logged, because closing is the right thing to do with a fenced messager.
        except Fenced as error:
            logger.info("%s was closed after a newer messager took its mailbox over: %s", self.name, error)

    def _report_unleft(self, commits: Commits, error: Exception) -> None:
        """Log that the mailbox could not be given up; raise an error if handled messages will be delivered again."""
        late = isinstance(error, TimeoutError)
        why = f"the server gave no answer within {_LEAVE_S:g} s; check that the server runs" if late else str(error)
        if self._named and commits.unwritten:
            raise (Closed if isinstance(error, Closed) else TransitError)(
                f"{self.name!r} was closed, but could not commit the messages that it fetched last ({why}). The next "
                "messager of this name gets them again"
            ) from error
        # Closed says that the experiment has ended, which is nothing to warn about.
        level = logging.INFO if isinstance(error, Closed) else logging.WARNING
        logger.log(
            level,
            "%s could not give up its mailbox, which stays reserved until its lease has expired: %s",
            self.name,
            why,
        )

    async def _leave(self, commits: Commits, epoch: int, *, commit: bool) -> None:
        if commit:
            commits.acknowledge()
        await commits.close()
        await commits.write()
        if self._named:
            # End the lease now. Otherwise a successor under this name would have to wait until the lease has ended.
            await self._transport.renew(self.name, self.name, epoch, lease_s=0, keep_s=0)
        else:
            await self._transport.remove(self.name, epoch)

    def loops(self) -> list[TaskHealth]:
        """Return the health of the tasks that read the mailbox and renew its lease."""
        lease = self._lease.loop(self._renewing)
        return [lease] if self._reader is None else [self._reader.loop(), lease]

    def stats(self) -> dict[str, Any]:
        """Return counters of received messages, such as `fetched` and `unreadable`."""
        return {
            "inbox": self.inbox.size,
            "fetched": 0 if self._commits is None else self._commits.in_flight.taken,
            "unreadable": 0 if self._reader is None else self._reader.unreadable,
            "ingress": self._foreign.count + (0 if self._reader is None else self._reader.foreign),
            "ingress_dropped": self._foreign.dropped,
        }
