"""Moves of agents between the groups of an experiment."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ray_messaging.addressing.channels import AgentId, check_name
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.handles.group.group import Group
from ray_messaging.cluster.handles.groups import Groups
from ray_messaging.errors import AlreadyExists, ConfigError, UnknownName
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.receiving.call_checks import check_timeout

_TOLERANCE = 0.1  # a group whose load differs from the mean by at most this share of the mean stays as it is


class AgentMove(NamedTuple):
    """Agents that move together from one group to another."""

    agents: AgentSet
    source: str
    target: str

    def __repr__(self) -> str:
        return f"AgentMove({len(self.agents):,} agents, {self.source!r} -> {self.target!r})"


def move_agents(
    connection: ExperimentConnection, groups: Groups, agents: Iterable[AgentId], to: str | Group, timeout: float
) -> None:
    """Move agents to a group. The agents of one group move together, or none of them moves."""
    target = to.name if isinstance(to, Group) else check_name("group name", to)
    check_timeout(timeout, optional=False)
    hosted = connection.ask(connection.interceptor.agents.remote())
    _carry_out(connection, groups, plan_move(AgentSet.of(agents), target, hosted), timeout)


def rebalance(connection: ExperimentConnection, groups: Groups, timeout: float, *, dry_run: bool) -> list[AgentMove]:
    """Move agents from groups with a high load to groups with a low load; return the moves."""
    check_timeout(timeout, optional=False)
    agents, fetched = connection.ask(connection.interceptor.agents.remote()), {}
    # In an experiment with steps, groups fetch no messages, so the load of a group is its number of agents. Then groups
    # in users' own actors are considered, too.
    if not connection.experiment.steps:
        ours = [group for group in groups.all() if group.name in agents]
        agents = {group.name: agents[group.name] for group in ours}
        fetched = {group.name: float(group.stats()["fetched"]) for group in ours}
    moves = plan_balance(agents, fetched)
    if not dry_run:
        _carry_out(connection, groups, moves, timeout)
    return moves


def _carry_out(connection: ExperimentConnection, groups: Groups, moves: Iterable[AgentMove], timeout: float) -> None:
    if connection.experiment.steps:  # the interceptor moves agents between steps, without the groups' processes
        for move in moves:
            connection.ask(connection.interceptor.move.remote(*move, timeout))
        return
    sources = [(_source(groups, move), move) for move in moves]
    for group, move in sources:
        group.move_agents(move.agents, to=move.target, timeout=timeout)


def _source(groups: Groups, move: AgentMove) -> Group:
    try:
        return groups.find(move.source)
    except UnknownName as error:
        raise ConfigError(
            f"group {move.source!r} lives in an actor of yours, and only that actor can move its agents: call "
            f"`await messager.move_agents(ids, to={move.target!r})` in that actor"
        ) from error


def plan_move(asked: AgentSet, target: str, hosted: Mapping[str, AgentSet]) -> list[AgentMove]:
    """Return the moves of agents to a group, one for each group that they leave.

    Raises: UnknownName if the group does not exist, or if one of the agents is in no group; AlreadyExists if an agent
    is already in the group.
    """
    if target not in hosted:
        raise UnknownName(
            f"there is no group {target!r} to move to: the groups are {', '.join(hosted) or 'none'}",
            kind="group",
            value=target,
        )
    there = asked & hosted[target]
    if there:
        agent = next(iter(there))
        raise AlreadyExists(
            f"agent {agent!r} is in group {target!r} already: leave this agent out",
            kind="agent",
            value=agent,
            owner=target,
        )
    moves = [AgentMove(asked & agents, name, target) for name, agents in hosted.items() if asked & agents]
    left = asked
    for move in moves:
        left -= move.agents
    if left:
        agent = next(iter(left))
        raise UnknownName(
            f"no group hosts agent {agent!r}, so nothing was moved: leave this agent out", kind="agent", value=agent
        )
    return moves


def plan_balance(hosted: Mapping[str, AgentSet], fetched: Mapping[str, float]) -> list[AgentMove]:
    """Return the moves after which the groups have about the same load.

    The load of a group is the number of messages that it has fetched, or if no group has fetched any, the number of its
    agents. All agents of a group are assumed to have the same load.
    """
    loads = fetched if any(fetched.values()) else {name: float(len(agents)) for name, agents in hosted.items()}
    if len(hosted) < 2:
        return []
    mean = sum(loads.values()) / len(loads)
    missing = {name: mean - load for name, load in loads.items() if load < mean * (1 - _TOLERANCE)}
    moves: list[AgentMove] = []
    for source in sorted(loads, key=lambda name: (-loads[name], name)):
        excess, left = loads[source] - mean, hosted[source]
        if excess <= mean * _TOLERANCE or not left:
            continue
        each = loads[source] / len(left)
        for target in sorted(missing, key=lambda name: (-missing[name], name)):
            count = min(int(min(excess, missing[target]) / each), len(left) - 1)
            if count > 0:
                chosen = AgentSet.of([*left][-count:])
                moves.append(AgentMove(chosen, source, target))
                left -= chosen
                excess -= count * each
                missing[target] -= count * each
    return moves
