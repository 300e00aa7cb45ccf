"""Transport of a messager: the calls to the server about mailboxes, which are Redis streams."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from ray_messaging.addressing.directory import HostDates, MailboxRecord, decode_record, encode_agents, encode_record
from ray_messaging.addressing.key_tags import shard_keys
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.audiences.audience_kinds import decode_audiences
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.config import RedisConfig, ShardsConfig
from ray_messaging.default_limits_and_leases import DEAD_BYTES
from ray_messaging.errors import Closed, ConnectionFailed, ServerRefused
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.observability.observer import Observer
from ray_messaging.transports.agent_moves import RedisMoves
from ray_messaging.transports.checkpoints import RedisCheckpoints
from ray_messaging.transports.connection.blocking_reads import BlockingReads
from ray_messaging.transports.connection.link import RedisLink, link_of
from ray_messaging.transports.connection.outage import Outage
from ray_messaging.transports.connection.scripts import script_text
from ray_messaging.transports.connection.server_runs import ServerRuns
from ray_messaging.transports.cursors import START, Cursor, keep_of
from ray_messaging.transports.dead_letter_store import kept_of
from ray_messaging.transports.experiment_store import FORMAT, RedisSurveys
from ray_messaging.transports.ingress import WIDE, RedisIngress
from ray_messaging.transports.large_frames import LEAST_BYTES, LargeFrames
from ray_messaging.transports.log_store import RedisLog
from ray_messaging.transports.step_bodies import StepBodies, at_all
from ray_messaging.transports.step_values import StepSettings
from ray_messaging.transports.steps import RedisSteps
from ray_messaging.transports.transport_values import (
    LOG,
    LOG_STREAM,
    Conclusion,
    DirectoryDelta,
    FrameFate,
    HeldMailbox,
    Ingress,
    Limits,
    Listening,
    MailboxEnd,
    SenderState,
    SendReply,
    SendRequest,
    SendStatus,
    fenced,
    lost,
)

_OTHERS = 16  # how many leases of other mailboxes, chosen at random, are read in addition to the requested ones
_PLAIN_COMMIT = 7  # the number of arguments of a commit, if it moves only the cursor


class RedisTransport:
    """Mailboxes of one experiment on a Redis or Valkey server.

    Every call except `read` may be repeated with the same arguments; its effect happens once. While the connection is
    interrupted, a call is repeated for at most `patience_s`, or as long as `begin_steps` says. Then it raises
    ConnectionFailed.
    """

    def __init__(
        self,
        config: RedisConfig,
        exp_id: str,
        *,
        patience_s: float,
        dead_bytes: int = DEAD_BYTES,
        run: str = "",
        reset: bool = False,
        wait_replicas: int = 0,
        spread: ShardsConfig | None = None,
    ) -> None:
        self.exp_id = exp_id
        self.run = run
        self.any_format = reset
        self.shards = 1 if spread is None else len(spread.servers)
        self.keys = Keys(exp_id, db=config.db)
        self.link = link_of(config, self.keys, patience_s, wait_replicas)
        greeting = script_text("raise_entry_ids", cluster=bool(config.cluster))
        self._server_runs = ServerRuns(self.keys, greeting, config.timeout, self.shards, any_format=reset)
        self.link.greet = self._server_runs.greet
        self.link.moved = self._follow
        self._large_frames = LargeFrames(self.link, self.keys)
        self.log = RedisLog(self.link, self.keys, run)
        self.bodies: StepBodies | None = None
        if spread is not None:
            further = [shard_keys(exp_id, shard, config.shards) for shard in range(1, self.shards)]
            links = [
                link_of(server, keys, patience_s, wait_replicas)
                for server, keys in zip(spread.servers[1:], further, strict=True)
            ]
            self.bodies = StepBodies([self.link, *links], [self.keys, *further], spread.home, spread.body_bytes)
        self.steps = RedisSteps(self.link, self.keys, self.bodies)
        self.checkpoints = RedisCheckpoints(self.link, self.keys)
        self.surveys = RedisSurveys(self.link, self.keys)
        self._caller = secrets.token_hex(8)
        self.dead_bytes = dead_bytes
        self._reading = BlockingReads(self.link)
        # For each mailbox, a number that distinguishes it from earlier mailboxes of the same name.
        self._born: dict[str, str] = {}
        self.moves = RedisMoves(self.link, self.keys, self._born, dead_bytes)
        self._ingress: RedisIngress | None = None
        self._step_loops = 0  # how many groups' step loops use this transport now
        # The settings with which `connect` sets up the experiment's steps (None: `connect` sets up no steps).
        self.first_steps: StepSettings | None = None

    def ask_when_cut(self, ended: Callable[[], Awaitable[Closed | None]]) -> None:
        """Make calls ask `ended` whether the experiment has ended, while the server cannot be reached.

        If `ended` returns an error, the calls raise it.
        """
        for link in self._links:
            link.ended = ended

    def observe(self, observer: Observer) -> None:
        """Report connections and retries to an observer from now on."""
        for link in self._links:
            link.observer = observer

    def called_by(self, who: str) -> None:
        """Set the name of the caller, which error texts contain."""
        for link in self._links:
            link.who = who

    def begin_steps(self, timeout_s: float) -> None:
        """Until `end_steps` is called, repeat a failed call for `timeout_s` or `patience_s`, whichever is longer."""
        self._step_loops += 1
        for link in self._links:
            link.outage = link.outage or Outage(f"group {link.who}", max(timeout_s, link.patience_s))

    def end_steps(self) -> None:
        """Undo one call of `begin_steps`. Once all are undone, failed calls are repeated for `patience_s` again."""
        self._step_loops -= 1
        for link in self._links if not self._step_loops else ():
            link.outage = None

    async def connect(self) -> None:
        """Connect to all servers.

        Raises: the errors of `RedisLink.connect`, such as ConnectionFailed or ServerRefused.
        """
        try:
            await at_all(link.connect() for link in self._links)
        except BaseException:
            for link in self._links:
                await link.close()
            raise
        if self.first_steps is not None:
            await self.steps.begin(self.first_steps)

    @property
    def _links(self) -> Sequence[RedisLink]:
        return [self.link] if self.bodies is None else self.bodies.links

    async def close(self) -> None:
        """Close the connections; closing twice is harmless."""
        await self.unsubscribe()
        self._reading.close()
        self.log.close()
        self.steps.close_readers()
        if self.bodies is not None:
            await self.bodies.close()
        await self.link.close()

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return the changes of the directory of mailboxes since a version (-1: all).

        Mailboxes whose lease has expired are removed first. If the server has an older version, because it was
        restored from older data, return the whole directory.
        """
        keys = [self.keys.meta, self.keys.records, self.keys.changes, self.keys.dead]
        version, names, changed, logged, schemas, audiences, dates = await self.link.script(
            "load_directory", keys, [since, self.keys.prefix, self.dead_bytes]
        )
        if version < since:
            return await self.load_directory(-1)
        records = [decode_record(data) for data in changed if data is not None]
        texts = {name: text.encode() for name, text in msgspec.json.decode(schemas, type=dict[str, str]).items()}
        there = [name.decode() for name in names]
        versions = decode_audiences(audiences)
        return DirectoryDelta(version, records, there, bool(logged), texts, versions, HostDates(dates.decode()))

    async def set_schema(self, subtopic: str, schema: bytes | None) -> None:
        """Store the JSON Schema of a subtopic's payloads in the directory of mailboxes (None: remove it)."""
        await self.link.script("set_schema", [self.keys.meta], [subtopic, schema or b""])

    async def set_audience(self, name: str, version: int, facts: str, since: int | None = None) -> int | None:
        """Store a version of an audience in the directory; return the step from which it is used (0 without steps).

        If the last stored version is not the version before this one, return None and change nothing.

        Args: `facts` describes the version ("": the audience is removed). If the groups have changed the audience in a
        step, `since` is the next step, which is the first to use the version; no group opens that step before the
        version is stored. If `since` is None, the version is used from the next step that no group has opened.
        """
        done, number = await self.link.script(
            "set_audience", [self.keys.meta, self.keys.steps()], [name, version, facts, "" if since is None else since]
        )
        return int(number) if done else None

    async def take_sender_epoch(self, sender: str, *, keep_s: float, held: int | None = None) -> SenderState:
        """Make a sender's epoch higher, so that the server refuses calls of earlier senders under this name.

        Args: The server keeps the sender's state for `keep_s` seconds (0: for ever). `held` is the epoch that this
        transport took before (None: none).

        Raises: Fenced with a `held` if another transport has made the epoch higher since, or if the server has lost the
        sender's state.
        """
        args = [int(keep_s * 1000), "" if held is None else held, self._caller]
        reply = await self.link.script("take_sender_epoch", [self.keys.sender(sender)], args)
        if not reply:
            raise fenced(sender, held or 0)
        if reply == [-1]:
            raise lost(sender, held or 0)
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        last = {key[2:].decode(): int(value) for key, value in fields.items() if key.startswith(b"s:")}
        # For an empty list the server stores {}, because Lua's cjson encodes an empty list so.
        takers = [int(taken) for taken in msgspec.json.decode(fields.get(b"p:replies", b"[]"))]
        return SenderState(int(fields[b"epoch"]), last, takers, int(fields.get(b"transactions", 0)))

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Delete a sender's sequence numbers for removed mailboxes, unless a newer sender has its name."""
        fields = [f"s:{mailbox}" for mailbox in mailboxes]
        await self.link.script("forget_sender", [self.keys.sender(sender)], [epoch, -1, *fields])

    async def leave(self, sender: str, epoch: int, *, keep_s: float) -> None:
        """Delete the state of a closed sender `keep_s` seconds from now, unless a newer sender has its name.

        If a repeated call of the closed sender arrives later, the server refuses the call.
        """
        await self.link.script("forget_sender", [self.keys.sender(sender)], [epoch, int(keep_s * 1000)])

    async def listen(
        self, record: MailboxRecord, version: int, limits: Limits, *, owner: str, epoch: int | None, over: str = ""
    ) -> Listening | HeldMailbox | None:
        """Become the reader of a mailbox, and write the mailbox's record into the directory of mailboxes.

        Return None if the directory is not at `version`, or HeldMailbox if another owner has the mailbox. In both cases
        nothing is written.

        Args: `epoch` is None for a new reader. If the present reader only changes the record, it is the reader's epoch.
        `over` is the lease of another owner, if this lease is known to have ended.
        Raises: Fenced if a newer reader has the mailbox, or if the mailbox was removed.
        """
        name = record.mailbox
        keys = [self.keys.meta, self.keys.records, self.keys.changes, self.keys.state(name), self.keys.lease(name)]
        keys += [self.keys.stream(LOG_STREAM), self.keys.step(name), self.keys.steps()]
        args = [
            max(version, 0),
            name,
            encode_record(record),
            -1 if epoch is None else epoch,
            limits.messages,
            limits.nbytes,
            int(limits.lease_s * 1000),
            int(limits.leased),
            owner,
        ]
        rest = [int(record.exclusive), self._caller, int(record.agent_channels > WIDE), over, FORMAT, self.shards]
        reply: Any = await self.link.script("take_over_mailbox", keys, [*args, 1, *rest]) if epoch is None else [4]
        if reply[0] == 4:
            reply = await self.link.script("take_mailbox", keys, [*args, 0, *rest])
        if reply[0] == 1:
            return None
        if reply[0] == 2:
            raise fenced(name, epoch or 0)
        if reply[0] == 5:
            raise lost(name, epoch or 0)
        if reply[0] == 3:
            return HeldMailbox(reply[1].decode(), reply[2].decode(), bool(reply[3]))
        self._born[name] = str(reply[5])
        return Listening(reply[1], reply[2], Cursor(reply[3].decode(), int(reply[4])), reply[6], reply[7] or b"")

    async def keep_agents(self, sets: Mapping[bytes, AgentSet]) -> None:
        """Store sets of agents, by digest, for the event log. This must precede the frames that name these sets.

        Only sets that the server lacks are written. All senders of an experiment need the same sets at about the same
        time. So that few sets are written twice, each sender writes the sets in random order, and before each write it
        asks which sets the server still lacks.
        """
        left = [*sets]
        random.shuffle(left)
        while left:
            there = await self.link.commands(*(("HEXISTS", self.keys.hearers, digest) for digest in left))
            left = [digest for digest, found in zip(left, there, strict=True) if not found]
            if left:
                digest = left.pop()
                await self.link.command("HSET", self.keys.hearers, digest, encode_agents(sets[digest]))

    async def send(self, request: SendRequest) -> SendReply:
        """Write all frames and publish all messages, or none, by one script.

        Large frames are sent before the script is called.
        """
        script, keys, args = self._asked(request)
        first, writes = None, request.writes
        if writes and len(writes[0].frame) >= LEAST_BYTES and self._large_frames.takes(request):
            first = partial(self._large_frames.write, writes, keys, args)
        cuts: list[None] = []
        try:
            reply = await self.link.script(script, keys, args, lambda: cuts.append(None), first)
        except ServerRefused:
            raise
        except ConnectionFailed as error:
            if cuts:
                raise
            host, port = self.link.address
            why = f"{error} (nothing of these messages was sent)"
            raise ConnectionFailed(why, host=host, port=port, unsent=True) from error
        repeated = bool(cuts)
        if isinstance(reply, int):  # the script was `commit`
            return SendReply(SendStatus(reply), repeated=repeated)
        status = SendStatus(reply[0])
        if len(reply) == 1:
            return SendReply(status, repeated=repeated)
        end = len(request.writes) + 1
        return SendReply(status, [FrameFate(fate) for fate in reply[1:end]], reply[end + 1 :], repeated)

    def _asked(self, request: SendRequest) -> tuple[str, list[str], list[Any]]:
        """Return a request's script, its keys, and its arguments."""
        keys, done = [self.keys.meta, self.keys.sender(request.sender)], request.conclusion
        # A call without frames only frees memory. So its script, `commit`, may run while the server's memory is full.
        if done is not None and not request.writes:
            keys[0] = self.keys.state(done.mailbox)
            return "commit", keys, [*self._concluding(done), request.epoch, done.number]
        args: list[Any] = [request.epoch, request.directory_version, request.interceptor_epoch, self.keys.own]
        args += [self.keys.prefix, 0 if done is None else done.number]
        if done is not None:
            keys.append(self.keys.state(done.mailbox))
            args += self._concluding(done)
        for write in request.writes:
            name = write.mailbox
            if name and name != LOG:
                keys += [self.keys.state(name), self.keys.lease(name)]
            args += write.arguments()
        return "send", keys, args

    def _concluding(self, done: Conclusion) -> list[Any]:
        """Return the arguments by which scripts get a `Conclusion`, a reader's changes to its mailbox."""
        entry, row, keep = "", 0, ""
        if done.cursor is not None:
            entry, row, keep = *done.cursor, keep_of(done.cursor)
        blob: tuple[str, bytes] = "=", b""
        if done.state_changed:
            blob = ("-", b"") if done.state is None else ("+", done.state)
        head = [done.epoch, self.keys.stream(done.mailbox), entry, row, keep]
        return [*head, done.messages, done.nbytes, *(done.acks or ("=", 0)), *blob]

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:
        """Return why a refused frame still does not fit (FULL or LOG_FULL), or None if it should be sent again."""
        fields = ("max_messages", "max_bytes", "messages", "bytes", "unlogged", "unlogged_bytes", "leased", "logged")
        *counts, leased, logged = await self.link.command("HMGET", self.keys.state(mailbox), *fields)
        max_rows, max_bytes, messages, held, unlogged, unlogged_bytes = (int(count or 0) for count in counts)
        full = messages + rows > max_rows or held + nbytes > max_bytes
        behind = logged and (unlogged + rows > max_rows or unlogged_bytes + nbytes > max_bytes)
        if nbytes > max_bytes or not (full or behind):
            return None  # `send` will write the frame, or will return the reason why the frame never fits
        gone = leased == b"1" and not await self.link.command("EXISTS", self.keys.lease(mailbox))
        return None if gone else FrameFate.FULL if full else FrameFate.LOG_FULL

    async def read(self, mailbox: str, after: str, count: int, block_s: float) -> list[tuple[str, bytes]]:
        """Return up to `count` frames after entry `after`; wait up to `block_s` seconds for the first frame.

        Each frame comes with the id of its entry, as (entry id, frame).
        """
        born = self._born.get(mailbox)
        if born is None:  # this process is not the mailbox's reader
            born = (await self.link.command("HGET", self.keys.state(mailbox), "born") or b"0").decode()
        [reply] = await self._reading.read({self.keys.stream(f"{mailbox}:{born}"): after}, count, block_s)
        return [
            (entry.decode(), fields[1] if len(fields) > 1 else b"") for _, entries in reply for entry, fields in entries
        ]

    @property
    def waited_s(self) -> float:
        """Return for how many seconds the last read waited until the first byte of its answer."""
        return self._reading.waited_s

    async def end_of(self, mailbox: str) -> MailboxEnd:
        """Return the id of a mailbox's last entry, and how many messages and bytes are after the cursor."""
        last, messages, nbytes = await self.link.command("HMGET", self.keys.state(mailbox), "last", "messages", "bytes")
        return MailboxEnd((last or START.entry.encode()).decode(), int(messages or 0), int(nbytes or 0))

    async def commit(self, done: Conclusion) -> None:
        """Move a mailbox's cursor, up to which all messages are acknowledged, or acknowledge messages after the cursor.

        Entries before the cursor are deleted, unless the event log still needs them. A transaction uses `send` instead.

        Raises: Fenced if a newer reader has the mailbox, or if the mailbox was removed.
        """
        # The last arguments may be left out if they change nothing. This saves time, because each fetch commits.
        args = self._concluding(done)[: _PLAIN_COMMIT if done.acks is None else None]
        if status := await self.link.script("commit", [self.keys.state(done.mailbox)], args):
            raise (fenced if status == SendStatus.READER_FENCED else lost)(done.mailbox, done.epoch)

    async def renew(self, sender: str, mailbox: str | None, epoch: int, *, lease_s: float, keep_s: float) -> bool:
        """Renew the lease of a messager's mailbox, and make the server keep the messager's state as a sender.

        Return False if the mailbox was removed, otherwise True.

        Args: `mailbox` is None for a messager without a mailbox. `epoch` is the epoch of the mailbox's reader. The
        lease is good for `lease_s` seconds (0: it ends now), the state is kept for `keep_s` seconds (0: for ever).

        Raises: Fenced if a newer reader has the mailbox, or if the server has lost the epoch, for example because older
        data were restored.
        """
        keys, asked_at = [self.keys.sender(sender), self.keys.meta], asyncio.get_running_loop().time()
        if mailbox is not None:
            keys += [self.keys.state(mailbox), self.keys.lease(mailbox)]
        reply = await self.link.script("renew_leases", keys, [int(keep_s * 1000), epoch, int(lease_s * 1000)])
        if reply < 0:
            raise (fenced if reply == -1 else lost)(mailbox or sender, epoch)
        if reply > 0:
            self._server_runs.heard(reply, asked_at)
        return bool(reply)

    async def leases(self, mailboxes: Collection[str]) -> dict[str, str]:
        """Return the leases of `mailboxes`, and of some other mailboxes chosen at random, as {mailbox: lease}.

        A lease is a str, `beat:duration in ms:...`; the owner changes `beat` when it renews the lease.
        """
        found = await self.link.script("read_leases", [self.keys.changes], [self.keys.prefix, _OTHERS, *mailboxes])
        return {name.decode(): lease.decode() for name, lease in zip(found[::2], found[1::2], strict=True)}

    async def end_leases(self, over: Mapping[str, str]) -> None:
        """End leases that the caller has seen unchanged for their whole duration.

        A lease is not ended if it has another value on the server by now, or if its end would remove the mailbox of a
        messager that is still connected.

        Args: `over` maps each mailbox to the lease that the caller has seen.
        """
        keys = [self.keys.meta, self.keys.records, self.keys.changes, self.keys.dead]
        pairs = [part for pair in over.items() for part in pair]
        await self.link.script("end_leases", keys, [self.keys.prefix, self.dead_bytes, *pairs])

    async def remove(self, mailbox: str, epoch: int | None) -> int:
        """Remove a mailbox; turn its unread frames into dead letters, and return the number of these frames.

        Args: `epoch` is the reader's epoch (None: the mailbox of any reader is removed).
        Raises: Fenced if a newer reader has the mailbox.
        """
        keys = [self.keys.meta, self.keys.records, self.keys.changes, self.keys.dead, self.keys.state(mailbox)]
        args = [-1 if epoch is None else epoch, self.keys.prefix, mailbox, "the mailbox was removed", self.dead_bytes]
        buried = int(await self.link.script("remove_mailbox", keys, args))
        if buried < 0:
            raise fenced(mailbox, epoch or 0)
        return buried

    async def bury(self, mailbox: str, entry: str, frame: bytes, reason: str, *, row: int | None = None) -> None:
        """Turn the frame of an entry into a dead letter, because the frame cannot be decoded.

        Args: With `row`, only the message in this row of the entry becomes a dead letter, because its handler failed.
        """
        frame, reason = kept_of(frame, reason)
        keys = [self.keys.dead, self.keys.state(mailbox)]
        args: list[Any] = [self.keys.prefix, mailbox, entry, reason, frame, self.dead_bytes]
        if row is None:
            await self.link.script("reject_frame", keys, args)
        else:
            await self.link.script("keep_failed", [*keys, self.keys.meta], [*args, row])

    async def set_service(self, mailbox: str, epoch: int, note: bytes) -> None:
        """Store a `ServiceNote` of a mailbox's reader (b"": no note), unless a newer reader has the mailbox."""
        await self.link.script("set_service", [self.keys.state(mailbox)], [epoch, note])

    async def services(self, mailboxes: Collection[str]) -> dict[str, bytes]:
        """Return, for each of these mailboxes, the note that its current reader has stored with `set_service`."""
        found = await self.link.script("read_services", [self.keys.meta], [self.keys.prefix, *mailboxes])
        return {name.decode(): note for name, note in zip(found[::2], found[1::2], strict=True)}

    async def subscribe(self, channels: Collection[str], globs: Sequence[str], sink: Callable[[Ingress], None]) -> None:
        """Pass messages that foreign clients publish on some channels to `sink`, each at most once.

        Messages of our own senders are not passed. `globs` are patterns of further channels.
        """
        if self._ingress is None:
            ears = [self.keys.ears + name for name in self._born]
            self._ingress = RedisIngress(self.link, self.keys, sink, ears)
        await self._ingress.subscribe(channels, globs)

    async def unsubscribe(self, channels: Collection[str] | None = None) -> None:
        """Stop listening to foreign clients on some channels, or on all channels if `channels` is None."""
        if channels is not None:
            if self._ingress is not None:
                await self._ingress.unsubscribe(channels)
            return
        ingress, self._ingress = self._ingress, None
        if ingress is not None:
            await ingress.close()

    def _follow(self, address: tuple[str, int]) -> None:
        """Listen to foreign clients at another server, which has become the primary."""
        if self._ingress is not None:
            self._ingress.follow(address)

    def loops(self) -> list[TaskHealth]:
        """Return the health of the task that listens to foreign clients, or [] if there is no such task."""
        return [] if self._ingress is None else [self._ingress.loop()]

    async def waiting(self) -> dict[str, int]:
        """Return, for each mailbox, how many of its messages are not acknowledged."""
        names = [name.decode() for name in await self.link.command("HKEYS", self.keys.changes)]
        fields = ("messages", "acked_messages")
        counts = [await self.link.command("HMGET", self.keys.state(name), *fields) for name in names]
        return {name: int(held or 0) - int(acked or 0) for name, (held, acked) in zip(names, counts, strict=True)}
