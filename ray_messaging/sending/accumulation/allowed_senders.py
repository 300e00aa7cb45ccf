"""The agents that a strict messager sends for."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import UnknownSender
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.columns import INT, STR, IdColumn

_KEPT = 200_000  # ids in `known`: a set of all agents would take 64 bytes for each
_LEAST = -(2**63)


class AllowedSenders:
    """The agents of a group. `known` holds the int ids that were found among them, for fast look-ups."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.known: set[int] = set()
        self._agents = NO_AGENTS
        self._dense: NDArray[np.bool_] | None = None  # index: id - _before; None: the ids are too sparse
        self._before = 0

    def add(self, agents: AgentSet) -> None:
        """Allow these agents, too."""
        self._set(self._agents | agents)

    def remove(self, agents: AgentSet) -> None:
        """Allow these agents no longer."""
        self.known.clear()
        self._set(self._agents - agents)

    def _set(self, agents: AgentSet) -> None:
        self._agents, self._dense = agents, None
        ints = agents.ints
        if len(ints) and int(ints[0]) > _LEAST and int(ints[-1]) - int(ints[0]) <= 8 * len(ints) + 1024:
            self._before = int(ints[0]) - 1
            self._dense = np.zeros(int(ints[-1]) - self._before + 2, np.bool_)  # its two ends stand for all ids outside
            self._dense[ints - self._before] = True

    def check(self, from_id: AgentId | None) -> None:
        """Raise UnknownSender unless the agent is in the group; None is the user."""
        if from_id is None or from_id in self.known:
            return
        if from_id not in self._agents:
            raise self._unknown(from_id)
        if isinstance(from_id, int):
            if len(self.known) >= _KEPT:
                self.known.clear()
            self.known.add(from_id)

    def check_all(self, from_ids: Iterable[AgentId | None]) -> None:
        """Raise UnknownSender naming an agent that is not in the group."""
        for from_id in set(from_ids).difference(self.known):
            self.check(from_id)

    def check_column(self, from_ids: IdColumn) -> None:
        """Raise UnknownSender naming the first agent that is not in the group."""
        if from_ids.kinds is None and self._dense is None and self._contains(np.sort(from_ids.values)).all():
            return  # the search for sorted ids stays in the cache, and takes a third of the time
        ours = self._contains(from_ids.values)
        if from_ids.kinds is not None:
            strings = np.array([name in self._agents.strings for name in from_ids.strings], np.bool_)
            ours[from_ids.kinds != INT] = True
            named = np.flatnonzero(from_ids.kinds == STR)
            ours[named] = strings[from_ids.values[named]] if len(named) else True
        if not ours.all():
            raise self._unknown(from_ids[int(ours.argmin())])

    def _contains(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._dense is not None:
            # A difference that overflows 64 bits wraps round to an index outside, too.
            return self._dense.take(values - self._before, mode="clip")
        ints = self._agents.ints
        if not len(ints):
            return np.zeros(len(values), np.bool_)
        ours: NDArray[np.bool_] = ints[np.minimum(np.searchsorted(ints, values), len(ints) - 1)] == values
        return ours

    def _unknown(self, from_id: AgentId | None) -> UnknownSender:
        return UnknownSender(
            f"agent {from_id!r} is not one of group {self.group!r}, so nothing of this call was sent: send its "
            f"messages by its own group, messaging.group_of({from_id!r}); or let this group send for any agent: "
            "MessagingConfig(strict_senders=False)",
            value=from_id,
            group=self.group,
        )


def no_from_id(group: str) -> UnknownSender:
    """Build the error for a message without a from_id."""
    return UnknownSender(
        f"this message has no from_id, so nothing of this call was sent: name the agent of group {group!r} that sends "
        "it, or from_id=None for the user, as in Outgoing(channel, payload, from_id=None)",
        value=None,
        group=group,
    )
