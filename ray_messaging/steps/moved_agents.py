"""The agents that came to a group, or left it, so recently that messages for them may be in another group's box."""

from collections.abc import Mapping
from typing import NamedTuple

from ray_messaging.addressing.directory import ALWAYS, HostDates, MailboxRecord, agents_of
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet


class MovedAgents(NamedTuple):
    """Agents that came to a group recently, agents that left it, and the mailboxes that have messages for new agents.

    `origins` has these mailboxes, each with the step from which on no message for new agents was sent to it. `changed`
    is the last step with which an agent came or left.
    """

    came: AgentSet
    left: AgentSet
    origins: dict[str, int]
    changed: int


NOBODY_MOVED = MovedAgents(NO_AGENTS, NO_AGENTS, {}, ALWAYS)


def moved_agents(record: MailboxRecord, step: int, dates: HostDates, horizon: int) -> MovedAgents:
    """Return which agents of a mailbox have moved within the last `horizon` steps before `step`, by its record."""
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
    """Agents that came from another group with this step, and that group's state after its last step with them.

    The state belongs to all agents that the group had then, `before`. Take the arrived agents' part of it into the
    state of your group.
    """

    agents: AgentSet
    group: str
    state: bytes | None
    before: AgentSet


def arrivals_at(
    step: int, record: MailboxRecord, records: Mapping[str, MailboxRecord], dates: HostDates
) -> dict[str, AgentSet]:
    """Return the agents that come to a mailbox with a step, by the group that had them in the previous step."""
    found: dict[str, AgentSet] = {}

    def note(agents: AgentSet, origin: str, version: int) -> None:
        """Record agents of an origin, or of an earlier origin, if an earlier move with the same step brought them."""
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
