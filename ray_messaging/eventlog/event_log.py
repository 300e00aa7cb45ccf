"""The class `EventLog`, with queries of the log of a finished run, or of a running experiment."""

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
from ray_messaging.eventlog.folder_records import absent_rows, has_ended, read_account, unended
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
    """The source of a finished log: it answers queries from the files of a folder."""

    live = False
    unended: str | None = None  # advice if the run's record has no end; None: it has one, or there is no record
    absent: str  # which rows are missing because a file is gone; "" if none

    def __init__(self, log_dir: str | Path) -> None:
        self._folder = Folder(log_dir)
        segments = self._folder.segments()
        self.absent = absent_rows(self._folder, segments, View(self._folder, segments).end)
        if self.absent and segments != (segments := self._folder.segments()):
            # Files have come since the files were listed, so the rows may be there now.
            self.absent = absent_rows(self._folder, segments, View(self._folder, segments).end)
        if segments:
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
        """Return this object itself: readers of a finished log need no state of their own."""
        return self

    def ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401 - each query has its own type of result
        """Answer a query.

        Raises: the errors of `answer`, and Unbalanced if `question` is "balance" and no end of the run is recorded.
        """
        segments = self._folder.segments()
        try:
            found = answer(View(self._folder, segments), question, arguments)
        except (LogError, Unbalanced):
            now = self._folder.segments()
            if now == segments:
                raise
            # A running writer replaced or added files while this query read them, so the query is repeated.
            found = answer(View(self._folder, now), question, arguments)
        if question == "balance" and (lacking := unended(self._folder)):
            raise Unbalanced(f"rows may be missing in the log: {lacking}", offenders=[])
        return found

    def wait(self, position: int, timeout_s: float) -> bool:  # noqa: ARG002 - this source never waits
        """Return whether the log has rows after a position.

        This does not wait, because a closed log gets no more rows.
        """
        return bool(self.ask("end") > position)


class EventLog:
    """Queries of the event log, which records each send and what became of it.

    Most methods take the fields of a query as keywords, such as `agent=17` (see docs/event-log.md): from_id, to_id,
    agent (sender or recipient), channel, subtopic, fate, rule, message_id, in_reply_to, step, step_read, since, until,
    contains, limit, after. They raise InvalidQuery for an invalid field, and LogError if the folder cannot be read.
    """

    def __init__(self, source: LogSource) -> None:
        self._source = source

    @classmethod
    def open(cls, log_dir: str | Path) -> "EventLog":
        """Open the folder of a finished run. `log_dir` is a path, or a URI of a file system that pyarrow knows.

        If no end of the run is recorded, a warning is logged: either the run is still going on, or it was killed and
        rows may be missing. If a file of the log is gone, another warning says which rows are missing.

        Raises: LogError if the folder contains no event log, or cannot be read; ConfigError if another version of
        ray_messaging wrote it in another format, or if `log_dir` is a URI with a password.
        """
        source = FolderSource(log_dir)
        for lacking in filter(None, (source.unended, source.absent)):
            logger.warning("%s", lacking)
        return cls(source)

    @property
    def unended(self) -> str | None:
        """Return advice if the folder of this log does not record the end of the run; return None in all other cases.

        Without such a record, rows may be missing. The advice is a text that says where these rows may be.
        """
        return self._source.unended if isinstance(self._source, FolderSource) else None

    @property
    def end(self) -> int:
        """Return the position of the last row, or -1 if the log is empty."""
        return int(self._source.ask("end"))

    @property
    def run(self) -> dict[str, Any] | None:
        """Return what is recorded about the run itself: its experiment, settings, groups, rule changes and so on.

        For each `Messaging.start` of the experiment, the record says when it began, and when it ended.

        docs/event-log.md lists the keys of this dict. The result is None if the folder has no such record.
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
        """Return the rows that match `fields`, in log order. There is a row for each send to each recipient.

        A broadcast has one row for each mailbox, the queue of one group or messager, whose agents hear it. In this row
        to_id is null, and `pairs` is the number of these agents. from_id and to_id are int64, or both are strs if any
        id in the result is a str. `position` is a row's number in the log; pass the last one as `after` to get the next
        page. If a message was sent with typed columns, `columns(x=...)`, its `payload` is null, and its values are in
        columns such as `payload.x`. If the values of x have several types in the result, the column gets a number type
        that holds all of them exactly. If no type does, the column has strings. `to_pandas()` of the result uses
        pandas' Int64 for ids and steps, and for other columns of whole numbers in which some rows have no value.

        Args:
            internal: Add the internal columns. Two of them, entry and row, say where the server kept the row.
            text: Return all payloads as JSON text in the column `payload`, also those that were sent by `columns(...)`.
            expand: Return one row for each hearer of a broadcast. All these rows have the broadcast's position. The
                other fields of the query, and `limit`, then apply to these rows.
        """
        return self._table("query", internal=internal, text=text, expand=expand, **fields)

    def recent(self, *, width: int = 1000, **fields: Unpack[Fields]) -> pa.Table:
        """Return the last rows of the log that match the filters in `fields`, in the order of the log.

        At most `limit` rows are returned (by default 100). Payloads are JSON text, cut to `width` characters.
        `payload_bytes` is the size of the text before the cut. The log is read from its end, so this call
        is fast even in a long log. A broadcast has one row for each group or messager whose agents hear it, as in
        `query`.
        """
        return self._table("recent", width=width, **({"limit": 100} | fields))

    def series(self) -> pa.Table:
        """Return the values that a run collected by `collect=` of `run` or `messaging.run`.

        If aggregates were collected, there is a row for each step, otherwise a row for each agent in each step. The
        columns are step, agent (only in rows for agents), and the collected values. If an agent's id is a str, it is in
        the column agent_name, and agent is null. If nothing was collected, the table has no rows.
        """
        return with_exact_integers(self._source.ask("series"))

    def calls(self, *, by: str | Sequence[str] = ()) -> pa.Table:
        """Return the function calls that agents made by `me.remember` in committed steps: one row per call.

        Such a function asks a language model, for example. The rows are sorted by step and agent.

        The columns are step, agent, function, arguments and result (as JSON), seconds, tries, source, bytes (the size
        of the result), by_content, key (a text that identifies the call), model, input_tokens, cached_tokens (how many
        of the input tokens came from a cache), output_tokens, cost (a decimal, in the currency of `Calls(cost=)`),
        saved_tokens and saved_cost. If the answer came from the store of `Calls(store=)`, saved_tokens has the tokens
        that the answer used when it was made, and saved_cost their cost by the prices of this run. `agent` is int64,
        or str if any id is a str. Tokens and cost include failed tries, and are null if nothing was reported.

        `source` is "model" if the function was called, "kept" if the result was stored when the same step ran before
        and failed, "parent" if it is from the run that was forked, and "store" if it is from `Calls(store=)`. `source`
        is "failed" if the call has used tokens, but has no result, and "unused" if the call was made ahead of its step
        (with wait_for="neighbours"), but the step did not need it. `by_content` is False if the arguments could not be
        encoded. Then a call is identified only by its function and by its number among the agent's calls.

        Args:
            by: One or several of the columns agent, step, model, function and source. The result then has one row for
                each combination of values in these columns, with the number of calls, and the sums of tokens, costs,
                seconds and tries.

        Raises: InvalidQuery if `by` has another column.
        """
        found = self._source.ask("calls")
        if by:
            found = summed_calls(found, [by] if isinstance(by, str) else [*by])
        return with_exact_integers(found)

    def sql(
        self,
        query: str,
        *,
        limit: int | None = None,
        timeout_s: float | None = None,
        temporary_files: bool = True,
    ) -> pa.Table:
        """Return the result of one SQL query over the tables `messages` (see `query`) and `calls` (see `calls`).

        DuckDB runs the query, which must be a SELECT and can read only the log. Times are in UTC. Sums of whole numbers
        are int64 if they fit.

        Args:
            query: The SELECT.
            limit: How many rows are returned at most. Further rows are not read.
            timeout_s: How many seconds the query may take; None means no limit.
            temporary_files: Whether data that do not fit into 2 GB of memory are written to temporary files. Without
                them such a query is refused.

        Raises: InvalidQuery if the SQL is wrong, takes longer than `timeout_s`, or would read other files or change
        anything; ImportError, which says how to install duckdb, if it is not installed.
        """
        given: dict[str, Any] = {} if temporary_files else {"temporary_files": False}
        given |= {name: value for name, value in (("limit", limit), ("timeout_s", timeout_s)) if value is not None}
        return self._table("sql", query=query, **given)

    def conversation(
        self, a: AgentId | None, b: AgentId | None, *, text: bool = False, **fields: Unpack[Fields]
    ) -> pa.Table:
        """Return the messages between two agents, in both directions, by time.

        None in place of an agent means the user, the person outside the simulation.

        Args: `text` and the fields are as for `query`.
        """
        return self._table("conversation", a=a, b=b, text=text, **fields)

    def thread(self, message_id: str, *, text: bool = False) -> pa.Table:
        """Return the thread that a message belongs to: the first question, its answers, their answers, and so on.

        The rows have the columns of `query`. The first question comes first, then its answers in the order in which
        they were sent, then the answers to these in the same order, and so on. The table is empty if no message has the
        id.

        Args: `text` is as for `query`.
        """
        return self._table("thread", message_id=message_id, text=text)

    def why(self, message_id: str, depth: int = DEPTH, *, most: int = MOST) -> Why:
        """Return why a message was sent: a tree of the messages that its sender had just read, with their own causes.

        The causes of a message that was sent in a step are all messages that its sender read in the step. Messages from
        earlier steps, which the sender may remember, are left out. Outside of steps, the cause is the message that a
        handler of `serve`, or the body of an `async for` loop over messages, was handling. If the message is an answer,
        the question is its first cause. Print the tree, or call its `rows()`.

        Args:
            depth: The number of levels below the message.
            most: How many causes of each message are returned at most, in the order in which the sender read them.
                `more` is the number of causes that were left out.

        Raises: InvalidQuery for an invalid argument; UnknownName if no message has the id; ConfigError if the message
        has no cause, because it was sent outside of steps, is no answer, and its sender was handling no message.
        """
        found: Why = self._source.ask("why", message_id=message_id, depth=depth, most=most)
        return found

    def effects(self, message_id: str, depth: int = DEPTH) -> Effects:
        """Return which agents a message could have influenced, by step: its readers, their readers, and so on.

        If a message could have influenced an agent, all later messages of that agent could have influenced their
        readers. The result's `agents` is a table of `step` and `agent`, with each agent once, in its first such step.

        Args: `depth` is the number of steps to look at, from the step in which the message is read.

        Raises: InvalidQuery for an invalid argument; UnknownName if no message has the id; ConfigError if the message
        was sent outside of steps.
        """
        found: Effects = self._source.ask("effects", message_id=message_id, depth=depth)
        return found

    def count(self, by: str | Collection[str] = "fate", **fields: Unpack[Fields]) -> pa.Table:
        """Count the rows that match `fields`, by columns or by units of `sent_at`. The largest counts come first.

        Args: `by` names one or several columns of the table that `query` returns. It may also name the units "second",
        "minute", "hour" and "day", which count the rows by their time of sending.
        Returns: a table with the columns `by`, and the column `count` with the number of rows.
        Raises: InvalidQuery for an invalid field, or a column by which rows cannot be counted, such as labels.
        """
        return self._table("count", by=by, **fields)

    def sample(self, by: str | Collection[str] = "fate", *, after: int = -1, most: int = 50_000) -> CountSample:
        """Count the rows after the position `after`, as `count` does. If there are more than `most`, count a sample.

        Use this to refresh a view of a running experiment often. The other queries wait until the log has all messages
        that were sent before the query. This one does not wait, so the newest messages may be missing. The result has
        the table `counts`, the position `reached` (pass it as `after` in the next call), and the `share` of the rows
        that was counted.

        Args: `by` is as for `count`.
        """
        found: CountSample = self._source.ask("sample", by=by, after=after, most=most)
        return found._replace(counts=with_exact_integers(found.counts, NUMBERS))

    def edges(self, **fields: Unpack[Fields]) -> pa.Table:
        """Return the messages from agents to agents by time, as the edges of a graph.

        The columns are from_id, to_id, sent_at, step, subtopic, message_id and position. Only delivered messages are
        returned, unless another `fate` is given.
        """
        return self._table("edges", **fields)

    def to_networkx(self, *, weighted: bool = False, **fields: Unpack[Fields]) -> Any:  # noqa: ANN401 - networkx is optional
        """Return the messages from agents to agents as the edges of a networkx.MultiDiGraph.

        An edge has sent_at, step, subtopic and message_id. Only delivered messages are returned, unless another `fate`
        is given.

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
        """Check that the log says exactly once what became of each send; return the numbers of sends and rows.

        The result has `sends`, `rows` and `fates`, the number of sends by fate.

        Args: With `expand`, the delivery to each hearer of each broadcast is checked. Without it, each broadcast is
        checked only as a whole.

        Raises: Unbalanced if a send has no fate, two fates or repeated rows; the error's `offenders` are the ids of
        these messages. Unbalanced is also raised if the log says that the server has lost rows, if a file of the log is
        gone, or if the log was opened from a folder that records no end of the run.
        """
        found: Balance = self._source.ask("balance", expand=expand)
        return found

    def digest(self, step: int) -> bytes:
        """Return the digest of a step: a hash of 32 bytes, computed from the step's messages.

        Equal messages give equal digests, whatever groups the agents are in. The digest covers the messages that groups
        sent in the step. It also covers messages from outside of the run, such as from your program, that agents read
        in the step, unless a rule rewrote them. The digest is final once all groups have ended the step. A step
        that did not run has the same digest as a step without messages. To tell them apart, use
        `messaging.steps.digest`. See docs/steps.md.

        Raises: ConfigError if the log belongs to a run without steps; LogError if a file of the log is gone.
        """
        self._check_steps()
        return bytes(self._source.ask("digest", step=step))

    def history_digest(self, step: int) -> bytes:
        """Return one hash, computed from the digests of the steps 0 to `step` (see `digest`).

        If these steps have the same digests in another run, this method returns the same hash for that run.

        Raises: ConfigError if the log belongs to a run without steps; LogError if a file of the log is gone.
        """
        self._check_steps()
        return bytes(self._source.ask("history_digest", step=step))

    def diff(self, other: "EventLog") -> Difference | None:
        """Return the first message that differs from another run's log, or None if both runs sent the same messages.

        The result has the message's `step`, `agent` (the sender) and `message_id`. `mine` is the message's LogRow in
        this log, and `theirs` its LogRow in the other log. `mine` or `theirs` is None if that log does not have the
        message. Both runs must have steps. In each step, the messages of each sender are compared: their payloads,
        recipients, topics, order, fates, rules and labels, but not their ids. The first message is the one with the
        lowest step, then with the lowest recipient, then with the lowest sender, and then the one that was sent first.

        Raises: ConfigError if a run had no steps, or if neither run sent a message in a step.
        """
        self._check_steps("the first log")
        other._check_steps("the other log")
        return first_difference(self.pages(text=True), other.pages(text=True))

    def stats(self, **fields: Unpack[Fields]) -> dict[str, Any]:
        """Return statistics of the rows that match the filters in `fields`, as a dict of JSON's types.

        `rows` is the number of these rows, and `first` and `last` are their first and last times of sending, in unix
        seconds. `fates` has the number of rows by fate, such as "delivered", and `rules` the number by rule and fate.
        `writers` and `readers` are numbers of agents, and `busiest_writers` and `busiest_readers` lists of [id, rows].
        `traffic` has the number of rows over time, by fate, and `groups` the number of delivered rows from each sending
        group or messager to each receiving one. The filters do not apply to the last three values: `segments` is the
        number of the log's files, `bytes` their size, and `live` the number of rows that are in no file yet.
        """
        found: dict[str, Any] = self._source.ask("stats", **fields)
        return found

    def tail(self, *, timeout_s: float | None = None, **fields: Unpack[Fields]) -> Tail:
        """Iterate over rows of the log, as LogRows. Each row comes as soon as it is logged.

        The iteration begins with the next new row, or with the first row after the position `after`.

        The iteration ends when no row has come for timeout_s seconds (None: there is no timeout), after `limit` rows,
        or after the last row of a finished run.
        """
        after = fields.pop("after", None)
        return Tail(self._source.follower(), after=after, timeout_s=timeout_s, fields={**fields})

    def export(self, path: str | Path, *, on_progress: OnProgress | None = None, **fields: Unpack[Fields]) -> int:
        """Write the rows that match `fields` to a .parquet, .csv or .jsonl file; return the number of rows.

        Memory use does not grow with the number of rows. `on_progress` is called with the number of rows so far.

        Raises: InvalidQuery for another suffix, an invalid field, or a file in the folder of an event log; LogError if
        the file cannot be written.
        """
        return export(self._source.follower(), path, on_progress, {**fields})

    def pages(
        self, *, rows: int = PAGE, text: bool = False, expand: bool = False, **fields: Unpack[Fields]
    ) -> Iterator[pa.Table]:
        """Yield the result of `query` as tables of at most `rows` rows.

        The log is read up to the row that is its last one when the iteration begins. There is at least one table,
        which may be empty.

        Args: `text`, `expand` and the fields are as for `query`. With `expand` a table may have more than `rows` rows,
        because each broadcast becomes one row per hearer.
        """
        found = pages(self._source.follower(), {**fields, "text": text, "expand": expand}, rows)
        return (with_exact_integers(page, NUMBERS) for page in found)

    def _check_steps(self, name: str = "the log") -> None:
        run = self.run
        if run is not None and run["steps"] is None:
            raise ConfigError(
                f"{name} belongs to a run without steps: only runs with steps=Steps() have digests and can be compared"
            )

    def _table(self, question: str, **arguments: Any) -> pa.Table:  # noqa: ANN401 - the arguments of any query
        return with_exact_integers(self._source.ask(question, **arguments), NUMBERS)


def _ends(table: pa.Table) -> list[list[AgentId | None]]:
    return [[as_id(end) for end in table[name].to_pylist()] for name in ("from_id", "to_id")]
