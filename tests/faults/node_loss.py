"""Lose the node with the groups: python -m faults.node_loss FOLDER; writes the account there as JSON."""

import json
import logging
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import ray
from support.bare_ray import start_cluster
from support.cluster import alive, pid_of, wait_for

from faults.ray_support import a_town
from faults.ray_traffic import traffic_in

ACCOUNT = "account.json"
THERE = {"there": 1}
# Ray's own clocks, shortened: it notes the loss of a node within seconds.
CLOCKS = {"health_check_initial_delay_ms": 5000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}


def main(folder):
    cluster = start_cluster(_system_config=CLOCKS)
    try:
        lost = cluster.add_node(num_cpus=1, resources=THERE)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        with a_town(actor_options={"resources": {"there": 0.1}}, lease_s=3) as town:
            account = _lose(cluster, lost, town, Path(folder))
        (Path(folder) / ACCOUNT).write_text(json.dumps(asdict(account)))
    finally:
        ray.shutdown()
        cluster.shutdown()


def _lose(cluster, lost, town, folder):
    groups = (town.west, town.east)
    with traffic_in(town, folder) as traffic:
        assert {node_of(group) for group in groups} == {lost.node_id}
        old = [pid_of(group.actor) for group in groups]
        # It does not notice that its node has gone.
        os.kill(old[1], signal.SIGSTOP)
        began = time.monotonic()
        cluster.remove_node(lost, allow_graceful=False)
        cluster.add_node(num_cpus=1, resources=THERE)
        wait_for(lambda: pid_of(town.east.actor) not in old, "the group elsewhere", 200)
        traffic.goes_on()
        back_s, outlived = time.monotonic() - began, alive(old[1])
        with suppress(ProcessLookupError):
            os.kill(old[1], signal.SIGCONT)
        wait_for(lambda: not any(map(alive, old)), "the end of the workers of the lost node", 200)
        traffic.goes_on()
        assert lost.node_id not in {node_of(group) for group in groups}
    return traffic.account(back_s=round(back_s, 1), outlived=outlived)


def node_of(group):
    return ray.get(group.actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


if __name__ == "__main__":
    main(sys.argv[1])
