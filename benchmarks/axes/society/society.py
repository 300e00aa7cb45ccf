"""A society to measure: groups in a ring, each writing to the next, counted where messages arrive."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import ray

from benchmarks.axes.society.house import House, Lodger
from benchmarks.axes.society.member import MemberActor
from benchmarks.figures import OURS, Figure, percentile_figures
from ray_messaging import Messaging, MessagingConfig, RedisConfig, rules

BLACK_LIST = rules.BlackList([(-1, -2), (-3, None)])  # the interceptor is on, and asked about ids
PINGS, LONE_PINGS = 1000, 500
_AT_ONCE = 8


@contextmanager
def cluster() -> Iterator[None]:
    """Run a Ray of our own."""
    ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


class Society:
    """Hold the groups of an experiment, or of a bare server; with two of them both directions are at work at once.

    Each has an actor of its own, or `housed` of them share one.
    """

    def __init__(
        self,
        where: Messaging | RedisConfig,
        agents: int,
        groups: int = 2,
        *,
        first: int = 0,
        nbytes: int = 100,
        settings: MessagingConfig | None = None,
        housed: int = 1,
    ) -> None:
        self._where, self._settings, self._first, self._housed = where, settings, first, housed
        self._actors: list[Any] = []
        self._each = agents // groups
        self.members: list[Any] = []
        self._expected: list[int] = []
        self.grow(groups, nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for actor in self._actors:
            ray.kill(actor)

    def grow(self, groups: int, nbytes: int = 100) -> None:
        """Have so many groups, each aiming at the next one."""
        while len(self.members) < groups:
            name = f"group-{self._first}-{len(self.members)}"
            self.members.append(self._open(name, self._agents(len(self.members))))
            self._expected.append(0)
            if not len(self.members) % _AT_ONCE:  # more processes that start at once starve each other of the processor
                ray.get([member.ready.remote() for member in self.members[-_AT_ONCE:]])
        self.aim(nbytes)

    def _open(self, name: str, agents: range) -> Any:
        setting = self._where, name, agents, self._settings
        if self._housed == 1:
            self._actors.append(MemberActor.remote(*setting))
            return self._actors[-1]
        if not len(self.members) % self._housed:
            self._actors.append(House.remote())
        return Lodger(self._actors[-1], *setting)

    def aim(self, nbytes: int) -> None:
        """Send payloads of so many bytes from now on."""
        targets = [self._agents((number + 1) % len(self.members)) for number in range(len(self.members))]
        ray.get([member.aim.remote(at, nbytes) for member, at in zip(self.members, targets, strict=True)])

    def _agents(self, number: int) -> range:
        start = self._first + number * self._each
        return range(start, start + self._each)

    def begin(self, kind: str, *args: Any) -> Callable[[], tuple[int, float]]:
        """Have all groups send; return a function that waits for all arrivals and returns their number and time."""
        calls = [getattr(member, kind).remote(*args) for member in self.members]

        def finish() -> tuple[int, float]:
            sent = ray.get(calls)
            for number, count in enumerate(sent):
                self._expected[(number + 1) % len(sent)] += count
            return sum(sent), max(self.drained())

        return finish

    @contextmanager
    def busy(self, rate: float) -> Iterator[None]:
        """Have all send at an even pace meanwhile, so many messages per second in all."""
        finish = self.begin("steady", rate / len(self.members))
        try:
            yield
        finally:
            ray.get([member.rest.remote() for member in self.members])
            finish()

    def drained(self) -> list[float]:
        """Wait until all that was sent has arrived; return when that was, at each group (unix s)."""
        return ray.get(
            [member.drained.remote(count) for member, count in zip(self.members, self._expected, strict=True)]
        )

    def rate(self, kind: str, *args: Any) -> float:
        """Have all send in some way; return messages per second, until the last has arrived."""
        start = time.time()
        sent, end = self.begin(kind, *args)()
        return sent / (end - start)

    def rates(self, kind: str, seconds: float, repeats: int, *args: Any) -> list[float]:
        """Return the rates of some repetitions, after one that warms up."""
        self.rate(kind, seconds / 2, *args)
        return [self.rate(kind, seconds, *args) for _ in range(repeats)]

    def lone(self, pings: int = PINGS, sender: Any = None) -> list[float]:
        """Send lone messages to the second group, from the first or another; return how long each took, in ms."""
        west, east = sender or self.members[0], self.members[1]
        ray.get(east.latencies.remote())
        if sender is not None:
            ray.get(sender.aim.remote(self._agents(1)))
        self._expected[1] += ray.get(west.ping.remote(pings))
        ray.get(east.drained.remote(self._expected[1]))
        return [1000 * took for took in ray.get(east.latencies.remote())]

    def lone_figures(self, axis: str, repeats: int, at: dict[str, int | float | str]) -> Iterator[Figure]:
        """Yield percentiles of lone messages."""
        took = {OURS: [self.lone(LONE_PINGS) for _ in range(repeats)]}
        return percentile_figures(axis, took, at, "lone ", "p50", "p99")


@contextmanager
def experiment(exp_id: str, agents: int, **start: Any) -> Iterator[tuple[Messaging, Society]]:
    """Run an experiment, by default with the black list alone, and a society in it."""
    start = {"rules": [BLACK_LIST]} | start
    with Messaging.start(exp_id, **start) as messaging, Society(messaging, agents) as society:
        yield messaging, society
