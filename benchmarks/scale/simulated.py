"""What the parts of ray_messaging do for messages and steps, in simulated time, and what is measured beside it.

    python -m benchmarks.scale --part simulated

The costs are measured ones, each with its source. What the model leaves out: garbage collection, caches, the kernel's
own work for packets, other programs, and faults.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from benchmarks.reports.lines import Line
from benchmarks.scale.events import Gate, Machine, Network, Process, Simulation, Thread, together

US = 1e-6
_CALL_BYTES, _STAND_IN_BYTES = 200, 100
BODY_BYTES = 16 * 2**10  # a larger frame of a step has its body on the server of the sender's machine
IDLE_SHARE = 0.008  # of a core, for an actor with nothing to do


@dataclass(frozen=True)
class Costs:
    """Processor seconds, on the machine of the measurements."""

    # benchmarks/scale/README.md, "Rows per frame".
    sender_message: float = 0.22 * US
    sender_frame: float = 40 * US
    server_message: float = 0.2 * US
    server_frame: float = 55 * US
    reader_message: float = 0.10 * US
    reader_frame: float = 110 * US
    message_bytes: float = 135
    # The same page, "Groups in a ring": the interceptor.
    interceptor_message: float = 0.01 * US
    # benchmarks/README.md, "Small steps beside plain Ray": a group's commit of a step, and the server's work for it.
    group_step: float = 1.1e-3
    server_step: float = 0.1e-3
    # A frame in a step is one of a call with many, so that the server's work for it is less: 1.0 ms for 16 frames.
    step_frame: float = 38 * US
    # benchmarks/results: in bulk, 0.2 us more of two cores until the log has a message.
    logged_message: float = 0.4 * US
    wake_up: float = 0.17e-3  # "Where the time goes": from the server to the waiting reader
    # By group: 1,000,000 agents in 178 ms by two groups on two cores. By agent: 5 us of an agent and message.
    agent_by_group: float = 0.2 * US
    agent_by_agent: float = 3.0 * US
    sent_by_agent: float = 1.5 * US
    state_bytes: float = 16
    stored_byte: float = 1.5e-9  # of the server: 0.2 us for the 135 bytes of a message


COSTS = Costs()


# -- outside of steps -------------------------------------------------------------------------------------------------


def ring_rate(groups: int, rows: int = 8_192, calls: int = 30, cores: int = 2, costs: Costs = COSTS) -> float:
    """Return messages a second of groups that each send to the next one, one call after the other, on one machine."""
    simulation = Simulation()
    slowness = 1 / (1 - IDLE_SHARE * groups / cores)
    machine = Machine(simulation, cores, Network(), slowness)
    server, interceptor = Thread(machine), Thread(machine)
    members = [Thread(machine) for _ in range(groups)]

    def send(number: int) -> Process:
        for _ in range(calls):
            yield from members[number].work(rows * costs.sender_message + costs.sender_frame)
            yield from interceptor.work(rows * costs.interceptor_message)
            yield from server.work(rows * costs.server_message + costs.server_frame)
            simulation.start(read((number + 1) % groups), costs.wake_up)

    def read(number: int) -> Process:
        yield from members[number].work(rows * costs.reader_message + costs.reader_frame)

    for number in range(groups):
        simulation.start(send(number))
    return groups * rows * calls / simulation.run()


def fan_out_rate(mailboxes: int, rows: int = 16_384, calls: int = 30, costs: Costs = COSTS) -> float:
    """Return messages a second of one sender to mailboxes that one process reads, one call after the other."""
    simulation = Simulation()
    machine = Machine(simulation, 2, Network())
    server, sender, reader = Thread(machine), Thread(machine), Thread(machine)

    def send() -> Process:
        for _ in range(calls):
            yield from sender.work(rows * costs.sender_message + mailboxes * costs.sender_frame)
            yield from server.work(rows * costs.server_message + mailboxes * costs.server_frame)
            simulation.start(read(), costs.wake_up)

    def read() -> Process:
        yield from reader.work(rows * costs.reader_message + mailboxes * costs.reader_frame)

    simulation.start(send())
    return rows * calls / simulation.run()


def lone_s(network: Network, costs: Costs = COSTS) -> float:
    """Return the time of a message from a machine to another one, by a server on a third."""
    simulation = Simulation()
    b, a, c = (Machine(simulation, 2, network) for _ in range(3))
    arrived = 0.0

    def send() -> Process:
        nonlocal arrived
        yield from b.work(0.07e-3)  # accumulator, verdict, frame
        yield from b.send(a, costs.message_bytes + 200)
        yield from a.work(costs.server_frame)
        yield from a.send(c, costs.message_bytes + 200)
        yield costs.wake_up
        yield from c.work(0.05e-3)
        arrived = simulation.now

    simulation.start(send())
    simulation.run()
    return arrived


# -- in steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Society:
    """Agents in steps: how many, in how many groups on which machines, and what each does in a step.

    `reach` is the number of groups to which the agents of a group write; None: all of them.
    """

    agents: float
    groups: int
    machines: int = 1
    cores: int = 2
    messages: float = 1.0  # that an agent sends in a step
    reach: int | None = None
    by_agent: bool = False
    network: Network = Network()  # noqa: RUF009 - it is frozen
    narrow: Network | None = None  # of the first machine, if it has another one
    server_apart: bool = False  # the server and the interceptor have a machine of their own
    shared_cores: bool = False  # all machines are one, as in the hosts of the tests
    per_node: bool = False  # large bodies are on the sender's machine
    message_bytes: float | None = None
    states: bool = True
    logged: bool = False


class Step(NamedTuple):
    """What a step takes: its time, and the share of it for which the busiest of each kind works."""

    seconds: float
    primary: float
    bodies: float
    cores: float
    links: float


def step_of(society: Society, steps: int = 3, costs: Costs = COSTS) -> Step:
    """Return what a step takes, as the mean of some."""
    return _Steps(society, steps, costs).run()


class _Steps:
    """The machines of a society, its groups, and its servers."""

    def __init__(self, society: Society, steps: int, costs: Costs) -> None:
        self._society, self._steps, self._costs = society, steps, costs
        self._simulation = simulation = Simulation()
        links = [society.narrow or society.network, *[society.network] * (society.machines - 1)]
        self._machines = [Machine(simulation, society.cores, network) for network in links]
        apart = Machine(simulation, society.cores, society.network)
        self._home = apart if society.server_apart else self._machines[0]
        if society.shared_cores:
            for machine in [*self._machines, self._home]:
                machine.slots = self._machines[0].slots
        self._primary, self._log = Thread(self._home), Thread(self._home)
        self._bodies = [Thread(machine) for machine in self._machines]
        self._opened, self._logged = ([Gate(simulation) for _ in range(steps + 1)] for _ in range(2))
        self._closed = [0] * steps
        self._agents = society.agents / society.groups
        self._sent = self._agents * society.messages
        self._reach = min(society.reach or society.groups, society.groups)
        self._size = costs.message_bytes if society.message_bytes is None else society.message_bytes
        self._apart = society.per_node and self._size * self._sent / self._reach >= BODY_BYTES
        frame = _STAND_IN_BYTES if self._apart else self._size * self._sent / self._reach
        self._box_bytes = _CALL_BYTES + self._reach * frame

    def run(self) -> Step:
        """Run the steps."""
        self._opened[0].pass_all()
        for number in range(self._society.groups):
            self._simulation.start(self._group(number))
        took = self._simulation.run()
        busy = (
            self._primary.busy_s,
            max(each.busy_s for each in self._bodies),
            max(machine.slots.busy_s / machine.cores for machine in self._machines),
            max(machine.out.busy_s for machine in [*self._machines, self._home]),
        )
        return Step(took / self._steps, *(each / took for each in busy))

    def _group(self, number: int) -> Process:
        at = number % self._society.machines
        place, thread = self._machines[at], Thread(self._machines[at])
        # Those that write to a group are the groups before it in a ring.
        sources = (number - np.arange(self._reach)) % self._society.groups % self._society.machines
        frames = np.bincount(sources, minlength=self._society.machines).tolist()
        for step in range(self._steps):
            yield self._opened[step]
            # The box comes with the news of the step, large bodies from the servers on which they are.
            yield from self._home.send(place, self._box_bytes)
            yield self._costs.wake_up
            if self._apart:
                fetching = [self._fetch(other, some, place) for other, some in enumerate(frames) if some]
                yield from together(self._simulation, fetching)
            yield from thread.work(self._model_s())
            yield from self._write(at)
            self._closed[step] += 1
            if self._closed[step] == self._society.groups:
                self._simulation.start(self._seal(step))

    def _fetch(self, other: int, frames: int, place: Machine) -> Process:
        rows = self._sent * frames / self._reach
        # To read a message is half of a server's work for it.
        yield from self._bodies[other].work(rows * self._costs.server_message / 2)
        yield from self._machines[other].send(place, rows * self._size)

    def _model_s(self) -> float:
        """Return the processor time of a group for its agents and their messages."""
        costs = self._costs
        found = costs.group_step + self._sent * (costs.sender_message + costs.reader_message)
        found += self._reach * (costs.sender_frame + costs.reader_frame)
        if self._society.by_agent:
            return found + self._agents * costs.agent_by_agent + self._sent * costs.sent_by_agent
        return found + self._agents * costs.agent_by_group

    def _write(self, at: int) -> Process:
        costs, rows_s = self._costs, self._sent * self._costs.server_message
        if self._apart:
            yield from self._bodies[at].work(rows_s + self._reach * costs.server_frame)
        stored = costs.state_bytes * self._agents if self._society.states else 0.0
        yield from self._machines[at].send(self._home, self._box_bytes + stored)
        work = costs.server_step + self._reach * costs.step_frame + stored * costs.stored_byte
        yield from self._primary.work(work + (0.0 if self._apart else rows_s))

    def _seal(self, step: int) -> Process:
        if self._society.logged and step:
            yield self._logged[step - 1]  # The log may have 64 MiB to read when a step is opened.
        self._opened[step + 1].pass_all()
        if self._society.logged:
            messages = self._society.agents * self._society.messages
            yield from self._log.work(messages * self._costs.logged_message)
            self._logged[step].pass_all()


# -- beside what was measured -----------------------------------------------------------------------------------------


class Check(NamedTuple):
    """A measured value, and the function that simulates it."""

    what: str
    unit: str
    measured: float
    simulate: Callable[[], float]
    source: str


RING, FRAMES = "scale/README.md, ring", "scale/README.md, rows per frame"
SMALL, MESA, HOSTS = "README.md, small steps", "README.md, Mesa", "README.md, three hosts"
# Each agent of a group writes to one of the other group; 500 such messages are a frame of 12 kB.
BY_HAND = Society(
    1_000, 2, 2, reach=1, by_agent=True, server_apart=True, shared_cores=True, message_bytes=24, states=False
)  # fmt: skip


def _by_hand_ms(round_trip_s: float, narrow_bits_per_s: float | None = None) -> float:
    narrow = None if narrow_bits_per_s is None else Network(round_trip_s, narrow_bits_per_s)
    return 1e3 * step_of(replace(BY_HAND, network=Network(round_trip_s), narrow=narrow), 10).seconds


CHECKS: Sequence[Check] = (
    *(
        Check(f"ring of {count} groups", "million/s", rate, lambda count=count: ring_rate(count) / 1e6, RING)
        for count, rate in {1: 2.91, 8: 3.58, 32: 2.78, 128: 1.15}.items()
    ),
    *(
        Check(f"one sender to {count} mailboxes", "million/s", rate, lambda n=count: fan_out_rate(n) / 1e6, FRAMES)
        for count, rate in {1: 2.19, 16: 0.83, 128: 0.57, 512: 0.20}.items()
    ),
    Check(
        "a step of 6,000 messages, 4 groups", "ms", 12.0,
        lambda: 1e3 * step_of(Society(1_000, 4, messages=6, by_agent=True), 10).seconds, SMALL,
    ),
    Check(
        "1,000,000 agents by group, 2 groups", "ms", 178,
        lambda: 1e3 * step_of(Society(1e6, 2, messages=0.3)).seconds, MESA,
    ),
    Check(
        "1,000,000 agents by agent, 2 groups", "ms", 1_746,
        lambda: 1e3 * step_of(Society(1e6, 2, messages=0.3, by_agent=True)).seconds, MESA,
    ),
    *(
        Check(f"lone message, {ms} ms", "ms", took, lambda ms=ms: 1e3 * lone_s(Network(ms / 1e3)), HOSTS)
        for ms, took in {10: 12.0, 40: 64.0}.items()
    ),
    *(
        Check(f"step by hand, {ms} ms", "ms", took, lambda ms=ms: _by_hand_ms(ms / 1e3), HOSTS)
        for ms, took in {0: 8.0, 10: 18.0, 40: 44.0}.items()
    ),
    Check("step by hand, 10 ms, 5 Mbit/s", "ms", 43.0, lambda: _by_hand_ms(0.01, 5e6), HOSTS),
)  # fmt: skip


# -- machines that were not at hand -----------------------------------------------------------------------------------

# A link between machines takes 0.2 ms for a round trip; a core of each machine is the server's of its groups' bodies.
TWENTY = Society(
    1e8, 20 * 31, 20, cores=32, network=Network(0.2e-3, 25e9), server_apart=True, per_node=True, message_bytes=135
)  # fmt: skip
NEAR = replace(TWENTY, reach=8)
PLANS: dict[str, Society] = {
    "31 groups a machine, anybody to anybody": TWENTY,
    "8 groups a machine, anybody to anybody": replace(TWENTY, groups=160),
    "2 groups a machine, anybody to anybody": replace(TWENTY, groups=40),
    "31 groups, each writes to 8": NEAR,
    "the same, states not kept": replace(NEAR, states=False),
    "the same as the last, by agent": replace(NEAR, states=False, by_agent=True),
    "8 groups, each writes to 8, states not kept": replace(NEAR, groups=160, states=False),
    "the same, with a log": replace(NEAR, groups=160, states=False, logged=True),
    "10,000,000 agents, 8 groups, anybody to anybody": replace(TWENTY, agents=1e7, groups=160),
    "100 machines, 500,000,000 agents, each group to 8": replace(NEAR, agents=5e8, groups=100 * 31, machines=100),
}


def simulate() -> list[Line]:
    """Simulate what was measured, and what was not."""
    lines = []
    for check in CHECKS:
        found = check.simulate()
        part = f"{check.what}: {check.measured:g} {check.unit} measured ({check.source})"
        lines.append(Line(part, "simulated", check.unit, [found]))
        lines.append(Line(part, "simulated / measured", "x", [found / check.measured]))
    for name, society in PLANS.items():
        step = step_of(society, 2)
        lines.append(Line(name, "a step", "s", [step.seconds]))
        lines.append(Line(name, "messages", "million/s", [society.agents * society.messages / step.seconds / 1e6]))
        busy = {"primary": step.primary, "bodies' server": step.bodies, "cores": step.cores, "link": step.links}
        lines += [Line(name, f"{what}, busy", "of the time", [share]) for what, share in busy.items()]
    return lines
