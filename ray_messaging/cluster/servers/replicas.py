"""An experiment's embedded servers, each with a replica on another node, and the Sentinel of all."""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_messaging.cluster.handles.actor_calls import NAMESPACE, result, wait_dead
from ray_messaging.cluster.servers.server_actor import ServerActor
from ray_messaging.cluster.servers.server_kinds import ReplicatedServer, SentinelServer, ServerKind
from ray_messaging.cluster.servers.server_names import named_in_errors, replica_names, sentinel_name, server_names
from ray_messaging.config import MessagingConfig
from ray_messaging.embedded.replication.credentials import Credentials
from ray_messaging.embedded.replication.sentinel_role import Watched
from ray_messaging.errors import ConfigError

logger = logging.getLogger(__name__)

_HEAD = "node:__internal_head__"  # a resource that Ray gives its head node
_PLACEMENTS = 20  # in the first seconds of a cluster every other one fails


def check_replicas(replicas: object, settings: MessagingConfig, *, server: object, data_dir: object) -> MessagingConfig:
    """Return the settings of an experiment with so many replicas; raise ConfigError for what cannot be."""
    if isinstance(replicas, bool) or replicas not in (0, 1) or not isinstance(replicas, int):
        raise ConfigError(f"replicas={replicas!r} is unknown: write 0, or 1 for a replica of the embedded server")
    if server is None and settings.wait_replicas > replicas:
        remedy = "pass replicas=1" if settings.wait_replicas == 1 else "lower wait_replicas"
        raise ConfigError(
            f"wait_replicas={settings.wait_replicas} waits for more replicas than there are (replicas={replicas}): "
            f"{remedy}, or pass a server of yours that has them: redis="
        )
    if replicas == 0:
        return settings
    if server is not None:
        raise ConfigError(
            "replicas=1 is for the embedded server, and redis= is one of yours: leave out redis=, or leave out "
            "replicas= and give your server replicas: redis=RedisConfig(sentinels=[...], service=...)"
        )
    if data_dir is not None:
        raise ConfigError(
            "replicas=1 keeps no data for a later start, as the newest may be on another node: leave out data_dir=, "
            "or replicas="
        )
    given = "wait_replicas" in settings.model_fields_set
    return settings if given else settings.model_copy(update={"wait_replicas": 1})


class ReplicatedStart:
    """Start of an experiment's embedded servers with a replica each, and the Sentinel of all.

    Args:
        exp_id: The experiment.
        homes: The node of each primary.
        servers: Gets the actors as they are started.
        remote: Makes an actor class of a class and options.
    """

    def __init__(
        self,
        exp_id: str,
        homes: Sequence[str],
        servers: list[Any],
        remote: Callable[[type, dict[str, Any]], Any],
    ) -> None:
        self._exp_id = exp_id
        self._homes = homes
        self._servers = servers
        self._remote = remote

    def run(self) -> None:
        """Start the primaries, and the others; return when all replicas are in step.

        Raises: ServerFailed.
        """
        living, count = _living_nodes(), len(self._homes)
        away = replica_nodes(self._homes, living)
        on_a_node = max(Counter([*self._homes, *away]).values())
        # A password of each shard's own: a port that a lost server leaves may be another shard's one day.
        sentinel = Credentials().sentinel
        credentials = [Credentials(sentinel=sentinel) for _ in self._homes]

        def kinds(*, founding: bool) -> list[ServerKind]:
            name = sentinel_name(self._exp_id)
            return [
                ReplicatedServer(name, shard, each, founding=founding, on_a_node=on_a_node)
                for shard, each in enumerate(credentials)
            ]

        primaries = self._start_all(server_names(self._exp_id, count), self._homes, kinds(founding=True))
        configs = []
        for shard, actor in enumerate(primaries):
            with named_in_errors("the server", shard, self._homes):
                configs.append(self._ask(actor.config, "server", shard))
        watched = SentinelServer(tuple(map(Watched, configs, credentials)))
        watching = self._start(sentinel_name(self._exp_id), living[0], watched, soft=False)
        result(watching.config.remote(), actor_name=f"the Sentinel of experiment {self._exp_id!r}")
        replicas = self._start_all(replica_names(self._exp_id, count), away, kinds(founding=False))
        for shard, actor in enumerate(replicas):
            with named_in_errors("the replica", shard, away):
                self._ask(actor.wait_in_step, "replica", shard)
        self._warn(primaries, replicas)

    def _ask(self, method: Any, what: str, shard: int) -> Any:  # noqa: ANN401 - a method of an actor, and its result
        of_shard = f" of shard {shard}" if len(self._homes) > 1 else ""
        return result(method.remote(), actor_name=f"the {what}{of_shard} of experiment {self._exp_id!r}")

    def _warn(self, primaries: Sequence[Any], replicas: Sequence[Any]) -> None:
        """Warn where a replica is on its primary's node."""
        for shard, (primary, replica) in enumerate(zip(primaries, replicas, strict=True)):
            if self._ask(primary.node, "server", shard) == self._ask(replica.node, "replica", shard):
                logger.warning(
                    "the replica of %r is on the same node as its primary, as there is no other one: it saves from a "
                    "killed process, not from a lost machine",
                    self._exp_id,
                )
                return

    def _start_all(self, names: Sequence[str], nodes: Sequence[str], kinds: Sequence[ServerKind]) -> list[Any]:
        """Start an actor on each node, all at the same time."""
        wanted = list(zip(names, nodes, kinds, strict=True))
        started = [self._start(*each) for each in wanted]
        return [self._placed(actor, *each) for actor, each in zip(started, wanted, strict=True)]

    def _placed(self, actor: Any, name: str, node: str, kind: ServerKind) -> Any:  # noqa: ANN401 - handles
        """Start an actor again until it is on its node: Ray may choose another one, before all have heard of this."""
        for _ in range(_PLACEMENTS - 1):
            if result(actor.node.remote(), actor_name=name) == node:
                break
            result(actor.stop.remote(), actor_name=name)
            self._servers.remove(actor)
            ray.kill(actor)
            wait_dead(actor)
            actor = self._start(name, node, kind)
        return actor

    def _start(self, name: str, node: str, kind: ServerKind, *, soft: bool = True) -> Any:  # noqa: ANN401 - a handle
        # Ray starts it on another node when its own is lost.
        placed = NodeAffinitySchedulingStrategy(node, soft=soft)
        options = {"num_cpus": 0, "namespace": NAMESPACE, "scheduling_strategy": placed, "name": name}
        options |= {"max_restarts": -1, "max_task_retries": -1}
        self._servers.append(self._remote(ServerActor, options).remote(secrets.token_hex(16), kind))
        return self._servers[-1]


def replica_nodes(homes: Sequence[str], living: Sequence[str]) -> list[str]:
    """Return the node of each primary's replica: another one, the next ones in turn; the same where there is no other.

    Args: homes has the node of each primary; living has all nodes.
    """
    nodes = list(dict.fromkeys([*homes, *living]))
    found = []
    for shard, home in enumerate(homes):
        others = [node for node in nodes if node != home] or [home]
        found.append(others[shard % len(others)])
    return found


def _living_nodes() -> list[str]:
    """Return Ray's nodes, the head first: without it Ray is lost anyway, so it is the safest one."""
    alive = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
    return sorted(alive, key=lambda node: (_HEAD not in alive[node], node))
