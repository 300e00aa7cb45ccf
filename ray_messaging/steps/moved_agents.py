"""The agents that came to a group, or left it, so lately that messages for them may wait elsewhere."""

from typing import NamedTuple

from ray_messaging.addressing.directory import Record, agents_of
from ray_messaging.addressing.host_dates import ALWAYS, HostDates
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
