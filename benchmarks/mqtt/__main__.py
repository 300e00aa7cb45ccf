"""AgentSociety's Messager on MQTT, ours and its own way, by turns over one Mosquitto.

python -m benchmarks.mqtt [--agents 200 2000] [--seconds 3] [--repeats 3] [--json FILE]

Each has an interceptor with a black list, a Ray actor. Ours publishes by QoS 2, the other way by QoS 1. AgentSociety
1.0.5 itself, with its Ray call to a Messager for each send, is a peer of `python -m benchmarks run`.
"""

import asyncio
import json
import logging
import statistics
from typing import Any

import ray

from benchmarks.figures import percentiles
from benchmarks.mosquitto import IN_FLIGHT, Mosquitto
from benchmarks.mqtt.comparison import PINGS, options, screen, table
from benchmarks.mqtt.seed_peer import SeedPeer
from benchmarks.runs.driver import lone, rate
from benchmarks.work import Half
from ray_messaging import Messaging, rules
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.compat.mqtt import Messager

RATE, LATENCY = 3.0, 0.5  # times the other way's, at least and at most


@ray.remote(num_cpus=0)
class OurHalf(Half):
    """Use the Messager as AgentSociety's groups do, in their own process."""

    async def __init__(self, host: str, port: int, interceptor: Any, agents: range, others: range) -> None:  # type: ignore[misc]
        super().__init__(agents, others)
        self.messager = Messager(host, port, message_interceptor=interceptor)
        await self.messager.connect()
        await self.messager.subscribe([(f"exps/ours/agents/{agent}/#", 1) for agent in agents], list(agents))
        await self.messager.start_listening()
        self.counting = asyncio.create_task(self._count())
        tune_process()

    async def _count(self) -> None:
        while True:
            messages = await self.messager.fetch_messages(timeout=None)
            if len(messages) == 1:
                self.arrivals.time(json.loads(messages[0].payload))
            self.arrivals.add(len(messages))

    async def send(self, to_id: int, content: dict[str, Any], from_id: int) -> bool:
        """Send one message and await its receipt."""
        topic = f"exps/ours/agents/{to_id}/agent-chat"
        return (await self.messager.send_message(topic, content, str(from_id), str(to_id))).sent


class Ours:
    """An experiment's interceptor, and two halves."""

    name = "ray_messaging.compat.mqtt"

    def __init__(self, agents: int, broker: Mosquitto) -> None:
        self.messaging = Messaging.start(f"mqtt-{agents}", rules=[rules.BlackList([(-1, -2)])])
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves: list[Any] = [
            OurHalf.remote(broker.host, broker.port, self.messaging.interceptor, west, east),
            OurHalf.remote(broker.host, broker.port, self.messaging.interceptor, east, west),
        ]

    def close(self) -> None:
        """Stop all."""
        for half in self.halves:
            ray.kill(half)
        self.messaging.shutdown()


def by_turns(agents: int, seconds: float, repeats: int, broker: Mosquitto) -> list[dict[str, Any]]:
    """Measure both by turns; return a row each, medians with low and high."""
    peers = [Ours(agents, broker), SeedPeer(agents, broker)]
    counts: dict[str, list[int]] = {peer.name: [0, 0] for peer in peers}
    rates: dict[str, list[float]] = {peer.name: [] for peer in peers}
    pings: dict[str, list[float]] = {peer.name: [] for peer in peers}
    try:
        for turn in range(1 + repeats):
            for peer in peers if turn % 2 == 0 else reversed(peers):
                if turn == 0:
                    ray.get([half.ready.remote() for half in peer.halves])
                found = rate(peer.halves, "awaited", seconds, counts[peer.name]).per_s
                latencies = lone(peer.halves, PINGS // repeats, counts[peer.name])
                if turn > 0:  # the first one warms up
                    rates[peer.name].append(found)
                    pings[peer.name] += latencies
    finally:
        for peer in peers:
            peer.close()
    return [_row(name, agents, rates[name], pings[name]) for name in rates]


def _row(name: str, agents: int, rates: list[float], pings: list[float]) -> dict[str, Any]:
    p50, p99 = percentiles(pings, 50, 99)
    found = {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}
    return {"peer": name, "agents": agents, "awaited": found, "latency_ms": {"p50": p50, "p99": p99}}


def ratios(rows: list[dict[str, Any]]) -> str:
    """Say how many times the other way's rate and latency ours are, at each size, and whether that is the goal."""
    said = []
    for ours, other in zip(rows[::2], rows[1::2], strict=True):
        faster = ours["awaited"]["median"] / other["awaited"]["median"]
        later = ours["latency_ms"]["p50"] / other["latency_ms"]["p50"]
        met = "met" if faster >= RATE and later <= LATENCY else "missed"
        goal = f"{RATE:g} x and {LATENCY:g} x: {met}"
        said.append(f"{ours['agents']:,} agents: {faster:.1f} x the rate, {later:.2f} x the latency ({goal})")
    return "\n".join(said)


def main() -> None:
    """Run both at all sizes."""
    args, console = options(__doc__, [200, 2000]).parse_args(), screen()
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    rows: list[dict[str, Any]] = []
    with Mosquitto(IN_FLIGHT) as broker:
        for agents in args.agents:
            rows += by_turns(agents, args.seconds, args.repeats, broker)
    console.print(table(rows, Ours.name, " over MQTT"))
    console.print(ratios(rows))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
