"""The causes of a message: the messages that its sender had just read, or was handling, and their own causes.

The causes of a message that was sent in a step are all messages that its sender read in that step. The log has these
messages, so nothing more is stored. Outside of steps, the cause is the question that the message answers, or the
message that the sender was handling. There a message carries the id of its cause.
"""

import html
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.tables import data_frame
from ray_messaging.common.texts import printable, shortened
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.eventlog.call_rows import Called, calls_of
from ray_messaging.eventlog.reading.event_rows import LogRow, rows_of
from ray_messaging.eventlog.reading.filters import Filters, check_count, check_text, invalid
from ray_messaging.eventlog.reading.query import found_in, messages, once_each
from ray_messaging.eventlog.reading.results import COLUMNS, stored, with_ids
from ray_messaging.eventlog.reading.scan import View
from ray_messaging.model.fates import STORED
from ray_messaging.steps.box_frames import FIRST_ADDED, FIRST_OUTSIDE

DEPTH = 3
MOST = 5  # a tree shows at most this many causes of a message, so with depth 3 at most 155 in all
_FACTS = ("message_id", "step", "step_read", "from_id", "to_id", "subtopic")
_RULES = ("labels", "fate", "rule", "reason")
_KIND = "kind"
_CANONICAL = ("step", _KIND, "from_id", "from_name", "ordinal")
_Hand = tuple[AgentId, int]  # an agent and a step, which stand for the messages that the agent read in the step


@dataclass(frozen=True, slots=True)
class Why:
    """A message and its causes, each of which has its own causes.

    `answered` says whether this message is a question that the message above it answers. `more` is the number of causes
    that `causes` leaves out. `note` says why there are no causes; it is "" if there are causes, or if the tree is cut
    off here. `calls` are the calls that the sender made with `me.remember` in the step in which it sent the message.
    """

    message: LogRow
    causes: tuple["Why", ...] = ()
    more: int = 0
    answered: bool = False
    note: str = ""
    calls: tuple[Called, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """Return the messages of the tree as dicts, each before its causes.

        `depth` is 0 for the message itself, and `cause_of` the id of the message above. The other keys are `answered`,
        `more`, `note` and columns of the log.
        """
        return [
            {"depth": depth, "cause_of": above, "answered": each.answered, "more": each.more, "note": each.note}
            | {name: getattr(each.message, name) for name in _FACTS}
            | {"payload": each.message.text}
            | {name: getattr(each.message, name) for name in _RULES}
            for depth, above, each in self._walk()
        ]

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return `rows` as a pandas.DataFrame."""
        rows = self.rows()
        return data_frame({name: [row[name] for row in rows] for name in rows[0]}, ("from_id", "to_id"))

    def _walk(self, depth: int = 0, above: str | None = None) -> Iterator[tuple[int, str | None, "Why"]]:
        yield depth, above, self
        for each in self.causes:
            yield from each._walk(depth + 1, self.message.message_id)

    def _lines(self) -> Iterator[str]:
        yield line_of(self.message) + ("  (answered by the message above)" if self.answered else "")
        yield from (f"|  called {printable(shortened(str(each)))}" for each in self.calls)
        if self.note:
            yield f"+- {self.note}"
        for each in self.causes:
            first, *others = each._lines()
            yield f"+- {first}"
            yield from (f"|  {line}" for line in others)
        if self.more:
            yield f"+- and {self.more:,} more"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def line_of(row: LogRow) -> str:
    """Return a message as one line of text.

    The line has id, step, sender, recipient, fate (unless it is "delivered"), payload, labels and rule.
    """
    to = row.channel if row.to_id is None else row.to_id
    if row.to_id is None and row.pairs is not None:
        to = f"{row.pairs:,} of audience {row.audience}"
    sender = "the user" if row.from_id is None else row.from_id
    step = "" if row.step is None else f" in step {row.step}"
    facts: list[str] = [] if row.fate in STORED else [row.fate]
    facts += [f"rule {row.rule}{f': {row.reason}' if row.reason else ''}"] if row.rule else []
    facts += [f"labels {', '.join(row.labels)}"] if row.labels else []
    end = f"  [{'; '.join(facts)}]" if facts else ""
    return printable(f"{row.message_id}{step}: {sender} -> {to}  {shortened(row.text)}{end}")


def why(view: View, *, message_id: str, depth: int = DEPTH, most: int = MOST) -> Why:
    """Return the tree of the causes of a message, see `EventLog.why`."""
    levels, width = check_at_least_1("depth", depth), check_at_least_1("most", most)
    root = found_message(view, message_id)
    if root.ordinal is None and _cause_of(root) is None:
        raise outside_of_steps(
            root,
            "and no cause of it is recorded: choose a message that was sent in a step, as an answer, by a handler of "
            "`serve`, or in the body of an `async for` over messages",
        )
    search = _Search(view, width)
    rows, found = [root], [root]
    for _ in range(levels):
        search.look_up(rows)
        rows = [cause for row in rows for cause in search.causes(row)]
        found += rows
    search.calls = calls_of(view.folder, view.collected, {hand for row in found if (hand := hand_of(row)) is not None})
    return search.tree(root, levels)


def check_at_least_1(name: str, value: object) -> int:
    """Return a value that is an int of 1 or more; raise InvalidQuery for anything else."""
    found = check_count(name, value, at_least=1)
    if found is None:
        raise invalid(name, value, "must be 1 or more")
    return found


def found_message(view: View, message_id: str) -> LogRow:
    """Return a row of a message, if possible one that was delivered.

    The row of a broadcast is that of one mailbox, but its `pairs` counts the hearers in all mailboxes.

    Raises: UnknownName if no message has the id.
    """
    wanted = check_text("message_id", message_id)
    if wanted is None:
        raise invalid("message_id", message_id, "must be the id of a message")
    found = _by_id(messages(view, [wanted], text=True))
    if wanted not in found:
        raise UnknownName(
            f"no message of the log has the id {wanted!r}: copy one from the column message_id of log.query() or "
            "log.recent()",
            kind="message",
            value=wanted,
        )
    return found[wanted]


def _by_id(table: pa.Table) -> dict[str, LogRow]:
    rows = defaultdict[str, list[LogRow]](list)
    for row in rows_of(with_ids(table)):
        rows[row.message_id].append(row)
    return {message_id: _joined(of_it) for message_id, of_it in rows.items()}


def _joined(rows: list[LogRow]) -> LogRow:
    heard = [row for row in rows if row.pairs is not None]
    if heard:
        return replace(heard[0], pairs=sum(row.pairs or 0 for row in heard))
    return next((row for row in rows if row.fate in STORED), rows[0])


def outside_of_steps(row: LogRow, advice: str) -> ConfigError:
    """Build the error for a message that was not sent in a step.

    Args: `advice` ends the error's sentence. It says why such a message is refused, and which one to choose instead.
    """
    return ConfigError(f"message {row.message_id!r} was sent outside of steps, {advice}")


def _cause_of(row: LogRow) -> str | None:
    """Return the id of a message's cause: the message that it answers, or that its sender was handling.

    The result is None if there is no cause.
    """
    return row.in_reply_to or row.caused_by


def hand_of(row: LogRow) -> _Hand | None:
    """Return the agent that sent a message, and the step of the send; None unless an agent sent it in a step."""
    if row.ordinal is None or row.ordinal >= FIRST_ADDED or row.from_id is None or row.step is None:
        return None
    return row.from_id, row.step


class _Search:
    """A search for the causes of messages.

    For each sender and step, the search keeps the first `most` messages that the sender read in the step. It also keeps
    the messages that other messages name as their causes.
    """

    def __init__(self, view: View, most: int) -> None:
        self.calls: dict[_Hand, list[Called]] = {}
        self._view = view
        self._most = most
        self._hands: dict[_Hand, list[LogRow]] = {}
        self._sizes: dict[_Hand, int] = {}
        # Message id -> the message, for messages that other messages name as their causes.
        self._known: dict[str, LogRow] = {}

    def look_up(self, rows: Iterable[LogRow]) -> None:
        """Look up the causes of some messages, so that `causes` can return them.

        The log is scanned once for all messages that the senders read in the steps of the sends, and a second time if a
        message names a cause that is not among these.
        """
        rows = [*rows]
        causes = {cause for row in rows if (cause := _cause_of(row)) is not None} - self._known.keys()
        if hands := {hand for row in rows if (hand := hand_of(row)) is not None} - self._hands.keys():
            self._read(hands, causes)
        # The sender may have read a named cause in an earlier step, or outside of steps.
        if unread := causes - self._known.keys():
            self._known |= _by_id(messages(self._view, unread, text=True))

    def _read(self, hands: Collection[_Hand], causes: Collection[str]) -> None:
        agents, steps = ([*dict.fromkeys(each)] for each in zip(*hands, strict=True))
        filters = Filters(to_id=agents, step_read=steps, fate=STORED)
        table = found_in(self._view, filters, stored(COLUMNS), text=True, expand=True)
        for agent, step in hands:
            reader = pc.field("to_name" if isinstance(agent, str) else "to_id")
            own = once_each(table.filter((reader == agent) & (pc.field("step_read") == step)))
            own = _in_canonical_order(own)
            named = pc.is_in(own["message_id"], pa.array(causes, pa.string()))
            first = pa.array(np.arange(len(own)) < self._most)
            rows = [*rows_of(with_ids(own.filter(pc.or_(first, named))))]
            self._hands[agent, step], self._sizes[agent, step] = rows, len(own)
            self._known |= {row.message_id: row for row in rows if row.message_id in causes}

    def causes(self, row: LogRow) -> list[LogRow]:
        """Return the causes of a message for which `look_up` was called before.

        A cause that the message itself names comes first.
        """
        named = self._known.get(_cause_of(row) or "")
        hand = [] if (of := hand_of(row)) is None else self._hands[of]
        if named is None:
            return hand[: self._most]
        others = [each for each in hand if each.message_id != named.message_id]
        return [named, *others][: self._most]

    def tree(self, row: LogRow, depth: int, *, answered: bool = False) -> Why:
        """Return a message with its causes, as a tree with `depth` levels below the message.

        Args: `answered` says whether the message above this one in the tree is an answer to it.
        """
        hand = hand_of(row)
        calls = () if hand is None else tuple(self.calls.get(hand, ()))
        if not depth:
            return Why(row, answered=answered, calls=calls)
        causes = self.causes(row)
        below = tuple(self.tree(each, depth - 1, answered=each.message_id == row.in_reply_to) for each in causes)
        shown = [each for each in causes if each.fate in STORED and (each.to_id, each.step_read) == hand]
        more = 0 if hand is None else self._sizes[hand] - len(shown)
        return Why(row, below, more, answered, "" if causes else _note(row), calls)


def _note(row: LogRow) -> str:
    if (cause := _cause_of(row)) is not None:
        return f"its cause is message {cause}, which this log does not have"
    if row.ordinal is None:
        return "it was sent outside of steps, by code that was handling no message"
    if row.ordinal >= FIRST_OUTSIDE:
        return "it came from outside of the steps"
    return "a rule added it" if row.ordinal >= FIRST_ADDED else "its sender had read no message"


def _in_canonical_order(table: pa.Table) -> pa.Table:
    """Return the messages that an agent read in a step, in the order in which the agent read them."""
    number, name = table["from_id"].is_valid(), table["from_name"].is_valid()
    # The user has no id, so messages from the user come first.
    table = table.append_column(_KIND, pc.if_else(name, 2, pc.if_else(number, 1, 0)))
    return table.sort_by([(key, "ascending") for key in _CANONICAL]).drop_columns([_KIND])
