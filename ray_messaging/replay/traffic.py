"""Traffic: the messages to send, as columns over a list of agents; read from a trace or generated."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.replay.traces.trace import Trace


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Traffic:
    """Hold n messages in the order in which they are to be sent.

    `senders`, `receivers`: int32 (n,), indices into `agents`; `times`: float64 (n,), unix s or a sequence number, in
    any order; `texts`: one str per message, or None where there is no text.
    """

    name: str
    agents: list[AgentId]
    senders: NDArray[np.int32]
    receivers: NDArray[np.int32]
    times: NDArray[np.float64]
    texts: list[str] | None

    @classmethod
    def of(cls, trace: Trace) -> "Traffic":
        """Build from a trace, in file order; agents in order of first appearance."""
        agents = trace.agents
        index = {agent: place for place, agent in enumerate(agents)}
        senders = np.fromiter((index[agent] for agent in trace.senders), np.int32, len(trace))
        receivers = np.fromiter((index[agent] for agent in trace.receivers), np.int32, len(trace))
        return cls(trace.name, agents, senders, receivers, trace.times, trace.texts)

    def __len__(self) -> int:
        return len(self.senders)

    def __repr__(self) -> str:
        # Not the columns: they may be millions long, and hold real people's names.
        return f"Traffic(name={self.name!r}, messages={len(self)}, agents={len(self.agents)})"


def digests(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a checksum of 64 bits for each text, of its UTF-8."""
    return np.frombuffer(b"".join([blake2b(text.encode(), digest_size=8).digest() for text in texts]), "<u8")
