"""The peers: their names, environments and servers.

The file of each peer describes its use: what it awaits, filters and keeps.
"""

from dataclasses import dataclass

from benchmarks.figures import LIMIT, OURS


@dataclass(frozen=True)
class Peer:
    """A peer: its name, the `module:class` that starts it, its environment ("": that of the command) and its server.

    `kinds` are its measurements. A peer without a bulk path is measured by its "awaited" calls, and that figure counts
    for both. `pings`: lone messages in a repetition.
    """

    name: str
    start: str
    environment: str = "brokers"
    agents: tuple[int, ...] = (2000,)
    kinds: tuple[str, ...] = ("bulk", "awaited", "lone")
    server: str = ""
    pings: int = 1000


@dataclass(frozen=True)
class Turns:
    """The measurements that alternate between ours and a peer, for the targets beside it."""

    peer: str
    agents: int
    kinds: tuple[str, ...]


PEERS = (
    Peer(OURS, "benchmarks.peers.ours:Ours", "", (200, 2000, 10_000)),
    Peer("agentsociety 1.3.7", "benchmarks.peers.agentsociety_redis:AgentSociety", "agentsociety-1.3.7",
         (2000, 10_000), server="redis"),
    Peer("agentsociety 1.0.5 (MQTT)", "benchmarks.peers.agentsociety_mqtt:AgentSociety", "agentsociety-1.0.5",
         (2000, 10_000), server="mosquitto", pings=200),
    Peer("ray.util.queue", "benchmarks.peers.ray_queue:Queues"),
    Peer("Ray actor calls", "benchmarks.peers.ray_calls:Calls"),
    Peer("FastStream on Redis", "benchmarks.peers.faststream_redis:FastStream", server="redis"),
    Peer("NATS core", "benchmarks.peers.nats_core:NatsCore", server="nats"),
    Peer("NATS JetStream", "benchmarks.peers.nats_jetstream:JetStream", server="nats"),
    Peer("pyzmq asyncio", "benchmarks.peers.zmq_asyncio:ZmqAsyncio"),
    Peer("pyzmq threads", "benchmarks.peers.zmq_threads:ZmqThreads", kinds=("bulk", "lone")),
    Peer("redis-py frames", "benchmarks.peers.redis_frames:Frames", kinds=("bulk",), server="redis"),
    Peer(LIMIT + "redis-py frames", "benchmarks.peers.redis_frames:ReadyMade", kinds=("bulk", "lone"), server="redis"),
)  # fmt: skip
BY_TURNS = (
    Turns("agentsociety 1.3.7", 2000, ("bulk", "awaited", "lone")),
    Turns("agentsociety 1.3.7", 10_000, ("bulk", "lone")),
    Turns("redis-py frames", 2000, ("bulk",)),
    Turns("Ray actor calls", 2000, ("bulk",)),
    Turns("NATS core", 2000, ("awaited",)),
    Turns("pyzmq asyncio", 2000, ("awaited",)),
)


def named(name: str) -> Peer:
    """Return the peer of that name; raises KeyError."""
    return {peer.name: peer for peer in PEERS}[name]
