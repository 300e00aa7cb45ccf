"""Queries that the event log answers from a view of its rows.

A query is answered in these steps. `Filters` checks the fields. `scan` yields the matching rows part by part. If
`expand` is true, broadcasts become one row for each hearer. The parts are joined to one table, which has one id column
for senders and one for recipients.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId
from ray_messaging.eventlog.folder_records import all_agents
from ray_messaging.eventlog.log_schema import SCHEMA, TEXT
from ray_messaging.eventlog.reading.expansion import NEEDED, Expansion
from ray_messaging.eventlog.reading.filters import Filters, check_agent, check_count, check_text, invalid
from ray_messaging.eventlog.reading.results import COLUMNS, joined, stored, with_ids
from ray_messaging.eventlog.reading.scan import View, in_threads, scan
from ray_messaging.eventlog.reading.scan import has_names as names_are_in
from ray_messaging.model.fates import STORED

REACHED = b"reached"  # under this key, a result's metadata have the last position that was examined
EDGE = ("from_id", "to_id", "sent_at", "step", "subtopic", "message_id")
_IN_TIME = [("sent_at", "ascending"), ("position", "ascending")]
SIZE = "payload_bytes"
_TEXTS = (TEXT, "payload_before")
_MOST_DIGITS = 18  # every number with at most this many digits fits int64


def query(
    view: View,
    *,
    internal: bool = False,
    text: bool = False,
    expand: bool = False,
    **fields: Any,  # noqa: ANN401
) -> pa.Table:
    """Return the matching rows, see `EventLog.query`."""
    names, filters = stored(SCHEMA.names if internal else COLUMNS), Filters(**fields)
    return with_ids(found_in(view, filters, names, text=text, expand=expand))


def since(
    view: View,
    *,
    position: int,
    limit: int,
    text: bool = False,
    as_text: bool | None = None,
    expand: bool = False,
    **fields: Any,  # noqa: ANN401
) -> pa.Table:
    """Return the next matching rows after a position.

    The metadata of the result has the last position that was examined, under the key REACHED. Pass it to the next call.

    Args:
        expand: Return a row for each hearer of a broadcast. `limit` counts rows before broadcasts are expanded.
        text: Return typed payloads as JSON text.
        as_text: Whether ids are strs; None: they are strs if any id in the table is a str.
    """
    names = stored(COLUMNS)
    filters = Filters(**(fields | {"after": position, "limit": limit}))
    found: list[pa.Table] = []
    rows, reached = 0, max(position, view.end - 1)
    for part, pieces in _parts(view, filters, names, limit, text=text, expand=expand):
        rows, found = rows + len(part), found + pieces
        reached = part["position"][-1].as_py() if rows == limit else reached
    return with_ids(joined(found, names), as_text=as_text).replace_schema_metadata({REACHED: str(reached)})


def conversation(
    view: View,
    *,
    a: AgentId | None,
    b: AgentId | None,
    text: bool = False,
    **fields: Any,  # noqa: ANN401
) -> pa.Table:
    """Return the messages between two agents, in both directions, in order of time.

    None in place of an agent means the user, the person outside the simulation.
    """
    for name in ("from_id", "to_id", "agent"):
        if name in fields:
            raise invalid(
                name, fields[name], ("cannot be used for a conversation, whose agents are a and b: leave it out")
            )
    one, other = (None if end is None else check_agent(name, end) for name, end in (("a", a), ("b", b)))
    limit = Filters(**fields).limit
    ends = {"from_id": [one, other], "to_id": [one, other]}
    table = query(view, text=text, expand=True, **(fields | ends | {"limit": None}))
    if one != other:  # an agent's messages to itself are no part of the conversation
        table = table.filter(pc.not_equal(*(table[name].cast(pa.string()).fill_null("") for name in ends)))
    return table.sort_by(_IN_TIME).slice(0, limit)


def edges(view: View, **fields: Any) -> pa.Table:  # noqa: ANN401
    """Return the edges of the message graph in order of time.

    A message from an agent has one row for each agent that it was sent to.
    """
    filters = Filters(**({"fate": STORED} | fields))

    def between_agents(part: pa.Table) -> pa.Table:
        ends = (pc.or_(part[f"{end}_id"].is_valid(), part[f"{end}_name"].is_valid()) for end in ("from", "to"))
        return part.filter(pc.and_(*ends))

    table = with_ids(found_in(view, filters, stored(EDGE), expand=True, only=between_agents))
    return once_each(table.select([*EDGE, "position"])).sort_by(_IN_TIME)


def once_each(table: pa.Table) -> pa.Table:
    """Return the first row of each pair of a message and a recipient.

    A message in several mailboxes has several rows.
    """
    if pc.count_distinct(table["message_id"]).as_py() == len(table):
        return table
    table = table.append_column("row", pa.array(np.arange(len(table))))
    first = table.group_by(["message_id", "to_id"]).aggregate([("row", "min")])["row_min"]
    return table.take(first.sort()).drop_columns(["row"])


def _parts(
    view: View, filters: Filters, names: Sequence[str], limit: int | None, *, text: bool, expand: bool
) -> Iterator[tuple[pa.Table, list[pa.Table]]]:
    """Yield, for each part of the log, the matching rows, and then these rows again in pieces.

    With `expand`, broadcasts are expanded in the pieces, to one row for each hearer.
    `limit` counts rows before broadcasts are expanded.
    """
    expansion, needed = Expansion(view.folder), [*dict.fromkeys([*names, *(NEEDED if expand else ())])]

    def matching(part: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        pieces = [*expansion.expanded(part, filters)] if expand else [part]
        return part, [piece.drop_columns(unasked) for piece in pieces]

    unasked = needed[len(names) :]
    parts = scan(view, filters.limited(limit, loose=expand), needed, text=text)
    return in_threads(matching, parts) if expand else map(matching, parts)


def found_in(
    view: View,
    filters: Filters,
    names: Sequence[str],
    *,
    text: bool = False,
    expand: bool = False,
    only: Callable[[pa.Table], pa.Table] = lambda piece: piece,
) -> pa.Table:
    """Return the matching rows; with `expand`, one row for each hearer of a broadcast.

    Args: `only` is a function that selects the wanted rows of a table.
    """
    found: list[pa.Table] = []
    left = filters.limit
    limit = None if expand else left
    for _, pieces in _parts(view, filters, names, limit, text=text, expand=expand) if left != 0 else ():
        found += map(only, pieces)
        if left is not None and sum(map(len, found)) >= left:
            break
    return joined(found, names).slice(0, left)


def has_names(view: View, *, expand: bool = False, **fields: Any) -> bool:  # noqa: ANN401
    """Return whether any matching row has a str id.

    With `expand`, also return True if any agent that may hear a broadcast has a str id.
    """
    filters = Filters(**fields)
    if not expand:
        return names_are_in(view, filters)
    return bool(all_agents(view.folder).strings) or names_are_in(view, filters.limited(None, loose=True))


# -- the last rows ----------------------------------------------------------------------------------------------------


def recent(view: View, *, limit: int, width: int, **fields: Any) -> pa.Table:  # noqa: ANN401 - see Fields
    """Return the last `limit` matching rows in log order, with payloads as JSON text of at most `width` characters.

    `payload_bytes` is the size of the text before it is cut. The log's files are read from the last one on, until there
    are enough rows. Only the payloads of a few row groups are in memory at a time.
    """
    asked = check_count("limit", limit, at_least=0)
    left = sys.maxsize if asked is None else asked
    shown = check_count("width", width, at_least=0) or 0
    names = stored(COLUMNS)
    found: list[pa.Table] = []
    for part, after in _backwards(view, fields.pop("after", None)) if left else ():
        filters = Filters(**fields, after=after)
        if not filters.select:
            filters.after = max(part.end - 1 - left, -1 if after is None else after)
        rows = scan(part, filters, names, text=True)
        table = joined((_cut(some.slice(max(0, len(some) - left)), shown) for some in rows), names)
        if not len(table):
            continue
        table = table.slice(max(0, len(table) - left))
        found.insert(0, table)
        left -= len(table)
        if left <= 0:
            break
    return with_ids(joined(found, names) if found else _cut(joined([], names), shown))


def _backwards(view: View, after: int | None) -> Iterator[tuple[View, int | None]]:
    """Yield views of parts of the log, from the last to the first: the rows that are in no file yet, then each file.

    Each view comes with a position: only the view's rows after this position are wanted (None: all of its rows).
    """
    closed = view.closed - 1
    if view.live:
        yield View(view.folder, view.segments[-1:], view.live), max(closed, -1 if after is None else after)
    for segment in reversed(view.segments):
        if after is not None and segment.first_row + segment.rows <= after + 1:
            return
        yield View(view.folder, [segment]), after


def _cut(part: pa.Table, width: int) -> pa.Table:
    """Return rows with payloads cut to `width` characters, and a column with their sizes in bytes before the cut."""
    sizes = pc.binary_length(part[TEXT]).cast(pa.int64())
    for name in _TEXTS:
        place = part.column_names.index(name)
        part = part.set_column(place, name, pc.utf8_slice_codeunits(part[name], 0, width))
    return part.append_column(SIZE, sizes)


# -- threads ----------------------------------------------------------------------------------------------------------


def thread(view: View, *, message_id: str, text: bool = False) -> pa.Table:
    """Return all rows of the thread that a message belongs to, see `EventLog.thread`."""
    wanted = check_text("message_id", message_id)
    if wanted is None:
        raise invalid("message_id", message_id, "must be the id of a message")
    generations, seen = [_first(view, wanted, text=text)], set[str]()
    while questions := _questions(generations[-1]) - seen:
        seen |= questions
        answers = found_in(view, Filters(in_reply_to=questions), stored(COLUMNS), text=text)
        generations.append(answers.sort_by(_IN_TIME))
    return with_ids(joined(generations, COLUMNS))


def _first(view: View, message_id: str, *, text: bool) -> pa.Table:
    """Return the rows of the question that began the thread of a message."""
    found, seen = messages(view, [message_id], text=text), {message_id}
    while len(found) and (question := found["in_reply_to"][0].as_py()) not in {None, *seen}:
        before = messages(view, [question], text=text)
        if not len(before):  # the log lacks the question, so `found` has the first message of the thread
            break
        seen.add(question)
        found = before
    return found


def messages(view: View, message_ids: Collection[str], *, text: bool) -> pa.Table:
    """Return the rows of some messages.

    Most ids begin with the number of the step in which the message was sent, so these steps are searched first.
    """
    steps = {step for each in message_ids if (step := each.partition("-")[0]).isdecimal() and len(step) <= _MOST_DIGITS}
    names = stored(COLUMNS)
    in_steps = Filters(message_id=[*message_ids], step=[*map(int, steps)])
    tables = [found_in(view, in_steps, names, text=text)] if steps else []
    found = {each for table in tables for each in table["message_id"].to_pylist()}
    if missing := [each for each in message_ids if each not in found]:
        tables.append(found_in(view, Filters(message_id=missing), names, text=text))
    return joined(tables, names)


def _questions(generation: pa.Table) -> set[str]:
    """Return the ids of those messages that expect answers."""
    # `expects_answer` is null in the rows of other messages, and the filter drops these rows.
    return set(generation.filter(generation["expects_answer"])["message_id"].to_pylist())
