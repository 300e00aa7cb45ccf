"""Agents that came to a group, or left it, so recently that messages for them may be in the box of another group."""

from collections.abc import Mapping
from typing import NamedTuple

from ray_messaging.addressing.directory import ALWAYS, HostDates, MailboxRecord, agents_of
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet


class MovedAgents(NamedTuple):
    """Agents that came to a group recently, agents that left it recently, and the groups from which agents came.

    A group from which agents came is called their origin. Its boxes may still have messages for these agents. `origins`
    has, for each origin, the first step in which messages for these agents were no longer sent to the origin. `changed`
    is the last step at which an agent came or left.
    """

    came: AgentSet
    left: AgentSet
    origins: dict[str, int]
    changed: int


NOBODY_MOVED = MovedAgents(NO_AGENTS, NO_AGENTS, {}, ALWAYS)


def moved_agents(record: MailboxRecord, step: int, dates: HostDates, horizon: int) -> MovedAgents:
    """Return the agents that came to a mailbox or left it in the last `horizon` steps, up to and including `step`."""
    oldest = step - horizon  # all messages that were sent in step `oldest` or earlier have been read
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
    """Agents that came from another group at this step, and the state that the other group had before they left.

    `before` has all agents that the other group had at that time, and the state is about all of these agents. The
    receiving group should copy the part about the arrived agents into its own state.
    """

    agents: AgentSet
    group: str
    state: bytes | None
    before: AgentSet


def arrivals_at(
    step: int, record: MailboxRecord, records: Mapping[str, MailboxRecord], dates: HostDates
) -> dict[str, AgentSet]:
    """Return the agents that come to a mailbox at a step, by the group that had them in the step before."""
    found: dict[str, AgentSet] = {}

    def note(agents: AgentSet, origin: str, version: int) -> None:
        """Record that agents come from `origin`.

        If agents moved twice between two steps, the first origin is recorded.
        """
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
