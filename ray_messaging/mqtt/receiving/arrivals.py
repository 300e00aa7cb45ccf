"""What a mailbox has of each sender: which frames to hand on, in order and once, whatever a broker repeats or loses."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from ray_messaging.mqtt.wire.signals import Data, Place

# What a held frame takes beside its bytes: bounds the count of empty ones, too.
HELD_BYTES = 256

T = TypeVar("T")


class Frame(NamedTuple):
    """A frame to hand on; the first `row` rows of it were handled by the mailbox's reader before us."""

    sender: str
    epoch: int
    seq: int
    row: int
    frame: bytes


class Resend(NamedTuple):
    """What to ask a sender for: everything from `seq` on."""

    sender: str
    epoch: int
    seq: int


@dataclass(slots=True)
class Taken(Generic[T]):
    """What to do after an arrival: hand frames on in order, acknowledge tokens to the broker, answer the sender.

    `confirm` asks to tell the sender again what was handled (see `Arrivals.confirmed`), `held` answers a probe: up to
    this seq all has come.
    """

    frames: list[Frame] = field(default_factory=list)
    acknowledge: list[T] = field(default_factory=list)
    resend: Resend | None = None
    held: Resend | None = None
    confirm: bool = False


class _Sender(Generic[T]):
    """Stand with one sender: what is expected, what waits for its commit, what is held behind a gap."""

    __slots__ = ("asked", "epoch", "expected", "held", "highest", "opened", "order", "place", "refused", "resumed")

    def __init__(self, epoch: int, expected: int) -> None:
        self.place: Place | None = None  # what was committed
        self.resumed: Place | None = None  # where the reader before us stopped within a frame
        self.opened: OrderedDict[tuple[int, int], T | None] = OrderedDict()  # (epoch, seq) handed on, not committed
        self.begin(epoch, expected)

    def begin(self, epoch: int, expected: int) -> None:
        """Begin with an incarnation."""
        self.epoch = epoch
        self.expected = expected
        self.held: dict[int, tuple[Data, T | None]] = {}
        self.order: list[tuple[int, int]] = []  # heap of (after, seq) of what is held; may name what is not any more
        self.asked = 0  # the gap that was asked for
        self.highest = 0  # of what came behind the gap since: the sender is not there again yet
        self.refused = 0  # the highest seq for which there was no room

    @property
    def waits(self) -> bool:
        """Tell whether there is a gap."""
        return bool(self.held) or self.refused >= self.expected


class Arrivals(Generic[T]):
    """Put in order what arrives in one mailbox.

    A token is whatever acknowledges an arrival to the broker, but not None; it is kept until its frame is committed, so
    that the broker sends it again to a reader that comes after us. Of one frame only the newest token is kept: older
    ones may be of a connection that has ended.

    Args: places is how far the reader before us got. What is held behind gaps takes at most `hold_bytes`; above that it
    is dropped, as the sender sends it again. At most `most_held` tokens of it are kept, as brokers send only so much
    that is not acknowledged, and the missing frame must get through. Senders that are silent are forgotten above
    `most_senders`, the oldest first.
    """

    def __init__(
        self, places: dict[str, Place], hold_bytes: int, *, most_held: int = 8, most_senders: int = 100_000
    ) -> None:
        self.lost = 0  # frames, at most: what was withdrawn cannot be told from it
        self.held = 0
        self.held_bytes = 0
        self._hold_bytes = hold_bytes
        self._most_held = most_held
        self._most_senders = most_senders
        self._held_tokens = 0
        self._waiting: set[str] = set()
        self._senders: OrderedDict[str, _Sender[T]] = OrderedDict()
        for name, place in places.items():
            state = self._senders[name] = _Sender(place.epoch, place.seq + (place.row == 0))
            state.place = place
            state.resumed = place if place.row else None

    # -- what arrives ---------------------------------------------------------------------------------------------

    def take(self, data: Data, token: T) -> Taken[T]:
        """Take what has arrived under a token."""
        taken: Taken[T] = Taken()
        state = self._state(data, taken)
        state.expected = max(state.expected, data.base) if data.epoch == state.epoch else state.expected
        self._drain(state, taken)
        if data.epoch < state.epoch or (data.seq < state.expected and data.frame):
            self._repeat(state, data, token, taken)
        elif not data.frame:
            self._answer(state, data, token, taken)
        elif data.after < state.expected:
            self._hand_on(state, data, token, taken)
            self._drain(state, taken)
        else:
            self._hold(state, data, token, taken)
        self._note_waiting(data.sender, state)
        return taken

    def _state(self, data: Data, taken: Taken[T]) -> _Sender[T]:
        """Return how we stand with a sender; a newer incarnation ends the older one."""
        state = self._senders.get(data.sender)
        if state is None:
            state = self._senders[data.sender] = _Sender(data.epoch, data.base)
            self._forget()
            return state
        self._senders.move_to_end(data.sender)
        if data.epoch > state.epoch:
            self._pass_over(state, taken)
            state.begin(data.epoch, data.base)
        return state

    def _repeat(self, state: _Sender[T], data: Data, token: T, taken: Taken[T]) -> None:
        """Take what came before: it goes on waiting for its commit under the newer token."""
        key = (data.epoch, data.seq)
        if data.frame and key in state.opened:
            older, state.opened[key] = state.opened[key], token
            _add(taken.acknowledge, older)
        else:
            taken.acknowledge.append(token)
        taken.confirm = self._unheard(state, data)

    def _unheard(self, state: _Sender[T], data: Data) -> bool:
        """Tell whether the sender keeps what is handled."""
        place = state.place
        return place is not None and place.epoch == data.epoch and place.seq - (place.row > 0) >= data.base

    def _answer(self, state: _Sender[T], data: Data, token: T, taken: Taken[T]) -> None:
        """Answer a probe, even if the same was asked for before: that may be what was lost."""
        taken.acknowledge.append(token)
        if data.after < state.expected:
            state.expected = max(state.expected, data.seq)  # what is held up to there was withdrawn
            self._drain(state, taken)
            taken.confirm = self._unheard(state, data)
            taken.held = Resend(data.sender, data.epoch, data.after)
        else:
            taken.resend = self._ask(state, data)

    def _ask(self, state: _Sender[T], data: Data) -> Resend:
        state.asked, state.highest = state.expected, data.seq
        return Resend(data.sender, state.epoch, state.expected)

    def _hand_on(self, state: _Sender[T], data: Data, token: T | None, taken: Taken[T]) -> None:
        if data.seq in state.held:
            _add(taken.acknowledge, self._release(state, data.seq))
        resumed = state.resumed
        row = resumed.row if resumed is not None and resumed[:2] == (data.epoch, data.seq) else 0
        taken.frames.append(Frame(data.sender, data.epoch, data.seq, row, data.frame))
        state.opened[data.epoch, data.seq] = token
        state.expected = data.seq + 1

    # -- gaps -----------------------------------------------------------------------------------------------------

    def _hold(self, state: _Sender[T], data: Data, token: T, taken: Taken[T]) -> None:
        """Keep what came too early, and ask for what is missing: once for each time that the sender goes through."""
        known = state.held.get(data.seq)
        if known is not None:
            _add(taken.acknowledge, self._release(state, data.seq))
            data = data._replace(after=min(data.after, known[0].after))  # a hole stays one, whatever older copies say
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
        # Within one connection seqs rise: one that does not begins a new round, and the last one missed something.
        if state.asked != state.expected or data.seq <= state.highest:
            taken.resend = self._ask(state, data)
        state.highest = data.seq

    def _release(self, state: _Sender[T], seq: int) -> T | None:
        """Let go of what is held; return its token."""
        data, token = state.held.pop(seq)
        self.held -= 1
        self.held_bytes -= len(data.frame) + HELD_BYTES
        self._held_tokens -= token is not None
        return token

    def _drain(self, state: _Sender[T], taken: Taken[T], *, over: bool = False) -> None:
        """Hand on what is held and waits for nothing any more (`over`: or for what will never come)."""
        while state.order:
            after, seq = state.order[0]
            if after >= state.expected and not over:
                return
            heappop(state.order)
            if seq not in state.held:
                continue  # it was in the heap twice
            data, token = state.held[seq]
            self._release(state, seq)
            if seq < state.expected:
                _add(taken.acknowledge, token)  # withdrawn
            else:
                self.lost += max(0, after + 1 - state.expected)
                self._hand_on(state, data, token, taken)

    def _pass_over(self, state: _Sender[T], taken: Taken[T]) -> None:
        """Do without what is missing: who would have sent it is gone."""
        self._drain(state, taken, over=True)
        if state.refused >= state.expected:
            self.lost += state.refused + 1 - state.expected
            state.expected = state.refused + 1

    def _note_waiting(self, name: str, state: _Sender[T]) -> None:
        if state.waits:
            self._waiting.add(name)
        else:
            self._waiting.discard(name)

    def gaps(self) -> list[Resend]:
        """Return what is missing: whom to ask again, and for what."""
        return [Resend(name, state.epoch, state.expected) for name in self._waiting if (state := self._senders[name])]

    def give_up(self, resend: Resend) -> Taken[T]:
        """Do without what a sender was asked for, as it is gone; nothing happens if that has come meanwhile."""
        taken: Taken[T] = Taken()
        state = self._senders.get(resend.sender)
        if state is not None and state.waits and (state.epoch, state.expected) == resend[1:]:
            self._pass_over(state, taken)
            self._note_waiting(resend.sender, state)
        return taken

    # -- what is handled ------------------------------------------------------------------------------------------

    def committed(self, sender: str, epoch: int, seq: int, row: int) -> list[T]:
        """Note that all is handled up to a frame (`row` rows of it; 0: all); return the tokens to acknowledge."""
        state = self._senders.get(sender)
        if state is None:
            return []
        place = Place(epoch, seq, row)
        if state.place is None or place.rank > state.place.rank:
            state.place = place
        tokens: list[T] = []
        end = (epoch, seq - (row > 0))
        while state.opened and next(iter(state.opened)) <= end:
            _add(tokens, state.opened.popitem(last=False)[1])
        return tokens

    def confirmed(self, sender: str) -> Place | None:
        """Return the last frame of a sender that is handled whole; None: none is."""
        state = self._senders.get(sender)
        if state is None or state.place is None:
            return None
        epoch, seq, row = state.place
        return Place(epoch, seq - (row > 0), 0)

    def places(self, names: Iterable[str] | None = None) -> dict[str, Place]:
        """Return up to where the frames of these senders (None: all) are handled: a reader after us begins there."""
        known = ((name, self._senders.get(name)) for name in (self._senders if names is None else names))
        return {name: state.place for name, state in known if state is not None and state.place is not None}

    def _forget(self) -> None:
        """Forget who was silent longest, unless something of it is open; two looks, so that it does not fall behind."""
        for _ in range(2):
            if len(self._senders) > self._most_senders:
                name, state = next(iter(self._senders.items()))
                if state.opened or state.waits:
                    self._senders.move_to_end(name)
                else:
                    del self._senders[name]


def _add(tokens: list[T], token: T | None) -> None:
    if token is not None:
        tokens.append(token)
