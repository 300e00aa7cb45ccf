"""The program on host a: it measures a side of a part whenever a line on stdin asks for it, and answers with a line.

    {"part": "bulk", "side": "plain Ray", "seconds": 1.0, "messages": 10, "steps": 20}
    {"value": 912345.6}

Of ours, server and interceptor are beside this program on a, the sender is on b and the receiver on c. Of plain Ray,
actors on b and c call each other; those of its steps are called by this program.
"""

import json
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import ray

from benchmarks.own_group import OwnGroup
from benchmarks.peers.ours import OurHalf
from benchmarks.peers.ray_calls import CallHalf
from benchmarks.round_trips import AGENTS, GROUPS, PAUSE_S, person
from ray_messaging import Messaging, Steps, rules
from ray_messaging.steps.step import Step

WARM_S, WARM_STEPS = 0.3, 6
WINDOWS = 5  # a rate is the median of so many: other work on this machine halves it for parts of a second
HALF = AGENTS // 2
FEW, MANY = 1_000, 4_000  # how many agents await one message after the other
WEST, EAST = range(MANY), range(MANY, MANY + 1_000)  # who talks outside of steps
Row = tuple[int, int, dict[str, Any]]  # to, from, payload


def on(host: str) -> dict[str, dict[str, float]]:
    """Return the options of an actor on a host."""
    return {"resources": {host: 0.01}}


class Talk:
    """A sender on b and a receiver on c."""

    def __init__(self, west: Any, east: Any, messaging: Messaging | None = None) -> None:
        self._west, self._east, self._messaging = west, east, messaging  # an experiment ends with its object
        ray.get([west.ready.remote(), east.ready.remote()])
        self._arrived = 0

    def awaited(self, plan: dict[str, Any]) -> float:
        """Return how many messages arrive in a second if each of FEW agents awaits one after the other."""
        return self._rate(self._west.awaited_by, plan["seconds"], FEW)

    def awaited_by_many(self, plan: dict[str, Any]) -> float:
        """Return how many messages arrive in a second if each of MANY agents awaits one after the other."""
        return self._rate(self._west.awaited_by, plan["seconds"], MANY)

    def bulk(self, plan: dict[str, Any]) -> float:
        """Return how many messages arrive in a second by the fastest calls."""
        return self._rate(self._west.bulk, plan["seconds"])

    def lone(self, plan: dict[str, Any]) -> float:
        """Return the median time of a message after a pause, from the call to the receiver, in ms."""
        sent = ray.get(self._west.ping.remote(plan["messages"], PAUSE_S))
        self._settle(sent)
        return 1e3 * statistics.median(ray.get(self._east.latencies.remote()))

    def _rate(self, send: Any, seconds: float, *how: int) -> float:
        self._settle(ray.get(send.remote(WARM_S, *how)))
        return statistics.median(self._rate_now(send, seconds, *how) for _ in range(WINDOWS))

    def _rate_now(self, send: Any, seconds: float, *how: int) -> float:
        begun, before = time.time(), self._arrived
        at = self._settle(ray.get(send.remote(seconds, *how)))
        return (self._arrived - before) / (at - begun)

    def _settle(self, sent: int) -> float:
        arrived, at = ray.get(self._east.settled.remote(self._arrived + sent))
        if arrived != self._arrived + sent:
            raise RuntimeError(f"of {sent} messages, {arrived - self._arrived} have arrived")
        self._arrived = arrived
        return at


def ours() -> Talk:
    """Start an experiment with the interceptor on."""
    messaging = Messaging.start("talk", rules=[rules.BlackList([(-1, -2), (-3, None)])])
    west = OurHalf.options(**on("b")).remote(messaging, "west", WEST, EAST)
    return Talk(west, OurHalf.options(**on("c")).remote(messaging, "east", EAST, WEST), messaging)


def plain() -> Talk:
    """Start plain Ray's halves."""
    # Without max_concurrency, an actor carries out 1,000 calls at the same time, and others wait.
    west, east = (
        CallHalf.options(**on(host), max_concurrency=2 * MANY).remote(*who)
        for host, who in (("b", (WEST, EAST)), ("c", (EAST, WEST)))
    )
    ray.get([west.meet.remote(east), east.meet.remote(west)])
    return Talk(west, east)


def median_ms(stamps: list[float]) -> float:
    """Return the median time between two steps."""
    return 1e3 * statistics.median(after - before for before, after in pairwise(stamps[WARM_STEPS:]))


@ray.remote(num_cpus=0)
class RayGroup:
    """A group of plain Ray: a step is one call with its inbox, and returns its outbox."""

    def __init__(self, agents: range) -> None:
        self._agents = agents

    def step(self, inbox: list[Row]) -> list[Row]:
        """Have each agent write to one of the other group."""
        heard: dict[int, list[dict[str, Any]]] = {agent: [] for agent in self._agents}
        for to, _, payload in inbox:
            heard[to].append(payload)
        return [((agent + HALF) % AGENTS, agent, {"n": len(came)}) for agent, came in heard.items()]


class PlainSteps:
    """Plain Ray's steps: this program calls both groups, and routes."""

    def __init__(self) -> None:
        self._groups = [RayGroup.options(**on(host)).remote(agents) for host, agents in GROUPS.items()]
        self._inboxes: list[list[Row]] = [[], []]

    def step(self, plan: dict[str, Any]) -> float:
        """Return the time of a step, in ms."""
        stamps = []
        for _ in range(WARM_STEPS + plan["steps"] + 1):
            stamps.append(time.perf_counter())
            calls = zip(self._groups, self._inboxes, strict=True)
            self._inboxes = ray.get([group.step.remote(inbox) for group, inbox in calls])[::-1]
        return median_ms(stamps)


def send_across(step: Step) -> None:
    """Have each agent tell one agent of the other group how many messages it has got."""
    for agent, inbox in step.by_agent():
        step.send(agent, (agent + HALF) % AGENTS, {"n": len(inbox)})


class StepsByHand:
    """`messager.steps` in an actor of one's own for each group."""

    def __init__(self) -> None:
        self._messaging = Messaging.start("by-hand", steps=Steps(seed=7, groups=len(GROUPS)))
        self._groups = [OwnGroup.options(**on(host)).remote(send_across) for host in GROUPS]
        named = zip(self._groups, GROUPS.items(), strict=True)
        ray.get([group.open.remote(self._messaging, *each) for group, each in named])
        self._until = 0

    def step(self, plan: dict[str, Any]) -> float:
        """Return the time of a step, in ms."""
        self._until += WARM_STEPS + plan["steps"] + 1
        return median_ms(ray.get([group.run.remote(self._until) for group in self._groups])[0])


class StepsOfRun:
    """`messaging.run`, called anew for each value."""

    def __init__(self) -> None:
        self._messaging = Messaging.start("run", steps=Steps(seed=7))
        self._until = 0

    def step(self, plan: dict[str, Any]) -> float:
        """Return the time of a step, in ms."""
        steps = WARM_STEPS + plan["steps"] + 1
        self._until += steps
        options = {"groups": GROUPS, "placement": {host: host for host in GROUPS}, "progress": False}
        result = self._messaging.run(person, agents=AGENTS, until=self._until, **options)
        return median_ms(result.states[0]["stamps"][-steps:])


class OneByOne:
    """`advance(1)` of a standing run."""

    def __init__(self) -> None:
        self._messaging = Messaging.start("advance", steps=Steps(seed=7))
        placement = {host: host for host in GROUPS}
        self._run = self._messaging.start_run(person, agents=AGENTS, groups=GROUPS, placement=placement)

    def step(self, plan: dict[str, Any]) -> float:
        """Return the time of a step, in ms."""
        stamps = [time.perf_counter()]
        for _ in range(WARM_STEPS + plan["steps"]):
            self._run.advance(1)
            stamps.append(time.perf_counter())
        return median_ms(stamps)


def main() -> None:
    """Answer line by line, until stdin ends. The sides start before the first answer, as their start takes seconds."""
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    talks = {"ray_messaging": ours(), "plain Ray": plain()}
    steps = {"by hand": StepsByHand(), "run": StepsOfRun(), "advance(1)": OneByOne(), "plain Ray": PlainSteps()}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        plan = json.loads(line)
        side = (steps if plan["part"] == "step" else talks)[plan["side"]]
        print(json.dumps({"value": getattr(side, plan["part"])(plan)}), flush=True)
    ray.shutdown()  # the hosts end with this program, and all that is on them


if __name__ == "__main__":
    main()
