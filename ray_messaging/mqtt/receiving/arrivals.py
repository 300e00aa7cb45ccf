"""Order of the frames that arrive in a mailbox, per sender, without duplicates."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from ray_messaging.mqtt.wire.messages import Data, Position

# Cost of a held frame beside its bytes; also bounds the number of empty ones.
HELD_BYTES = 256

T = TypeVar("T")


class Frame(NamedTuple):
    """Frame to deliver; its first `row` rows were handled by the previous reader."""

    sender: str
    epoch: int
    seq: int
    row: int
    frame: bytes


class Resend(NamedTuple):
    """Request to a sender for all frames from `seq` on."""

    sender: str
    epoch: int
    seq: int


@dataclass(slots=True)
class Taken(Generic[T]):
    """Outcome of an arrival: frames to deliver in order, tokens to acknowledge, answers to the sender.

    `confirm`: tell the sender again which frames are handled (see `Arrivals.confirmed`). `held` answers a probe: all
    frames up to this seq have come.
    """

    frames: list[Frame] = field(default_factory=list)
    acknowledge: list[T] = field(default_factory=list)
    resend: Resend | None = None
    held: Resend | None = None
    confirm: bool = False


@dataclass(slots=True)
class _Sender(Generic[T]):
    """State of one sender: the expected frame, frames that wait for their commit, frames held behind a gap."""

    epoch: int
    expected: int
    position: Position | None = None  # committed
    resumed: Position | None = None  # where the previous reader stopped within a frame
    delivered: OrderedDict[tuple[int, int], T | None] = field(default_factory=OrderedDict)  # (epoch, seq) not committed
    held: dict[int, tuple[Data, T | None]] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)  # heap of (after, seq); some may not be held any more
    requested: int = 0  # the gap that was requested
    highest: int = 0  # seq behind the gap since then: the sender has not come back to it yet
    refused: int = 0  # the highest seq without capacity

    @property
    def waits(self) -> bool:
        """Return whether there is a gap."""
        return bool(self.held) or self.refused >= self.expected


class Arrivals(Generic[T]):
    """Frames of all senders of one mailbox.

    A token (not None) acknowledges an arrival to the broker. It is kept until its frame is committed, so that the
    broker sends the frame again to the next reader. For each frame only the newest token is kept, because older ones
    may belong to an ended connection.

    Args: positions is the progress of the previous reader. Frames behind gaps take at most `hold_bytes`; above that
    they are dropped, because the sender sends them again. At most `most_held` of their tokens are kept, because brokers
    limit unacknowledged messages, and the missing frame must get through. Above `most_senders` the senders that were
    silent longest are forgotten.
    """

    def __init__(
        self, positions: dict[str, Position], hold_bytes: int, *, most_held: int = 8, most_senders: int = 100_000
    ) -> None:
        self.lost = 0  # frames, at most: withdrawn ones count, too
        self.held = 0
        self.held_bytes = 0
        self._hold_bytes = hold_bytes
        self._most_held = most_held
        self._most_senders = most_senders
        self._held_tokens = 0
        self._waiting: set[str] = set()
        self._senders: OrderedDict[str, _Sender[T]] = OrderedDict()
        for name, position in positions.items():
            resumed = position if position.row else None
            self._senders[name] = _Sender(position.epoch, position.whole + 1, position, resumed)

    # -- arrivals -------------------------------------------------------------------------------------------------

    def take(self, data: Data, token: T) -> Taken[T]:
        """Take an arrival."""
        taken: Taken[T] = Taken()
        state = self._state(data, taken)
        state.expected = max(state.expected, data.base) if data.epoch == state.epoch else state.expected
        self._release_held(state, taken)
        if data.epoch < state.epoch or (data.seq < state.expected and data.frame):
            self._repeat(state, data, token, taken)
        elif not data.frame:
            self._answer_probe(state, data, token, taken)
        elif data.after < state.expected:
            self._deliver(state, data, token, taken)
            self._release_held(state, taken)
        else:
            self._hold(state, data, token, taken)
        self._update_waiting(data.sender, state)
        return taken

    def _state(self, data: Data, taken: Taken[T]) -> _Sender[T]:
        """Return a sender's state; a newer epoch ends the older one."""
        state = self._senders.get(data.sender)
        if state is None:
            state = self._senders[data.sender] = _Sender(data.epoch, data.base)
            self._forget_oldest()
            return state
        self._senders.move_to_end(data.sender)
        if data.epoch > state.epoch:
            self._skip_gaps(state, taken)
            state = _Sender(data.epoch, data.base, state.position, state.resumed, state.delivered)
            self._senders[data.sender] = state
        return state

    def _repeat(self, state: _Sender[T], data: Data, token: T, taken: Taken[T]) -> None:
        """Handle a frame that came before: an uncommitted one goes on waiting with the newer token."""
        key = (data.epoch, data.seq)
        if data.frame and key in state.delivered:
            older, state.delivered[key] = state.delivered[key], token
            _add(taken.acknowledge, older)
        else:
            taken.acknowledge.append(token)
        taken.confirm = self._is_unconfirmed(state, data)

    def _is_unconfirmed(self, state: _Sender[T], data: Data) -> bool:
        """Return whether the sender still keeps handled frames."""
        position = state.position
        return position is not None and position.epoch == data.epoch and position.whole >= data.base

    def _answer_probe(self, state: _Sender[T], data: Data, token: T, taken: Taken[T]) -> None:
        """Answer a probe, even if the same was requested before, because that request may be lost."""
        taken.acknowledge.append(token)
        if data.after < state.expected:
            state.expected = max(state.expected, data.seq)  # held frames up to there were withdrawn
            self._release_held(state, taken)
            taken.confirm = self._is_unconfirmed(state, data)
            taken.held = Resend(data.sender, data.epoch, data.after)
        else:
            taken.resend = self._request(state, data)

    def _request(self, state: _Sender[T], data: Data) -> Resend:
        state.requested, state.highest = state.expected, data.seq
        return Resend(data.sender, state.epoch, state.expected)

    def _deliver(self, state: _Sender[T], data: Data, token: T | None, taken: Taken[T]) -> None:
        if data.seq in state.held:
            _add(taken.acknowledge, self._unhold(state, data.seq))
        resumed = state.resumed
        partial = resumed is not None and (resumed.epoch, resumed.seq) == (data.epoch, data.seq)
        row = resumed.row if resumed is not None and partial else 0
        taken.frames.append(Frame(data.sender, data.epoch, data.seq, row, data.frame))
        state.delivered[data.epoch, data.seq] = token
        state.expected = data.seq + 1

    # -- gaps -----------------------------------------------------------------------------------------------------

    def _hold(self, state: _Sender[T], data: Data, token: T, taken: Taken[T]) -> None:
        """Keep an early frame, and request the missing ones: once for each time that the sender repeats its window."""
        known = state.held.get(data.seq)
        if known is not None:
            _add(taken.acknowledge, self._unhold(state, data.seq))
            data = data._replace(after=min(data.after, known[0].after))  # a hole stays a hole in older copies, too
        if self.held_bytes + len(data.frame) + HELD_BYTES > self._hold_bytes:
            taken.acknowledge.append(token)
            state.refused = max(state.refused, data.seq)
        else:
            kept = self._held_tokens < self._most_held
            if not kept:
                taken.acknowledge.append(token)
            state.held[data.seq] = (data, token if kept else None)
            self.held += 1
            self.held_bytes += len(data.frame) + HELD_BYTES
            self._held_tokens += kept
            if known is None or data.after < known[0].after:
                heappush(state.order, (data.after, data.seq))
        # Within one connection seqs rise. A seq that does not begins a new round, and the last round had a loss.
        if state.requested != state.expected or data.seq <= state.highest:
            taken.resend = self._request(state, data)
        state.highest = data.seq

    def _unhold(self, state: _Sender[T], seq: int) -> T | None:
        """Remove a held frame; return its token."""
        data, token = state.held.pop(seq)
        self.held -= 1
        self.held_bytes -= len(data.frame) + HELD_BYTES
        self._held_tokens -= token is not None
        return token

    def _release_held(self, state: _Sender[T], taken: Taken[T], *, all_held: bool = False) -> None:
        """Deliver the held frames that wait for nothing any more, or all of them."""
        while state.order:
            after, seq = state.order[0]
            if after >= state.expected and not all_held:
                return
            heappop(state.order)
            if seq not in state.held:
                continue  # it was in the heap twice
            data, token = state.held[seq]
            self._unhold(state, seq)
            if seq < state.expected:
                _add(taken.acknowledge, token)  # withdrawn
            else:
                self.lost += max(0, after + 1 - state.expected)
                self._deliver(state, data, token, taken)

    def _skip_gaps(self, state: _Sender[T], taken: Taken[T]) -> None:
        """Deliver without the missing frames: their sender is gone."""
        self._release_held(state, taken, all_held=True)
        if state.refused >= state.expected:
            self.lost += state.refused + 1 - state.expected
            state.expected = state.refused + 1

    def _update_waiting(self, name: str, state: _Sender[T]) -> None:
        if state.waits:
            self._waiting.add(name)
        else:
            self._waiting.discard(name)

    def gaps(self) -> list[Resend]:
        """Return a request for each sender with missing frames."""
        return [Resend(name, state.epoch, state.expected) for name in self._waiting if (state := self._senders[name])]

    def give_up(self, resend: Resend) -> Taken[T]:
        """Deliver without the requested frames, because their sender is gone; no effect if they have come."""
        taken: Taken[T] = Taken()
        state = self._senders.get(resend.sender)
        if state is not None and state.waits and (state.epoch, state.expected) == resend[1:]:
            self._skip_gaps(state, taken)
            self._update_waiting(resend.sender, state)
        return taken

    # -- commits --------------------------------------------------------------------------------------------------

    def committed(self, sender: str, epoch: int, seq: int, row: int) -> list[T]:
        """Commit all frames up to one (`row` rows of it; 0: all); return the tokens to acknowledge."""
        state = self._senders.get(sender)
        if state is None:
            return []
        position = Position(epoch, seq, row)
        if state.position is None or position.rank > state.position.rank:
            state.position = position
        tokens: list[T] = []
        end = (epoch, position.whole)
        while state.delivered and next(iter(state.delivered)) <= end:
            _add(tokens, state.delivered.popitem(last=False)[1])
        return tokens

    def confirmed(self, sender: str) -> Position | None:
        """Return a sender's last frame that is handled whole; None: there is none."""
        state = self._senders.get(sender)
        if state is None or state.position is None:
            return None
        return Position(state.position.epoch, state.position.whole, 0)

    def positions(self, names: Iterable[str] | None = None) -> dict[str, Position]:
        """Return the committed positions of these senders (None: all), where the next reader begins."""
        known = ((name, self._senders.get(name)) for name in (self._senders if names is None else names))
        return {name: state.position for name, state in known if state is not None and state.position is not None}

    def _forget_oldest(self) -> None:
        """Forget the sender that was silent longest, unless it has open frames; two tries, to keep up with new ones."""
        for _ in range(2):
            if len(self._senders) > self._most_senders:
                name, state = next(iter(self._senders.items()))
                if state.delivered or state.waits:
                    self._senders.move_to_end(name)
                else:
                    del self._senders[name]


def _add(tokens: list[T], token: T | None) -> None:
    if token is not None:
        tokens.append(token)
