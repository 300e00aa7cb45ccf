"""Mailboxes of one experiment on several Redis or Valkey servers, its shards."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from ray_messaging.addressing.channels import is_survey_mailbox
from ray_messaging.addressing.directory import Record
from ray_messaging.addressing.patterns import GLOBS, Patterns
from ray_messaging.common.task_health import TaskHealth, end
from ray_messaging.errors import Closed, MessagingError
from ray_messaging.observability.observer import Observer
from ray_messaging.transports.cursors import Cursor, SelectiveAcks
from ray_messaging.transports.redis.steps import RedisSteps
from ray_messaging.transports.redis.surveys import RedisSurveys
from ray_messaging.transports.redis.transport import RedisTransport
from ray_messaging.transports.sharded.calls import at_all, part_of, places_by_shard
from ray_messaging.transports.sharded.config import ShardsConfig
from ray_messaging.transports.sharded.control import ControlEntries, Entry
from ray_messaging.transports.sharded.departures import ShardedDepartures
from ray_messaging.transports.sharded.log import ShardedLog
from ray_messaging.transports.sharded.merging import ShardOutcome, merged
from ray_messaging.transports.sharded.step_bodies import StepBodies
from ray_messaging.transports.sharded.transactions.outbox import ShardedOutbox
from ray_messaging.transports.sharded.versions import packed, unpacked, version_of
from ray_messaging.transports.transport import (
    DirectoryDelta,
    FrameFate,
    Held,
    Ingress,
    Limits,
    Listening,
    MailboxEnd,
    SenderState,
    SendReply,
    SendRequest,
)

logger = logging.getLogger(__name__)

_NO_RECORDS = 2**53  # a version that no directory reaches: the records are on the control shard
_LOOK_S = 1.0  # for the leases of a shard
_RENEWALS = 24  # of a sender's state on the shards without its mailbox, while it is kept


class ShardedTransport:
    """Mailboxes of one experiment on several servers.

    Each shard has a whole key space for its own mailboxes. The control shard, the first one, also has the directory's
    records of all of them, foreign Pub/Sub, channels without a mailbox, and the mailboxes of messagers without a name;
    with steps these too, and all mailboxes. The bytes of large frames of steps are on all shards: see `step_bodies`.

    A directory's version is that of all shards (see `versions`). A change of the directory is done in this order: the
    mailbox on its shard, its record on the control shard, a higher version on each other shard. When it returns, no
    send by an older directory passes anywhere. Each part may be repeated; a record without a mailbox goes with the next
    load.
    """

    patterns: Patterns = GLOBS
    forgets = True
    largest_frame: int | None = None

    def __init__(self, config: ShardsConfig, shards: Sequence[RedisTransport]) -> None:
        self.exp_id = shards[0].exp_id
        self.shards = shards
        self.control = shards[0]
        self.log = ShardedLog([shard.log for shard in shards])
        self.surveys: RedisSurveys = self.control.surveys
        links = [shard.link for shard in shards]
        self.bodies = StepBodies(links, [shard.keys for shard in shards], config.home, config.body_bytes)
        self.steps: RedisSteps = self.control.steps
        self.steps.bodies = self.bodies
        self._stepped = False  # the experiment is known to have steps, so that all mailboxes are on the control shard
        self._config = config
        self._entries = ControlEntries(self.control, len(shards))
        self._homes: dict[str, int] = {}  # of mailboxes: the shard, unless it is the control shard
        self.outbox = ShardedOutbox(shards, self._homes)
        self.departures = ShardedDepartures(shards, self._homes)
        self._failure: MessagingError | None = None  # of a part of the last call of `send`
        self._renewed_at = time.monotonic()  # a sender's state on the other shards
        self._renewing: asyncio.Task[None] | None = None

    # -- connections ----------------------------------------------------------------------------------------------

    def ask_when_cut(self, ended: Callable[[], Awaitable[Closed | None]]) -> None:
        """Call `ended` while a server is out of reach: if the experiment has ended, calls raise its answer."""
        for shard in self.shards:
            shard.ask_when_cut(ended)

    def observe(self, observer: Observer) -> None:
        """Report connections and retries to an observer from now on."""
        for shard in self.shards:
            shard.observe(observer)

    async def connect(self) -> None:
        """Reach all servers; raise ConnectionFailed after `connect_timeout`, ServerRefused at once."""
        try:
            await at_all(shard.connect() for shard in self.shards)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections; closing twice does no harm."""
        if self._renewing is not None:
            await end(self._renewing)
        await self.departures.close()
        await self.log.stop()
        for shard in self.shards:
            await shard.close()

    # -- the directory --------------------------------------------------------------------------------------------

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return the changes since a version, after removing mailboxes with an expired lease.

        The versions are those from before the records were read: a change that comes between costs one more load.
        With steps the version is that of the control shard.
        """
        self._stepped = self._stepped or await self.steps.settings() is not None
        if self._stepped:
            return await self.control.load_directory(-1 if since < 0 else version_of(since, 0))
        known = unpacked(since, len(self.shards))
        lists = await at_all(shard.load_directory(_NO_RECORDS) for shard in self.shards[1:])
        loaded = await self._entries.load(known[0])
        there = [set[str](), *(set(found.mailboxes) for found in lists)]
        missing = [entry for entry in loaded.entries if entry.mailbox not in there[entry.shard]]
        gone = await self._still_missing(missing) if missing else set()
        entered = [entry for entry in loaded.entries if entry.mailbox not in gone]
        self._homes.update((entry.mailbox, entry.shard) for entry in entered)
        own = loaded.own
        version = packed([loaded.version, *(found.version for found in lists)])
        names = [*own.mailboxes, *(entry.mailbox for entry in entered)]
        return own._replace(version=version, changed=[*own.changed, *loaded.changed], mailboxes=names)

    async def _still_missing(self, missing: Sequence[Entry]) -> set[str]:
        """Return the mailboxes that are gone from their shards, and drop their entries: others came meanwhile."""
        shards = sorted({entry.shard for entry in missing})
        lists = await at_all(self.shards[shard].load_directory(_NO_RECORDS) for shard in shards)
        there = {shard: set(found.mailboxes) for shard, found in zip(shards, lists, strict=True)}
        gone = [entry for entry in missing if entry.mailbox not in there[entry.shard]]
        await at_all(map(self._entries.drop, gone))
        return {entry.mailbox for entry in gone}

    async def listen(
        self,
        record: Record,
        version: int,
        limits: Limits,
        *,
        owner: str,
        epoch: int | None,
        over: str = "",
    ) -> Listening | Held | None:
        """Enter a record in the directory if it is still at `version`, and take the mailbox; None: it is not."""
        home, versions = await self._placed(record, limits, epoch), unpacked(version, len(self.shards))
        shard = self.shards[home]
        found = await shard.listen(record, versions[home], limits, owner=owner, epoch=epoch, over=over)
        if not isinstance(found, Listening):
            return found
        if home:
            name = record.mailbox
            if await self._entries.enter(record, home, shard.born_of(name), versions[0]) is None:
                return None
            self._homes[name] = home
            self.control.guests.add(name)
        await self._raise_others()
        # Asked now that an earlier process can let no agents leave any more.
        if epoch is None and not self._stepped and await self.departures.conclude(record.mailbox):
            return None
        return found._replace(version=version)

    async def _raise_others(self) -> None:
        """Raise the directory's version on all shards but the control shard, where it has changed already.

        The mailbox's own shard is among them: it had its version before the record was there. With steps no shard but
        the control shard takes frames by the directory.
        """
        if not self._stepped:
            await at_all(shard.raise_directory() for shard in self.shards[1:])

    async def _placed(self, record: Record, limits: Limits, epoch: int | None) -> int:
        """Return the shard of a mailbox; choose one for a new one of a messager with a name.

        That of one without a name is on the control shard: its lease depends on its subscription there. So is that of
        a survey, whose record is there, and in an experiment with steps each one: a seal and a send from outside need
        boxes, mailboxes and the barrier in one call.
        """
        name = record.mailbox
        if limits.leased or is_survey_mailbox(name) or epoch is not None or name in self._homes:
            return self._homes.get(name, 0)
        return await self._entries.place(name, self._config.home)

    async def set_schema(self, subtopic: str, schema: bytes | None) -> None:
        """Keep the JSON Schema of a subtopic's payloads in the directory (None: remove it)."""
        await self.control.set_schema(subtopic, schema)
        await self._raise_others()

    async def set_audience(self, name: str, version: int, facts: str, since: int | None = None) -> int | None:
        """Keep a version of an audience in the directory ("": it is removed); return the step since which it counts."""
        counts_from = await self.control.set_audience(name, version, facts, since)
        if counts_from is not None:
            await self._raise_others()
        return counts_from

    async def remove(self, mailbox: str, epoch: int | None) -> int:
        """Remove a mailbox; its unread frames become dead letters. Returns how many frames."""
        entry = await self._entries.entry(mailbox)
        if entry is not None:
            self._homes[mailbox] = entry.shard
        await self.departures.conclude(mailbox)
        if entry is None:
            return await self.control.remove(mailbox, epoch)
        buried = await self.shards[entry.shard].remove(mailbox, epoch)
        await self._entries.drop(entry)
        return buried

    # -- senders --------------------------------------------------------------------------------------------------

    async def take_sender_epoch(self, sender: str, *, keep_s: float, held: int | None = None) -> SenderState:
        """Raise a sender's epoch, which fences earlier senders under this name; raise Fenced if it is not `held`.

        The control shard gives the epoch, so that of two senders the same one is fenced everywhere. What the sender's
        last transaction has committed for other shards is relayed before this returns.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        state = await self.control.take_sender_epoch(sender, keep_s=keep_s, held=held)
        others = await at_all(
            shard.install_sender_epoch(sender, state.epoch, keep_s=keep_s, held=held) for shard in self.shards[1:]
        )
        found = [state, *others]
        last, takers = dict(state.last), state.takers
        for shard, there in enumerate(others, 1):
            last.update((name, seq) for name, seq in there.last.items() if self._homes.get(name, shard) == shard)
        for home, there in enumerate(found):
            if there.outbox:
                seqs = [each.last for each in found]
                relayed = await self.outbox.drain(sender, state.epoch, home, there.outbox, seqs)
                last.update(relayed.last)
                takers = relayed.takers or takers
        await at_all(
            self.shards[shard].take_back_promises(sender, state.epoch, there.promised)
            for shard, there in enumerate(found)
            if there.promised
        )
        transactions = max(there.transactions for there in found)  # a name has them on one shard
        return SenderState(state.epoch, last, takers, transactions)

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Forget a sender's sequence numbers for removed mailboxes, unless a newer sender has its name."""
        await at_all(shard.forget(sender, epoch, mailboxes) for shard in self.shards)

    async def leave(self, sender: str, epoch: int, *, keep_s: float) -> None:
        """Forget a closed sender `keep_s` seconds from now, unless a newer sender has its name."""
        await at_all(shard.leave(sender, epoch, keep_s=keep_s) for shard in self.shards)

    async def send(self, request: SendRequest) -> SendReply:
        """Write frames and publish: one call for each shard with frames, at the same time."""
        self._failure = None
        if request.conclusion is not None:
            return await self.outbox.transact(request)
        writes, parts = request.writes, places_by_shard(request.writes, self._homes)
        if len(parts) == 1:
            shard = next(iter(parts))
            return await self.shards[shard].send(part_of(request, shard, writes))
        replies = await asyncio.gather(
            *(
                self.shards[shard].send(part_of(request, shard, [writes[place] for place in places]))
                for shard, places in parts.items()
            ),
            return_exceptions=True,
        )
        outcomes = []
        for places, reply in zip(parts.values(), replies, strict=True):
            if not isinstance(reply, SendReply | MessagingError):
                raise reply
            outcomes.append(ShardOutcome(places, reply))
        # The sender takes a new epoch after a reply with a failure, and gets the failure there.
        reply, self._failure = merged(outcomes, len(request.writes))
        return reply

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:
        """Return why a refused frame still does not fit, FULL or LOG_FULL, without sending it; None: send it."""
        return await self._home_of(mailbox).still_full(mailbox, rows, nbytes)

    def home(self, mailbox: str) -> int:
        """Return the shard of a mailbox, as far as it is known here."""
        return self._homes.get(mailbox, 0)

    def _home_of(self, mailbox: str) -> RedisTransport:
        return self.shards[self.home(mailbox)]

    # -- readers --------------------------------------------------------------------------------------------------

    async def read(self, mailbox: str, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after an entry; wait for the first up to `block_s`."""
        return await self._home_of(mailbox).read(mailbox, after, count, block_s)

    async def end_of(self, mailbox: str) -> MailboxEnd:
        """Return up to where a mailbox goes now."""
        return await self._home_of(mailbox).end_of(mailbox)

    async def commit(
        self,
        mailbox: str,
        epoch: int,
        cursor: Cursor,
        *,
        messages: int,
        nbytes: int,
        acks: SelectiveAcks | None = None,
    ) -> None:
        """Move the durable cursor and trim the entries before it."""
        home = self._home_of(mailbox)
        await home.commit(mailbox, epoch, cursor, messages=messages, nbytes=nbytes, acks=acks)

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str, *, row: int | None = None) -> None:
        """Keep a frame that cannot be read among the dead letters, or (row) a message whose handler has failed."""
        await self._home_of(mailbox).bury(mailbox, entry, frame, reason, row=row)

    async def set_service(self, mailbox: str, epoch: int, note: bytes) -> None:
        """Keep a note on the service of a mailbox."""
        await self._home_of(mailbox).set_service(mailbox, epoch, note)

    async def services(self, mailboxes: Collection[str]) -> dict[str, bytes]:
        """Return the notes on the services of mailboxes."""
        found: dict[str, bytes] = {}
        for notes in await at_all(shard.services(mailboxes) for shard in self.shards):
            found |= notes
        return found

    async def waiting(self) -> dict[str, int]:
        """Return the number of unacknowledged messages in each mailbox."""
        found: dict[str, int] = {}
        for counts in await at_all(shard.waiting() for shard in self.shards):
            found |= counts
        return found

    # -- leases ---------------------------------------------------------------------------------------------------

    async def renew(self, sender: str, mailbox: str | None, epoch: int, *, lease_s: float, keep_s: float) -> bool:
        """Renew a lease; raise Fenced if a newer reader holds the mailbox; False if it has been removed."""
        home = 0 if mailbox is None else self._homes.get(mailbox, 0)
        there = await self.shards[home].renew(sender, mailbox, epoch, lease_s=lease_s, keep_s=keep_s)
        idle = self._renewing is None or self._renewing.done()
        if keep_s and idle and time.monotonic() - self._renewed_at > keep_s / _RENEWALS:
            # Not awaited: another shard that is away must not cost the mailbox its lease.
            renewing = self._renew_elsewhere(sender, home, keep_s)
            self._renewing = asyncio.create_task(renewing, name=f"ray_messaging state of {sender}")
        return there

    async def _renew_elsewhere(self, sender: str, home: int, keep_s: float) -> None:
        """Renew a sender's state on the shards without its mailbox."""
        try:
            others = [shard for number, shard in enumerate(self.shards) if number != home]
            await at_all(shard.renew(sender, None, 0, lease_s=0, keep_s=keep_s) for shard in others)
            self._renewed_at = time.monotonic()
        except MessagingError as error:
            logger.warning("the state of %s is not renewed on each shard, trying again: %s", sender, error)

    async def leases(self, mailboxes: Collection[str]) -> dict[str, str]:
        """Return leases as they stand, of some mailboxes and of others by chance; none of a shard that is silent."""
        asked: dict[int, list[str]] = {shard: [] for shard in range(len(self.shards))}
        for name in mailboxes:
            asked[self._homes.get(name, 0)].append(name)
        looks = [asyncio.create_task(self.shards[shard].leases(names)) for shard, names in asked.items()]
        try:
            done, _ = await asyncio.wait(looks, timeout=_LOOK_S)
        finally:
            for look in looks:
                await end(look)
        found: dict[str, str] = {}
        for look in done:
            error = look.exception()
            if error is None:
                found |= look.result()
            elif not isinstance(error, MessagingError):
                raise error
        return found

    async def end_leases(self, over: Mapping[str, str]) -> None:
        """End leases that were seen unchanged for as long as they last, where they still are as they were seen."""
        parts: dict[int, dict[str, str]] = {}
        for name, lease in over.items():
            parts.setdefault(self._homes.get(name, 0), {})[name] = lease
        await at_all(self.shards[shard].end_leases(some) for shard, some in parts.items())

    # -- foreign clients ------------------------------------------------------------------------------------------

    async def subscribe(self, channels: Collection[str], globs: Sequence[str], sink: Callable[[Ingress], None]) -> None:
        """Pass publications of foreign clients to `sink`, at most once; never those of our own senders."""
        await self.control.subscribe(channels, globs, sink)

    async def unsubscribe(self, channels: Collection[str] | None = None) -> None:
        """Stop listening to foreign clients, on some channels or (None) on all."""
        await self.control.unsubscribe(channels)

    def loops(self) -> list[TaskHealth]:
        """Return the health of listening to foreign clients."""
        return self.control.loops()
