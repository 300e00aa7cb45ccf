"""Sets of agents and of channels, stored as int64 columns: a million agents do not need a million Python objects."""

from collections import Counter
from collections.abc import Collection, ItemsView, Iterable, Iterator, Mapping, Set
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, build_channel, parse_channel
from ray_messaging.errors import InvalidAddress
from ray_messaging.model.columns import INT, STR, IdColumn

_SHOWN = 5  # how many agents a repr names
_PIECE = 65_536  # an iteration turns this many ids at a time into Python objects


def column_of(agents: Iterable[AgentId] | IdColumn, *, once: bool = False) -> IdColumn:
    """Return ids as a column without repetitions, in the given order; raise InvalidAddress for the first invalid id.

    Args: With `once`, an id that comes twice is invalid too.
    """
    if isinstance(agents, AgentSet):
        return agents.column
    ids = agents if isinstance(agents, IdColumn) else _column(agents)
    found = _distinct(ids)
    if once and len(found) < len(ids):
        twice = next(agent for agent, count in Counter(ids.tolist()).items() if count > 1)
        raise InvalidAddress(f"agent {twice!r} comes twice in agents: give each agent once", value=twice)
    return found


def _distinct(ids: IdColumn) -> IdColumn:
    if ids.kinds is not None:
        return IdColumn.of([*dict.fromkeys(ids.tolist())])
    if bool((ids.values[1:] > ids.values[:-1]).all()):
        return ids
    found, first = np.unique(ids.values, return_index=True)
    return ids if len(found) == len(ids) else ids.take(np.sort(first))


def check_agents(agents: object) -> None:
    """Raise InvalidAddress unless `agents` is a collection of ids.

    A mapping is refused, because its values would be lost.
    """
    if isinstance(agents, str | bytes) or not hasattr(agents, "__iter__"):
        raise InvalidAddress(f"agents must be a list, range or array of ids, not {agents!r}", value=agents)
    # The nodes of a networkx graph are a Mapping, but also a Set, so they are accepted.
    if isinstance(agents, Mapping) and not isinstance(agents, Set):
        raise InvalidAddress(
            f"agents are a {type(agents).__name__}, whose values would be lost: pass its keys, as a list", value=agents
        )
    if isinstance(agents, ItemsView):
        raise InvalidAddress(
            "agents are the items of a dict, whose values would also become ids: pass the dict's keys", value=None
        )
    if isinstance(agents, enumerate):
        raise InvalidAddress(
            "agents are an enumerate object, whose pairs would become ids: pass only the ids", value=None
        )
    if hasattr(agents, "itertuples"):
        raise InvalidAddress("agents are a DataFrame: pass its index, or the column of their ids", value=None)


def _column(agents: Iterable[AgentId]) -> IdColumn:
    check_agents(agents)
    if isinstance(agents, np.ndarray):
        return IdColumn.checked(agents)
    listed = agents if isinstance(agents, range | list | tuple) else [*agents]
    if isinstance(listed, range) or set(map(type, listed)) == {int}:
        try:
            return IdColumn(np.fromiter(listed, np.int64, len(listed)))
        except OverflowError:
            pass  # some id does not fit int64; the call below raises an error that names the id
    return IdColumn.checked(listed)


def ascending(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return values sorted and without repetitions; an input that is both already is returned unchanged."""
    if not bool((values[1:] > values[:-1]).all()):
        # A stable sort is fast here, because it merges stretches of values that are sorted already.
        values = np.sort(values, kind="stable")
        values = values[np.append(True, values[1:] != values[:-1])]
    return values


def int_places(ints: NDArray[np.int64], ids: IdColumn) -> NDArray[np.intp]:
    """Return the index of each id in an array of ascending ints, or -1 if the array does not contain the id."""
    if not len(ints):
        return np.full(len(ids), -1, np.intp)
    values, low, high = ids.values, int(ints[0]), int(ints[-1])
    if high - low == len(ints) - 1:  # the ints are consecutive, so an id's index is a difference
        found = values - low
        missing = (values < low) | (values > high)
    else:
        found = np.searchsorted(ints, values)
        np.minimum(found, len(ints) - 1, out=found)
        missing = ints[found] != values
    if ids.kinds is not None:
        missing |= ids.kinds != INT
    found[missing] = -1
    return found


class AgentSet(Collection[AgentId]):
    """Set of agents.

    `ints` are the int ids, ascending int64 (n,), and `strings` the str ids. Iteration yields the ints first.
    """

    __slots__ = ("ints", "strings")

    def __init__(self, ints: NDArray[np.int64], strings: Iterable[str] = ()) -> None:
        self.ints = ascending(ints)
        self.strings = frozenset(strings)

    @classmethod
    def of(cls, agents: Iterable[AgentId] | IdColumn) -> "AgentSet":
        """Build a set from ids; raise InvalidAddress for the first invalid id."""
        if isinstance(agents, AgentSet):
            return agents
        ids = column_of(agents)
        if ids.kinds is None:
            return cls(ids.values)
        used = np.unique(ids.values[ids.kinds == STR])
        return cls(ids.values[ids.kinds == INT], [ids.strings[place] for place in used.tolist()])

    @property
    def column(self) -> IdColumn:
        """Return the agents as a column, in the order of iteration."""
        return IdColumn(self.ints) if not self.strings else IdColumn.of([*self])

    def __repr__(self) -> str:
        first = [*islice(self, _SHOWN)]
        return f"AgentSet({len(self):,} agents: {', '.join(map(repr, first))}{', ...' if len(self) > _SHOWN else ''})"

    def __len__(self) -> int:
        return len(self.ints) + len(self.strings)

    def __iter__(self) -> Iterator[AgentId]:
        for low in range(0, len(self.ints), _PIECE):
            yield from self.ints[low : low + _PIECE].tolist()
        yield from sorted(self.strings)

    def __contains__(self, agent_id: object) -> bool:
        if isinstance(agent_id, str):
            return agent_id in self.strings
        place = int(np.searchsorted(self.ints, agent_id)) if isinstance(agent_id, int) else len(self.ints)
        return place < len(self.ints) and bool(self.ints[place] == agent_id)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        same = isinstance(other, AgentSet) and self.strings == other.strings
        return same and np.array_equal(self.ints, other.ints)  # type: ignore[attr-defined]  # an AgentSet's

    def __hash__(self) -> int:
        return hash((self.ints.tobytes(), self.strings))

    def __or__(self, other: "AgentSet") -> "AgentSet":
        if not len(self) or not len(other):
            return self if len(self) else other
        return AgentSet(np.concatenate((self.ints, other.ints)), self.strings | other.strings)

    def __and__(self, other: "AgentSet") -> "AgentSet":
        return AgentSet(self.ints[other.find(IdColumn(self.ints))], self.strings & other.strings)

    def __sub__(self, other: "AgentSet") -> "AgentSet":
        return AgentSet(self.ints[~other.find(IdColumn(self.ints))], self.strings - other.strings)

    def find(self, ids: IdColumn) -> NDArray[np.bool_]:
        """Return for each id whether it is one of these agents, bool (n,)."""
        found: NDArray[np.bool_] = int_places(self.ints, ids) >= 0
        if ids.kinds is not None:
            named = ids.kinds == STR
            found[named] = np.array([name in self.strings for name in ids.strings], np.bool_)[ids.values[named]]
        return found


NO_AGENTS = AgentSet(np.zeros(0, np.int64))


class ChannelSet(Collection[str]):
    """Set of channels.

    Channels of agents are stored as a set of agents for each subtopic, and only other channels as text.
    """

    __slots__ = ("_agents", "_exp_id", "plain")

    def __init__(self, exp_id: str, agents: Mapping[str, AgentSet], plain: Iterable[str] = ()) -> None:
        self._exp_id = exp_id
        self._agents = dict(agents)
        self.plain = dict.fromkeys(plain)

    def __len__(self) -> int:
        return len(self.plain) + sum(map(len, self._agents.values()))

    def __iter__(self) -> Iterator[str]:
        yield from self.plain
        for subtopic, agents in self._agents.items():
            for agent_id in agents:
                yield build_channel(self._exp_id, agent_id, subtopic)

    def __contains__(self, channel: object) -> bool:
        if channel in self.plain:
            return True
        try:
            agent_id, subtopic = parse_channel(self._exp_id, channel)
        except InvalidAddress:  # a foreign client's channel may look like an agent's channel and have an invalid id
            return False
        # An id has one canonical spelling. A channel that spells the id in another way, such as 007 for 7, is not the
        # agent's.
        known = agent_id is not None and agent_id in self._agents.get(subtopic, NO_AGENTS)
        return known and build_channel(self._exp_id, agent_id, subtopic) == channel
