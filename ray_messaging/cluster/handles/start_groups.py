"""Start groups: each actor without waiting for it, then wait for all of them."""

from typing import Any, NamedTuple

import ray

from ray_messaging.cluster.actors.group_actor import GroupActor
from ray_messaging.cluster.handles.actor_calls import result
from ray_messaging.cluster.lifecycle import ACTOR, remote
from ray_messaging.cluster.spec import Experiment
from ray_messaging.errors import AlreadyExists
from ray_messaging.model.id_column import IdColumn


class Starting(NamedTuple):
    """A group that starts: its actor, and the call that opens its mailbox."""

    name: str
    actor: Any
    opened: Any  # an ObjectRef


def start_group(
    experiment: Experiment, name: str, agents: IdColumn, subtopics: tuple[str, ...], options: dict[str, Any]
) -> Starting:
    """Start a group's actor, and have it listen; raise AlreadyExists where its name is taken."""
    named: dict[str, Any] = ACTOR | {"max_restarts": -1, "name": experiment.group_name(name)} | options
    try:
        actor = remote(GroupActor, named).remote(experiment, name)
        return Starting(name, actor, actor.open.remote(agents, subtopics))  # on Ray Client this one tells of the name
    except ValueError as error:
        raise AlreadyExists(
            f"experiment {experiment.exp_id!r} has a group {name!r} already: choose another name, or use "
            f"messaging.group({name!r})",
            kind="group",
            value=name,
            owner=None,
        ) from error


def wait_started(starting: list[Starting]) -> None:
    """Wait until groups listen; raise why the first one that cannot does not."""
    for each in starting:
        result(each.opened, what=f"group {each.name!r}")


def end_started(starting: list[Starting]) -> list[str]:
    """End groups whose start is given up, at whatever point they are; return their names."""
    for each in starting:
        ray.kill(each.actor)
    ray.wait([each.opened for each in starting], num_returns=len(starting)) if starting else None
    return [each.name for each in starting]
