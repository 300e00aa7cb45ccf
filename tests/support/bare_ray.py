"""Ray without the processes at which no test looks: the autoscaler, the dashboard's server, the reader of the logs.

They take a third of the processor time of a start, and 3% of a core for as long as Ray runs.
"""

import logging

import ray
from ray._private import utils
from ray._private.node import Node
from ray.cluster_utils import Cluster


def only_bare_nodes(*, logs: bool = False) -> None:
    """Leave those processes out of each node that this process starts; `logs` keeps what prints the actors' output."""
    for start in ("start_monitor", "start_api_server", *(() if logs else ("start_log_monitor",))):
        setattr(Node, start, lambda *_, **__: None)


def start_ray(*, num_cpus: int = 2, **options: object) -> None:
    """Run a Ray of this process's own, on this machine; `options` are those of ray.init."""
    only_bare_nodes()
    ray.init(
        address="local",
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        **options,
    )


def start_cluster(**head: object) -> Cluster:
    """Start the head of a cluster whose nodes are on this machine; `head` are the arguments of its node."""
    only_bare_nodes()
    utils.write_ray_address = lambda *_: None  # Otherwise each `ray.init()` on this machine would join this cluster.
    return Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False} | head)
