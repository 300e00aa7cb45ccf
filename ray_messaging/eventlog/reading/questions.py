"""The table of queries that the event log answers, by name, so that another process can ask for them."""

from collections.abc import Callable
from typing import Any

from ray_messaging.eventlog.call_rows import read_calls
from ray_messaging.eventlog.folder_records import run_facts
from ray_messaging.eventlog.reading.balance import balance
from ray_messaging.eventlog.reading.causes import why
from ray_messaging.eventlog.reading.counting import count, sample, stats
from ray_messaging.eventlog.reading.effects import effects
from ray_messaging.eventlog.reading.filters import Filters, refuse_name
from ray_messaging.eventlog.reading.query import conversation, edges, has_names, query, recent, since, thread
from ray_messaging.eventlog.reading.results import typed_schema
from ray_messaging.eventlog.reading.scan import View, schemas
from ray_messaging.eventlog.reading.sql import sql
from ray_messaging.eventlog.reading.step_digests import digest, history
from ray_messaging.eventlog.series_tables import read_series

QUESTIONS: dict[str, Callable[..., Any]] = {
    "query": query,
    "since": since,
    "recent": recent,
    "conversation": conversation,
    "thread": thread,
    "why": why,
    "effects": effects,
    "edges": edges,
    "count": count,
    "sample": sample,
    "stats": stats,
    "sql": sql,
    "balance": balance,
    "digest": digest,
    "history_digest": history,
    "end": lambda view: view.end - 1,  # the position of the last row, or -1 if the log is empty
    "series": lambda view: read_series(view.folder, view.collected),
    "calls": lambda view: read_calls(view.folder, view.collected),
    "run": lambda view: run_facts(view.folder),
    "has_names": has_names,
    "typed": lambda view, **fields: typed_schema(schemas(view, Filters(**fields))),  # the schema of the typed columns
}
COLLECTED = frozenset(("series", "calls", "sql", "why"))  # queries that read data from `collect=` or `me.remember`


def answer(view: View, question: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - each query has its own type of result
    """Answer one of the queries in QUESTIONS. The answer can be pickled.

    Raises: InvalidQuery for an unknown query or an invalid field; LogError if the log cannot be read; Unbalanced if
    "balance" is asked and the log has faults.
    """
    if question not in QUESTIONS:
        refuse_name(question, arguments, list(QUESTIONS), "the log has no query")
    return QUESTIONS[question](view, **arguments)
