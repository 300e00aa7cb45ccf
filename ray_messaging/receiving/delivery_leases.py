"""Delivery leases: a caller in another process holds messages for a limited time, and must acknowledge them in time."""

import asyncio
import math
import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ray_messaging.common.once_by_call import OnceByCall
from ray_messaging.errors import CommitFailed
from ray_messaging.messages import Messages, Slice
from ray_messaging.receiving.ack_ranges import Span, range_of
from ray_messaging.receiving.call_checks import CommitMode
from ray_messaging.receiving.fetcher import Fetcher
from ray_messaging.transports.cursors import AckRange, order

# A fetch that waits looks at least this often, in seconds, for leases that have ended because `lease_s` is over.
_LOOK_S = 1.0
# At most this many returned leases are remembered, because Ray may repeat the call that returned a lease. At most this
# many holders are remembered, too.
_RETURNED = 10_000


class FetchOptions(NamedTuple):
    """The options that a handle passes with a fetch.

    `number` is the number of the fetch, counted from 1 for each handle. `received` is the number of the handle's last
    fetch with commit="acked" whose answer has arrived at the handle.
    """

    commit: CommitMode = "next"
    complete: bool = False
    number: int = 0
    received: int = 0


NEXT = FetchOptions()


class HeldByHandle(NamedTuple):
    """How many messages one handle holds, and for how many `seconds` it has held the oldest of them.

    `came_again` counts the messages that were delivered again because the handle held them for too long. When the
    handle commits a lease in time, the count begins anew at 0.
    """

    holder: str
    messages: int
    seconds: float
    came_again: int


class Token(NamedTuple):
    """The name of a delivery lease: `token[:2]` is unique.

    A token contains the leased rows, so that a later process can still commit the lease.
    """

    process: str
    number: int
    spans: tuple[AckRange, ...]
    lent_at: float  # when the lease was given, in unix seconds


# The position of a row in the mailbox: the two numbers in the id of the row's entry, and the row's number in the entry.
Place = tuple[int, int, int]
_BEFORE_ALL: Place = (0, 0, 0)


@dataclass(slots=True, eq=False)
class _Holder:
    name: str
    fetch: FetchOptions | None = None  # the fetch that is in progress
    abandoned: int = -1  # the number of the last fetch whose answer the holder no longer wants
    reached: Place = _BEFORE_ALL  # the place after the last row that this holder has got
    came_again: int = 0  # the number of messages that this holder held for too long
    # The leases whose answer may not have reached the holder, by the first two fields of their tokens.
    unsure: "dict[tuple[str, int], _Lease]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Lease:
    token: Token
    holder: _Holder
    due: float  # the loop time at which the lease ends, so that another caller may get the messages
    slices: list[Slice]
    runs: list[tuple[int, int]]  # the numbers of the rows, as the mailbox's `InFlight` counts them
    rows: int  # the number of unacknowledged rows
    asked: int  # the number that the holder gave to the fetch that returned this lease
    # True: only acknowledgements commit the lease. False: the holder's next fetch commits it, too.
    acked: bool
    lost: bool = False  # whether the answer with this lease never reached the holder

    @property
    def first(self) -> Place:
        """Return where in the mailbox the lease's first row is.

        If the lease has only messages that foreign clients published, which are in no mailbox, return `_BEFORE_ALL`.
        """
        return next((place_of(part) for part in self.slices if part.batch.origin is not None), _BEFORE_ALL)


class DeliveryLeases:
    """Delivery leases of one mailbox. An acknowledged lease is committed, even if earlier messages are still leased.

    Messages that are delivered again come before all messages in the inbox. Who gets them depends on why they come
    again:

    - The holder gave the lease up, or `lease_s` is over: any caller gets them.
    - The answer with the lease was lost, or the holder no longer waited for it: until `lease_s` is over, the holder
      gets them with its next fetch, or a caller that has got no later messages. To any other caller, messages of one
      sender to one recipient would come out of order.

    Messages that are delivered again are in a new lease with a new token, and the old token is invalid.
    """

    def __init__(self, fetcher: Fetcher, lease_s: float) -> None:
        self._fetcher = fetcher
        self._lease_s = lease_s
        # The leases of this process, by the first two fields of their tokens.
        self._leases: dict[tuple[str, int], _Lease] = {}
        # With the next two fields, a fetch need not check all leases.
        self._next_due = math.inf  # no lease ends before this loop time, apart from the leases in `_lost`
        self._lost: dict[tuple[str, int], _Lease] = {}
        self._returned = OnceByCall[tuple[str, int], None](most=_RETURNED)
        # A holder is not forgotten while it fetches, or while the answer to its last fetch may be lost.
        self._holders = OnceByCall[str, _Holder](
            most=_RETURNED, held=lambda _, known, __: known.fetch is not None or bool(known.unsure)
        )
        self._process = secrets.token_hex(4)
        self._last = 0

    @property
    def lent(self) -> int:
        """Return the number of messages that callers hold."""
        return sum(lease.rows for lease in self._leases.values())

    @property
    def holders(self) -> set[str]:
        """Return the callers that hold messages or are waiting in a fetch."""
        holding = {lease.holder.name for lease in self._leases.values() if lease.rows > 0}
        return holding | {name for name, known in self._holders.items() if known.fetch is not None}

    def held(self) -> list[HeldByHandle]:
        """Return, for each handle, how many messages it holds, and how many it has held for too long.

        Messages that a handle gave up are not counted, and neither are messages that never reached the handle.
        """
        now, since = asyncio.get_running_loop().time(), defaultdict[str, list[tuple[float, int]]](list)
        for lease in self._leases.values():
            if lease.rows > 0 and lease.due and not lease.lost:
                since[lease.holder.name].append((now - lease.due + self._lease_s, lease.rows))
        again = {holder: known.came_again for holder, known in self._holders.items() if known.came_again}
        found = []
        for holder in [*since, *(again.keys() - since.keys())]:
            times, rows = zip(*since[holder], strict=True) if since[holder] else ((0.0,), (0,))
            found.append(HeldByHandle(holder, sum(rows), max(times), again.get(holder, 0)))
        return found

    def _holder(self, name: str) -> _Holder:
        known = self._holders.get(name) or _Holder(name)
        self._holders.put(name, known)
        return known

    # -- returning leases -----------------------------------------------------------------------------------------

    async def give_back(
        self, leases: Sequence[tuple[Token, Sequence[Span] | None]]
    ) -> tuple[list[Token], CommitFailed | None]:
        """Commit leases in one write. `leases` has, with each lease, the rows to commit (None: all its rows).

        Return the leases that have ended, and an error if some rows could not be committed, otherwise None.
        """
        if self._fetcher.inbox.paused:
            await self._fetcher.inbox.flowing.wait()
        over: list[Token] = []
        late: CommitFailed | None = None
        for token, some in leases:
            try:
                if self._acknowledge(token, some):
                    over.append(token)
            except CommitFailed as error:
                late = error
                over += [] if token[:2] in self._leases else [token]
        await self._fetcher.commits.write()
        return over, late

    def _acknowledge(self, token: Token, some: Sequence[Span] | None) -> bool:
        """Acknowledge `some` rows of a lease (None: all rows); return whether the lease has ended.

        A lease ends when all its rows are acknowledged. A lease of an earlier process ends only if `some` is None.

        Raises: CommitFailed if other callers have got the lease's messages since.
        """
        lease = self._leases.get(token[:2])
        if lease is None:
            return token[:2] in self._returned or self._acknowledge_predecessors(token, some)
        commits = self._fetcher.commits
        lease.rows -= commits.acknowledge_runs(lease.runs) if some is None else commits.acknowledge_some(some)
        if some is None or lease.rows <= 0:
            self._remove(lease)
            self._returned.put(token[:2], None)
            if lease.holder.came_again and asyncio.get_running_loop().time() < lease.due:
                lease.holder.came_again = 0
            return True
        return False

    def _remove(self, lease: _Lease) -> None:
        name = lease.token[:2]
        del self._leases[name]
        self._lost.pop(name, None)
        lease.holder.unsure.pop(name, None)

    def _acknowledge_predecessors(self, token: Token, some: Sequence[Span] | None) -> bool:
        """Acknowledge rows of a lease that an earlier process gave; return True if `some` is None.

        Args: `some` has the rows to acknowledge (None: all rows of the lease).

        Raises: CommitFailed if other callers have got the lease's messages since, or if this process gave the lease.
        """
        ranges = token.spans if some is None else [range_of(span) for span in some]
        flight = self._fetcher.commits.in_flight
        # Without the list, `all` would stop at the first range that cannot be acknowledged.
        if token.process == self._process or not all([flight.ack_ahead(found) for found in ranges]):  # noqa: C419
            raise self._late(token, sum(found.rows for found in ranges))
        if some is None:
            self._returned.put(token[:2], None)
        return some is None

    def _late(self, token: Token, messages: int) -> CommitFailed:
        held_s, name = max(0.0, time.time() - token.lent_at), self._fetcher.name
        why = "The process that first fetched them, or the group's actor, has failed or ended: look for its error"
        if held_s > self._lease_s:
            why = (
                f"The time to acknowledge them, MessagingConfig.loan_s={self._lease_s:g} seconds, had passed: fetch "
                "fewer messages at a time, or raise loan_s"
            )
        return CommitFailed(
            f"{messages:,} messages of group {name!r} could not be committed, and are handled twice, because another "
            f"fetch has got them since. {why}",
            group=name,
            messages=messages,
            held_s=held_s,
            loan_s=self._lease_s,
        )

    async def give_up(self, holder: str, token: Token | None) -> None:
        """End a lease early, because its holder has failed. The next caller then gets the messages of the lease."""
        lease = None if token is None else self._leases.get(token[:2])
        if lease is not None and lease.holder.name == holder:
            lease.due = self._next_due = 0.0
            self._fetcher.inbox.wake()

    async def abandon(self, holder: str, received: int, number: int) -> None:
        """End a fetch whose holder no longer waits for the answer.

        The messages that the fetch took are delivered again. The fetch may arrive after this call, because Ray may run
        the calls of an async actor out of order.

        Args: `received` and `number` are fields of the fetch's `FetchOptions`.
        """
        known = self._holder(holder)
        known.abandoned = number
        if known.fetch is not None and known.fetch.number <= number:
            known.fetch = None
        self._note_lost(known, received, number)
        # The fetch that must end wakes up, and so do other fetches, which may get the messages of the ended fetch.
        self._fetcher.inbox.wake()

    # -- giving leases --------------------------------------------------------------------------------------------

    async def fetch(
        self, holder: str, token: Token | None, limit: int | None, timeout: float | None, options: FetchOptions = NEXT
    ) -> tuple[Token | None, Messages]:
        """Commit the lease of a token, then lease new messages.

        Return the new token (None: no messages) and the messages.
        """
        options = options._replace()  # a new object, so that `is` tells this fetch from other fetches
        known = self._holder(holder)
        newest = known.abandoned if known.fetch is None else max(known.abandoned, known.fetch.number - 1)
        if options.number <= newest:  # the holder ended this fetch, or sent a newer one, before this fetch arrived
            return None, self._fetcher.messages([])
        if known.fetch is not None:
            self._fetcher.inbox.wake()  # this ends an earlier fetch of the same holder
        known.fetch = options
        try:
            _, late = await self.give_back([] if token is None else [(token, None)])
            if late is not None:
                raise late
            self._note_lost(known, options.received, options.number)
            clock, lease = asyncio.get_running_loop().time, None
            deadline = math.inf if timeout is None else clock() + timeout
            while lease is None and known.fetch is options:
                lease = await self._take(known, options, limit, min(_LOOK_S, max(0.0, deadline - clock())))
                if clock() >= deadline:
                    break
        finally:
            if known.fetch is options:
                known.fetch = None
        if lease is None:
            return None, self._fetcher.messages([])
        ends = (place_of(part._replace(low=part.high)) for part in reversed(lease.slices) if part.batch.origin)
        known.reached = max(next(ends, _BEFORE_ALL), known.reached)
        messages = self._fetcher.messages(lease.slices, more=bool(self._expired(known, clock())))
        if options.commit == "acked":
            self._drop_foreign(lease)
        return lease.token, messages

    def _drop_foreign(self, lease: _Lease) -> None:
        """Remove foreign clients' messages from a lease, because they are delivered only once, without a lease."""
        lease.slices = [part for part in lease.slices if part.batch.origin is not None]
        lease.rows = _rows(lease.slices)
        if not lease.rows:
            self._remove(lease)
            self._returned.put(lease.token[:2], None)

    async def _take(self, holder: _Holder, options: FetchOptions, limit: int | None, timeout: float) -> _Lease | None:
        """Lease messages from an ended lease if there is one, otherwise from the inbox.

        With `options.complete`, lease the messages of all ended leases and of the inbox together. Return None if there
        are no messages, or if the holder has ended the fetch.
        """
        clock = asyncio.get_running_loop().time

        def must_stop() -> bool:
            """Return whether the holder has ended this fetch, or messages of ended leases must be delivered first."""
            if holder.fetch is not options:
                return True
            return not options.complete and bool(self._expired(holder, clock()))

        if options.complete and self._expired(holder, clock()):
            timeout = 0.0
        taken = await self._fetcher.take(limit, timeout, must_stop, complete=options.complete)
        slices = taken.slices
        if not slices and holder.fetch is not options:
            return None
        if not slices and not options.complete and (again := self._expired(holder, clock())):
            return self._cut(again, holder, options, limit)
        if options.complete:
            for lease in self._expired(holder, clock()):
                left = self._left_of(lease)
                self._note_again(lease, left)
                slices += left
        if slices:
            return self._enter(sorted(slices, key=place_of) if options.complete else slices, holder, options)
        if taken.passed:
            # Frames that cannot be read use capacity of the mailbox until the cursor has passed them.
            await self._fetcher.commits.write()
        return None

    def _note_lost(self, holder: _Holder, received: int, number: int) -> None:
        """Mark leases whose answer never reached the holder as lost, so that their messages are delivered again.

        Args: the leases of the holder's fetches 1 to `number` are checked. `received` is the number of the holder's
        last fetch with commit="acked" whose answer has arrived at the holder.
        """
        for key, lease in [*holder.unsure.items()]:
            if lease.asked <= number:
                del holder.unsure[key]
                if not lease.acked or lease.asked > received:
                    lease.lost = True
                    self._lost[key] = lease

    def _expired(self, holder: _Holder, now: float) -> list[_Lease]:
        """Return the leases whose messages may be delivered again to this holder, in the mailbox's order."""
        if not self._lost and now < self._next_due:
            return []
        lost = self._lost.values()
        # A holder never saw the messages of its lost leases. So it may get all messages from the first of these
        # messages on.
        mine = (lease.first for lease in lost if lease.holder is holder)
        reached = min(mine, default=holder.reached)
        found = [lease for lease in lost if lease.holder is holder or lease.first >= reached or lease.due <= now]
        if now >= self._next_due:
            held = [lease for lease in self._leases.values() if not lease.lost]
            found += [lease for lease in held if lease.due <= now]
            self._next_due = min((lease.due for lease in held), default=math.inf)
        return sorted(found, key=lambda lease: lease.first)

    def _cut(self, again: list[_Lease], holder: _Holder, options: FetchOptions, limit: int | None) -> _Lease | None:
        """Lease the messages of the first ended lease again.

        The new lease has at most `limit` messages, and none that are after the first message of the next ended lease.
        """
        lease, *others = again
        slices = self._left_of(lease)
        first: list[Slice] = []
        left = _rows(slices) if limit is None else limit
        while slices and left > 0 and not (first and others and place_of(slices[0]) > others[0].first):
            part = slices[0]
            cut = min(part.high, part.low + left)
            first.append(part._replace(high=cut))
            left -= cut - part.low
            slices[:1] = [part._replace(low=cut)] if cut < part.high else []
        if slices:
            rest = self._enter(slices, lease.holder, options)
            rest.due, rest.asked, rest.acked, rest.lost = lease.due, lease.asked, lease.acked, lease.lost
            self._next_due = min(self._next_due, rest.due)
            if rest.lost:
                self._lost[rest.token[:2]] = rest
        self._note_again(lease, first)
        return self._enter(first, holder, options) if first else None

    def _note_again(self, lease: _Lease, slices: list[Slice]) -> None:
        """Count messages that are delivered again because their holder has held them for too long."""
        if lease.due and not lease.lost and slices:
            lease.holder.came_again += _rows(slices)

    def _left_of(self, lease: _Lease) -> list[Slice]:
        """Remove a lease; return its messages that are not acknowledged."""
        self._remove(lease)
        return self._fetcher.commits.in_flight.unacked(lease.slices)

    def _enter(self, slices: list[Slice], holder: _Holder, options: FetchOptions) -> _Lease:
        """Lease the messages in `slices` to a holder, as the answer to the fetch with these options."""
        self._last += 1
        flight = self._fetcher.commits.in_flight
        origins = [(part.batch.origin, part) for part in slices]
        runs = flight.runs((origin.entry, part.low, part.high) for origin, part in origins if origin is not None)
        token = Token(self._process, self._last, tuple(flight.spans(runs)), time.time())
        due = asyncio.get_running_loop().time() + self._lease_s
        acked = options.commit == "acked"
        lease = _Lease(token, holder, due, slices, runs, _rows(slices), options.number, acked)
        self._leases[token[:2]] = holder.unsure[token[:2]] = lease
        self._next_due = min(self._next_due, due)
        return lease


def _rows(slices: Sequence[Slice]) -> int:
    return sum(part.high - part.low for part in slices)


def place_of(part: Slice) -> Place:
    """Return where in the mailbox a slice of a batch begins.

    Messages that foreign clients published are in no mailbox: for them, return `_BEFORE_ALL`.
    """
    origin = part.batch.origin
    return _BEFORE_ALL if origin is None else (*order(origin.entry), part.low)
