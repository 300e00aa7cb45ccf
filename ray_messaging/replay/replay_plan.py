"""The plan of a replay: which agents are in each group, and which messages each group sends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import ConfigError
from ray_messaging.replay.trace import Traffic


def digests(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return a 64-bit checksum of the UTF-8 bytes of each text."""
    return np.frombuffer(b"".join([blake2b(text.encode(), digest_size=8).digest() for text in texts]), "<u8")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Reference:
    """The traffic of a replay as arrays, by which the groups send messages and check the messages that they receive.

    The processes of a node share one copy of the arrays.

    For n messages, `senders` and `receivers` are indices into `agents`. `pairs` has, for each message, a number that
    stands for its pair of sender and receiver. All three are int32 (n,). `times` is float64 (n,). `digests`, uint64
    (n,), has checksums of the texts (None: there are no texts). `group_of` has the group of each agent, int32.
    """

    agents: NDArray[np.int64] | NDArray[np.object_]
    group_of: NDArray[np.int32]
    senders: NDArray[np.int32]
    receivers: NDArray[np.int32]
    pairs: NDArray[np.int32]
    times: NDArray[np.float64]
    digests: NDArray[np.uint64] | None

    def __len__(self) -> int:
        return len(self.senders)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WorkerShare:
    """What one group sends: its agents, and the rows, texts and due times (s) of its messages, in the order of sending.

    `rows` are the indices of the messages in the traffic, intp. `texts` is None if there are no texts. `due` is None if
    messages are sent as fast as possible.
    """

    group: int
    name: str
    agents: list[AgentId]
    rows: NDArray[np.intp]
    texts: list[str] | None
    due: NDArray[np.float64] | None


class Plan:
    """The traffic, and its division among groups.

    `group_of` has the group of each agent, int32. Each group has at least one agent.
    """

    def __init__(self, traffic: Traffic, group_of: NDArray[np.int32], *, speed: float | None = None) -> None:
        self.traffic = traffic
        self.group_of = group_of
        self.groups = int(group_of.max()) + 1
        self.names = [f"group-{number}" for number in range(1, self.groups + 1)]
        self._due = None if speed is None else due_times(traffic.times, speed)
        self.sizes = np.bincount(group_of).tolist()

    def reference(self) -> Reference:
        """Build the arrays that the groups need to send messages, and to check received messages."""
        traffic = self.traffic
        both = traffic.sources.astype(np.int64) * len(traffic.agents) + traffic.targets
        return Reference(
            _id_column(traffic.agents),
            self.group_of,
            traffic.sources,
            traffic.targets,
            np.unique(both, return_inverse=True)[1].astype(np.int32),
            traffic.times,
            None if traffic.texts is None else digests(traffic.texts),
        )

    def shares(self) -> list[WorkerShare]:
        """Return every group's part of the traffic."""
        return [self._share(group) for group in range(self.groups)]

    def _share(self, group: int) -> WorkerShare:
        traffic = self.traffic
        rows = np.flatnonzero(self.group_of[traffic.sources] == group)
        return WorkerShare(
            group,
            self.names[group],
            [traffic.agents[place] for place in np.flatnonzero(self.group_of == group).tolist()],
            rows,
            None if traffic.texts is None else [traffic.texts[row] for row in rows.tolist()],
            None if self._due is None else self._due[rows],
        )


def assign_groups(agents: Sequence[AgentId], groups: int) -> NDArray[np.int32]:
    """Assign the agents to groups in turn, and return the group of each agent.

    If there are fewer agents than groups, some groups get none.
    """
    return (np.arange(len(agents)) % groups).astype(np.int32)


def due_times(times: NDArray[np.float64], speed: float) -> NDArray[np.float64]:
    """Return the due time of each message, in seconds after the first message, at `speed` times the pace of `times`.

    If a message has an earlier time than the message before it, both are due at the same time, so that messages keep
    their order.

    Raises: ConfigError if the trace would never end at this speed.
    """
    with np.errstate(over="ignore"):
        found = (np.maximum.accumulate(times) - times[:1]) / speed
    if not np.isfinite(found).all():
        raise ConfigError(f"at {speed:g} times its pace this trace would never end: choose a higher speed")
    return found


def _id_column(agents: list[AgentId]) -> NDArray[np.int64] | NDArray[np.object_]:
    if all(isinstance(agent, int) for agent in agents):
        return np.array(agents, np.int64)
    return np.array(agents, object)
