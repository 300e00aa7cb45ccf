"""Measurement of which nodes of the Ray cluster can be reached: several nodes try to connect to each raylet."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from ray_messaging.cluster.ray_calls import get, wait
from ray_messaging.cluster.ray_internals import node_of_owner
from ray_messaging.errors import MessagingError
from ray_messaging.observability.health.node_checks import NodeFacts

logger = logging.getLogger(__name__)

_CONNECT_S = 2.0  # time limit of one connection; a lost packet is sent again after one second
Address = tuple[str, int]


async def measure(addresses: Sequence[Address]) -> list[float | None]:
    """Return for each address how many milliseconds it took to connect, or None if that failed."""
    return await asyncio.gather(*map(_connect, addresses))


async def _connect(address: Address) -> float | None:
    began = time.perf_counter()
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(*address)
    except OSError:  # a TimeoutError is an OSError, too
        return None
    took = 1000 * (time.perf_counter() - began)
    writer.transport.abort()
    return took


def reached_nodes(askers: Mapping[str, Any], timeout_s: float) -> list[NodeFacts]:
    """Return facts about the nodes that are alive according to Ray; [] if there is only one. This blocks.

    Args:
        askers: Actors that, like this process, try to connect to the nodes. The keys are their names in the facts.
        timeout_s: How many seconds to wait for the actors at most.
    """
    alive = [each for each in ray.nodes() if each["Alive"]]
    if len(alive) < 2:
        return []
    addresses = [(each["NodeManagerAddress"], int(each["NodeManagerPort"])) for each in alive]
    found = {
        each["NodeID"]: NodeFacts(each["NodeID"], each["NodeManagerHostname"], each["NodeManagerAddress"])
        for each in alive
    }
    asked = {actor.reached.remote(addresses): who for who, actor in askers.items()}
    _note(found, "this process", asyncio.run(measure(addresses)))
    for ref in wait([*asked], num_returns=len(asked), timeout=timeout_s)[0] if asked else ():
        try:
            _note(found, asked[ref], get(ref))
        except (RayError, MessagingError) as error:
            # The health check has another finding for an actor that fails.
            logger.debug("%s does not say which nodes it reaches: %s", asked[ref], error)
    return [*found.values()]


def place_groups(nodes: Sequence[NodeFacts], owners: Mapping[str, str], deadline: float) -> None:
    """Add, to the facts of each node, the groups on the node.

    A group is found through the owner of its mailbox.

    Args: `deadline` is the time, in monotonic seconds, at which the search stops.
    """
    by_id = {node.node: node for node in nodes}
    for group, owner in owners.items():
        if time.monotonic() > deadline:
            return
        node = by_id.get(node_of_owner(owner.rpartition("/")[2]))
        if node is not None:
            node.groups.append(group)


def _note(nodes: Mapping[str, NodeFacts], who: str, took: Sequence[float | None]) -> None:
    for node, each in zip(nodes.values(), took, strict=True):
        node.reached[who] = each
