"""Delivered messages per second over one Mosquitto, beside AgentSociety's way over MQTT, in one run.

python -m benchmarks.mqtt [--agents 200 2000] [--seconds 3] [--repeats 3] [--in-flight 20] [--json FILE]

The interceptor is on, with a black list. --in-flight 1 20 100 measures with so many publications of a client that may
await their PUBACK: the broker says how many, and 20 is Mosquitto's default.
"""

import asyncio
import json
import logging
import time
from typing import Any

import numpy as np
import ray

from benchmarks.mosquitto import IN_FLIGHT, Mosquitto
from benchmarks.mqtt.comparison import measure_all, options, screen, table
from benchmarks.mqtt.seed_peer import SeedPeer
from benchmarks.peers.ours import MessagerHalf
from benchmarks.work import SUBTOPICS, Half, payload
from ray_messaging import Messager, Messaging, Outgoing, mqtt, rules
from ray_messaging.common.process_tuning import tune_process

CALL_MESSAGES = 8192
GOAL = 20


@ray.remote(num_cpus=0)
class FaceHalf(Half):
    """Use ray_messaging.mqtt.Messager as the seed's is used, and many messages at a time in bulk."""

    async def __init__(  # type: ignore[misc]
        self, config: mqtt.MqttConfig, messaging: Messaging, name: str, agents: range, others: range
    ) -> None:
        super().__init__(agents, others)
        exp_id = messaging.exp_id
        self.messager = mqtt.Messager(config, exp_id=exp_id, name=name)
        await self.messager.connect()
        await self.messager.subscribe([f"exps/{exp_id}/agents/{agent}/#" for agent in agents], list(agents))
        await self.messager.start_listening()
        self.topics = {agent: f"exps/{exp_id}/agents/{agent}/agent-chat" for agent in others}
        rng = np.random.default_rng(7)
        ids = (rng.choice(np.array(half), CALL_MESSAGES).tolist() for half in (agents, others))
        self.pairs = list(zip(*ids, strict=True))
        self.counting = asyncio.create_task(self._count())
        tune_process()

    async def _count(self) -> None:
        while True:
            messages = await self.messager.fetch_messages(timeout=None)
            if len(messages) == 1:
                self.arrivals.time(json.loads(messages[0].payload))
            self.arrivals.add(len(messages))

    async def send(self, from_id: int, to_id: int, content: dict[str, Any]) -> bool:
        """Send one message and await its receipt."""
        return (await self.messager.send_message(self.topics[to_id], content, str(from_id), str(to_id))).sent

    async def bulk(self, seconds: float) -> int:
        """Send lists of messages; return how many were delivered."""
        delivered, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            messages = [Outgoing(self.topics[to], payload(n), by) for n, (by, to) in enumerate(self.pairs)]
            receipts = await self.messager.send_messages(messages)
            delivered += int(receipts.sent.sum())
        return delivered


@ray.remote(num_cpus=0)
class CoreHalf(MessagerHalf):
    """Use the core's Messager with an MqttConfig: its agents are its own, and it sends columns in bulk."""

    async def __init__(  # type: ignore[misc]
        self, config: mqtt.MqttConfig, messaging: Messaging, name: str, agents: range, others: range
    ) -> None:
        messager = Messager(config, messaging.exp_id, messaging.interceptor, name=name)
        await messager.init()
        await messager.host_agents(agents, SUBTOPICS)
        super().__init__(messager, agents, others)


class Started:
    """An experiment and its two halves on a broker; subclasses choose the half."""

    name: str
    half: Any

    def __init__(self, agents: int, broker: Mosquitto) -> None:
        # The broker keeps named sessions: each class has experiments of its own on it.
        exp_id = f"{type(self).__name__.lower()}-{agents}"
        self.messaging = Messaging.start(exp_id, rules=[rules.BlackList([(-1, -2), (-3, None)])])
        config = mqtt.MqttConfig(server=broker.host, port=broker.port)
        west, east = range(agents // 2), range(agents // 2, agents)
        self.halves = [
            self.half.remote(config, self.messaging, "west", west, east),
            self.half.remote(config, self.messaging, "east", east, west),
        ]

    def close(self) -> None:
        """Stop all."""
        for half in self.halves:
            ray.kill(half)
        self.messaging.shutdown()


class Face(Started):
    """Start halves in the seed's manner."""

    name, half = "ray_messaging.mqtt", FaceHalf


class Core(Started):
    """Start halves that send columns."""

    name, half = "Messager(MqttConfig)", CoreHalf


def ratios(rows: list[dict[str, Any]]) -> str:
    """Say how many times the seed's way ours is, at each size, and whether that is the goal."""
    said = []
    for seed in (row for row in rows if row["peer"] == SeedPeer.name):
        face = next(row for row in rows if row["peer"] == Face.name and row["agents"] == seed["agents"])
        bulk, awaited = (face[kind]["median"] / seed["awaited"]["median"] for kind in ("bulk", "awaited"))
        met = "met" if min(bulk, awaited) >= GOAL else "missed" if bulk < GOAL else "met in bulk"
        said.append(f"{seed['agents']:,} agents: {bulk:,.0f} x in bulk, {awaited:,.0f} x one by one ({GOAL} x: {met})")
    return "\n".join(said)


def main() -> None:
    """Run all at all sizes, on a broker for each number in flight."""
    parser = options(__doc__, [200, 2000])
    parser.add_argument("--in-flight", type=int, nargs="+", default=[IN_FLIGHT])
    args, console = parser.parse_args(), screen()
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    kept = []
    for in_flight in args.in_flight:
        with Mosquitto(in_flight) as broker:
            rows = measure_all((Face, Core, SeedPeer), args, console, broker)
        console.print(table(rows, Face.name, " over MQTT"))
        console.print(f"{in_flight} publications of a client in flight\n{ratios(rows)}")
        kept += [row | {"in_flight": in_flight} for row in rows]
    if args.json:
        args.json.write_text(json.dumps(kept, indent=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
