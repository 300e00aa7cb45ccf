"""Agents that come to a group in a step, with the state of the group that they come from."""

from collections.abc import Mapping
from typing import NamedTuple

from ray_messaging.addressing.directory import Record, agents_of
from ray_messaging.addressing.host_dates import HostDates
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet


class Arrival(NamedTuple):
    """Agents that came from another group with this step, and the state that its last step had left.

    The state is that of all agents that the group had then, `before`: take theirs from it, and keep it with your own.
    """

    agents: AgentSet
    group: str
    state: bytes | None
    before: AgentSet


def arrivals_at(step: int, record: Record, records: Mapping[str, Record], dates: HostDates) -> dict[str, AgentSet]:
    """Return the agents that come to a mailbox with a step, by the group that had them in the step before."""
    found: dict[str, AgentSet] = {}

    def note(agents: AgentSet, origin: str, version: int) -> None:
        """Note agents of an origin; some may have come to it, by an earlier move, with the same step."""
        there = records.get(origin)
        for change in reversed([] if there is None else there.changes):
            if change.origin and change.version < version and dates.since(change.version) == step:
                passed = agents & agents_of(change.came)
                if len(passed):
                    note(passed, change.origin, change.version)
                    agents -= passed
        if len(agents) and origin != record.mailbox:
            found[origin] = found.get(origin, NO_AGENTS) | agents

    hosted = record.agents()
    for change in reversed(record.changes):
        if change.origin and dates.since(change.version) == step:
            came = agents_of(change.came) & hosted
            hosted -= came
            if len(came):
                note(came, change.origin, change.version)
    return found
