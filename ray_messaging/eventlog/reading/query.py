"""Queries that the event log answers from a view of it.

The way of a query: `Filters` checks its fields, `scan` yields the matching rows part by part, broadcasts are expanded
where that is asked for, and the parts are joined to one table, with one column for each end's ids.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId
from ray_messaging.eventlog.agent_sets import all_agents
from ray_messaging.eventlog.reading.balance import balance
from ray_messaging.eventlog.reading.counting import count, sample
from ray_messaging.eventlog.reading.expansion import NEEDED, Expansion
from ray_messaging.eventlog.reading.fields import check_agent, invalid, refuse_name
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.recent import recent
from ray_messaging.eventlog.reading.results import COLUMNS, joined, stored, typed_schema, with_ids
from ray_messaging.eventlog.reading.scan import View, in_threads, scan, schemas
from ray_messaging.eventlog.reading.scan import has_names as names_are_in
from ray_messaging.eventlog.reading.sql import sql
from ray_messaging.eventlog.reading.statistics import stats
from ray_messaging.eventlog.reading.step_digests import digest, history
from ray_messaging.eventlog.reading.thread import thread
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


def query(
    view: View,
    *,
    internal: bool = False,
    text: bool = False,
    as_text: bool | None = None,
    expand: bool = False,
    **fields: Any,  # noqa: ANN401
) -> pa.Table:
    """Return the matching rows in log order.

    Args: internal adds the columns with a row's source, text makes JSON text of typed payloads; expand makes a row of
    each hearer of a broadcast; as_text is that of `results.with_ids`.
    """
    names, filters = stored(SCHEMA.names if internal else COLUMNS), Filters(**fields)
    if expand:
        return with_ids(_expanded(view, filters, names, text=text), as_text=as_text)
    return with_ids(joined(scan(view, filters, names, text=text), names), as_text=as_text)


def since(view: View, *, position: int, limit: int, expand: bool = False, **fields: Any) -> pa.Table:  # noqa: ANN401
    """Return the next matching rows; REACHED in the table's metadata is the position for the next call.

    Args: with expand, `limit` is of the rows before broadcasts are expanded.
    """
    if expand:
        return _expanded_since(view, position, limit, **fields)
    found = query(view, **(fields | {"after": position, "limit": limit}))
    reached = found["position"][-1].as_py() if len(found) == limit and limit else max(position, view.end - 1)
    return found.replace_schema_metadata({REACHED: str(reached)})


def _expanded_since(
    view: View,
    position: int,
    limit: int,
    *,
    internal: bool = False,
    text: bool = False,
    as_text: bool | None = None,
    **fields: Any,  # noqa: ANN401
) -> pa.Table:
    names = stored(SCHEMA.names if internal else COLUMNS)
    found: list[pa.Table] = []
    rows, reached = 0, max(position, view.end - 1)
    for part in _expansions(view, Filters(**fields, after=position), names, limit, text=text):
        rows, found = rows + part.rows, found + part.pieces
        reached = part.last if rows == limit else reached
    return with_ids(joined(found, names), as_text=as_text).replace_schema_metadata({REACHED: str(reached)})


def conversation(
    view: View,
    *,
    a: AgentId | None,
    b: AgentId | None,
    text: bool = False,
    **fields: Any,  # noqa: ANN401
) -> pa.Table:
    """Return the messages between two agents, by time; None is the user."""
    for name in ("from_id", "to_id", "agent"):
        if name in fields:
            raise invalid(name, fields[name], "in a conversation: it is between the two that it names")
    one, other = (None if end is None else check_agent(name, end) for name, end in (("a", a), ("b", b)))
    limit = Filters(**fields).limit
    ends = {"from_id": [one, other], "to_id": [one, other]}
    table = query(view, text=text, expand=True, **(fields | ends | {"limit": None}))
    if one != other:  # without messages to themselves
        table = table.filter(pc.not_equal(*(table[name].cast(pa.string()).fill_null("") for name in ends)))
    return table.sort_by(_IN_TIME).slice(0, limit)


def edges(view: View, **fields: Any) -> pa.Table:  # noqa: ANN401
    """Return the edges of the message graph by time: one row per message from an agent to an agent."""
    filters = Filters(**({"fate": "delivered"} | fields))
    table = with_ids(_expanded(view, filters, stored(EDGE), only=_between_agents)).select([*EDGE, "position"])
    return _once_each(table).sort_by(_IN_TIME)


def _between_agents(part: pa.Table) -> pa.Table:
    ends = (pc.or_(part[f"{end}_id"].is_valid(), part[f"{end}_name"].is_valid()) for end in ("from", "to"))
    return part.filter(pc.and_(*ends))


def _once_each(table: pa.Table) -> pa.Table:
    """Keep the first row of each message and recipient: a message in several mailboxes has a row for each."""
    if pc.count_distinct(table["message_id"]).as_py() == len(table):
        return table
    table = table.append_column("row", pa.array(np.arange(len(table))))
    first = table.group_by(["message_id", "to_id"]).aggregate([("row", "min")])["row_min"]
    return table.take(first.sort()).drop_columns(["row"])


class _Expanded(NamedTuple):
    """A part of the log: its number of rows, their last position, and the matching rows once it is expanded."""

    rows: int
    last: int
    pieces: list[pa.Table]


def _expansions(
    view: View, filters: Filters, names: Sequence[str], limit: int | None = None, *, text: bool = False
) -> Iterator[_Expanded]:
    """Yield the parts of the log, expanded. Args: limit is of the rows before."""
    expansion, unasked = Expansion(view.folder), [name for name in NEEDED if name not in names]

    def expanded(part: pa.Table) -> _Expanded:
        pieces = [piece.drop_columns(unasked) for piece in expansion.expanded(part, filters)]
        return _Expanded(len(part), part["position"][-1].as_py(), pieces)

    return in_threads(expanded, scan(view, filters.loosened(limit), [*dict.fromkeys([*names, *NEEDED])], text=text))


def _expanded(
    view: View,
    filters: Filters,
    names: Sequence[str],
    *,
    text: bool = False,
    only: Callable[[pa.Table], pa.Table] = lambda piece: piece,
) -> pa.Table:
    """Return the matching rows of messages and of hearers; `only` selects from each piece of them."""
    found: list[pa.Table] = []
    left = filters.limit
    for part in _expansions(view, filters, names, text=text) if left != 0 else ():
        found += map(only, part.pieces)
        if left is not None and sum(map(len, found)) >= left:
            break
    return joined(found, names).slice(0, left)


def typed(view: View, **fields: Any) -> pa.Schema:  # noqa: ANN401
    """Return the columns of typed payloads of the files that may have matching rows, as `query` returns them."""
    return typed_schema(schemas(view, Filters(**fields)))


def end(view: View) -> int:
    """Return the position of the last row, -1 for an empty log."""
    return view.end - 1


def has_names(view: View, *, expand: bool = False, **fields: Any) -> bool:  # noqa: ANN401
    """Return whether a matching row has a str id; with expand also whether an agent that may hear has one."""
    if expand and all_agents(view.folder).strings:
        return True
    return names_are_in(view, Filters(**fields))


def run(view: View) -> dict[str, Any] | None:
    """Return the record of the run; None: there is none."""
    return run_facts(view.folder)


QUESTIONS: dict[str, Callable[..., Any]] = {
    "query": query,
    "since": since,
    "recent": recent,
    "conversation": conversation,
    "thread": thread,
    "edges": edges,
    "count": count,
    "sample": sample,
    "stats": stats,
    "sql": sql,
    "balance": balance,
    "digest": digest,
    "history_digest": history,
    "end": end,
    "run": run,
    "has_names": has_names,
    "typed": typed,
}
