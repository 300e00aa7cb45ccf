"""A running experiment as a source: the newest rows of its log, its actors, and its server."""

import time
from dataclasses import replace
from functools import cached_property

import ray

from ray_messaging.addressing.channels import AgentId, is_internal
from ray_messaging.cluster.handles.connection import connect, find_actor
from ray_messaging.cluster.handles.dead_letters import DeadLetter
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.cluster.run.crowd import state_of
from ray_messaging.errors import ConfigError, LogError, UnknownName
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import has_ended
from ray_messaging.inspector.page_values import (
    AgentFacts,
    BusiestAgents,
    CallAtWork,
    CallsAtWork,
    LetterFacts,
    RuleFacts,
    State,
    StepFacts,
    TrafficBins,
    cut,
    in_words,
    name,
    settings,
)
from ray_messaging.inspector.sources.busiest_agents import society_of
from ray_messaging.inspector.sources.folder_facts import FolderFacts
from ray_messaging.inspector.sources.log_rows import LostSource, RunFacts, agent_id
from ray_messaging.inspector.sources.traffic import BINS, Key, RollingTraffic, binned
from ray_messaging.model.agent_sets import NO_AGENTS
from ray_messaging.observability.health.findings import Health

PERIOD_S = 60
# Each call counts at most this many rows. If there are more, `traffic` counts a sample, and `society` the last ones.
_MOST_COUNTED = 50_000
_FIRST_COUNTED = 500_000  # the first call of `traffic` counts at most this many of the log's last rows
_LETTERS = 50
_MOST_AT_WORK = 20  # of how many agents the calls are shown, at most
_TEXTS = 3  # how many texts of a dead letter are shown, at most
_TEXT = 300  # how many characters of each text are shown, at most
# If an agent's group has more agents than this, the agent's state is not shown, because it can only be read together
# with the states of the whole group.
_MOST_HOSTED = 20_000


class LiveSource(RunFacts):
    """Source for a running experiment. Each call of `traffic` counts only the rows that are new since its last call."""

    live = True
    phase = "live"

    def __init__(self, messaging: Messaging) -> None:
        self._messaging = messaging
        self._connection = connect(messaging.exp_id)
        self.title = name(messaging.exp_id)
        self.log_dir = messaging.log_dir
        lacks = {
            ("Society",): True,
            ("Search", "Conversation", "Why"): not messaging.log_dir,
            ("Calls",): self._connection.experiment.steps is None,  # only agents in steps have `me.remember`
        }
        self.lacks = tuple(title for titles, lacking in lacks.items() if lacking for title in titles)
        self._by_second = RollingTraffic(PERIOD_S)
        self._by_step = RollingTraffic(BINS, in_steps=True)
        self._position: int | None = None

    def ended(self) -> RunFacts | None:
        """Return the source to use from now on, if the experiment has ended; otherwise None.

        This is the source for the log's folder, or a source that says why there is no log.
        """
        log_dir = self._messaging.log_dir
        if not (log_dir and has_ended(Folder(log_dir))) and find_actor(self._connection.experiment.interceptor_name):
            return None
        # This process goes on, and shows the log. Without the shutdown, Ray would kill this process some time after
        # the end of the Ray cluster.
        ray.shutdown()
        if log_dir is None:
            return LostSource(self.title, "this experiment has ended, and kept no event log: start it with log_dir=...")
        try:
            return FolderFacts(log_dir)
        except (LogError, OSError) as error:
            return LostSource(self.title, f"this experiment has ended, and its log is not on this machine: {error}")

    @cached_property
    def log(self) -> EventLog:  # type: ignore[override]  # nobody sets it
        """Return the log; raise ConfigError if the experiment has no log."""
        if self._messaging.log_dir is None:
            raise ConfigError("this experiment has no event log: start it with log_dir=... to see its messages")
        return self._messaging.log

    def traffic(self) -> TrafficBins | None:
        """Return the numbers of messages of the last minute, or of the last steps; None if there is no log.

        If many rows have come since the last call, a sample of them is counted.
        """
        if self._messaging.log_dir is None:
            return None
        begin, most = self._position, _MOST_COUNTED
        if begin is None:
            begin, most = max(-1, self.log.end - _FIRST_COUNTED), _FIRST_COUNTED
        found = self.log.sample(["second", "step", *Key._fields], after=begin, most=most)
        if len(found.counts):
            self._by_second.add(binned(found.counts, "second"), found.share)
            self._by_step.add(binned(found.counts, "step"), found.share)
        self._position = found.reached
        now, rows = time.time(), found.reached + 1
        self._by_second.forget(now)
        in_time = self._by_second.traffic(now, rows)
        if not self._by_step.bins:
            return in_time
        by_step = self._by_step.traffic(max(self._by_step.bins), rows)
        return replace(by_step, per_second=in_time.per_second)

    def society(self) -> BusiestAgents | None:
        """Return the agents, and the pairs of agents, that have the most messages in the log's last rows.

        Return None if there is no log.
        """
        if self._messaging.log_dir is None:
            return None
        return society_of(self.log, after=max(-1, self.log.end - _MOST_COUNTED))

    def state(self) -> State:
        """Return the numbers of waiting messages, the state of the steps, and the number of dead letters."""
        stats = self._messaging.stats()
        waiting = {mailbox: count for mailbox, count in stats["waiting"].items() if count or not is_internal(mailbox)}
        return State(waiting, self._steps(), stats["dead_letters"]["letters"])

    def _steps(self) -> StepFacts | None:
        try:
            progress = self._messaging.steps.progress()
        except ConfigError:
            return None
        late = [str(straggler) for straggler in self._messaging.steps.stragglers()]
        waiting = {} if progress.resting else progress.waiting_for()
        return StepFacts(progress.sealed + 1, progress.target, waiting, late, progress.resting)

    def calls_now(self) -> CallsAtWork:
        """Return the calls through `me.remember` that are under way."""
        groups = self._connection.ask(self._connection.interceptor.calls_now.remote()).values()
        agents = sorted((each for group in groups for each in group.agents), key=lambda each: -each.seconds)
        calls, waiting = sum(group.calls for group in groups), sum(group.waiting for group in groups)
        shown = [
            CallAtWork(name(agent), step, calls, waits, seconds, hears, [*map(name, named)])
            for agent, step, calls, waits, seconds, hears, named in agents[:_MOST_AT_WORK]
        ]
        return CallsAtWork(calls - waiting, waiting, shown)

    def health(self) -> Health:
        """Return the findings of a health check."""
        return self._messaging.health()

    def rules(self) -> list[RuleFacts]:
        """Return the rules, in the order in which they judge messages."""
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
        """Return the facts about an agent. Raises InvalidQuery for an invalid id, ConfigError if there is no log."""
        facts, found = super().agent(agent), agent_id(agent)
        group = None if found is None else self._connection.ask(self._connection.interceptor.owner_of.remote(found))
        if found is None or group is None:
            return facts
        waiting = self._messaging.stats()["waiting"].get(group)
        return replace(facts, group=name(group), waiting=waiting, state=self._state_of(found, group))

    def _state_of(self, agent: AgentId, group: str) -> dict[str, str]:
        """Return the committed state of an agent of `messaging.run`: its first few values, by key, as texts.

        Return {} if the agent has no state, or if its group is too large to be read.
        """
        ask, interceptor = self._connection.ask, self._connection.interceptor
        hosted = ask(interceptor.hosted.remote([group])).get(group, NO_AGENTS)
        if len(hosted) > _MOST_HOSTED:
            return {}
        try:
            state = ask(interceptor.step_state.remote(group))
        except (ConfigError, UnknownName):  # the experiment has no steps, or the group does not take part in them
            return {}
        return {} if state is None else in_words(state_of(agent, hosted, state))

    def dead_letters(self) -> list[LetterFacts]:
        """Return the oldest dead letters, as many as a page shows."""
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
