"""Rows and agents of a log in the form that the pages show, and the base class of all sources."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ray_messaging.addressing.channels import USER_PAYBACK, AgentId, check_id
from ray_messaging.errors import ConfigError, InvalidAddress, InvalidQuery
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.reading.causes import Why
from ray_messaging.eventlog.reading.event_rows import dicts_of
from ray_messaging.eventlog.reading.filters import parse_steps
from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.inspector.page_values import (
    NAME_WIDTH,
    TEXT_WIDTH,
    AgentFacts,
    BusiestAgents,
    CallFacts,
    CallsAtWork,
    Cause,
    Differences,
    LetterFacts,
    Row,
    RowQuery,
    RuleFacts,
    Series,
    SocietyInStep,
    State,
    TrafficBins,
    cut,
    name,
)
from ray_messaging.inspector.sources.call_facts import facts_of_calls
from ray_messaging.observability.health.findings import Health

MOST_ROWS = 500
NEIGHBOURS = 12
_USER = "the user"


def agent_id(text: str) -> AgentId | None:
    """Return the id for a text that a reader has typed; None for "the user" and "".

    Raises: InvalidQuery if the id is not valid.
    """
    if text.strip() in {"", _USER}:
        return None
    try:
        return check_id(text.strip())
    except InvalidAddress as error:
        raise InvalidQuery(str(error), field="agent", value=text) from error


def _fields(query: RowQuery) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for end in ("from_id", "to_id", "agent"):
        if text := getattr(query, end):
            fields[end] = [agent_id(text)]
    if query.between is not None:
        ends = [agent_id(text) for text in query.between]
        fields["from_id"] = fields["to_id"] = ends
    for key in ("contains", "fate", "rule"):
        if text := getattr(query, key):
            fields[key] = text
    if query.step:
        fields["step"] = parse_steps(query.step, "the step", "step")
    return fields


def row_of(found: Mapping[str, Any]) -> Row:
    """Return a row of the log in the form that the pages show."""
    return Row(
        found["position"],
        cut(found["message_id"], NAME_WIDTH),
        found["sent_at"],
        name(found["from_id"]),
        _recipient(found),
        cut(found["payload"]),
        found["payload_bytes"] or 0,
        found["fate"],
        cut(found["payload_before"]),
        cut(", ".join(found["labels"] or ()), 200),
        cut(found["rule"] or "", NAME_WIDTH),
        cut(found["reason"] or "", 300),
        found["step"],
        cut(found["in_reply_to"] or "", NAME_WIDTH),
        bool(found["expects_answer"]),
        None not in (found["ordinal"], found["step"]) or bool(found["in_reply_to"] or found["caused_by"]),
    )


def _recipient(found: Mapping[str, Any]) -> str:
    if found["audience"] is not None:
        return f"{found['pairs']:,} of audience {cut(found['audience'], NAME_WIDTH)}"
    if found["channel"].endswith(f":{USER_PAYBACK}"):
        return name(None)
    if found["to_id"] is None and found["subtopic"] is None:
        return cut(found["channel"], NAME_WIDTH)
    return name(found["to_id"])


def _fates(log: EventLog, **fields: Any) -> dict[str, int]:  # noqa: ANN401 - the fields of a query, as from `_fields`
    return {row["fate"]: row["count"] for row in log.count(by="fate", **fields).to_pylist()}


def _neighbours(log: EventLog, end: str, **fields: Any) -> list[tuple[str, int]]:  # noqa: ANN401 - the fields of a query, as from `_fields`
    first = log.count(by=end, **fields).slice(0, NEIGHBOURS)
    return [(name(as_id(row[end])), row["count"]) for row in first.to_pylist()]


def cause_of(found: Why) -> Cause:
    """Return a tree of causes in the form that the pages show."""
    facts = asdict(found.message)
    text, before = facts.pop("text"), facts.pop("text_before")
    row = row_of(facts | {"payload": text, "payload_before": before, "payload_bytes": len(text.encode())})
    return Cause(
        row,
        [*map(cause_of, found.causes)],
        found.more,
        found.answered,
        found.note,
        [cut(str(call), TEXT_WIDTH) for call in found.calls],
    )


class RunFacts:
    """Facts about one run, from a running experiment or from the folder of a log.

    All calls block, so pages make them in threads. All calls may raise a MessagingError. The result None means that the
    source cannot know the answer. `live` says whether the run goes on, and `phase` is a word for that. `lacks` has the
    titles of the pages that would be empty. If there is no log, `log` raises ConfigError, and `log_dir` is None.
    `beside` is another run with which this one is compared.
    """

    title: str
    live = False
    phase = "ended"
    lacks: Collection[str] = ()
    log_dir: str | None = None
    log: EventLog
    beside: "RunFacts | None" = None

    def ended(self) -> "RunFacts | None":
        """If the run has just ended, return the source for its log. In all other cases, return None."""
        return None

    def traffic(self) -> TrafficBins | None:
        """Return the numbers of messages by step or time; None if there is no log.

        For a running experiment, only messages of the last minute or of the last steps are counted. After its end, the
        messages of the whole log are counted.
        """
        return None

    def society(self) -> BusiestAgents | None:
        """Return the agents, and the pairs of agents, with the most messages; None if there is no log.

        For a running experiment, only its last messages are counted. After its end, the whole log is counted.
        """
        return None

    def series(self, agent: str | None = None) -> Series | None:  # noqa: ARG002 - for subclasses
        """Return the aggregates that `collect` recorded, or the values that it recorded of one agent, by step.

        Return None if there are no such values.

        Raises: InvalidQuery if the agent's id is not valid.
        """
        return None

    def society_in_step(self, measure: str, step: int | None, columns: int | None) -> SocietyInStep | None:  # noqa: ARG002 - for subclasses
        """Return all agents in one step, each with one collected value.

        Return None if the run has collected no values of single agents, or too many for a page.

        Args: `measure` is the name of a collected value ("": the first one). `step` is a step (None: the last one).
        `columns` is the number of agents in a row of the picture (None: so many that the picture is a square).

        Raises: InvalidQuery for a value that the run has not collected.
        """
        return None

    def over_steps(self, measure: str) -> Series | None:  # noqa: ARG002 - for subclasses
        """Return, by step, the mean of a collected value over all agents; for texts, how many agents have each text.

        If the run collected no values of single agents, return the aggregates that it collected, or None if there are
        none.
        """
        return None

    def differences(self) -> Differences | None:
        """Return where the messages of this run differ from those of the run `beside`; None: there is no other run.

        Raises: ConfigError if only one of the two runs had steps, LogError if a log cannot be read.
        """
        return None

    def calls(self) -> CallFacts | None:
        """Return the numbers, tokens, costs and times of the calls through `me.remember` in the committed steps.

        Return None if there is no log.
        """
        return None if self.log_dir is None else facts_of_calls(self.log)

    def calls_now(self) -> CallsAtWork | None:
        """Return the calls through `me.remember` that are under way; None: the run has ended."""
        return None

    def state(self) -> State | None:
        """Return how many messages wait, which steps are under way, and how many dead letters there are.

        Return None if this is unknown, as it is after the end of the experiment.
        """
        return None

    def record(self) -> list[tuple[str, str]]:
        """Return the record of the run, as names and values; [] if the pages show the present state instead."""
        return []

    def health(self) -> Health | None:
        """Return the findings of a health check."""
        return None

    def rules(self) -> list[RuleFacts]:
        """Return the rules, in the order in which they judge messages."""
        return []

    def rows(self, query: RowQuery) -> Sequence[Row]:
        """Return the last matching rows, with the newest row at the end.

        Raises: InvalidQuery if a field of the query is not valid, LogError if the log cannot be read, ConfigError if
        there is no log.
        """
        limit = max(1, min(query.limit, MOST_ROWS))
        table = self.log.recent(limit=limit, width=TEXT_WIDTH + 1, **_fields(query))
        rows = [row_of(found) for found in dicts_of(table)]
        if query.between is not None and len(set(query.between)) > 1:
            rows = [row for row in rows if row.from_id != row.to_id]
        return rows

    def agent(self, agent: str) -> AgentFacts:
        """Return the facts about one agent.

        Raises: InvalidQuery if the agent's id is not valid, LogError if the log cannot be read, ConfigError if there is
        no log.
        """
        found = agent_id(agent)
        return AgentFacts(
            name(found),
            _fates(self.log, from_id=[found]),
            _fates(self.log, to_id=[found]),
            _neighbours(self.log, "to_id", from_id=[found]),
            _neighbours(self.log, "from_id", to_id=[found]),
            self.rows(RowQuery(agent=agent or _USER)),
        )

    def why(self, message_id: str, depth: int) -> Cause:
        """Return a message with its causes, the messages that its sender had read, down to `depth` levels.

        Raises: the same errors as `EventLog.why`, and ConfigError if there is no log.
        """
        return cause_of(self.log.why(message_id, depth))

    def effects(self, message_id: str, steps: int) -> Series:
        """Return, by step, how many agents a message could first influence in the step, and how many up to the step.

        `steps` is the number of steps to look at, from the step in which the message is read. Raises the same errors as
        `why`.
        """
        counts = self.log.effects(message_id, steps).counts().to_pydict()
        return Series(counts["step"], {"first moved": counts["agents"], "in all": counts["all"]})

    def dead_letters(self) -> list[LetterFacts] | None:
        """Return the oldest dead letters, as many as a page shows; None: unknown."""
        return None


class LostSource(RunFacts):
    """Source for an experiment that has ended, and whose log cannot be read here. Pages show the reason, `why`."""

    lacks = ("Society", "Search", "Conversation", "Agent", "Calls", "Why", "Rules", "Dead letters")

    def __init__(self, title: str, why: str) -> None:
        self.title = title
        self._why = why

    def traffic(self) -> TrafficBins:
        """Raise ConfigError, because there is no log. The error's text is `why`, which was given to this source."""
        raise ConfigError(self._why)
