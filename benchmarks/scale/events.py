"""Simulated time: processes that work on machines, use servers, and send over links, one event after the other.

A process is a generator. It yields a number of seconds to wait, a `Slots` of which it takes one, or a `Gate` for whose
opening it waits.
"""

import heapq
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import count

SLICE_S = 1e-3  # Work that is longer is cut into pieces, so that others get the core in between.
PIECE_BYTES = 2**20  # So much is sent to one machine before others get the link.
_PIECES = 20  # Long work is cut into at most so many, so that a simulation does not take longer than what it simulates.

Process = Generator["float | Slots | Gate", None, None]


class Simulation:
    """A clock with the events that are to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Process]] = []
        self._number = count()

    def start(self, process: Process, after_s: float = 0.0) -> None:
        """Go on with a process after some seconds."""
        heapq.heappush(self._events, (self.now + after_s, next(self._number), process))

    def run(self) -> float:
        """Let all processes end; return when that was."""
        while self._events:
            self.now, _, process = heapq.heappop(self._events)
            for wanted in process:
                if isinstance(wanted, Slots):
                    if wanted.free:
                        wanted.free -= 1
                        continue
                    wanted.waiting.append(process)
                elif isinstance(wanted, Gate):
                    if wanted.open:
                        continue
                    wanted.waiting.append(process)
                else:
                    self.start(process, wanted)
                break
        return self.now


class Slots:
    """Something that so many processes can have at a time; the others wait in the order in which they came."""

    def __init__(self, simulation: Simulation, number: int = 1) -> None:
        self.free = number
        self.waiting: deque[Process] = deque()
        self.busy_s = 0.0
        self._simulation = simulation

    def give(self) -> None:
        """Give a slot back: the next process has it."""
        if self.waiting:
            self._simulation.start(self.waiting.popleft())
        else:
            self.free += 1

    def use(self, seconds: float) -> Process:
        """Have a slot for some seconds."""
        yield self
        self.busy_s += seconds
        yield seconds
        self.give()


class Gate:
    """Something that opens once, for all that wait."""

    def __init__(self, simulation: Simulation) -> None:
        self.open = False
        self.waiting: deque[Process] = deque()
        self._simulation = simulation

    def pass_all(self) -> None:
        """Open it."""
        self.open = True
        while self.waiting:
            self._simulation.start(self.waiting.popleft())


@dataclass(frozen=True)
class Network:
    """The links of all machines: each has its own of this rate in each direction, to one switch."""

    round_trip_s: float = 0.0
    bits_per_s: float = 25e9


@dataclass
class Machine:
    """Cores, a link, and how much slower the cores are than those of the measurements (1.0: as fast)."""

    simulation: Simulation
    cores: int
    network: Network
    slowness: float = 1.0
    slots: Slots = field(init=False)
    out: Slots = field(init=False)
    into: Slots = field(init=False)

    def __post_init__(self) -> None:
        self.slots, self.out, self.into = (Slots(self.simulation, number) for number in (self.cores, 1, 1))

    def work(self, seconds: float) -> Process:
        """Keep a core busy, in pieces."""
        left = seconds * self.slowness
        piece = max(SLICE_S, left / _PIECES)
        while left > 0:
            yield from self.slots.use(min(piece, left))
            left -= piece

    def send(self, other: "Machine", nbytes: float) -> Process:
        """Bring bytes to another machine, in pieces; on one machine that takes no time."""
        if other is self:
            return
        left, piece = nbytes, max(PIECE_BYTES, nbytes / _PIECES)
        while left > 0:
            seconds = 8 * min(piece, left) / self.network.bits_per_s
            yield self.out
            yield other.into
            self.out.busy_s += seconds
            yield seconds
            other.into.give()
            self.out.give()
            left -= piece
        yield self.network.round_trip_s / 2


@dataclass
class Thread:
    """A process with one thread on a machine, such as a server or a group: it does one thing at a time."""

    machine: Machine
    slot: Slots = field(init=False)
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        self.slot = Slots(self.machine.simulation)

    def work(self, seconds: float) -> Process:
        """Do some work, after what was asked before."""
        yield self.slot
        self.busy_s += seconds * self.machine.slowness
        yield from self.machine.work(seconds)
        self.slot.give()


def together(simulation: Simulation, processes: Sequence[Process]) -> Process:
    """Let processes run at once, and wait until all have ended."""
    left, ended = len(processes), Gate(simulation)

    def counted(process: Process) -> Process:
        nonlocal left
        yield from process
        left -= 1
        if not left:
            ended.pass_all()

    for process in processes:
        simulation.start(counted(process))
    if processes:
        yield ended
