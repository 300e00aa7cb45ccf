"""The agents that came to a group, or left it, so lately that messages for them may wait elsewhere."""

from collections.abc import Mapping
from typing import NamedTuple

from ray_messaging.addressing.directory import ALWAYS, HostDates, Record, agents_of
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet


class MovedAgents(NamedTuple):
    """Agents that came to a group lately, and agents that left it; the mailboxes with messages for the new ones.

    `origins` are mailboxes, each with the step from which on nothing more was sent to it for them; `changed` is the
    last step with which some agent came or left.
    """

    came: AgentSet
    left: AgentSet
    origins: dict[str, int]
    changed: int


NOBODY_MOVED = MovedAgents(NO_AGENTS, NO_AGENTS, {}, ALWAYS)


def moved_agents(record: Record, step: int, dates: HostDates, horizon: int) -> MovedAgents:
    """Return which agents of a mailbox have moved within so many steps before a step, as far as it knows."""
    oldest = step - horizon  # what was sent before the step after this one has been read
    came, left, changed = NO_AGENTS, NO_AGENTS, ALWAYS
    for change in record.changes:
        since = dates.since(change.version)
        if max(oldest, ALWAYS) < since <= step:
            came, left, changed = came | agents_of(change.came), left | agents_of(change.went), max(changed, since)
    if changed == ALWAYS:
        return NOBODY_MOVED
    hosted = record.agents()
    origins: dict[str, int] = {}
    for each in record.origins:
        since = dates.since(each.version)
        if max(oldest, ALWAYS) < since <= step:
            origins[each.mailbox] = max(since, origins.get(each.mailbox, since))
    return MovedAgents(came & hosted, left - hosted, origins, changed)


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
