"""Lose a node of an experiment with a shard and a replica on each: python -m faults.shard_node_loss NODES FOLDER.

The lost node has the primary of a shard, the replica of another one, and a group. It is not Ray's head.
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import ray
import redis
from support.bare_ray import start_cluster
from support.cluster import PATIENCE_S, drain, wait_for
from support.replicas_on_ray import actor_of, fail_over, in_step, names_of

from faults.node_loss import ACCOUNT, CLOCKS
from faults.ray_support import a_town
from faults.ray_traffic import traffic_in
from faults.replica_node_loss import node_of

HERE, THERE = {"here": 1}, {"there": 1}  # of the head; of all others
PAIRS = ((1, 11), (12, 2), (3, 4), (13, 14))  # two of them within a node
COUNT = 30


def main(nodes, folder):
    cluster = start_cluster(resources=HERE, _system_config=CLOCKS)
    try:
        known = {}
        for _ in range(nodes - 1):
            node = cluster.add_node(num_cpus=1, resources=THERE)
            known[node.node_id] = node
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        homes = [ray.get_runtime_context().get_node_id(), *sorted(known)]
        timeouts = {"send_timeout_s": 3 * PATIENCE_S, "lease_s": 3}
        with a_town(places=("here", "there"), shards="per-node", replicas=1, **timeouts) as town:
            assert town.messaging.redis.nodes == tuple(homes)
            _check_places(town.messaging, homes)
            lost = node_of(town.east.actor)
            _check_traffic_within_a_node(town, homes.index(lost))
            account = _lose(cluster, known[lost], homes.index(lost), town, folder)
        (folder / ACCOUNT).write_text(json.dumps(asdict(account)))
        assert account.flaws == {}, account
        assert account.acknowledged
    finally:
        ray.shutdown()
        cluster.shutdown()


def _check_places(messaging, homes):
    for shard, home in enumerate(homes):
        primary, replica = map(node_of, (actor_of(messaging, name) for name in names_of(shard)))
        assert (primary, replica) == (home, homes[(shard + 1) % len(homes)]), shard


def _check_traffic_within_a_node(town, there):
    """Check that messages between agents of one node are on its shard's primary only."""
    for group, agent, shard in ((town.west, 5, 0), (town.east, 15, there)):
        for number in range(COUNT):
            group.send_columns([agent], [agent + 1], [{"n": number}])
        found = _frames(town.messaging)
        assert found == {**dict.fromkeys(found, 0), shard: COUNT}, found
        assert [message.payload["n"] for message in drain(group, COUNT)] == [*range(COUNT)]
        group.ack()


def _frames(messaging):
    """Return how many frames wait in the mailboxes on each shard's primary."""
    found = {}
    for shard in range(len(messaging.redis.servers)):
        primary, _ = in_step(messaging, shard)
        server = ray.get(actor_of(messaging, primary).config.remote(), timeout=PATIENCE_S)
        with redis.Redis(server.server, server.port, password=server.password) as client:
            keys = [key for key in client.scan_iter("*:mailbox:*", count=1000) if b":mailbox::log" not in key]
            found[shard] = sum(client.xlen(key) for key in keys if client.type(key) == b"stream")
    return found


def _lose(cluster, lost, shard, town, folder):
    messaging, hurt = town.messaging, (shard - 1, shard)
    victims = [actor_of(messaging, name) for name in (names_of(shard - 1)[1], names_of(shard)[0])]
    with traffic_in(town, folder, PAIRS) as traffic:
        assert {node_of(actor) for actor in (*victims, town.east.actor)} == {lost.node_id}
        began = time.monotonic()
        cluster.remove_node(lost, allow_graceful=False)
        cluster.add_node(num_cpus=1, resources=THERE)
        for actor in (*victims, town.east.actor):
            wait_for(
                lambda actor=actor: node_of(actor) not in {None, lost.node_id},
                "an actor elsewhere",
                4 * PATIENCE_S,
            )
        for each in hurt:
            in_step(messaging, each, patience_s=4 * PATIENCE_S)
        back_s = time.monotonic() - began
        traffic.goes_on()
        for each in hurt:  # what came back can take the place of the other one
            fail_over(messaging, each)
            traffic.goes_on()
        places = [len({node_of(actor_of(messaging, name)) for name in names_of(each)}) for each in hurt]
    return traffic.account(back_s=round(back_s, 1), nodes_of_each=places)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
