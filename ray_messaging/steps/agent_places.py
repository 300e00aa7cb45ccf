"""The agents of a group in a fixed order, ints ascending, then strs. An agent's place is its index in this order."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet, int_places
from ray_messaging.model.columns import STR, IdColumn


class AgentPlaces(Sequence[AgentId]):
    """The agents of a group, ints ascending, then strs. An agent's place is its index in this sequence."""

    def __init__(self, agents: AgentSet) -> None:
        self.agents = agents
        self.column = agents.column
        self.ints = agents.ints
        self.strings = sorted(agents.strings)
        self._low, self._high = (int(self.ints[0]), int(self.ints[-1])) if len(self.ints) else (0, -1)
        # If the distances between successive ids are all equal, as in most groups, a place is computed from the id.
        self._distance = int(self.ints[1]) - self._low if len(self.ints) > 1 else 1
        self._even = bool((np.diff(self.ints) == self._distance).all())
        self._place_of = {name: place for place, name in enumerate(self.strings, len(self.ints))}

    def __len__(self) -> int:
        return len(self.ints) + len(self.strings)

    @overload
    def __getitem__(self, place: int) -> AgentId: ...
    @overload
    def __getitem__(self, place: slice) -> list[AgentId]: ...
    def __getitem__(self, place: int | slice) -> AgentId | list[AgentId]:
        """Return the agent at this place, or a list of the agents at a slice of places.

        An agent's place is its index in the group's order of agents.
        """
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        if place < 0:
            place += len(self)
        return int(self.ints[place]) if place < len(self.ints) else self.strings[place - len(self.ints)]

    def __iter__(self) -> Iterator[AgentId]:
        return chain(self.ints.tolist(), self.strings)

    def __reduce__(self) -> tuple[Any, ...]:
        return AgentPlaces, (AgentSet(self.ints, self.strings),)

    def place(self, agent: AgentId) -> int:
        """Return the place of an agent, its index in this sequence, or -1 if the agent is not in the group."""
        if self._even and type(agent) is int:
            if not self._low <= agent <= self._high:
                return -1
            place, between = agent - self._low, 0
            if self._distance != 1:
                place, between = divmod(place, self._distance)
            return -1 if between else place
        if isinstance(agent, str):
            return self._place_of.get(agent, -1)
        place = int(self.ints.searchsorted(agent))
        return place if place < len(self.ints) and self.ints[place] == agent else -1

    @cached_property
    def hashes(self) -> NDArray[np.uint64]:
        """Return a number for each agent, uint64 (n,): the id itself if it is an int, or the hash of a str id."""
        named = [int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little") for name in self.strings]
        return np.concatenate([self.ints.astype(np.uint64), np.array(named, np.uint64)])

    def find(self, column: IdColumn) -> NDArray[np.int64]:
        """Return the index of each id among the agents, int64 (n,), or -1 for an id that is not one of these agents."""
        found = int_places(self.ints, column)
        if column.kinds is not None:
            names = np.array([self._place_of.get(name, -1) for name in (*column.strings, "")], np.int64)
            named = column.kinds == STR
            found[named] = names[column.values[named]]
        return found


NO_PLACES = AgentPlaces(NO_AGENTS)
