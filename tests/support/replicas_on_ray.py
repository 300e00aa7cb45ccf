"""Embedded servers with a replica on Ray: their actors, and who of two is the primary.

A name is that of an actor behind `EXP_ID/server`: "" and "/replica" of the first shard, "-1" and "-1/replica" of the
next one, "/sentinel".
"""

import os
import signal

import ray

from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from support.cluster import PATIENCE_S, wait_for


def names_of(shard=0):
    """Return the names of a shard's two servers."""
    first = f"-{shard}" if shard else ""
    return first, f"{first}/replica"


def actor_of(messaging, name):
    return ray.get_actor(f"{messaging.exp_id}/server{name}", namespace=NAMESPACE)


def stats_of(messaging, name):
    return ray.get(actor_of(messaging, name).stats.remote(), timeout=PATIENCE_S)


def roles(messaging, shard=0):
    """Return the names of the actors of the primary and of the replica."""
    found = {stats_of(messaging, name).get("role"): name for name in names_of(shard)}
    return found.get("master"), found.get("slave")


def in_step(messaging, shard=0, *, patience_s=2 * PATIENCE_S):
    """Wait until there is a primary, and a replica that may take its place; return their names."""

    def ready():
        primary, replica = roles(messaging, shard)
        return None not in {primary, replica} and stats_of(messaging, replica)["in_step"] and not troubles(messaging)

    wait_for(ready, "a primary and a replica in step", patience_s)
    return roles(messaging, shard)


def fail_over(messaging, shard=0):
    """Kill a shard's primary; return when its replica is the primary, and it is the replica."""
    primary, replica = in_step(messaging, shard)
    os.kill(stats_of(messaging, primary)["pid"], signal.SIGKILL)
    wait_for(lambda: roles(messaging, shard) == (replica, primary), "the failover", 2 * PATIENCE_S)
    assert in_step(messaging, shard) == (replica, primary)


def troubles(messaging):
    """Return the problems with replicas, of all shards."""
    return [problem for problem in messaging.health().problems if problem.what.endswith("server replicas")]
