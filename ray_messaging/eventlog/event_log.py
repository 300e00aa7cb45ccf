"""Queries of the event log. They are the same for the folder of a finished run and for a running experiment."""

import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import with_exact_integers
from ray_messaging.errors import ConfigError, LogError, Unbalanced
from ray_messaging.eventlog.call_rows import summed_calls
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import has_ended, read_account, unended
from ray_messaging.eventlog.log_schema import NUMBERS
from ray_messaging.eventlog.reading.balance import Balance
from ray_messaging.eventlog.reading.causes import DEPTH, MOST, Why
from ray_messaging.eventlog.reading.counting import CountSample
from ray_messaging.eventlog.reading.effects import Effects
from ray_messaging.eventlog.reading.filters import Fields
from ray_messaging.eventlog.reading.paging import PAGE, LogSource, OnProgress, Tail, export, pages
from ray_messaging.eventlog.reading.questions import answer
from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.eventlog.reading.scan import View
from ray_messaging.eventlog.reading.step_digests import Difference, first_difference

logger = logging.getLogger(__name__)

_SHOWN_COLUMNS = ["sent_at", "from_id", "to_id", "subtopic", "payload", "labels", "fate", "rule", "reason"]


class FolderSource:
    """A log source that answers queries from the closed segments of a folder."""

    live = False
    unended: str | None = None  # advice for a run that has no recorded end; None: the run has ended

    def __init__(self, log_dir: str | Path) -> None:
        self._folder = Folder(log_dir)
        if self._folder.segments():
            self.unended = unended(self._folder)
            return
        missing = "; ".join(read_account(self._folder).missing)
        if missing or not has_ended(self._folder):
            advice = unended(self._folder) or (
                "pass the log_dir of a run (if the run has no complete file yet, pass its exp_id, or use "
                "Messaging.connect(exp_id).log)"
            )
            raise LogError(f"{str(log_dir)!r} holds no event log: {missing or advice}", path=str(log_dir))

    def follower(self) -> "FolderSource":
        """Return this source itself: a finished log needs no state for each reader."""
        return self

    def ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401 - each query has its own
        """Answer a query.

        Raises: the errors of `answer`, and Unbalanced if `question` is "balance" and no end of the run is recorded.
        """
        segments = self._folder.segments()
        try:
            found = answer(View(self._folder, segments), question, arguments)
        except LogError:
            now = self._folder.segments()
            if now == segments:
                raise
            # The segments have changed, because a running writer replaced files while this query read them: read them
            # again.
            found = answer(View(self._folder, now), question, arguments)
        if question == "balance" and (lacking := unended(self._folder)):
            raise Unbalanced(f"the log may lack rows: {lacking}", offenders=[])
        return found

    def wait(self, position: int, timeout_s: float) -> bool:  # noqa: ARG002 - no rows will come
        """Return whether the log has rows after a position. It does not wait: a closed log gets no more rows."""
        return bool(self.ask("end") > position)


class EventLog:
    """Queries of the event log: each send, its fate and its reason.

    Most methods take the fields of a query, see `fields.Fields`: from_id, to_id, agent, channel, subtopic, fate, rule,
    message_id, in_reply_to, step, step_read, since, until, contains, limit, after. They raise InvalidQuery for
    an invalid field, and LogError if the folder cannot be read.
    """

    def __init__(self, source: LogSource) -> None:
        self._source = source

    @classmethod
    def open(cls, log_dir: str | Path) -> "EventLog":
        """Open the folder of a finished run: a path, or a URI of pyarrow's file systems.

        It logs a warning if no end of the run is recorded: the run may still be going on, or it was killed and rows may
        be missing.

        Raises: LogError if the folder holds no event log, or cannot be read.
        """
        source = FolderSource(log_dir)
        if source.unended:
            logger.warning("%s", source.unended)
        return cls(source)

    @property
    def unended(self) -> str | None:
        """Return advice if no end of the run is recorded, as the log may lack rows; else return None."""
        return self._source.unended if isinstance(self._source, FolderSource) else None

    @property
    def end(self) -> int:
        """Return the position of the last row, -1 for an empty log."""
        return int(self._source.ask("end"))

    @property
    def run(self) -> dict[str, Any] | None:
        """Return the record of the run: experiment, steps, groups, starts with command and versions, rule changes.

        See docs/event-log.md. The result is None if the folder has no record.
        """
        found: dict[str, Any] | None = self._source.ask("run")
        return found

    def _repr_html_(self) -> str:
        fates = ", ".join(f"{row['count']:,} {row['fate']}" for row in self.count().to_pylist())
        last = self.query(after=max(-1, self.end - SHOWN), text=True).select(_SHOWN_COLUMNS)
        columns = {name: last[name].to_pylist() for name in _SHOWN_COLUMNS}
        return html_table(f"EventLog({self.end + 1:,} rows: {fates or 'none'}), the last rows", columns, len(last))

    def query(
        self, *, internal: bool = False, text: bool = False, expand: bool = False, **fields: Unpack[Fields]
    ) -> pa.Table:
        """Return the matching rows in log order: one per send and recipient.

        A broadcast has one row per mailbox with hearers, without a recipient: `pairs` is the number of hearers there.
        from_id and to_id are int64, or both are strs if any id in the result is a str. `position` is a row's number in
        the log; pass the last one as `after` to get the next page. A row whose payload is in typed columns has null as
        `payload`, and its values are in the columns `payload.x`. If such values have several types in the result, their
        column has one type for all: a number type that holds all of them exactly, or text. `to_pandas()` returns
        pandas' Int64 for ids and steps, and for other whole numbers that some rows lack.

        Args:
            internal: Add the internal columns. Of these, entry and row say where in its stream a row was read.
            text: Return all payloads as JSON text in `payload`, and no other columns of payloads.
            expand: Return one row for each hearer of a broadcast, all with the broadcast's position. The other fields
                and `limit` then apply to these rows.
        """
        return self._table("query", internal=internal, text=text, expand=expand, **fields)

    def recent(self, *, width: int = 1000, **fields: Unpack[Fields]) -> pa.Table:
        """Return the last matching rows, at most `limit` (100), in log order: payloads as JSON text, cut to `width`.

        `payload_bytes` is the size of the uncut text. The log is read from its end, so this is fast in a long log, too.
        A broadcast has one row per mailbox, as in `query`.
        """
        return self._table("recent", width=width, **({"limit": 100} | fields))

    def series(self) -> pa.Table:
        """Return the values that groups collected by `collect=` of `messaging.run`.

        There is a row per step, or per step and agent. The columns are step, agent (null for an id that is a str, which
        is in agent_name), and the collected values. The table has no rows if nothing was collected.
        """
        return with_exact_integers(self._source.ask("series"))

    def calls(self, *, by: str | Sequence[str] = ()) -> pa.Table:
        """Return the calls that agents have remembered in committed steps: a row per call, by step and agent.

        The columns are step, agent, function, arguments and result (as JSON), seconds, tries, source ("model": the
        function was called; "kept": an earlier attempt at the step has called it; "parent": an earlier run has;
        "store": it was in the store; "failed": it has used tokens, and has no result;
        "unused": it was made ahead of its step, which did not need it), bytes (of the result),
        by_content (False: the arguments could not be encoded, so that the call is known only by its function and its
        place among the agent's calls), key, and what the call has used, including failed tries: model, input_tokens,
        cached_tokens (among the input tokens), output_tokens and cost (a decimal, in the currency of `Calls(cost=)`).
        These are null where nothing was reported. `agent` is int64, or str if any id is a str.

        Args:
            by: Columns of which each value has one row, with the number of calls, and the sums of tokens, costs,
                seconds and tries: agent, step, model, function or source.

        Raises: InvalidQuery if `by` has another column.
        """
        found = self._source.ask("calls")
        if by:
            found = summed_calls(found, [by] if isinstance(by, str) else [*by])
        return with_exact_integers(found)

    def sql(self, query: str) -> pa.Table:
        """Return the answer to one SELECT over the tables `messages`, as `query` returns them, and `calls`.

        DuckDB answers it, in DuckDB's SQL. Times are in UTC. Sums of whole numbers are int64 if they fit. The query can
        only read the log.

        Raises: InvalidQuery if the SQL is wrong, or would read other files or change anything; ImportError, which says
        how to install duckdb, if it is not installed.
        """
        return self._table("sql", query=query)

    def conversation(
        self, a: AgentId | None, b: AgentId | None, *, text: bool = False, **fields: Unpack[Fields]
    ) -> pa.Table:
        """Return the messages between two agents, in both directions, by time; None is the user."""
        return self._table("conversation", a=a, b=b, text=text, **fields)

    def thread(self, message_id: str, *, text: bool = False) -> pa.Table:
        """Return the thread that a message belongs to: its first question, the answers, the answers to these, etc.

        The rows have the columns of `query`. Each generation of answers is in order of time. The table is empty if no
        message has the id.
        """
        return self._table("thread", message_id=message_id, text=text)

    def why(self, message_id: str, depth: int = DEPTH, *, most: int = MOST) -> Why:
        """Return why a message was sent: a tree of the messages that its sender had in hand, and why these were sent.

        In a step, an agent has in hand the messages that it reads in the step; messages that it remembers from earlier
        steps are not in the tree. Outside of steps, a sender has in hand the message that a handler of `serve`, or the
        body of `async for`, is handling. If the message is an answer, its question comes first. Print the tree, or call
        its `rows()`.

        Args:
            depth: The levels of the tree below the message.
            most: The most messages below each message, in the order in which its sender read them; `more` counts the
                rest.

        Raises: InvalidQuery for an invalid argument; UnknownName if no message has the id; ConfigError if it was sent
        outside of steps, is no answer, and its sender was handling no message.
        """
        found: Why = self._source.ask("why", message_id=message_id, depth=depth, most=most)
        return found

    def effects(self, message_id: str, depth: int = DEPTH) -> Effects:
        """Return which agents a message could have influenced, by step: its readers, readers of their messages, etc.

        An agent that the message could have influenced counts as influenced in all later steps.

        Args: depth is a number of steps; the first one is the step in which the message is read.

        Raises: InvalidQuery for an invalid argument; UnknownName if no message has the id; ConfigError if it was sent
        outside of steps.
        """
        found: Effects = self._source.ask("effects", message_id=message_id, depth=depth)
        return found

    def count(self, by: str | Collection[str] = "fate", **fields: Unpack[Fields]) -> pa.Table:
        """Count rows by one or several columns, or by second, minute, hour or day of sent_at; largest counts first."""
        return self._table("count", by=by, **fields)

    def sample(self, by: str | Collection[str] = "fate", *, after: int = -1, most: int = 50_000) -> CountSample:
        """Count the rows after a position, as `count` does; if there are more than `most` rows, count a sample of them.

        Use it to refresh a view of a running experiment again and again. Unlike the other queries, it does
        not wait for messages that the log has not read yet. It returns the counts, the position `reached` (pass it as
        `after` in the next call), and the `share` of the rows that was counted.
        """
        found: CountSample = self._source.ask("sample", by=by, after=after, most=most)
        return found._replace(counts=with_exact_integers(found.counts, NUMBERS))

    def edges(self, **fields: Unpack[Fields]) -> pa.Table:
        """Return the edges of the message graph by time: one row per message from an agent to an agent.

        The columns are from_id, to_id, sent_at, step, subtopic, message_id and position. Only delivered messages are
        returned, unless another `fate` is given.
        """
        return self._table("edges", **fields)

    def to_networkx(self, *, weighted: bool = False, **fields: Unpack[Fields]) -> Any:  # noqa: ANN401 - networkx is optional
        """Return the edges as a networkx.MultiDiGraph: one per message, with sent_at, step, subtopic and message_id.

        Args: with `weighted`, return a DiGraph, in which the `weight` of an edge is its number of messages.

        Raises: ImportError, which says how to install networkx, if it is not installed.
        """
        try:
            import networkx as nx  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise ImportError("to_networkx() needs networkx: pip install 'ray-messaging[networkx]'") from error
        edges = self.edges(**fields)
        if weighted:
            counted = edges.group_by(["from_id", "to_id"]).aggregate([([], "count_all")])
            graph = nx.DiGraph()
            graph.add_weighted_edges_from(zip(*_ends(counted), counted["count_all"].to_pylist(), strict=True))
            return graph
        names = ("sent_at", "step", "subtopic", "message_id")
        data = (
            dict(zip(names, row, strict=True)) for row in zip(*(edges[name].to_pylist() for name in names), strict=True)
        )
        graph = nx.MultiDiGraph()
        graph.add_edges_from(zip(*_ends(edges), data, strict=True))
        return graph

    def balance(self, *, expand: bool = False) -> Balance:
        """Check that every send ended in exactly one fate.

        Args: with `expand`, each hearer of each broadcast is checked; without it, only the rows of broadcasts.

        Raises: Unbalanced, with the offending sends, if a send has no fate, two fates or repeated rows, and also if
        rows are known to be missing because the server lost them.
        """
        found: Balance = self._source.ask("balance", expand=expand)
        return found

    def digest(self, step: int) -> bytes:
        """Return the digest of a step: equal messages give equal digests, however the agents are spread over groups.

        It covers the messages that groups sent in the step, and the messages from outside that were read in the step,
        except messages from outside that a rule blocked or rewrote. It is final once the step is sealed. A step that
        did not run has the digest of a step without messages; `messaging.steps.digest` tells such steps apart. See
        docs/steps.md.
        """
        return bytes(self._source.ask("digest", step=step))

    def history_digest(self, step: int) -> bytes:
        """Return the digest of all steps up to `step`.

        The result is equal for two runs if each of these steps has equal digests in both runs.
        """
        return bytes(self._source.ask("history_digest", step=step))

    def diff(self, other: "EventLog") -> Difference | None:
        """Return the first message that differs from another run's log, or None if both runs sent the same messages.

        Both must be runs in steps. In each step, each agent's messages are compared, with their recipients, order,
        fates, rules and labels; ids are not compared. The first message is the one that comes first by step, then by
        recipient, then by sender, then by its place among the sender's messages.

        Raises: ConfigError if neither run, or only one of them, had steps.
        """
        in_steps = {log.run["steps"] is not None for log in (self, other) if log.run is not None}
        if len(in_steps) > 1:
            raise ConfigError(
                "one of the logs belongs to a run without steps: only runs with steps=Steps() can be compared"
            )
        return first_difference(self.pages(text=True), other.pages(text=True))

    def stats(self, **fields: Unpack[Fields]) -> dict[str, Any]:
        """Return statistics of the matching rows, in JSON's types. `reading.counting.stats` describes them."""
        found: dict[str, Any] = self._source.ask("stats", **fields)
        return found

    def tail(self, *, timeout_s: float | None = None, **fields: Unpack[Fields]) -> Tail:
        """Iterate over new rows, or over the rows after the position `after`, as soon as they are logged.

        The iteration ends after timeout_s without a row (None: it never times out), after `limit` rows, or at the end
        of a finished run.
        """
        after = fields.pop("after", None)
        return Tail(self._source.follower(), after=after, timeout_s=timeout_s, fields={**fields})

    def export(self, path: str | Path, *, on_progress: OnProgress | None = None, **fields: Unpack[Fields]) -> int:
        """Write the matching rows to a .parquet, .csv or .jsonl file; return the number of rows.

        Memory use does not grow with the number of rows. `on_progress` is called with the number of rows so far.
        """
        return export(self._source.follower(), path, on_progress, {**fields})

    def pages(
        self, *, rows: int = PAGE, text: bool = False, expand: bool = False, **fields: Unpack[Fields]
    ) -> Iterator[pa.Table]:
        """Yield the result of `query` as tables of at most `rows` rows.

        The log is read up to its present end. At least one table is yielded, which may be empty.

        Args: with `expand` a table may have more than `rows` rows, because each broadcast becomes one row per hearer.
        """
        found = pages(self._source.follower(), {**fields, "text": text, "expand": expand}, rows)
        return (with_exact_integers(page, NUMBERS) for page in found)

    def _table(self, question: str, **arguments: Any) -> pa.Table:  # noqa: ANN401 - a query's
        return with_exact_integers(self._source.ask(question, **arguments), NUMBERS)


def _ends(table: pa.Table) -> list[list[AgentId | None]]:
    return [[as_id(end) for end in table[name].to_pylist()] for name in ("from_id", "to_id")]
