"""The agents that came to a group, or left it, so recently that messages for them may be in another group's box."""

from collections.abc import Mapping
from typing import NamedTuple

from ray_messaging.addressing.directory import ALWAYS, HostDates, MailboxRecord, agents_of
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet


class MovedAgents(NamedTuple):
    """Agents that came to a group recently, agents that left it recently, and the origins of the new agents.

    An origin's boxes may still have messages for the new agents. `origins` has, for each origin, the step from which on
    no such message was sent to it. `changed` is the last step with which an agent came or left.
    """

    came: AgentSet
    left: AgentSet
    origins: dict[str, int]
    changed: int


NOBODY_MOVED = MovedAgents(NO_AGENTS, NO_AGENTS, {}, ALWAYS)


def moved_agents(record: MailboxRecord, step: int, dates: HostDates, horizon: int) -> MovedAgents:
    """Return the agents that, by a mailbox's record, came or left in the last `horizon` steps before `step`."""
    oldest = step - horizon  # messages that were sent in this step or earlier have all been read
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
    """Agents that came from another group with this step, and the other group's state after its last step with them.

    The state belongs to `before`, all agents that the other group had in that step. The receiving group should copy the
    arrived agents' part of this state into its own state.
    """

    agents: AgentSet
    group: str
    state: bytes | None
    before: AgentSet


def arrivals_at(
    step: int, record: MailboxRecord, records: Mapping[str, MailboxRecord], dates: HostDates
) -> dict[str, AgentSet]:
    """Return the agents that come to a mailbox with a step, by the group that had the agents in the previous step."""
    found: dict[str, AgentSet] = {}

    def note(agents: AgentSet, origin: str, version: int) -> None:
        """Record that agents come from an origin. If they moved twice between two steps, their first origin counts."""
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
