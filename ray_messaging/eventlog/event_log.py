"""The event log, for whoever asks: the same questions to the folder of a finished run and to a running experiment."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import LogError
from ray_messaging.eventlog.account import read_account
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.reading.balance import Balance
from ray_messaging.eventlog.reading.export import PAGE, OnProgress, export, pages
from ray_messaging.eventlog.reading.filtering.fields import Fields
from ray_messaging.eventlog.reading.filtering.scan import View
from ray_messaging.eventlog.reading.query import answer
from ray_messaging.eventlog.reading.shaping import as_id
from ray_messaging.eventlog.reading.tail import Source, Tail


class FolderSource:
    """Answer from the folder of a log: what its closed segments hold."""

    live = False

    def __init__(self, log_dir: str | Path) -> None:
        self._folder = Folder(log_dir)
        if not self._folder.segments():
            missing = "; ".join(read_account(self._folder).missing)
            advice = (
                "pass the log_dir of a run (one that runs, and has no whole file yet, is asked by its exp_id, or by "
                "Messaging.connect(exp_id).log)"
            )
            raise LogError(f"{str(log_dir)!r} holds no event log: {missing or advice}", path=str(log_dir))

    def follower(self) -> "FolderSource":
        """Return itself: what is finished is followed by all alike."""
        return self

    def ask(self, what: str, **arguments: Any) -> Any:  # noqa: ANN401 - each question has its own
        """Answer a question."""
        return answer(View(self._folder, self._folder.segments()), what, arguments)

    def wait(self, position: int, timeout_s: float) -> bool:  # noqa: ARG002 - nothing comes, so nothing is waited for
        """Tell whether there are rows after a position."""
        return bool(self.ask("end") > position)


class EventLog:
    """Say who said what to whom, and what was stopped and why.

    Most methods take the fields of a question, see `fields.Fields`: from_id, to_id, agent, channel, subtopic, fate,
    rule, step, since, until, contains, limit, after. They raise InvalidQuery where a field cannot be understood, and
    LogError where the folder cannot be read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @classmethod
    def open(cls, log_dir: str | Path) -> "EventLog":
        """Open the folder of a finished run: a path, or a URI of pyarrow's file systems. Raises LogError."""
        return cls(FolderSource(log_dir))

    @property
    def end(self) -> int:
        """Return the position of the last row; -1 where there is none."""
        return int(self._source.ask("end"))

    def query(self, *, internal: bool = False, **fields: Unpack[Fields]) -> pa.Table:
        """Return the rows that match, in the order of the log: one per send and recipient.

        from_id and to_id are int64, or both texts where one id among them is a str. `position` numbers the rows of the
        log: the last one's, as `after`, gives the next page. Args: internal adds noted, entry and row, which say where
        in which stream a row came from.
        """
        return self._table("query", internal=internal, **fields)

    def conversation(self, a: AgentId | None, b: AgentId | None, **fields: Unpack[Fields]) -> pa.Table:
        """Return what two said to each other, in both directions, by time; None is the user."""
        return self._table("conversation", a=a, b=b, **fields)

    def count(self, by: str | Collection[str] = "fate", **fields: Unpack[Fields]) -> pa.Table:
        """Count rows by one or several columns, or by second, minute, hour, day of sent_at; the most frequent first."""
        return self._table("count", by=by, **fields)

    def edges(self, **fields: Unpack[Fields]) -> pa.Table:
        """Return who wrote to whom and when, by time, once per message from an agent to an agent.

        from_id, to_id, sent_at, step, subtopic, message_id, position; of what was delivered, or of another `fate`.
        """
        return self._table("edges", **fields)

    def to_networkx(self, *, weighted: bool = False, **fields: Unpack[Fields]) -> Any:  # noqa: ANN401 - networkx is optional
        """Return the edges as a networkx.MultiDiGraph: one per message, with sent_at, step, subtopic, message_id.

        Args: weighted gives a DiGraph instead: one edge per pair, `weight` messages. Raises ImportError that says how
        to install networkx.
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

    def balance(self) -> Balance:
        """Check that every send ended in exactly one fate; raise Unbalanced, with the offenders, where one did not.

        It is raised, too, where rows are known to be missing, as the server lost them.
        """
        found: Balance = self._source.ask("balance")
        return found

    def stats(self, **fields: Unpack[Fields]) -> dict[str, Any]:
        """Return figures of the rows that match, as JSON's types: see `statistics.stats`."""
        found: dict[str, Any] = self._source.ask("stats", **fields)
        return found

    def tail(self, *, timeout_s: float | None = None, **fields: Unpack[Fields]) -> Tail:
        """Iterate over the rows that come from now on, or after the position `after`, each as soon as it is known.

        It ends when nothing came for timeout_s (None: never), after `limit` rows, or at the end of a finished run.
        """
        after = fields.pop("after", None)
        return Tail(self._source.follower(), after=after, timeout_s=timeout_s, fields={**fields})

    def export(self, path: str | Path, *, on_progress: OnProgress | None = None, **fields: Unpack[Fields]) -> int:
        """Write the rows that match to a .parquet, .csv or .jsonl file, and return how many; memory stays flat."""
        return export(self._source.follower(), path, on_progress, {**fields})

    def pages(self, *, rows: int = PAGE, **fields: Unpack[Fields]) -> Iterator[pa.Table]:
        """Yield what `query` returns as tables of at most so many rows, up to where the log ends now; at least one."""
        return pages(self._source.follower(), {**fields}, rows)

    def _table(self, what: str, **arguments: Any) -> pa.Table:  # noqa: ANN401 - a question's
        return self._source.ask(what, **arguments)


def _ends(table: pa.Table) -> list[list[AgentId | None]]:
    return [[as_id(end) for end in table[name].to_pylist()] for name in ("from_id", "to_id")]
