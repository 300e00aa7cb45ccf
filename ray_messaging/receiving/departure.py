"""Departure of agents from a mailbox: to another mailbox, or to none, together with the messages that wait for them."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import Directory, MailboxRecord
from ray_messaging.common.backoff import FULL_MAILBOX_RETRY, LEASE_RETRY, Backoff
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import FrameError, MoveFailed, UnknownName
from ray_messaging.messages import Slice
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch, Origin
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.receiving.ack_ranges import runs_of
from ray_messaging.receiving.commits import InFlight
from ray_messaging.receiving.fetcher import Fetcher
from ray_messaging.receiving.inbox import Piece
from ray_messaging.receiving.reader import persist
from ray_messaging.receiving.rehosting import check_leaving, moved_records
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.transports.cursors import following, order
from ray_messaging.transports.dead_letter_store import Returned
from ray_messaging.transports.departures import ARRIVAL, Release, Released
from ray_messaging.transports.requeueing import frames_of
from ray_messaging.wire.frames import decode, encode

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

Mask = NDArray[np.bool_]


class Departure:
    """One departure of agents from a messager's mailbox to mailbox `target`; None: to the dead letters.

    From the first waiting message for these agents on, fetches return nothing. When the fetched messages for them are
    committed, one call to the server moves the agents and all that waits for them. The call does everything or nothing.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        directory: Directory,
        fetcher: Fetcher,
        unfolder: Unfolder,
        epoch: int,
        agents: AgentSet,
        target: str | None,
        settings: MessagingConfig,
    ) -> None:
        self._transport = transport
        self._departures = transport.departures
        self._directory = directory
        self._fetcher = fetcher
        self._inbox = fetcher.inbox
        self._name = fetcher.name
        self._epoch = epoch
        self._agents = agents
        self._target = target
        self._unfolder = unfolder
        self._most_messages, self._most_bytes = settings.complete_messages, settings.complete_bytes
        self._last: Release | None = None  # the last attempt
        self.number = 0
        self._deadline = 0.0  # loop time
        self._end = ""  # the mailbox's last entry when it was last read

    async def run(self, first_number: int, timeout: float) -> None:
        """Let the agents leave. Attempts are numbered from `first_number` on; `number` is the last attempt's number.

        Raises: MoveFailed if they could not leave within `timeout` seconds; UnknownName if an agent is not here or the
        target does not exist; Fenced if the mailbox has a newer reader.
        """
        self.number, self._deadline = first_number - 1, asyncio.get_running_loop().time() + timeout
        self._inbox.withhold(self._agents)
        try:
            await self._await_commits(timeout)
            await self._let_go(timeout)
        finally:
            self._inbox.withhold(None)

    # -- what was fetched -----------------------------------------------------------------------------------------

    async def _await_commits(self, timeout: float) -> None:
        """Wait until all messages that were fetched for the agents are committed; raise MoveFailed after `timeout`."""
        commits, left = self._fetcher.commits, 0
        try:
            async with asyncio.timeout_at(self._deadline):
                held = await self._in_hand(commits.in_flight)
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
                "for them are not committed. Nothing has changed: let their handlers end, or ack() what was fetched, "
                "then try again, with a longer timeout if handling takes longer",
                group=self._name,
                messages=left,
            ) from error

    async def _in_hand(self, flight: InFlight) -> list[Slice]:
        """Return the messages for the agents in entries that were fetched and are after the cursor."""
        cursor, end, found = flight.cursor, flight.at.entry, list[Slice]()
        first = cursor.entry if cursor.row else following(cursor.entry)
        while order(first) <= order(end):
            entries = await self._departures.entries(self._name, first, end)
            for entry, frame in entries:
                found += await self._slices_in(entry, frame)
            first = following(entries[-1][0] if entries else end)
        return found

    async def _slices_in(self, entry: str, frame: bytes) -> list[Slice]:
        try:
            batch = decode(frame)
            batch = batch if batch.fold is None else await self._unfolder.unfold(batch)
        except (FrameError, UnknownName):  # such a frame was not delivered
            return []
        batch.origin = Origin(self._name, entry)
        rows = np.flatnonzero(self._agents.find(batch.to_ids))
        return [Slice(batch, low, high) for low, high in runs_of(rows)]

    # -- what waits -----------------------------------------------------------------------------------------------

    async def _let_go(self, timeout: float) -> None:
        """Make attempts until one is done; raises as `run`."""
        backoff = Backoff(FULL_MAILBOX_RETRY)
        try:
            while (outcome := await self._attempt()) is not Released.DONE:
                self._check(outcome, timeout)
                await backoff.sleep()
        except BaseException:
            await self._give_up()
            raise

    async def _attempt(self) -> Released:
        """Make one attempt, with all messages that wait. Meanwhile nothing is fetched or committed."""
        await self._read_to_end()
        self._directory.update(*await self._transport.load_directory(self._directory.version))
        commits, gate = self._fetcher.commits, self._fetcher.gate
        while True:
            await gate.wait_ended()
            async with commits.writing:
                if not gate.free:
                    continue
                aside = self._inbox.set_aside()
                try:
                    self._last = self._prepare(commits.in_flight.copy(), aside)
                    release = partial(self._departures.release, self._last)
                    # Until the server answers nobody knows where the agents are.
                    outcome = await persist(release, FULL_MAILBOX_RETRY, f"agents are leaving {self._name}")
                    if outcome is Released.DONE:
                        pass_over(commits.in_flight, aside)
                        commits.note_stored(self._last.acks)
                        aside = []
                finally:
                    self._inbox.resume(aside)
            return outcome

    async def _read_to_end(self) -> None:
        """Wait until the inbox has all messages of the mailbox; raise MoveFailed if there are too many."""
        end = await self._transport.end_of(self._name)
        self._end = end.entry
        flight = self._fetcher.commits.in_flight
        messages, nbytes = end.messages - flight.waiting, end.nbytes - flight.waiting_bytes
        fits = messages <= self._most_messages and nbytes <= self._most_bytes
        if not fits or not await self._inbox.reach(end.entry, self._most_messages, lambda: self._fetcher.commits):
            raise MoveFailed(
                f"agents cannot leave group {self._name!r} while {messages:,} messages of {nbytes:,} bytes wait in its "
                f"mailbox, as they are all read for that: fetch until there are at most {self._most_messages:,} of "
                f"{self._most_bytes:,} bytes, or raise MessagingConfig.complete_messages or complete_bytes",
                group=self._name,
                messages=messages,
            )

    def _prepare(self, flight: InFlight, aside: list[Piece]) -> Release:
        """Build the next attempt; `flight` is a copy of what is in flight."""
        slices = pass_over(flight, aside)
        record, target = self._records()
        subtopics = set(record.by_subtopic())
        stay: list[Returned] = []
        go = [] if target is None else [Returned(target.mailbox, 0, _arrival(self._name))]
        for batch, low, high, _ in slices:
            leaving = self._leaving(batch, subtopics)[low:high]
            # The event log has these messages from their first mailbox.
            stay += frames_of(record, batch, low + np.flatnonzero(~leaving), logged=True)
            go += frames_of(target or record, batch, low + np.flatnonzero(leaving), logged=True)
        read_to = max(self._end, self._inbox.read_to, key=order)
        self.number += 1
        reason = f"its agent was removed from group {self._name!r}"
        return Release(
            record,
            self._epoch,
            self.number,
            self._directory.version,
            read_to,
            flight.cursor,
            flight.front,
            flight.nbytes,
            flight.acks(),
            stay,
            go,
            target,
            reason,
        )

    def _records(self) -> tuple[MailboxRecord, MailboxRecord | None]:
        """Return the records of the mailbox and of the target after the move.

        Raises: UnknownName if an agent is not here or the target does not exist.
        """
        here = self._directory.records[self._name]
        check_leaving(self._agents, here, self._target)
        there = None if self._target is None else self._directory.records.get(self._target)
        if self._target is not None and (there is None or not there.exclusive):
            raise self._refused(Released.GONE)
        moved = moved_records(here, there, self._agents)
        for agents in moved[0].by_subtopic().values():
            self._unfolder.add(agents)  # a broadcast to these agents may be read before we have the answer
        return moved

    def _leaving(self, batch: Batch, subtopics: set[str]) -> Mask:
        """Return which rows of a batch are for the agents that leave."""
        found = self._agents.find(batch.to_ids)
        claimed = np.array([topic in subtopics for topic in batch.topics], np.bool_)
        return found & (claimed[0] if batch.topic is None else claimed[batch.topic])

    # -- calls ----------------------------------------------------------------------------------------------------

    async def _give_up(self) -> None:
        """Make the server refuse the last attempt, which may still be on its way, and accept sends to the mailbox."""
        if self._last is not None:
            give_up = partial(self._departures.give_up, self._name, self._epoch, self.number)
            await persist(give_up, LEASE_RETRY, f"agents do not leave {self._name} after all")

    def _check(self, outcome: Released, timeout: float) -> None:
        """Raise the error of an attempt if another attempt cannot succeed, or would be too late."""
        if outcome in (Released.GONE, Released.TOO_LARGE):
            raise self._refused(outcome)
        if asyncio.get_running_loop().time() > self._deadline:
            raise self._late(outcome, timeout)

    def _refused(self, outcome: Released) -> MoveFailed | UnknownName:
        if outcome is Released.GONE:
            return UnknownName(f"there is no group {self._target!r} to move to", kind="group", value=self._target)
        return MoveFailed(
            f"group {self._target!r} takes no frame as large as one that waits in {self._name!r}: let {self._name!r} "
            f"fetch it first, or raise the mailbox_bytes of {self._target!r}",
            group=self._name,
            messages=0,
        )

    def _late(self, outcome: Released, timeout: float) -> MoveFailed:
        why = {
            Released.FULL: f"the mailbox of {self._target!r} has no room for what waits: let it fetch",
            Released.LOG_FULL: "the event log is behind",
        }.get(outcome, "mailboxes come and go, or fill faster than they are read")
        return MoveFailed(
            f"agents could not leave group {self._name!r} within {timeout:g} s, and nothing has changed: {why}, then "
            "try again",
            group=self._name,
            messages=0,
        )


def pass_over(flight: InFlight, pieces: Iterable[Piece]) -> list[Slice]:
    """Take and acknowledge the rows of pieces; return the rows that were not acknowledged before."""
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
    """Encode the frame that tells a mailbox's reader that agents have come from mailbox `source`."""
    nobody = IdColumn.of([])
    lines = PayloadColumn.of([], raw=True)
    return encode(
        Batch(sender=ARRIVAL, epoch=0, first=0, from_ids=nobody, rows=0, to_ids=nobody, topics=(source,), lines=lines)
    )
