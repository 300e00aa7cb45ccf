"""Moves of agents from a mailbox to another mailbox, or to none, together with the messages that wait for the agents.

One call to the server changes the records of both mailboxes in the directory, or nothing:

- Outside of steps, only the mailbox's reader can move agents, because only the reader knows which messages were
  fetched. Once the messages that were fetched for the agents are committed, the call writes the messages that still
  wait for the agents into the other mailbox. The move is valid immediately.
- In steps, any process can move agents. The move is valid from the first step that no group has opened. Messages stay
  in the boxes, each of which has the messages that a mailbox reads in one step. The new group reads them there (see
  `steps/box_frames.py`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import NO_DATES, Directory, HostDates, MailboxRecord, agents_of, claims_of
from ray_messaging.common.backoff import FULL_MAILBOX_RETRY, LEASE_RETRY, STALE_DIRECTORY_RETRY, Backoff, RetryPolicy
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import (
    AlreadyExists,
    ConfigError,
    ConnectionFailed,
    FrameError,
    MailboxFull,
    MoveFailed,
    ServerRefused,
    UnknownName,
)
from ray_messaging.messages import Slice
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch, Origin
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.receiving.ack_ranges import runs_of
from ray_messaging.receiving.commits import InFlight
from ray_messaging.receiving.fetcher import Fetcher
from ray_messaging.receiving.inbox import Piece
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.transports.agent_moves import ARRIVAL, Attempted, MoveAttempt, MoveOutcome, UnreadFrames
from ray_messaging.transports.cursors import following, keep_of, order
from ray_messaging.transports.dead_letter_store import Returned
from ray_messaging.transports.requeueing import frames_of
from ray_messaging.wire.frames import decode, encode

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

T = TypeVar("T")
Mask = NDArray[np.bool_]
_NEWS_S = 1.0  # how many seconds one call waits, at most, for the server to report a change of the steps


def check_leaving(agents: AgentSet, record: MailboxRecord, target: str | None) -> None:
    """Raise an error if agents cannot leave the mailbox of `record` for mailbox `target` (None: for no mailbox).

    Raises: AlreadyExists if both are the same mailbox; UnknownName if one of the agents is not in the mailbox of
    `record`.
    """
    if target == record.mailbox and agents:
        agent = next(iter(agents))
        raise AlreadyExists(
            f"agent {agent!r} is in group {target!r} already: leave this agent out",
            kind="agent",
            value=agent,
            owner=target,
        )
    missing = agents - record.agents()
    if missing:
        agent = next(iter(missing))
        raise UnknownName(
            f"group {record.mailbox!r} hosts no agent {agent!r}, so the agent cannot leave it: leave this agent out",
            kind="agent",
            value=agent,
        )


def moved_records(
    source: MailboxRecord, target: MailboxRecord | None, agents: AgentSet, version: int = 0, dates: HostDates = NO_DATES
) -> tuple[MailboxRecord, MailboxRecord | None]:
    """Return the new records of both mailboxes after a move of agents from `source` to `target`.

    If `target` is None, the agents are removed. In steps, `version` is the version of the directory after the move.
    """
    claimed = source.by_subtopic()
    left = {subtopic: hosted - agents for subtopic, hosted in claimed.items()}
    here = msgspec.structs.replace(source, claims=claims_of(left), moved=True).succeeds(source, version, dates)
    if target is None:
        return here, None
    joined = target.by_subtopic()
    for subtopic, hosted in claimed.items():
        came = hosted & agents
        if came:
            joined[subtopic] = joined[subtopic] | came if subtopic in joined else came
    there = msgspec.structs.replace(target, claims=claims_of(joined), moved=True)
    came_from = source if version else None
    return here, there.succeeds(target, version, dates, came_from)


class AgentMover:
    """One move of agents from mailbox `source` to mailbox `target` (None: to no mailbox).

    Args: `unread` has the messages that wait in `source`. In steps `unread` is None, and `directory` must have the
    records of all mailboxes.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        directory: Directory,
        agents: AgentSet,
        source: str,
        target: str | None,
        unread: "UnreadMessages | None" = None,
    ) -> None:
        self._transport = transport
        self._directory = directory
        self._agents = agents
        self._source = source
        self._target = target
        self._unread = unread

    async def run(self, timeout: float) -> None:
        """Move the agents.

        In steps, if the target does not take part in the next step yet, this waits until it does.

        Raises: UnknownName if an agent, the source or the target does not exist; AlreadyExists if source and target are
        the same; ConfigError if, in steps, the source listens to channel patterns; MoveFailed if the agents could not
        leave within `timeout` seconds, or for another reason that prevents the move; Fenced if the source mailbox has a
        newer reader.
        """
        if self._unread is None:
            await self._move(timeout, asyncio.get_running_loop().time() + timeout)
        else:
            async with self._unread.held_back(self._agents, timeout) as deadline:
                await self._move(timeout, deadline)

    async def _move(self, timeout: float, deadline: float) -> None:
        """Try to move the agents until an attempt succeeds.

        Raises: one of the errors of `run`, if further attempts are useless, or after the deadline.
        """
        tried: list[int] = []  # the versions of the directory that earlier attempts at this move tried to make
        refused: MoveOutcome | None = None  # why the last attempt has changed nothing
        backoff = Backoff(STALE_DIRECTORY_RETRY, deadline=deadline)
        while True:
            if self._unread is not None:
                await self._unread.read_to_end()
            self._directory.update(*await self._transport.load_directory(self._directory.version))
            if any(self._is_done(version) for version in tried):
                return
            if refused is not None and backoff.exhausted:
                raise self._late(refused, timeout)
            tried.append(self._directory.version + 1)
            if self._unread is None:
                found = await self._transport.moves.move(self._attempt())
            else:
                found = await self._unread.move(self._attempt, self._agents)
            if found.outcome is MoveOutcome.DONE:
                return
            if found.outcome is MoveOutcome.NOT_YET:
                await self._await_target(found, deadline)
                continue
            if found.outcome in (MoveOutcome.GONE, MoveOutcome.TOO_LARGE):
                self._refuse(found.outcome)
            refused = found.outcome
            await backoff.sleep()

    def _is_done(self, version: int) -> bool:
        """In steps, return whether an earlier attempt at this move has made this version of the directory of mailboxes.

        The answer to that attempt may have been lost. If another process made the version by another move, return
        False.
        """
        changes = {
            record.mailbox: change
            for record in self._directory.records.values()
            for change in record.changes
            if change.version == version
        }
        left = changes.pop(self._source, None)
        return (
            left is not None
            and agents_of(left.went) == self._agents
            and [*changes] == ([] if self._target is None else [self._target])
        )

    def _attempt(self) -> MoveAttempt:
        """Build the next attempt at the move from this process's copy of the directory of mailboxes.

        Raises: the errors of `run`.
        """
        records, target, version = self._directory.records, self._target, self._directory.version
        here, there = records.get(self._source), None if target is None else records.get(target)
        if here is None or not here.exclusive:
            raise UnknownName(
                f"there is no group {self._source!r} with agents: call this method of the group that hosts the agents",
                kind="group",
                value=self._source,
            )
        if target is not None and (there is None or not there.exclusive):
            self._refuse(MoveOutcome.GONE)
        check_leaving(self._agents, here, target)
        if self._unread is not None:
            return MoveAttempt(*moved_records(here, there, self._agents), version)
        if here.globs:
            raise ConfigError(
                f"group {self._source!r} listens to channel patterns (such as {here.globs[0]!r}), so in an experiment "
                "with steps no agent can be moved out of it, because it is not known for which agent a pattern is "
                "meant: create the group without patterns"
            )
        return MoveAttempt(*moved_records(here, there, self._agents, version + 1, self._directory.dates), version)

    async def _await_target(self, found: Attempted, deadline: float) -> None:
        """Wait until the target takes part in the next step; raise MoveFailed after the deadline."""
        store = self._transport.steps
        while (progress := await store.progress()).latest + 1 < found.since:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise self._failed(
                    f"agents cannot go from group {self._source!r} to {self._target!r} yet: group {self._target!r} "
                    f"takes part only from step {found.since} on, and the latest open step is {progress.latest}. Let "
                    "the groups go on with their steps, then try again"
                )
            await store.wait(progress.news, min(_NEWS_S, left))

    def _refuse(self, outcome: MoveOutcome) -> NoReturn:
        """Raise the error for an outcome after which further attempts are useless."""
        record = None if self._target is None else self._directory.records.get(self._target)
        if outcome is MoveOutcome.TOO_LARGE:
            raise self._failed(
                f"a batch of messages that waits in group {self._source!r} is too large for the mailbox of group "
                f"{self._target!r}: let {self._source!r} fetch that batch first, or raise the mailbox_bytes of "
                f"{self._target!r}"
            )
        if self._unread is None and record is not None and record.exclusive:
            raise self._failed(
                f"agents cannot go from group {self._source!r} to {self._target!r}, because group {self._target!r} "
                "is leaving the steps, or has left them: let that group go on with its steps, or choose another group"
            )
        raise UnknownName(
            f"there is no group {self._target!r} to which agents can move: create it, or name another group",
            kind="group",
            value=self._target,
        )

    def _late(self, outcome: MoveOutcome, timeout: float) -> MoveFailed:
        why = {
            MoveOutcome.FULL: (
                f"the mailbox of {self._target!r} has no room for the messages that wait: let group {self._target!r} "
                "fetch"
            ),
            MoveOutcome.LOG_FULL: "the event log does not keep up: wait until the log has caught up",
        }.get(outcome, "groups or mailboxes changed at each attempt: wait until they change less often")
        return self._failed(
            f"agents could not leave group {self._source!r} within {timeout:g} s, because {why}, then try "
            "again. No agent has moved"
        )

    def _failed(self, text: str) -> MoveFailed:
        return MoveFailed(text, group=self._source, messages=0)


class UnreadMessages:
    """The messages that wait in a mailbox, outside of steps, while agents leave it.

    During the move, fetches return only messages before the first waiting message for the leaving agents. When the
    messages that were fetched for these agents are committed, all waiting messages are read. An attempt at the move
    writes the messages for the leaving agents into the target's mailbox, and the messages for other agents into this
    mailbox again.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        fetcher: Fetcher,
        unfolder: Unfolder,
        epoch: int,
        settings: MessagingConfig,
    ) -> None:
        self._transport = transport
        self._fetcher = fetcher
        self._inbox = fetcher.inbox
        self._name = fetcher.name
        self._epoch = epoch
        self._unfolder = unfolder
        self._most_messages, self._most_bytes = settings.complete_messages, settings.complete_bytes
        self._number = 0  # how many attempts to move agents were made
        self._end = ""  # the mailbox's last entry when the mailbox was last read to its end
        self._moving = asyncio.Lock()

    @asynccontextmanager
    async def held_back(self, agents: AgentSet, timeout: float) -> AsyncIterator[float]:
        """Hold back messages for agents. Once the messages fetched for them are committed, yield the move's deadline.

        There is one move at a time. If the move fails, an attempt that reaches the server later has no effect.

        Raises: MoveFailed if messages that were fetched for the agents are not committed within `timeout` seconds.
        """
        async with self._moving:
            deadline, before = asyncio.get_running_loop().time() + timeout, self._number
            self._inbox.withhold(agents)
            try:
                await self._await_commits(agents, timeout, deadline)
                yield deadline
            except BaseException:
                # An attempt of this move may still reach the server, or may have made the mailbox refuse messages.
                if self._number > before:
                    give_up = partial(self._transport.moves.give_up, self._name, self._epoch, self._number)
                    await _persist(give_up, LEASE_RETRY, f"giving up a move of agents from {self._name}")
                raise
            finally:
                self._inbox.withhold(None)

    # -- messages that were fetched -------------------------------------------------------------------------------

    async def _await_commits(self, agents: AgentSet, timeout: float, deadline: float) -> None:
        """Wait until all messages that were fetched for agents are committed; raise MoveFailed after the deadline."""
        commits, left = self._fetcher.commits, 0
        try:
            async with asyncio.timeout_at(deadline):
                held = await self._in_hand(agents, commits.in_flight)
                while True:
                    await self._fetcher.gate.wait_ended()
                    commits.progress.clear()
                    left = sum(part.high - part.low for part in commits.in_flight.unacked(held))
                    if not left:
                        return
                    await commits.progress.wait()
        except TimeoutError as error:
            raise MoveFailed(
                f"agents cannot leave group {self._name!r}: after {timeout:g} s, {left:,} messages that were fetched "
                "for them are not committed. Nothing has changed: let the handlers of these messages end, or ack() "
                "the messages, then try again, with a longer timeout if handlers take longer",
                group=self._name,
                messages=left,
            ) from error

    async def _in_hand(self, agents: AgentSet, flight: InFlight) -> list[Slice]:
        """Return the messages for these agents that were fetched but not committed."""
        cursor, end, found = flight.cursor, flight.at.entry, list[Slice]()
        first = keep_of(cursor)
        while order(first) <= order(end):
            entries = await self._transport.moves.entries(self._name, first, end)
            for entry, frame in entries:
                found += await self._slices_in(agents, entry, frame)
            first = following(entries[-1][0] if entries else end)
        return found

    async def _slices_in(self, agents: AgentSet, entry: str, frame: bytes) -> list[Slice]:
        try:
            batch = decode(frame)
            batch = batch if batch.fold is None else await self._unfolder.unfold(batch)
        # A frame that cannot be read was not delivered to an agent, so it is left out.
        except (FrameError, UnknownName):
            return []
        batch.origin = Origin(self._name, entry)
        rows = np.flatnonzero(agents.find(batch.to_ids))
        return [Slice(batch, low, high) for low, high in runs_of(rows)]

    # -- messages that wait ---------------------------------------------------------------------------------------

    async def read_to_end(self) -> None:
        """Wait until the inbox has all messages of the mailbox; raise MoveFailed if they are too many."""
        end = await self._transport.end_of(self._name)
        self._end = end.entry
        flight = self._fetcher.commits.in_flight
        messages, nbytes = end.messages - flight.waiting, end.nbytes - flight.waiting_bytes
        fits = messages <= self._most_messages and nbytes <= self._most_bytes
        if not fits or not await self._inbox.reach(end.entry, self._most_messages, lambda: self._fetcher.commits):
            raise MoveFailed(
                f"agents cannot leave group {self._name!r} while {messages:,} messages wait in its mailbox "
                f"({nbytes:,} bytes in all), because a move reads all of them: fetch until at most "
                f"{self._most_messages:,} messages with at most {self._most_bytes:,} bytes in all wait, or raise "
                "MessagingConfig.complete_messages or complete_bytes",
                group=self._name,
                messages=messages,
            )

    async def move(self, attempt_of: Callable[[], MoveAttempt], agents: AgentSet) -> Attempted:
        """Make an attempt at the move, which also moves all messages that wait for the agents.

        Nothing is fetched or committed during the attempt.
        """
        commits, gate = self._fetcher.commits, self._fetcher.gate
        while True:
            await gate.wait_ended()
            async with commits.writing:
                if not gate.free:
                    continue
                aside = self._inbox.set_aside()
                try:
                    attempt = attempt_of()
                    for staying in attempt.record.by_subtopic().values():
                        # A broadcast to the agents that stay may arrive before the answer of the server.
                        self._unfolder.add(staying)
                    unread = self._frames(attempt, agents, commits.in_flight.copy(), aside)
                    move = partial(self._transport.moves.move, attempt._replace(unread=unread))
                    # The call is repeated until the server answers. Before that, nobody knows where the agents are.
                    found = await _persist(move, FULL_MAILBOX_RETRY, f"a move of agents from {self._name}")
                    if found.outcome is MoveOutcome.DONE:
                        pass_over(commits.in_flight, aside)
                        commits.note_stored(unread.acks)
                        aside = []
                finally:
                    self._inbox.resume(aside)
            return found

    def _frames(self, attempt: MoveAttempt, agents: AgentSet, flight: InFlight, aside: list[Piece]) -> UnreadFrames:
        """Return how an attempt at the move changes the messages that wait in the mailbox.

        Args: `flight` is a copy of the mailbox's `InFlight`. In this copy the messages in `aside`, which were taken out
        of the inbox, become taken and acknowledged.
        """
        slices, record, target = pass_over(flight, aside), attempt.record, attempt.target
        subtopics = set(record.by_subtopic())
        stay: list[Returned] = []
        go = [] if target is None else [Returned(target.mailbox, 0, _arrival(self._name))]
        for batch, low, high, _ in slices:
            leaving = _leaving(batch, agents, subtopics)[low:high]
            # `logged=True`, because the event log has these messages already: it reads them in their first mailbox.
            stay += frames_of(record, batch, low + np.flatnonzero(~leaving), logged=True)
            go += frames_of(target or record, batch, low + np.flatnonzero(leaving), logged=True)
        self._number += 1
        return UnreadFrames(
            self._epoch,
            self._number,
            max(self._end, self._inbox.read_to, key=order),
            flight.cursor,
            flight.front,
            flight.nbytes,
            flight.acks(),
            stay,
            go,
            f"its recipient was removed from group {self._name!r}",
        )


def _leaving(batch: Batch, agents: AgentSet, subtopics: set[str]) -> Mask:
    """Return a mask of the rows that leave with the agents: rows to `agents` with one of `subtopics`."""
    claimed = np.array([topic in subtopics for topic in batch.topics], np.bool_)
    return agents.find(batch.to_ids) & (claimed[0] if batch.topic is None else claimed[batch.topic])


async def _persist(call: Callable[[], Awaitable[T]], policy: RetryPolicy, what: str) -> T:
    """Repeat a call while the server does not answer or has no memory.

    There is no time limit, because the messages wait on the server during this time. Each repetition logs a warning
    that begins with `what`, a name of the call.
    """
    backoff = Backoff(policy)
    while True:
        try:
            return await call()
        except ServerRefused:
            raise
        except (ConnectionFailed, MailboxFull) as error:
            logger.warning("%s has failed, and is tried again: %s", what, error)
        await backoff.sleep()


def pass_over(flight: InFlight, pieces: Iterable[Piece]) -> list[Slice]:
    """Record the rows of pieces, which are frames in the inbox, as taken and acknowledged.

    Return the rows that were not yet acknowledged.
    """
    found: list[Slice] = []
    for piece in pieces:
        assert piece.entry is not None
        low, whole = piece.low, False
        while not whole:
            known, stop = False, piece.high
            if flight.ahead and piece.batch is not None:
                known, stop = flight.acked_before(piece.entry, low, piece.high)
            whole = stop == piece.high
            if known:
                flight.skip(piece.entry, low, stop, whole, piece.nbytes)
            else:
                number = flight.taken
                flight.take(piece.entry, low, stop, whole, piece.nbytes)
                flight.ack(number, flight.taken)
                if piece.batch is not None:
                    found.append(Slice(piece.batch, low, stop))
            low = stop
    return found


def _arrival(source: str) -> bytes:
    """Encode a frame that tells a mailbox's reader: agents have come from mailbox `source`."""
    nobody = IdColumn.of([])
    lines = PayloadColumn.of([], raw=True)
    return encode(
        Batch(sender=ARRIVAL, epoch=0, first=0, from_ids=nobody, rows=0, to_ids=nobody, topics=(source,), lines=lines)
    )
