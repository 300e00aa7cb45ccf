"""Lose a node of an experiment with a replica: python -m faults.replica_node_loss primary|replica FOLDER.

The driver, and so the first primary, is on another node than Ray's head where the primary's is lost.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import ray
from ray.exceptions import RayError
from support.bare_ray import start_cluster
from support.cluster import PATIENCE_S, wait_for

from faults.node_loss import ACCOUNT, CLOCKS
from faults.ray_support import a_town
from faults.ray_traffic import traffic_in
from ray_messaging.cluster.handles.actor_calls import NAMESPACE

HERE = {"here": 1}  # of the nodes that stay


def main(which, folder):
    cluster = start_cluster(resources=HERE, _system_config=CLOCKS)
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        with a_town(actor_options={"resources": {"here": 0.1}}, send_timeout_s=2 * PATIENCE_S, replicas=1) as town:
            account = _lose(cluster, other, town, folder, which)
        (folder / ACCOUNT).write_text(json.dumps(asdict(account)))
        assert account.flaws == {}, account
        assert account.acknowledged
    finally:
        ray.shutdown()
        cluster.shutdown()


def _lose(cluster, other, town, folder, which):
    servers = {
        name: ray.get_actor(f"{town.messaging.exp_id}/server{name}", namespace=NAMESPACE) for name in ("", "/replica")
    }

    def stats(name):
        with suppress(RayError):  # its node is lost
            return ray.get(servers[name].stats.remote(), timeout=5)
        return {}

    def primary():
        return next((name for name in servers if stats(name).get("role") == "master"), None)

    def in_step(first):
        return primary() == first and all(stats(name).get("in_step") for name in servers)

    with traffic_in(town, folder) as traffic:
        wait_for(lambda: node_of(servers["/replica"]) == other.node_id, "the replica on the other node")
        traffic.goes_on()
        if which == "primary":  # it is where the driver is; a failover takes it to the node that is lost
            os.kill(stats("")["pid"], signal.SIGKILL)
            wait_for(lambda: in_step("/replica"), "the primary on the other node")
            traffic.goes_on()
        began = time.monotonic()
        cluster.remove_node(other, allow_graceful=False)
        wait_for(
            lambda: node_of(servers["/replica"]) not in {None, other.node_id},
            "the lost server elsewhere",
            4 * PATIENCE_S,
        )
        wait_for(lambda: in_step(""), "both in step", 4 * PATIENCE_S)
        back_s = time.monotonic() - began
        traffic.goes_on()
        os.kill(stats("")["pid"], signal.SIGKILL)
        wait_for(lambda: in_step("/replica"), "the failover to the server that came back")
        traffic.goes_on()
    return traffic.account(back_s=round(back_s, 1))


def node_of(actor):
    with suppress(RayError):
        return ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()), timeout=5)
    return None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
