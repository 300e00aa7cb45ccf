"""The facade of an experiment: start or find it, use its groups, log and dead letters, shut it down."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.handles.connection import ExperimentConnection, connect
from ray_messaging.cluster.spec import SUBTOPICS, Experiment

if TYPE_CHECKING:
    from ray_messaging.cluster.handles.blocked_messages import BlockedListener, BlockedMessage, BlockedMessages
    from ray_messaging.cluster.handles.dead_letters import DeadLetters
    from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps
    from ray_messaging.cluster.handles.group import Group
    from ray_messaging.cluster.handles.groups import Groups
    from ray_messaging.cluster.lifecycle import StartedExperiment
    from ray_messaging.cluster.run.result import Result
    from ray_messaging.config import MessagingConfig, OnExisting, ServerConfig, Steps
    from ray_messaging.eventlog.event_log import EventLog
    from ray_messaging.interception.rules.rule import Rule
    from ray_messaging.messager import GroupMessager
    from ray_messaging.observability.health.findings import Health
    from ray_messaging.observability.observer import Observer

# The modules behind a call are imported by the call: a process that only connects needs neither the actors' code nor
# pyarrow (80 MB), and `from ray_messaging import Messaging` costs little more than `import ray`. The settings bring
# pydantic, a quarter of the time of `import ray`.
# ruff: noqa: PLC0415


class Messaging:
    """Messaging of one experiment on a Ray cluster; it can be passed to Ray tasks and actors.

    The experiment lives as long as the process that started it, or until `shutdown`.
    """

    def __init__(
        self,
        experiment: Experiment,
        interceptor: Any,  # noqa: ANN401 - a Ray actor handle
        started: "StartedExperiment | None" = None,
    ) -> None:
        self._connection = ExperimentConnection(experiment, interceptor)
        self._started = started

    @cached_property
    def _groups(self) -> "Groups":
        from ray_messaging.cluster.handles.groups import Groups

        return Groups(self._connection, self._started)

    # -- life -----------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        exp_id: str,
        *,
        redis: "ServerConfig | str | None" = None,
        rules: "Sequence[Rule]" = (),
        log_dir: str | Path | None = None,
        on_existing: "OnExisting" = "error",
        settings: "MessagingConfig | None" = None,
        mirror: bool = False,
        steps: "Steps | None" = None,
        data_dir: str | Path | None = None,
    ) -> "Messaging":
        """Start an experiment, and Ray where it does not run yet.

        Args:
            exp_id: The experiment's name.
            redis: A server of yours. None: an embedded one, which ends with the experiment (see `data_dir`).
            rules: The rules that messages must pass, in order.
            log_dir: Where the event log is kept: a folder, or a URI of pyarrow's file systems. None: no log.
                `messaging.log_dir` is the absolute path.
            on_existing: The action where `exp_id` has data on the server or in log_dir, or runs already.
            settings: Limits and timeouts.
            mirror: PUBLISH messages to agents as well, for foreign listeners.
            steps: Groups send and receive in steps (see docs/steps.md). None: as they like.
            data_dir: A folder on this machine where the embedded server keeps its data, for a later start with
                on_existing="resume". None: with steps and a log_dir that is `<log_dir>-server`, else nothing is kept.

        Raises: AlreadyExists, ConfigError, ConnectionFailed within 5 s, ServerRefused, RuleError.
        """
        from ray_messaging.cluster.lifecycle import start_experiment
        from ray_messaging.config import MessagingConfig

        settings = settings or MessagingConfig()
        if mirror:
            settings = settings.model_copy(update={"mirror": True})
        started = start_experiment(
            exp_id,
            server=redis,
            rules=rules,
            log_dir=log_dir,
            on_existing=on_existing,
            settings=settings,
            steps=steps,
            data_dir=data_dir,
        )
        return cls(started.experiment, started.interceptor, started)

    @classmethod
    def connect(cls, exp_id: str) -> "Messaging":
        """Find a running experiment from anywhere in its Ray cluster; raise UnknownName."""
        connection = connect(exp_id)
        return cls(connection.experiment, connection.interceptor)

    def shutdown(self, *, erase: bool = False) -> None:
        """Let the groups send their accepted messages, then stop everything; a second call does nothing.

        Only the process that started the experiment stops it. In other processes this only drops the handles.

        Args:
            erase: Delete the experiment's data, unread messages included, from a server of yours. Otherwise
                `on_existing` decides at the next start. An embedded server's data are deleted unless it has a
                `data_dir`.
        """
        started, self._started = self._started, None
        if started is not None:
            started.close(erase=erase)
        self._groups.known.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return Messaging, (self._connection.experiment.without_password(), self._connection.interceptor)

    def __repr__(self) -> str:
        return f"Messaging({self.exp_id!r}{f', log_dir={self.log_dir!r}' if self.log_dir else ''})"

    # -- the experiment -------------------------------------------------------------------------------------------

    @property
    def exp_id(self) -> str:
        """Return the experiment's name."""
        return self._connection.exp_id

    @property
    def redis(self) -> "ServerConfig":
        """Return the server's address and password, for a foreign Redis client or a Messager of your own."""
        return self._connection.with_password().redis

    @property
    def interceptor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        """Return the handle of the interceptor actor."""
        return self._connection.interceptor

    def stats(self) -> dict[str, Any]:
        """Return the counters of the interceptor and the event log, and the number of waiting messages by mailbox."""
        stats: dict[str, Any] = self._connection.ask(self.interceptor.stats.remote())
        if self.log_dir is not None:
            stats["log"] = self._connection.ask(self.log_actor.stats.remote())
        return {"exp_id": self.exp_id} | stats

    def health(self) -> "Health":
        """Return the findings of a health check, each problem with its remedy; takes at most 5 s."""
        from ray_messaging.cluster.health_check import check_health

        experiment = self._connection.experiment
        groups = {experiment.group_name(name): group.actor for name, group in self._groups.known.items()}
        return check_health(self.exp_id, experiment, {experiment.interceptor_name: self.interceptor} | groups)

    # -- groups ---------------------------------------------------------------------------------------------------

    def create_group(
        self,
        name: str,
        agents: Iterable[AgentId],
        *,
        subtopics: Sequence[str] = SUBTOPICS,
        actor_options: dict[str, Any] | None = None,
    ) -> "Group":
        """Start a group, a Ray actor that hosts agents; it lives as long as the process that made it.

        Raises: AlreadyExists where the name or an agent is taken, InvalidAddress, Closed after the end.
        """
        return self.create_groups({name: agents}, subtopics=subtopics, actor_options=actor_options)[name]

    def create_groups(
        self,
        groups: Mapping[str, Iterable[AgentId]],
        *,
        subtopics: Sequence[str] = SUBTOPICS,
        actor_options: dict[str, Any] | None = None,
    ) -> "dict[str, Group]":
        """Start several groups at a time, {name: agents}, in about the time of one: all of them, or none.

        Raises: as `create_group`.
        """
        return self._groups.create(groups, subtopics, actor_options)

    def group(self, name: str) -> "Group":
        """Return a group by its name; raise UnknownName."""
        return self._groups.find(name)

    def groups(self) -> "list[Group]":
        """Return the groups that `create_group` made, in any process, by name."""
        return self._groups.all()

    def group_of(self, agent_id: AgentId) -> "Group":
        """Return the group that hosts an agent; raise UnknownName."""
        return self._groups.host_of(agent_id)

    def remove_group(self, name: str) -> None:
        """Stop a group and remove its mailbox; its unread messages become dead letters."""
        self._groups.remove(name)

    # -- messagers in users' own actors ---------------------------------------------------------------------------

    async def open_messager(
        self,
        name: str,
        agents: Iterable[AgentId],
        *,
        subtopics: Sequence[str] = SUBTOPICS,
        observer: "Observer | None" = None,
    ) -> "GroupMessager":
        """Open a group inside your own actor: a messager that hosts agents, without an extra hop. Close it yourself.

        It makes the garbage collector of your process run less often, unless you have set its thresholds.

        Raises: AlreadyExists where the name is held by a living actor, or an agent is taken.
        """
        from ray_messaging.cluster.handles.messagers import open_messager

        return await open_messager(self._connection, name, agents, subtopics, observer)

    def closed_messagers(self) -> list[str]:
        """Return the names of closed or dead messagers; their mailboxes wait on the server for successors.

        Groups are not among them. Raises ConnectionFailed, ServerRefused.
        """
        from ray_messaging.cluster.handles.messagers import closed_messagers

        return closed_messagers(self._connection)

    def remove_messager(self, name: str) -> None:
        """Remove a named messager's mailbox and its other data on the server; unread messages become dead letters.

        An open messager raises NotListening from then on. Raises ConfigError for a living group.
        """
        from ray_messaging.cluster.handles.messagers import remove_messager

        remove_messager(self._connection, name)

    # -- steps ----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> "ExperimentSteps":
        """Return the steps of all groups: how far they are, pause and resume, digests."""
        from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps

        return ExperimentSteps(self._connection)

    def run(
        self,
        model: "Callable[..., object]",
        *,
        agents: object,
        groups: object = None,
        until: int,
        start: "Callable[..., dict[str, Any]] | None" = None,
        graph: object = None,
        shared: object = None,
        by: str = "agent",
        concurrency: int = 100,
        timeout: float | None = None,
        progress: bool = True,
    ) -> "Result":
        """Run a model step by step, in one Ray actor per group, and return the agents' states (see docs/steps.md).

        Where a process dies, its step runs again with the same messages, states and random numbers. Call it again with
        a higher `until`, or after `start(..., on_existing="resume")`, to go on.

        Args:
            model: `def person(me, inbox)`, or async; with by="group" `def crowd(group, step)`.
            agents: How many (ids 0 to n - 1), their ids, or a DataFrame: its index are the ids, its rows are `me.data`.
            groups: How many, {name: ids}, or None: one per two CPUs.
            until: The first step that does not run.
            start: Returns an agent's first state, a dict; with by="group" the group's, a dict of arrays.
            graph: Edges (m, 2) of sender and hearer, for `me.neighbours`.
            shared: Any object, for `me.shared`; it is stored once.
            by: "agent" or "group".
            concurrency: How many agents of a group run at once, if the model is async.
            timeout: Seconds for one agent in one step, if the model is async.
            progress: Show the progress: a bar on a terminal, else a line on stderr every 10 s.

        Ctrl-C ends the run after the open step: the result has `stopped`. A second Ctrl-C ends it at once.

        Raises: StepFailed where the model raises, ConfigError, StepTooLarge.
        """
        from ray_messaging.cluster.run.run import run
        from ray_messaging.cluster.run.run_actor import RunOptions

        options = RunOptions(start, by, concurrency, timeout)
        return run(self, model, agents, groups, until, graph, options, shared, progress=progress)

    # -- the event log --------------------------------------------------------------------------------------------

    @property
    def log_dir(self) -> str | None:
        """Return where the event log is kept: an absolute path on the node that started the experiment, or a URI.

        None: no log is kept.
        """
        return self._connection.experiment.log_dir

    @property
    def log_actor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        """Return the actor that keeps the event log; raise ConfigError where there is none, Closed after the end."""
        return self._connection.log_actor()

    @property
    def log(self) -> "EventLog":
        """Return the event log up to this moment: messages, senders, receivers, fates; raises as `log_actor`."""
        from ray_messaging.cluster.handles.remote_log import RemoteSource
        from ray_messaging.eventlog.event_log import EventLog

        return EventLog(RemoteSource(self.log_actor, self.exp_id))

    def blocked(self, *, after: int | None = None) -> "BlockedMessages":
        """Iterate (`async for`) over blocked messages, from now on or after a `cursor`; needs the event log."""
        from ray_messaging.cluster.handles.blocked_messages import BlockedMessages

        return BlockedMessages(self.log_actor, after)

    def on_blocked(
        self, callback: "Callable[[BlockedMessage], object]", *, after: int | None = None
    ) -> "BlockedListener":
        """Call a function with each blocked message, in a thread, until the listener is closed; needs the event log."""
        from ray_messaging.cluster.handles.blocked_messages import BlockedListener

        return BlockedListener(self.log_actor, callback, after)

    # -- dead letters ---------------------------------------------------------------------------------------------

    @property
    def dead_letters(self) -> "DeadLetters":
        """Return the dead letters: frames that cannot be decoded, and unread messages of removed mailboxes."""
        from ray_messaging.cluster.handles.dead_letters import DeadLetters

        experiment = self._connection.with_password()
        return DeadLetters(experiment.redis, experiment.exp_id, experiment.settings)
