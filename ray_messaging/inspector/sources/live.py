"""A running experiment as a source: the newest rows of its log, its actors, and its server."""

import time
from functools import cached_property

from ray_messaging.cluster.handles.connection import connect
from ray_messaging.cluster.handles.dead_letters import DeadLetter
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.inspector.sources.log_rows import Source, agent_facts, agent_id
from ray_messaging.inspector.sources.traffic import Key, RollingTraffic, by_time, scaled
from ray_messaging.inspector.values import (
    AgentFacts,
    GroupFacts,
    LetterFacts,
    RuleFacts,
    State,
    StepFacts,
    Traffic,
    cut,
    name,
    settings,
)
from ray_messaging.observability.health.findings import Health

PERIOD_S = 60
_MOST_COUNTED = 50_000  # rows that one call counts; if there are more, they are a sample
_FIRST_COUNTED = 500_000  # rows that the first call counts, which also counts earlier rows
_LETTERS = 50
_TEXTS = 3  # texts that are shown of a dead letter
_TEXT = 300  # characters of each


class LiveSource(Source):
    """Source for a running experiment. Each call counts only the rows that have come since the last one."""

    live = True

    def __init__(self, messaging: Messaging) -> None:
        self._messaging = messaging
        self._connection = connect(messaging.exp_id)
        self.title = name(messaging.exp_id)
        self._rolling = RollingTraffic(PERIOD_S)
        self._position: int | None = None
        self._share = 1.0

    @cached_property
    def log(self) -> EventLog:  # type: ignore[override]  # nobody sets it
        """Return the log; raise ConfigError if the experiment keeps none."""
        if self._messaging.log_dir is None:
            raise ConfigError("this experiment keeps no event log: start it with log_dir=... to see its messages")
        return self._messaging.log

    def traffic(self) -> Traffic | None:
        """Return the traffic of the last minute. If many rows came at once, it is estimated from a sample of them."""
        if self._messaging.log_dir is None:
            return None
        begin, most = self._position, _MOST_COUNTED
        if begin is None:
            begin, most = max(-1, self.log.end - _FIRST_COUNTED), _FIRST_COUNTED
        found = self.log.sample(["second", *Key._fields], after=begin, most=most)
        if len(found.counts):
            self._rolling.add(scaled(by_time(found.counts, "second"), found.share))
            self._share = found.share
        self._position = found.reached
        now = time.time()
        self._rolling.forget(now)
        return self._rolling.traffic(now, found.reached + 1, self._share)

    def state(self) -> State:
        """Return the groups, steps and counters."""
        stats = self._messaging.stats()
        return State(
            [GroupFacts(mailbox, waiting=waiting) for mailbox, waiting in sorted(stats["waiting"].items())],
            self._steps(),
            stats["judged"],
            stats["blocked"],
            stats["dead_letters"]["letters"],
        )

    def _steps(self) -> StepFacts | None:
        try:
            progress = self._messaging.steps.progress()
        except ConfigError:
            return None
        late = [str(straggler) for straggler in self._messaging.steps.stragglers()]
        return StepFacts(
            progress.sealed + 1, progress.latest, progress.target, str(progress.wait_for), progress.waiting_for(), late
        )

    def health(self) -> Health:
        """Return the findings of a health check."""
        return self._messaging.health()

    def rules(self) -> list[RuleFacts]:
        """Return the rules, in order."""
        found = self._connection.ask(self._connection.interceptor.rules.remote())
        return [
            RuleFacts(
                cut(rule["name"], 60),
                cut(rule["kind"], 60),
                settings(rule),
                rule.get("failures", 0),
                cut(rule.get("last_error", ""), 300),
                rule["name"],
            )
            for rule in found
        ]

    def agent(self, agent: str) -> AgentFacts:
        """Return the facts about an agent.

        Raises: InvalidQuery if the id is not valid, ConfigError if the experiment keeps no log.
        """
        found = agent_id(agent)
        group = None if found is None else self._connection.ask(self._connection.interceptor.owner_of.remote(found))
        waiting = None if group is None else self._messaging.stats()["waiting"].get(group)
        return agent_facts(self.log, agent, None if group is None else name(group), waiting)

    def dead_letters(self) -> list[LetterFacts]:
        """Return the first dead letters."""
        return [_letter(found) for found in self._messaging.dead_letters.list(limit=_LETTERS)]


def _letter(letter: DeadLetter) -> LetterFacts:
    first = letter.messages[:_TEXTS] if letter.readable else ()
    texts = [
        f"{name(message.from_id)} to {name(message.to_id)}: {cut(message.data.decode(errors='replace'), _TEXT)}"
        for message in first
    ]
    return LetterFacts(
        letter.id,
        name(letter.mailbox),
        cut(letter.reason, 300),
        letter.at,
        letter.rows,
        len(letter.frame),
        letter.readable,
        texts,
    )
