"""Threads: a question, the answers to it, the answers to those."""

import pyarrow as pa

from ray_messaging.eventlog.reading.fields import check_text, invalid
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import COLUMNS, joined, stored, with_ids
from ray_messaging.eventlog.reading.scan import View, scan

_MOST_DIGITS = 18  # all numbers of so many digits fit int64
_IN_TIME = [("sent_at", "ascending"), ("position", "ascending")]


def thread(view: View, *, message_id: str, text: bool = False) -> pa.Table:
    """Return all rows of the thread that a message is in: its first question, the answers, the answers to those.

    Each generation is in order of time. Args: text is that of `query`. Raises InvalidQuery.
    """
    wanted = check_text("message_id", message_id)
    if wanted is None:
        raise invalid("message_id", message_id, "must be the id of a message")
    generations, seen = [_first(view, wanted, text=text)], set[str]()
    while questions := _questions(generations[-1]) - seen:
        seen |= questions
        generations.append(_found(view, Filters(in_reply_to=questions), text=text).sort_by(_IN_TIME))
    return with_ids(joined(generations, COLUMNS))


def _first(view: View, message_id: str, *, text: bool) -> pa.Table:
    """Return the rows of the question that began a message's thread."""
    found, seen = _message(view, message_id, text=text), {message_id}
    while len(found) and (question := found["in_reply_to"][0].as_py()) not in {None, *seen}:
        before = _message(view, question, text=text)
        if not len(before):  # the log has lost it
            break
        seen.add(question)
        found = before
    return found


def _message(view: View, message_id: str, *, text: bool) -> pa.Table:
    """Return the rows of a message; most often an id that begins with a number is one of a step."""
    step = message_id.partition("-")[0]
    found = None
    if step.isdecimal() and len(step) <= _MOST_DIGITS:
        found = _found(view, Filters(message_id=message_id, step=int(step)), text=text)
    return found if found is not None and len(found) else _found(view, Filters(message_id=message_id), text=text)


def _questions(generation: pa.Table) -> set[str]:
    """Return the ids of the messages that may have answers."""
    return set(generation.filter(generation["expects_answer"])["message_id"].to_pylist())  # null is no


def _found(view: View, filters: Filters, *, text: bool) -> pa.Table:
    names = stored(COLUMNS)
    return joined(scan(view, filters, names, text=text), names)
