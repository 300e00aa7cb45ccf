"""Queries that the event log answers from a view of it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId
from ray_messaging.eventlog.reading.balance import balance
from ray_messaging.eventlog.reading.counting import count
from ray_messaging.eventlog.reading.filtering.fields import check_agent, invalid, refuse_name
from ray_messaging.eventlog.reading.filtering.filters import Filters
from ray_messaging.eventlog.reading.filtering.hashing import hashes
from ray_messaging.eventlog.reading.filtering.scan import View, scan
from ray_messaging.eventlog.reading.result_columns import COLUMNS, joined, plain, stored, with_ids
from ray_messaging.eventlog.reading.statistics import stats
from ray_messaging.eventlog.reading.step_digests import digest, history
from ray_messaging.eventlog.run_record import run_facts
from ray_messaging.eventlog.schema import SCHEMA

REACHED = b"reached"  # in a page's metadata: the last position examined
EDGE = ("from_id", "to_id", "sent_at", "step", "subtopic", "message_id")
_IN_TIME = [("sent_at", "ascending"), ("position", "ascending")]


def answer(view: View, question: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - each query has its own
    """Answer one of QUESTIONS. The answer can be pickled. Raises: InvalidQuery, LogError, Unbalanced."""
    if question not in QUESTIONS:
        refuse_name(question, arguments, list(QUESTIONS), "the log answers no question")
    return QUESTIONS[question](view, **arguments)


def query(view: View, *, internal: bool = False, as_text: bool | None = None, **fields: Any) -> pa.Table:  # noqa: ANN401
    """Return the matching rows in log order.

    Args: internal adds the columns with a row's source; as_text is that of `result_columns.with_ids`.
    """
    columns = SCHEMA.names if internal else COLUMNS
    return with_ids(_rows(view, Filters(**fields), columns), as_text=as_text)


def since(view: View, *, position: int, limit: int, **fields: Any) -> pa.Table:  # noqa: ANN401
    """Return the next matching rows; REACHED in the table's metadata is the position for the next call."""
    found = query(view, **(fields | {"after": position, "limit": limit}))
    reached = found["position"][-1].as_py() if len(found) == limit and limit else max(position, view.end - 1)
    return found.replace_schema_metadata({REACHED: str(reached)})


def conversation(view: View, *, a: AgentId | None, b: AgentId | None, **fields: Any) -> pa.Table:  # noqa: ANN401
    """Return the messages between two agents, by time; None is the user."""
    for name in ("from_id", "to_id", "agent"):
        if name in fields:
            raise invalid(name, fields[name], "in a conversation: it is between the two that it names")
    one, other = (None if end is None else check_agent(name, end) for name, end in (("a", a), ("b", b)))
    limit = Filters(**fields).limit
    table = query(view, **(fields | {"from_id": [one, other], "to_id": [one, other], "limit": None}))
    if one != other:  # without messages to themselves
        ends = (table[name].cast(pa.string()).fill_null("") for name in ("from_id", "to_id"))
        table = table.filter(pc.not_equal(*ends))
    return table.sort_by(_IN_TIME).slice(0, limit)


def edges(view: View, **fields: Any) -> pa.Table:  # noqa: ANN401
    """Return the edges of the message graph by time: one row per message from an agent to an agent."""
    filters = Filters(**({"fate": "delivered"} | fields))
    table = with_ids(_rows(view, filters, EDGE, then=_between_agents)).select([*EDGE, "position"])
    return _once_each(table).sort_by(_IN_TIME)


def _between_agents(part: pa.Table) -> pa.Table:
    ends = (pc.or_(part[f"{end}_id"].is_valid(), part[f"{end}_name"].is_valid()) for end in ("from", "to"))
    return plain(part.filter(pc.and_(*ends)))


def _once_each(table: pa.Table) -> pa.Table:
    """Keep the first row of each message: one in several mailboxes has a row for each."""
    if len(np.unique(hashes(table["message_id"]))) == len(table):  # then no ids are equal
        return table
    first = table.group_by("message_id").aggregate([("position", "min")])["position_min"]
    return table.filter(pc.is_in(table["position"], value_set=first))


def _rows(
    view: View, filters: Filters, columns: Sequence[str], then: Callable[[pa.Table], pa.Table] = plain
) -> pa.Table:
    names = stored(columns)
    return joined(list(scan(view, filters, names, then)), names)


def end(view: View) -> int:
    """Return the position of the last row, -1 for an empty log."""
    return view.end - 1


def has_names(view: View, **fields: Any) -> bool:  # noqa: ANN401
    """Return whether a matching row has a str id."""
    columns = ["from_name", "to_name"]
    return any(scan(view, Filters(**fields), columns, partial(_any_valid, columns=columns)))


def _any_valid(part: pa.Table, columns: Sequence[str]) -> bool:
    return any(part[name].null_count < len(part) for name in columns)


def run(view: View) -> dict[str, Any] | None:
    """Return the record of the run; None: there is none."""
    return run_facts(view.folder)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "query": query,
    "since": since,
    "conversation": conversation,
    "edges": edges,
    "count": count,
    "stats": stats,
    "balance": balance,
    "digest": digest,
    "history_digest": history,
    "end": end,
    "run": run,
    "has_names": has_names,
}
