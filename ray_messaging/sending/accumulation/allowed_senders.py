"""Whose messages a strict messager sends: those of the agents that it hosts, and the user's where that is said."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import UnknownSender
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.id_column import INT, STR, IdColumn

_KEPT = 200_000  # ids that were found to be ours: a set of all would take 64 bytes for each agent
_LEAST = -(2**63)


class AllowedSenders:
    """Know the agents of a group; `known` are int ids that were found among them, for a look-up by C alone."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.known: set[int] = set()
        self._agents = NO_AGENTS
        self._dense: NDArray[np.bool_] | None = None  # by id - _before, where the ids lie close together
        self._before = 0

    def add(self, agents: AgentSet) -> None:
        """Send for these agents, too."""
        self._agents |= agents
        ints = self._agents.ints
        self._dense = None
        if len(ints) and int(ints[0]) > _LEAST and int(ints[-1]) - int(ints[0]) <= 8 * len(ints) + 1024:
            self._before = int(ints[0]) - 1
            self._dense = np.zeros(int(ints[-1]) - self._before + 2, np.bool_)  # its two ends answer for all outside
            self._dense[ints - self._before] = True

    def check(self, from_id: AgentId | None) -> None:
        """Raise UnknownSender where an agent is not ours; None is the user."""
        if from_id is None or from_id in self.known:
            return
        if from_id not in self._agents:
            raise self._unknown(from_id)
        if isinstance(from_id, int):
            if len(self.known) >= _KEPT:
                self.known.clear()
            self.known.add(from_id)

    def check_all(self, from_ids: Iterable[AgentId | None]) -> None:
        """Raise UnknownSender naming an agent that is not ours."""
        for from_id in set(from_ids).difference(self.known):
            self.check(from_id)

    def check_column(self, from_ids: IdColumn) -> None:
        """Raise UnknownSender naming the first agent that is not ours."""
        if from_ids.kinds is None and self._dense is None and self._ours(np.sort(from_ids.values)).all():
            return  # a binary search for ids in order finds its places in the cache: it takes a third of the time
        ours = self._ours(from_ids.values)
        if from_ids.kinds is not None:
            strings = np.array([name in self._agents.strings for name in from_ids.strings], np.bool_)
            ours[from_ids.kinds != INT] = True
            named = np.flatnonzero(from_ids.kinds == STR)
            ours[named] = strings[from_ids.values[named]] if len(named) else True
        if not ours.all():
            raise self._unknown(from_ids[int(ours.argmin())])

    def _ours(self, values: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._dense is not None:
            # A difference that is too large for 64 bits comes round to a place that lies outside, too.
            return self._dense.take(values - self._before, mode="clip")
        ints = self._agents.ints
        if not len(ints):
            return np.zeros(len(values), np.bool_)
        ours: NDArray[np.bool_] = ints[np.minimum(np.searchsorted(ints, values), len(ints) - 1)] == values
        return ours

    def _unknown(self, from_id: AgentId | None) -> UnknownSender:
        return UnknownSender(
            f"agent {from_id!r} is not one of group {self.group!r}, so nothing of this call was sent: send its "
            f"messages by its own group, messaging.group_of({from_id!r}); or let this one send for anybody: "
            "MessagingConfig(strict_senders=False)",
            value=from_id,
            group=self.group,
        )


def unnamed(group: str) -> UnknownSender:
    """Build the error for a message of which nobody says whose it is."""
    return UnknownSender(
        f"this message has no from_id, so nothing of this call was sent: say which agent of group {group!r} sends it, "
        "or that the user does, as in Outgoing(channel, payload, from_id=None)",
        value=None,
        group=group,
    )
