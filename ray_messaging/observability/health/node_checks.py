"""Health checks of a cluster's nodes: which nodes cannot be reached, and which groups of agents are affected."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ray_messaging.observability.health.findings import SHOWN, Finding, critical, first_of, ok

CUT_OFF = (
    "check that the machine is up, and check the network between it and the others. No acknowledged message is lost: "
    "a step waits up to MessagingConfig.cut_timeout_s. If the machine is dead, Ray notices that after 30 to 66 s, "
    "and starts its actors elsewhere"
)


@dataclass(slots=True)
class NodeFacts:
    """Facts about one node of the Ray cluster.

    `reached` has, for each host that tried to connect to the node, how many milliseconds that took (None: it did not
    succeed in time). `groups` are the groups of agents on the node.
    """

    node: str
    host: str
    address: str
    reached: dict[str, float | None] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """Return the node's host and address, as a text for people."""
        return self.address if self.host == self.address else f"{self.host} ({self.address})"

    @property
    def unreached_by(self) -> list[str]:
        """Return the hosts that could not connect to the node."""
        return [who for who, took in self.reached.items() if took is None]


def check_nodes(nodes: Sequence[NodeFacts], silent: Mapping[str, float]) -> list[Finding]:
    """Return the findings about the machines of the cluster: which cannot be reached, and where groups are silent.

    With only one machine, no finding says that all machines are reached, because its processes need no network.

    Args: `silent` has the groups whose drivers (the tasks that run the groups' steps) have not called the server for
    long, each with the seconds since the last call.
    """
    cut = [node for node in nodes if node.unreached_by]
    found = [] if len(nodes) < 2 or cut else [ok("nodes", _all_reached(nodes))]
    found += first_of((_unreached(node) for node in cut), "nodes")
    where = {group: node for node in nodes for group in node.groups}
    return [*found, *first_of(_silent(silent, where), "steps")]


def _all_reached(nodes: Sequence[NodeFacts]) -> str:
    slowest: dict[str, float] = {}
    for node in nodes:
        for who, took in node.reached.items():
            slowest[who] = max(slowest.get(who, 0.0), took or 0.0)
    measured = ", ".join(f"{who} ({took:.1f} ms at most)" for who, took in slowest.items())
    return f"all {len(nodes):,} nodes are reached by {measured or 'nobody, because nobody was asked'}"


def _unreached(node: NodeFacts) -> Finding:
    by = ", ".join(node.unreached_by)
    reached = [f"{who} in {took:.1f} ms" for who, took in node.reached.items() if took is not None]
    but = f", but is reached from {', '.join(reached)}" if reached else ""
    text = f"cannot be reached over the network from {by}{but}"
    return critical(f"node {node.where}", f"{text}{_what_waits(node.groups)}", CUT_OFF)


def _what_waits(groups: Sequence[str]) -> str:
    if not groups:
        return ""
    more = f" and {len(groups) - SHOWN:,} more" if len(groups) > SHOWN else ""
    return f"; groups on it: {', '.join(map(repr, sorted(groups)[:SHOWN]))}{more}"


def _silent(silent: Mapping[str, float], where: Mapping[str, NodeFacts]) -> Iterator[Finding]:
    for group, seconds in sorted(silent.items()):
        node = where.get(group)
        on = "" if node is None else f" on node {node.where}"
        yield critical(
            f"group {group!r}",
            f"the task that drives it{on} has not called the server for {seconds:.0f} s, and the open step waits for "
            "this group",
            CUT_OFF,
        )
