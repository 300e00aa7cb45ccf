"""The checks of a run's arguments, and the plan of a run: the agents of each group, their data and their neighbours."""

import inspect
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import deepcopy
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, check_id, check_name
from ray_messaging.cluster.run.kinds import (
    KIND,
    Kinds,
    among,
    check_kinds,
    comes_twice,
    functions_in,
    kinds_of,
    plain_ids,
)
from ray_messaging.common.awaitables import call_problem, is_async
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.collect import aggregates_of, check_chosen, check_collect, chosen_agents
from ray_messaging.model.edge_pairs import edge_pairs
from ray_messaging.receiving.call_checks import check_timeout

# For each agent its data and its neighbours. The dict is empty if the run has neither data nor a graph.
Rows = dict[AgentId, tuple[Mapping[str, Any], Sequence[AgentId]]]


_FIXED = frozenset((type(None), bool, int, float, str, bytes))  # common types of values that cannot be changed


class RunOptions(NamedTuple):
    """Arguments of a run that say how its model is called and what is collected. `Messaging.run` describes them."""

    start: Any
    by: str
    concurrency: int
    timeout: float | None
    collect: Any = None
    collect_every: int = 1
    only_active: bool = False


class Reached(NamedTuple):
    """Those agents of a group to which agents of other groups have edges.

    `senders` maps each such agent to the agents of other groups that have an edge to it. `everybody` is the number of
    agents in all groups.
    """

    senders: Mapping[AgentId, Sequence[AgentId]]
    everybody: int


class Neighbours(NamedTuple):
    """The agents to which each agent has edges in a graph, as {agent: other agents}.

    Several runs may share this object, because a model gets only its tuples, which cannot be changed.
    """

    of: Mapping[AgentId, tuple[AgentId, ...]]


class GroupPlan(NamedTuple):
    """The plan of one group of a run: its agents in ascending order, and their data and neighbours.

    `kinds` maps each kind of agents to the group's agents of that kind. It is empty if the run has one model for all
    agents. `reached` has those agents of the group to which agents of other groups have edges (None: no agent runs in
    a later step ahead of time, so nobody needs to know them).
    """

    name: str
    agents: AgentSet
    rows: Rows
    kinds: Kinds
    reached: Reached | None = None


def plan_groups(
    agents: object,
    groups: object,
    graph: object,
    cpus: int,
    *,
    model: object = None,
    by: str = "agent",
    near: bool = False,
) -> list[GroupPlan]:
    """Return the groups of a run. Arguments and errors are those of `Messaging.run`.

    With `near`, neighbours in the graph come into the same group as far as possible, unless the user has given the
    groups. With `near` and a graph, each group has `reached`, which says to which of its agents the agents of other
    groups may send.

    Args: `cpus` is the number of processors. If `groups` is None, there is one group for every two processors.
    """
    kinds = kinds_of(agents, model) if isinstance(model, Mapping) else {}
    if kinds and isinstance(agents, Mapping) and not isinstance(agents, Set):
        agents = reduce(or_, kinds.values())
    # The nodes of a networkx graph are a Mapping and also a Set. They are valid ids.
    if isinstance(agents, Mapping) and not isinstance(agents, Set):
        raise ConfigError(
            f"agents are a {type(agents).__name__}, whose values would be lost: pass only the keys, as a list. To give "
            "each agent values, which the model reads as me.data, pass a DataFrame with the ids as its index. If the "
            "keys are kinds of agents, give each kind its model: "
            "run({'trader': trader, 'book': book}, agents={'trader': range(1000), 'book': ['book']}, ...)"
        )
    frame: Any = agents if hasattr(agents, "itertuples") and hasattr(agents, "index") else None
    if frame is not None and not frame.columns.is_unique:
        raise ConfigError(f"two columns of agents= have the same name, among {[*frame.columns]}: rename one")
    if kinds and by == "group":
        named = _groups_of_kinds(kinds, groups, cpus)
    else:
        named = _named_groups(agents if frame is None else frame.index, groups, cpus)
    data = {} if frame is None else dict(zip(map(check_id, plain_ids(frame.index)), _records(frame), strict=True))
    neighbours = None if graph is None else neighbours_in(graph).of
    if neighbours is not None:
        _check_neighbours(neighbours, named.values())
        if near and len(named) > 1 and not isinstance(groups, Mapping):
            named = _dealt_by_graph(named, neighbours)
    plans = [GroupPlan(name, hosted := AgentSet.of(ids), {}, among(hosted, kinds)) for name, ids in named.items()]
    hearers = {} if neighbours is None else neighbours
    for plan in plans if frame is not None or neighbours is not None else ():
        plan.rows.update({agent: (data.get(agent, {}), hearers.get(agent, ())) for agent in plan.agents})
    return _that_look_ahead(plans) if near and neighbours is not None else plans


def check_run(model: object, options: RunOptions) -> None:
    """Raise ConfigError if an argument of a run is invalid."""
    if options.by not in {"agent", "group"}:
        raise ConfigError(f"by={options.by!r} is unknown: write 'agent' or 'group'")
    written = "def person(me, inbox)" if options.by == "agent" else "def crowd(group, step)"
    check_kinds(model, options.start)
    for name, each in functions_in("model", model):
        _check_model(name, each, written)
        if options.by == "group" and is_async(each):
            raise ConfigError('with by="group" the model is a plain function, not an async one: def crowd(group, step)')
    check_collect(options.collect, options.collect_every)
    for name, each in [] if options.start is None else functions_in("start", options.start):
        _check_start(name, each)
    if type(options.concurrency) is not int or options.concurrency < 1:
        raise ConfigError(f"concurrency={options.concurrency!r} must be a whole number, at least 1")
    check_timeout(options.timeout, positive=True)
    living = any(each.living for each in aggregates_of(options.collect)) or None
    for name, given in (("timeout", options.timeout), ("only_active", options.only_active or None), ("living", living)):
        if given is not None and options.by == "group":
            raise ConfigError(
                f'{name}={given!r} is only for models that are called for each agent, and by="group" calls the model '
                "for each group: leave it out"
            )


def _check_model(name: str, model: Any, written: str) -> None:  # noqa: ANN401 - what a user passed
    if not callable(model) or inspect.isclass(model):
        raise ConfigError(f"{name}={model!r} must be a function: {written}")
    if problem := call_problem(model, 2):
        raise ConfigError(f"{name}={model!r} must take two arguments, {written}, but {problem}")


def _check_start(name: str, start: Any) -> None:  # noqa: ANN401 - what a user passed
    if not callable(start) or is_async(start):
        why = ", but it is async" if callable(start) else ""
        raise ConfigError(
            f"{name}={start!r} must be a plain function that returns a dict, such as lambda me: {{}}{why}"
        )
    if problem := call_problem(start, 1):
        raise ConfigError(f"{name}={start!r} must take one argument, such as lambda me: {{}}, but {problem}")


def plans_for(
    options: RunOptions,
    agents: object,
    groups: object,
    graph: object,
    cpus: int,
    model: object = None,
    *,
    near: bool = False,
) -> list[GroupPlan]:
    """Return the groups of a run; raise ConfigError for arguments that are invalid, or cannot be used with by="group".

    Args: `model` is the run's model. If it is a dict, its keys are the kinds of agents. With `near`, neighbours in the
    graph come into the same group as far as possible.
    """
    plans = plan_groups(agents, groups, graph, cpus, model=model, by=options.by, near=near)
    if chosen_agents(options.collect):
        check_chosen(options.collect, reduce(or_, (plan.agents for plan in plans)))
    if options.by == "group" and isinstance(model, Mapping):
        for plan in plans:
            if all(data.keys() <= {KIND} for data, _ in plan.rows.values()):
                plan.rows.clear()
    if options.by == "group" and (graph is not None or any(plan.rows for plan in plans)):
        raise ConfigError('with by="group" the model gets neither a graph nor data of agents: pass both in shared=')
    return plans


def _records(frame: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a DataFrame
    """Return the rows of a DataFrame as dicts. Objects that can be changed, such as lists, are copied for each row."""
    records: list[dict[str, Any]] = frame.to_dict("records")
    for name in (name for name, dtype in frame.dtypes.items() if dtype.kind == "O"):
        if {type(record[name]) for record in records} <= _FIXED:
            continue
        for record in records:
            try:
                record[name] = deepcopy(record[name])
            except Exception as error:  # the object's own code may raise any error
                raise ConfigError(
                    f"column {name!r} of agents has {short_repr(record[name])}, which cannot be copied "
                    f"({type(error).__name__}: {error}), but each agent needs a copy of its own: pass that object in "
                    "shared="
                ) from error
    return records


def changeable(rows: Rows) -> list[Any]:
    """Return the values in the agents' data that a model can change, such as lists.

    To save time, the result is [] if the first agent has no such value, even if others have some.
    """
    kinds = {type(value) for data, _ in [*rows.values()][:1] for value in data.values()}
    if kinds <= _FIXED:
        return []
    return [value for data, _ in rows.values() for value in data.values() if type(value) not in _FIXED]


def _that_look_ahead(plans: Sequence[GroupPlan]) -> list[GroupPlan]:
    """Return the plans with `reached`: those agents of each group to which agents of other groups may send.

    The look-ahead, which lets agents run in later steps ahead of time, needs this.
    """
    senders: list[dict[AgentId, list[AgentId]]] = [{} for _ in plans]
    owners = {agent: number for number, plan in enumerate(plans) for agent in plan.agents} if len(plans) > 1 else {}
    for number, plan in enumerate(plans if owners else ()):
        for agent, (_, neighbours) in plan.rows.items():
            for other in neighbours:
                if (owner := owners[other]) != number:
                    senders[owner].setdefault(other, []).append(agent)
    everybody = sum(len(plan.agents) for plan in plans)
    return [plan._replace(reached=Reached(found, everybody)) for plan, found in zip(plans, senders, strict=True)]


def _dealt_by_graph(
    named: Mapping[str, Iterable[AgentId]], neighbours: Mapping[AgentId, Sequence[AgentId]]
) -> dict[str, Iterable[AgentId]]:
    """Return groups with the names and sizes of those in `named`, but with neighbours in the same group where possible.

    For this, agents are assigned to the groups in the order of a walk along the graph's edges.
    """
    both: dict[AgentId, list[AgentId]] = {}
    for sender, hearers in neighbours.items():
        for hearer in hearers:
            both.setdefault(sender, []).append(hearer)
            both.setdefault(hearer, []).append(sender)
    sets = {name: AgentSet.of(ids) for name, ids in named.items()}
    reached: dict[AgentId, None] = {}
    for first in reduce(or_, sets.values()):
        if first not in reached:
            reached[first] = None
            walk = deque([first])
            while walk:
                for other in both.get(walk.popleft(), ()):
                    if other not in reached:
                        reached[other] = None
                        walk.append(other)
    walked = iter(reached)
    return {name: [*islice(walked, len(ids))] for name, ids in sets.items()}


def senders_of(plans: Sequence[GroupPlan]) -> dict[str, set[str]]:
    """Return, for each group, the names of the groups that have an agent with an edge to an agent of this group."""
    owners = {agent: plan.name for plan in plans for agent in plan.agents}
    found: dict[str, set[str]] = {plan.name: set() for plan in plans}
    for plan in plans:
        for owner in {owners.get(agent) for _, neighbours in plan.rows.values() for agent in neighbours} - {None}:
            found[str(owner)].add(plan.name)
    return found


def _named_groups(agents: object, groups: object, cpus: int) -> dict[str, Iterable[AgentId]]:
    if isinstance(agents, bool) or agents is None or isinstance(agents, str | bytes | float):
        raise ConfigError(f"agents={agents!r} must be a number of agents, their ids, or a DataFrame")
    ids = range(agents) if isinstance(agents, int | np.integer) else plain_ids(agents)
    ids = ids if hasattr(ids, "__len__") else [*ids]
    everybody = AgentSet.of(ids)
    if not len(everybody):
        raise ConfigError("agents= is empty: a run needs at least one agent")
    if len(everybody) < len(ids):
        raise comes_twice(ids)
    if isinstance(groups, Mapping):
        return _given_groups(everybody, groups)
    count = min(_group_count(groups, cpus), len(everybody))
    return {f"group{number}": dealt for number, dealt in enumerate(_dealt_out(everybody, count))}


def _groups_of_kinds(kinds: Kinds, groups: object, cpus: int) -> dict[str, Iterable[AgentId]]:
    """Return groups that each have agents of only one kind. Each kind has at least one group."""
    if isinstance(groups, Mapping):
        named = _given_groups(reduce(or_, kinds.values()), groups)
        for name, ids in named.items():
            if len(found := among(AgentSet.of(ids), kinds)) > 1:
                one, other = [*found][:2]
                raise ConfigError(
                    f"groups[{name!r}] has agents of two kinds, {one!r} and {other!r}: agent "
                    f"{next(iter(found[one]))!r} has the first kind, and agent {next(iter(found[other]))!r} the "
                    "second. With by='group' all agents of a group must be of one kind, so put them into two groups"
                )
        return named
    counts = dict.fromkeys(kinds, 1)
    for _ in range(min(_group_count(groups, cpus), len(reduce(or_, kinds.values()))) - len(kinds)):
        counts[max(kinds, key=lambda kind: len(kinds[kind]) / counts[kind])] += 1
    dealt = [ids for kind, agents in kinds.items() for ids in _dealt_out(agents, counts[kind])]
    return {f"group{number}": ids for number, ids in enumerate(dealt)}


def _group_count(groups: object, cpus: int) -> int:
    """Return the number of groups of a run: `groups`, or, if that is None, half of `cpus`, but at least 1.

    Raises: ConfigError if `groups` is neither None nor a whole number of at least 1.
    """
    count = groups if groups is not None else max(1, cpus // 2)
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ConfigError(f"groups={groups!r} must be a number of groups, or {{name: ids}}")
    return int(count)


def _dealt_out(agents: AgentSet, count: int) -> list[Iterable[AgentId]]:
    """Assign sorted agents in turn to `count` groups; return the agents of each group."""
    listed: Any = list(agents) if agents.strings else agents.ints
    return [listed[number::count] for number in range(count)]


def _given_groups(everybody: AgentSet, groups: Mapping[Any, Any]) -> dict[str, Iterable[AgentId]]:
    found = {check_name("group", name): AgentSet.of(plain_ids(ids)) for name, ids in groups.items()}
    hosted, total = AgentSet.of([]), 0
    for ids in found.values():
        hosted, total = hosted | ids, total + len(ids)
    for kind, left in (("in no group", everybody - hosted), ("in groups=, but not in agents=", hosted - everybody)):
        if len(left):
            raise ConfigError(
                f"{len(left):,} agents are {kind}, such as {next(iter(left))!r}: groups= must have each agent of "
                "agents=, and no others"
            )
    if total > len(everybody):
        raise ConfigError("groups= has some agents in two groups: put each agent into one group")
    return dict(found)


def neighbours_in(graph: Any) -> Neighbours:  # noqa: ANN401 - edges of any kind, or the result of an earlier call
    """Return, for each agent, the agents to which it has edges, each only once, in the order of the edges."""
    if isinstance(graph, Neighbours):
        return graph
    if isinstance(graph, Mapping):
        raise ConfigError(f"graph is a {type(graph).__name__}: pass pairs of sender and hearer, or a networkx graph")
    if isinstance(graph, str):
        raise ConfigError(f"graph={graph!r} names an audience, which only messaging.run can look up: pass the edges")
    edges = edge_pairs(graph)
    ints = isinstance(edges, np.ndarray) and edges.dtype.kind in "iu" and edges.dtype != np.uint64
    if ints and edges.shape[1:] == (2,) and len(edges):
        return Neighbours(_neighbours_of_ints(edges))
    pairs = edges.tolist() if isinstance(edges, np.ndarray) else [*edges]
    found: dict[AgentId, dict[AgentId, None]] = {}
    for pair in pairs:
        try:
            one, other = [pair] if isinstance(pair, str | bytes) else pair
        except (TypeError, ValueError):
            raise ConfigError(
                f"graph has {pair!r}, which is not an edge: an edge is a pair of sender and hearer, such as (0, 1)"
            ) from None
        found.setdefault(check_id(one), {})[check_id(other)] = None
    return Neighbours({agent: tuple(others) for agent, others in found.items()})


def _neighbours_of_ints(edges: NDArray[np.integer[Any]]) -> dict[AgentId, tuple[AgentId, ...]]:
    """Find the same neighbours as `neighbours_in`, for edges in an array of ints (m, 2), in a fifth of the time."""
    order = np.argsort(edges[:, 0], kind="stable")
    senders, hearers = edges[order, 0], edges[order, 1].tolist()
    firsts = np.flatnonzero(np.diff(senders, prepend=senders[:1] - 1))
    ends = [*firsts[1:].tolist(), len(hearers)]
    spans = zip(senders[firsts].tolist(), firsts.tolist(), ends, strict=True)
    # If the hearers of each sender ascend, as in an array that `np.unique` has made, no edge comes twice.
    if np.all((edges[order[1:], 1] > edges[order[:-1], 1]) | (senders[1:] != senders[:-1])):
        return {sender: tuple(hearers[low:high]) for sender, low, high in spans}
    return {sender: tuple(dict.fromkeys(hearers[low:high])) for sender, low, high in spans}


def _check_neighbours(neighbours: Mapping[AgentId, Sequence[AgentId]], groups: Iterable[Iterable[AgentId]]) -> None:
    """Raise ConfigError if an edge begins or ends at an id that no agent of the run has."""
    ends = AgentSet.of({*neighbours}.union(*neighbours.values()))
    for hosted in groups:
        ends -= AgentSet.of(hosted)
    if len(ends):
        raise ConfigError(
            f"graph has edges of {len(ends):,} ids that are not agents of this run, such as {next(iter(ends))!r}: "
            "pass agents= with all ids of the graph. The ids of grid(rows, cols) are the numbers below rows * cols"
        )


class Homes:
    """Loader of the data and neighbours of agents that have come to a group from other groups.

    When the first such agent has come, the data and neighbours of all groups' agents are added to the group's plan.

    Args: `plan` is the plan of the group. `others` has, by group, an awaitable of the group's plan, for all groups.
    """

    def __init__(self, plan: GroupPlan, others: Mapping[str, Any]) -> None:
        self._plan = plan
        self._others = others
        self._loaded = False
        self._seen: AgentSet = plan.agents  # the agents of the last call of `prepare`

    async def prepare(self, agents: AgentSet) -> None:
        """Load the data and neighbours of all groups' agents if some of `agents` began in other groups."""
        if agents is self._seen:
            return
        if not self._loaded and len(agents - self._plan.agents):
            for reference in self._others.values():
                other: GroupPlan = await reference
                self._plan.rows.update(other.rows)
                for kind, agents_of in other.kinds.items():
                    self._plan.kinds[kind] = self._plan.kinds.get(kind, NO_AGENTS) | agents_of
            self._loaded = True
        self._seen = agents
