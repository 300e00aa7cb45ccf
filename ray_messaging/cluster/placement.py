"""Placement of groups: the nodes of the Ray cluster on which their actors start, and the resources that they need."""

import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_messaging.cluster.ray_calls import context
from ray_messaging.errors import ConfigError

logger = logging.getLogger(__name__)

GroupPlacement = Literal["spread", "pack"] | Mapping[str, str | Mapping[str, float]]
ActorOptions = Mapping[str, Any] | None

_WORDS = ("spread", "pack")
_OWN = (
    "scheduling_strategy",
    "label_selector",
    "placement_group",
    "_labels",
)  # Ray's options that decide on which node an actor starts
# Ray's options that request resources, and Ray's names of these resources.
_ASKED = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
# If an actor requests no resources, Ray ignores its scheduling strategy, unless that strategy is a hard node affinity,
# and chooses a random node. So a group requests one byte of memory, a resource that each node offers.
_LEAST = {"memory": 1}


class Placement:
    """The options with which the actors of some groups start.

    Args:
        placement: "spread", "pack", or a dict that gives, by group, a node (its id, name, host name or address), or the
            resources that the node must have. Groups that are not in the dict are spread.
        actor_options: Ray's options for all of these groups, or by group.
        groups: The names of the groups.

    Raises: ConfigError for an unknown group or node, for options that Ray does not accept, or for a group whose node is
        given by both `placement` and `actor_options`.
    """

    def __init__(self, placement: GroupPlacement, actor_options: ActorOptions, groups: Iterable[str]) -> None:
        names = [*groups]
        _check_placement(placement, names)
        by_group = _by_group(actor_options, names)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        self._options = {name: _options(name, placement, by_group[name], nodes) for name in names}

    def of(self, group: str) -> dict[str, Any]:
        """Return Ray's options for a group's actor."""
        return self._options[group]

    def key(self, group: str) -> dict[str, Any]:
        """Return a group's options as values that can be compared, unlike Ray's scheduling strategies."""
        return {name: _comparable(option) for name, option in self._options[group].items()}

    def warn(self, groups: Collection[str]) -> None:
        """Log a warning for each of the waiting `groups` whose requested resources no node has."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for name in groups:
            wanted = _resources(self._options[name])
            if any(all(node.get(what, 0) >= amount for what, amount in wanted.items()) for node in nodes):
                continue
            most = {what: max((node.get(what, 0) for node in nodes), default=0) for what in wanted}
            lacking = {what: amount for what, amount in wanted.items() if most[what] < amount} or wanted
            told = " and ".join(f"{what}={amount:g}" for what, amount in lacking.items())
            logger.warning(
                "group %r waits for a node with %s, but no node of the cluster has that (%s): start such a node by "
                "`ray start "
                "--address=... --resources='{...}'`, or change actor_options= or placement=",
                name,
                told,
                ", ".join(f"the most {what} is {most[what]:g}" for what in lacking),
            )


def _comparable(option: Any) -> Any:  # noqa: ANN401 - an option of Ray's
    if isinstance(option, Mapping):  # as a str, because the user may change the dict before it is compared
        return repr(dict(option))
    return getattr(option, "__dict__", option)


def _check_placement(placement: object, groups: Collection[str]) -> None:
    example = "'spread', 'pack', or {'group0': 'a node', 'group1': {'GPU': 1}}"
    if isinstance(placement, str) and placement in _WORDS:
        return
    if not isinstance(placement, Mapping):
        raise ConfigError(f"placement={placement!r} is unknown: write {example}")
    if strangers := [name for name in placement if name not in groups]:
        raise ConfigError(
            f"placement= has {strangers[0]!r}, but no group has this name: write the name of a group, such as "
            f"{', '.join(sorted(groups)[:8])}"
        )
    for name, where in placement.items():
        if not isinstance(where, str | Mapping) or not where:
            raise ConfigError(
                f"placement= has {where!r} for group {name!r}: write the name of a node, such as 'host2', or the "
                "resources that the group needs, such as {'GPU': 1}"
            )


def _by_group(given: object, groups: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the options of each group; raise ConfigError for options that Ray does not accept.

    Args: `given` has options for all groups, or a dict of options by group.
    """
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"actor_options={given!r} must be a dict of Ray's options, such as {{'num_cpus': 1}}, or a dict of such "
            "dicts by group"
        )
    apart = bool(given) and all(name in groups and isinstance(each, Mapping) for name, each in (given or {}).items())
    if apart and given is not None and "resources" not in given and "runtime_env" not in given:
        found = {name: dict(given.get(name, {})) for name in groups}
    else:
        found = {name: dict(given or {}) for name in groups}
    for name, options in found.items():
        _check_options(options, f"actor_options= has {options!r} for group {name!r}, which Ray does not accept")
    return found


def _check_options(options: dict[str, Any], text: str, remedy: str = "") -> None:
    """Raise ConfigError for options that Ray would refuse at the start of an actor.

    Args: The error begins with `text`, and ends with `remedy`.
    """
    if not options:
        return
    try:
        ray.remote(**options)(_Probe)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{text}: {error}{remedy}") from error
    gpus = options.get("num_gpus") or 0
    if gpus > 1 and gpus % 1:
        raise ConfigError(f"{text}: num_gpus={gpus:g} is above 1, so it must be a whole number")


class _Probe:
    """An actor class by which Ray checks options. No actor of it is started."""


def _options(
    name: str,
    placement: GroupPlacement,
    given: dict[str, Any],
    nodes: Collection[Mapping[str, Any]],
) -> dict[str, Any]:
    where: str | Mapping[str, float] = placement if isinstance(placement, str) else placement.get(name, "spread")
    if isinstance(where, Mapping):
        given = _with_resources(given, where)
        text = f"placement= has {dict(where)!r} for group {name!r}, which Ray does not accept"
        _check_options(given, text, "; write a number for each resource, such as {'GPU': 1}")
        where = "spread"
    elif where not in _WORDS:
        if twice := [option for option in _OWN if option in given]:
            raise ConfigError(
                f"group {name!r} has node {where!r} by placement=, and {twice[0]} by actor_options=: leave out one of "
                "them"
            )
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(_node(name, where, nodes), soft=False)} | given
    # If this process runs in a placement group of Ray that captures its children, the groups stay in that placement
    # group.
    if len(nodes) < 2 or any(option in given for option in _OWN) or ray.util.get_current_placement_group() is not None:
        return given
    if where == "spread":
        strategy: Any = "SPREAD"
    else:
        strategy = NodeAffinitySchedulingStrategy(context().get_node_id(), soft=True, _spill_on_unavailable=True)
    return ({} if any(_resources(given).values()) else _LEAST) | {"scheduling_strategy": strategy} | given


def _with_resources(given: dict[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options `given`, extended by requests for the resources `wanted`."""
    named = {of: option for option, of in _ASKED.items()}
    found = given | {named[what]: amount for what, amount in wanted.items() if what in named}
    own = {what: amount for what, amount in wanted.items() if what not in named}
    return found | ({"resources": dict(given.get("resources") or {}) | own} if own else {})


def _resources(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources that an actor with some options requests of its node."""
    asked = {of: options.get(option) or 0 for option, of in _ASKED.items()} | dict(options.get("resources") or {})
    return {what: amount for what, amount in asked.items() if amount}


def _node(group: str, where: str, nodes: Collection[Mapping[str, Any]]) -> str:
    """Return the id of the node that `where` gives as an id, a name, a host name or an address."""
    found = [
        node["NodeID"]
        for node in nodes
        if where in {node["NodeID"], node.get("NodeName"), node["NodeManagerHostname"], node["NodeManagerAddress"]}
    ]
    if len(found) == 1:
        return str(found[0])
    there = ", ".join(f"{node['NodeManagerHostname']} ({node['NodeID']})" for node in nodes)
    several = "several nodes" if found else "no node"
    raise ConfigError(
        f"placement= has {where!r} for group {group!r}, which names {several} of the cluster. Write the host name, the "
        f"address or the id of one node. The nodes are: {there}"
    )
