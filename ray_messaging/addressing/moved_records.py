"""The records of two mailboxes after agents have moved from one to the other."""

from typing import NamedTuple

import msgspec

from ray_messaging.addressing.directory import Record, claims_of
from ray_messaging.addressing.host_dates import NO_DATES, HostDates
from ray_messaging.model.agent_sets import AgentSet


class MovedRecords(NamedTuple):
    """The records of the mailbox that agents leave, and of the one to which they go (None: there is none)."""

    source: Record
    target: Record | None


def moved_records(
    source: Record, target: Record | None, agents: AgentSet, version: int = 0, dates: HostDates = NO_DATES
) -> MovedRecords:
    """Return records after a move of agents; in steps `version` is that of the directory with the move."""
    claimed = source.by_subtopic()
    left = {subtopic: hosted - agents for subtopic, hosted in claimed.items()}
    here = msgspec.structs.replace(source, claims=claims_of(left), moved=True).succeeds(source, version, dates)
    if target is None:
        return MovedRecords(here, None)
    joined = target.by_subtopic()
    for subtopic, hosted in claimed.items():
        came = hosted & agents
        if came:
            joined[subtopic] = joined[subtopic] | came if subtopic in joined else came
    there = msgspec.structs.replace(target, claims=claims_of(joined), moved=True)
    came_from = source if version else None
    return MovedRecords(here, there.succeeds(target, version, dates, came_from))
