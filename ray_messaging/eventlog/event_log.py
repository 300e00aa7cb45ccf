"""The event log for readers: the same queries for the folder of a finished run and for a running experiment."""

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import with_exact_integers
from ray_messaging.errors import ConfigError, LogError, Unbalanced
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.reading.balance import Balance
from ray_messaging.eventlog.reading.counting import Sample
from ray_messaging.eventlog.reading.filters import Fields
from ray_messaging.eventlog.reading.paging import PAGE, OnProgress, Source, Tail, export, pages
from ray_messaging.eventlog.reading.query import answer
from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.eventlog.reading.scan import View
from ray_messaging.eventlog.reading.step_digests import Difference, first_difference
from ray_messaging.eventlog.records import has_ended, read_account, unended
from ray_messaging.eventlog.schema import NUMBERS

logger = logging.getLogger(__name__)

_SHOWN_COLUMNS = ["sent_at", "from_id", "to_id", "subtopic", "payload", "labels", "fate", "rule", "reason"]


class FolderSource:
    """Source that answers from the closed segments of a folder."""

    live = False
    unended: str | None = None  # what a run without an end lacks

    def __init__(self, log_dir: str | Path) -> None:
        self._folder = Folder(log_dir)
        if self._folder.segments():
            self.unended = unended(self._folder)
            return
        missing = "; ".join(read_account(self._folder).missing)
        if missing or not has_ended(self._folder):
            advice = unended(self._folder) or (
                "pass the log_dir of a run (for a run without a complete file yet pass its exp_id, or use "
                "Messaging.connect(exp_id).log)"
            )
            raise LogError(f"{str(log_dir)!r} holds no event log: {missing or advice}", path=str(log_dir))

    def follower(self) -> "FolderSource":
        """Return itself: a finished log needs no state per reader."""
        return self

    def ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401 - each query has its own
        """Answer a query; raises as `answer`, and Unbalanced for the balance of a run that has no end."""
        segments = self._folder.segments()
        try:
            found = answer(View(self._folder, segments), question, arguments)
        except LogError:
            now = self._folder.segments()
            if now == segments:
                raise
            # A running writer has replaced files meanwhile.
            found = answer(View(self._folder, now), question, arguments)
        if question == "balance" and (lacking := unended(self._folder)):
            raise Unbalanced(f"the log may lack rows: {lacking}", offenders=[])
        return found

    def wait(self, position: int, timeout_s: float) -> bool:  # noqa: ARG002 - no rows will come
        """Return whether there are rows after a position."""
        return bool(self.ask("end") > position)


class EventLog:
    """Queries of the event log: each send, its fate and its reason.

    Most methods take the fields of a query, see `fields.Fields`: from_id, to_id, agent, channel, subtopic, fate, rule,
    message_id, in_reply_to, step, since, until, contains, payload, limit, after. They raise InvalidQuery for an invalid
    field, and LogError if the folder cannot be read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @classmethod
    def open(cls, log_dir: str | Path) -> "EventLog":
        """Open the folder of a finished run: a path, or a URI of pyarrow's file systems. Raises LogError.

        It warns where the run has no end: it may run still, or was killed, and rows may be missing.
        """
        source = FolderSource(log_dir)
        if source.unended:
            logger.warning("%s", source.unended)
        return cls(source)

    @property
    def unended(self) -> str | None:
        """Return what to do about a folder whose run has no end, so that rows may be missing; None: all are there."""
        return self._source.unended if isinstance(self._source, FolderSource) else None

    @property
    def end(self) -> int:
        """Return the position of the last row, -1 for an empty log."""
        return int(self._source.ask("end"))

    @property
    def run(self) -> dict[str, Any] | None:
        """Return the record of the run: experiment, steps, groups, starts with command and versions, rule changes.

        See docs/event-log.md. None where the folder has no record.
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

        from_id and to_id are int64, or both texts if one id among them is a str. `position` numbers the rows of the
        log; pass the last one as `after` to get the next page. Payloads in typed columns have null as `payload`, and a
        column `payload.x` for each of theirs; one that has several types in the result is a number or text.
        `to_pandas()` makes pandas' Int64 of ids and steps, and of other whole numbers where some are missing.

        Args:
            internal: Add noted, entry and row: the source of a row in its stream.
            text: Return all payloads as JSON text in `payload`, and no other columns of payloads.
            expand: Return a row for each hearer of a broadcast, of one position; fields and `limit` are of these rows.
        """
        return self._table("query", internal=internal, text=text, expand=expand, **fields)

    def recent(self, *, width: int = 1000, **fields: Unpack[Fields]) -> pa.Table:
        """Return the last matching rows, at most `limit` (100), in log order: payloads as JSON text, cut to `width`.

        `payload_bytes` is the size of the whole text. It reads the log from its end, so it is fast in a long one. A
        broadcast has one row per mailbox, as in `query`.
        """
        return self._table("recent", width=width, **({"limit": 100} | fields))

    def sql(self, query: str) -> pa.Table:
        """Return the answer to one SELECT over the table `messages`, which has the columns of `query`.

        DuckDB answers it, in its SQL. Times are in UTC, and sums of whole numbers are int64 where they fit. It reads
        the log alone: other files, changes and settings are refused with InvalidQuery, which also says what is wrong
        with a query. Without duckdb it raises an ImportError that says how to install it.
        """
        return self._table("sql", query=query)

    def conversation(
        self, a: AgentId | None, b: AgentId | None, *, text: bool = False, **fields: Unpack[Fields]
    ) -> pa.Table:
        """Return the messages between two agents, in both directions, by time; None is the user."""
        return self._table("conversation", a=a, b=b, text=text, **fields)

    def thread(self, message_id: str, *, text: bool = False) -> pa.Table:
        """Return the thread that a message is in: its first question, the answers to that, the answers to those.

        Rows as of `query`, each generation in order of time; none where no message has the id.
        """
        return self._table("thread", message_id=message_id, text=text)

    def count(self, by: str | Collection[str] = "fate", **fields: Unpack[Fields]) -> pa.Table:
        """Count rows by one or several columns, or by second, minute, hour, day of sent_at; largest counts first."""
        return self._table("count", by=by, **fields)

    def sample(self, by: str | Collection[str] = "fate", *, after: int = -1, most: int = 50_000) -> Sample:
        """Count the rows behind a position, as `count`; of more than `most` rows a sample from all parts of them.

        For a view of a running experiment that is renewed again and again: unlike the others, it does not wait for
        messages that the log has not read yet. It returns the counts, the position `reached`, for the next call, and
        the `share` of the rows that was counted.
        """
        found: Sample = self._source.ask("sample", by=by, after=after, most=most)
        return found._replace(counts=with_exact_integers(found.counts, NUMBERS))

    def edges(self, **fields: Unpack[Fields]) -> pa.Table:
        """Return the edges of the message graph by time: one row per message from an agent to an agent.

        from_id, to_id, sent_at, step, subtopic, message_id, position; of delivered messages, or of another `fate`.
        """
        return self._table("edges", **fields)

    def to_networkx(self, *, weighted: bool = False, **fields: Unpack[Fields]) -> Any:  # noqa: ANN401 - networkx is optional
        """Return the edges as a networkx.MultiDiGraph: one per message, with sent_at, step, subtopic, id.

        Args: weighted returns a DiGraph: one edge per pair, `weight` messages. Without networkx it raises an
        ImportError that says how to install it.
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
        """Check that every send ended in exactly one fate; raise Unbalanced with the offenders otherwise.

        It is also raised if rows are known to be missing because the server lost them.

        Args: expand looks at each hearer of each broadcast; without it, at their rows.
        """
        found: Balance = self._source.ask("balance", expand=expand)
        return found

    def digest(self, step: int) -> bytes:
        """Return the digest of a step: equal for equal messages, on every layout. See docs/steps.md.

        It covers the messages that groups sent in the step, and those from outside that were read in it, except the
        ones that a rule blocked or rewrote. It is final once the step is sealed.
        """
        return bytes(self._source.ask("digest", step=step))

    def history_digest(self, step: int) -> bytes:
        """Return the digest of all steps up to one: equal if all of them are."""
        return bytes(self._source.ask("history_digest", step=step))

    def diff(self, other: "EventLog") -> Difference | None:
        """Return the first message that differs from another run's log; None: both runs sent the same.

        For runs in steps: it goes by step, recipient, sender and n-th send, and compares what `digest` covers. Raises
        ConfigError where neither run had steps.
        """
        in_steps = {log.run["steps"] is not None for log in (self, other) if log.run is not None}
        if len(in_steps) > 1:
            raise ConfigError("one of the logs is of a run without steps: only runs with steps=Steps() can be compared")
        return first_difference(self.pages(text=True), other.pages(text=True))

    def stats(self, **fields: Unpack[Fields]) -> dict[str, Any]:
        """Return statistics of the matching rows, as JSON types: see `statistics.stats`."""
        found: dict[str, Any] = self._source.ask("stats", **fields)
        return found

    def tail(self, *, timeout_s: float | None = None, **fields: Unpack[Fields]) -> Tail:
        """Iterate over new rows, or those after the position `after`, as soon as they are logged.

        It ends after timeout_s without a row (None: never), after `limit` rows, or at the end of a finished run.
        """
        after = fields.pop("after", None)
        return Tail(self._source.follower(), after=after, timeout_s=timeout_s, fields={**fields})

    def export(self, path: str | Path, *, on_progress: OnProgress | None = None, **fields: Unpack[Fields]) -> int:
        """Write the matching rows to a .parquet, .csv or .jsonl file; return their number. Memory stays flat."""
        return export(self._source.follower(), path, on_progress, {**fields})

    def pages(
        self, *, rows: int = PAGE, text: bool = False, expand: bool = False, **fields: Unpack[Fields]
    ) -> Iterator[pa.Table]:
        """Yield the result of `query` as tables of at most `rows` rows, up to the log's present end; at least one.

        Args: with expand a table may have more rows, those of the hearers of its broadcasts.
        """
        found = pages(self._source.follower(), {**fields, "text": text, "expand": expand}, rows)
        return (with_exact_integers(page, NUMBERS) for page in found)

    def _table(self, question: str, **arguments: Any) -> pa.Table:  # noqa: ANN401 - a query's
        return with_exact_integers(self._source.ask(question, **arguments), NUMBERS)


def _ends(table: pa.Table) -> list[list[AgentId | None]]:
    return [[as_id(end) for end in table[name].to_pylist()] for name in ("from_id", "to_id")]
