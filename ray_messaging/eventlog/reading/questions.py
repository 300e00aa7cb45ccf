"""Questions that the event log answers, by name."""

from collections.abc import Callable
from typing import Any

from ray_messaging.eventlog.calls import read_calls
from ray_messaging.eventlog.reading.balance import balance
from ray_messaging.eventlog.reading.causes import why
from ray_messaging.eventlog.reading.counting import count, sample, stats
from ray_messaging.eventlog.reading.effects import effects
from ray_messaging.eventlog.reading.filters import refuse_name
from ray_messaging.eventlog.reading.query import (
    conversation,
    edges,
    end,
    has_names,
    query,
    recent,
    run,
    since,
    thread,
    typed,
)
from ray_messaging.eventlog.reading.scan import View
from ray_messaging.eventlog.reading.sql import sql
from ray_messaging.eventlog.reading.step_digests import digest, history
from ray_messaging.eventlog.series import read_series

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
    "end": end,
    "series": lambda view: read_series(view.folder, view.collected),
    "calls": lambda view: read_calls(view.folder, view.collected),
    "run": run,
    "has_names": has_names,
    "typed": typed,
}
COLLECTED = frozenset(("series", "calls", "sql", "why"))  # questions that read what groups have collected


def answer(view: View, question: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - each query has its own
    """Answer one of QUESTIONS. The answer can be pickled.

    Raises: InvalidQuery for an unknown question or an invalid field, LogError if the log cannot be read, Unbalanced
    from "balance".
    """
    if question not in QUESTIONS:
        refuse_name(question, arguments, list(QUESTIONS), "the log answers no question")
    return QUESTIONS[question](view, **arguments)
