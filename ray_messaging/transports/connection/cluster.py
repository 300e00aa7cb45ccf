"""Nodes of a Redis or Valkey Cluster. They are asked which primary has an experiment's keys."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from ray_messaging.config import RedisConfig
from ray_messaging.transports.connection.connection_options import connection_options
from ray_messaging.transports.connection.discovery import (
    REFUSED,
    NoPrimaryError,
    WrongSettingsError,
    answers_of,
    replies_of,
    said_by,
)

_QUESTIONS = (("CLUSTER", "NODES"), ("CLUSTER", "SLOTS"))
_REMEMBERED = 6  # at most this many nodes are asked in addition to the nodes in the config
_UNNAMED = frozenset({"noaddr", "handshake"})  # The addresses of nodes with these flags are not known.


class _Node(NamedTuple):
    """A node of the cluster, as another node has described it.

    `has_slot` says whether the node has the slot of the experiment's keys. `epoch` is the node's config epoch: if two
    nodes claim a slot, the node with the higher epoch has it.
    """

    name: str
    address: tuple[str, int]
    flags: frozenset[str]
    shard: str  # the name of the shard's primary
    epoch: int
    has_slot: bool


class ClusterNodes:
    """Nodes of a cluster, of which one primary has the slot of an experiment's keys.

    All nodes are asked at the same time. A node that is cut off from the others still names the slot's old owner. So
    when a majority has answered, the answer with the highest epoch is used, as the cluster itself does. A node that
    says that it does not have the slot is not the owner, whatever other nodes say.
    """

    def __init__(self, config: RedisConfig, home: str) -> None:
        self._config = config
        self._slot = key_slot(home.encode())
        self._seeds = config.cluster_addresses()
        # Nodes from earlier answers. They are asked too, because the nodes in the config may no longer exist.
        self._named: list[tuple[str, int]] = []

    @property
    def where(self) -> str:
        """Return a description of the cluster for error texts."""
        return f"a node of the cluster of {', '.join(self._config.cluster)}"

    async def primary(self) -> tuple[str, int]:
        """Return the host and port of the primary that has the experiment's keys, within 4 s.

        Raises: NoPrimaryError if no node answers, the primary is down, or the nodes do not agree on the primary;
        WrongSettingsError if a server is not a node of a cluster, or no node has the slot of these keys;
        AuthenticationError if a node refuses the password.
        """
        questions = {_text(address): self._ask(*address) for address in dict.fromkeys([*self._named, *self._seeds])}
        return self._chosen(await answers_of(questions)).address

    async def _ask(self, host: str, port: int) -> list[_Node]:
        nodes, slots = await replies_of((host, port), connection_options(self._config), _QUESTIONS)
        return _read_nodes(nodes.decode(), _endpoints(slots, host), self._slot, host)

    def _chosen(self, answers: Mapping[str, list[_Node] | RedisError | OSError]) -> _Node:
        views = [nodes for nodes in answers.values() if not isinstance(nodes, Exception)]
        disclaim = {node.name for nodes in views for node in nodes if "myself" in node.flags and not node.has_slot}
        owners = [(node, nodes) for nodes in views for node in nodes if node.has_slot]
        claims = [(node, nodes) for node, nodes in owners if node.name not in disclaim]
        if not claims:
            raise self._without_owner(answers, owned=bool(owners))
        owner, nodes = max(claims, key=lambda claim: (claim[0].epoch, "fail" not in claim[0].flags))
        # Some nodes are remembered, to be asked by the next search. The nodes of the owner's shard are remembered
        # first, because one of them will get the slot after a failover.
        known = sorted((node for node in nodes if not node.flags & _UNNAMED), key=lambda one: one.shard != owner.name)
        self._named = [node.address for node in known[:_REMEMBERED]]
        if "fail" in owner.flags:
            raise NoPrimaryError(
                f"the primary of slot {self._slot}, {_text(owner.address)}, is down, and no replica has taken its "
                "place yet: start the primary, or wait for the failover"
            )
        return owner

    def _without_owner(self, answers: Mapping[str, list[_Node] | RedisError | OSError], *, owned: bool) -> RedisError:
        for where, found in answers.items():
            if isinstance(found, REFUSED):
                return AuthenticationError(
                    f"the node at {where} says {found}: set username and password, and give that user "
                    "the rights +cluster|nodes and +cluster|slots"
                )
            if isinstance(found, ResponseError):
                return WrongSettingsError(
                    f"the server at {where} is not a node of a cluster ({found}): pass addresses of nodes as "
                    "cluster=, or for a single server pass server= and port= (redis://)"
                )
        if owned:
            return NoPrimaryError(
                f"slot {self._slot} is moving to another node, and the cluster's nodes do not agree yet: wait until "
                "that has ended"
            )
        if not all(isinstance(found, Exception) for found in answers.values()):
            return WrongSettingsError(
                f"no node of the cluster of {', '.join(self._config.cluster)} has slot {self._slot}, where this "
                "experiment's keys belong: give it to a primary (redis-cli --cluster fix)"
            )
        why = said_by(map(_text, dict.fromkeys([*self._named, *self._seeds])), answers)
        return NoPrimaryError(f"no node of the cluster can be reached ({why})")


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _endpoints(slots: Sequence[Any], asked: str) -> dict[str, tuple[str, int]]:
    """Return, by node name, the address that the cluster tells clients to use for each node with slots."""
    found: dict[str, tuple[str, int]] = {}
    for _, _, *nodes in slots:
        for host, port, name, *_ in nodes:
            # "?" means that the cluster prefers hostnames, but does not know the hostname of this node.
            if host != b"?":
                found[name.decode()] = (host.decode() if host else asked, int(port))
    return found


def _read_nodes(text: str, endpoints: Mapping[str, tuple[str, int]], slot: int, asked: str) -> list[_Node]:
    """Return the nodes that a reply to CLUSTER NODES describes.

    Args: `endpoints` has the addresses for clients, by node name. `slot` is the slot of the experiment's keys. `asked`
    is the host that has given the reply.
    """
    nodes = []
    for line in text.splitlines():
        name, address, flags, primary, _, _, epoch, _, *ranges = line.split()
        host, _, port = address.partition("@")[0].rpartition(":")
        nodes.append(
            _Node(
                name,
                endpoints.get(name, (host or asked, int(port))),
                frozenset(flags.split(",")),
                name if primary == "-" else primary,
                int(epoch),
                any(_holds(each, slot) for each in ranges),
            )
        )
    return nodes


def _holds(slots: str, slot: int) -> bool:
    """Return whether a range of slots contains a slot.

    A range in brackets is a slot that is being migrated. It is ignored, because the slot's owner also lists the slot
    without brackets.
    """
    if slots.startswith("["):
        return False
    first, _, last = slots.partition("-")
    return int(first) <= slot <= int(last or first)
