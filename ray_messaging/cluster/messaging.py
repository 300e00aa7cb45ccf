"""The class `Messaging`, by which a user starts or finds an experiment, uses it, and shuts it down."""

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

import ray

from ray_messaging.addressing.channels import AGENT_CHAT, USER_SURVEY, AgentId, check_id, check_name
from ray_messaging.cluster.handles.connection import ExperimentConnection, connect, find_actor
from ray_messaging.cluster.ray_clusters import RAY_LOCK, join_ray
from ray_messaging.cluster.spec import SUBTOPICS, Experiment
from ray_messaging.default_limits_and_leases import ANSWER_TIMEOUT_S, MOVE_TIMEOUT_S
from ray_messaging.errors import AlreadyExists, ConfigError, StepFailed, UnknownName

if TYPE_CHECKING:
    from ray_messaging.cluster.a2a_remote import RemoteAgent
    from ray_messaging.cluster.a2a_server import A2AServer
    from ray_messaging.cluster.audience_files import AudienceFiles
    from ray_messaging.cluster.embedded_servers import Shards
    from ray_messaging.cluster.fork import Fork
    from ray_messaging.cluster.handles.audience import Audience
    from ray_messaging.cluster.handles.dead_letters import DeadLetters
    from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps
    from ray_messaging.cluster.handles.group.group import Group
    from ray_messaging.cluster.handles.groups import Groups
    from ray_messaging.cluster.handles.hosted_agents import HostedAgents
    from ray_messaging.cluster.handles.remote_log import BlockedListener, BlockedMessage, BlockedMessages
    from ray_messaging.cluster.handles.rules import ExperimentRules
    from ray_messaging.cluster.handles.seat import Seat
    from ray_messaging.cluster.handles.survey import Survey
    from ray_messaging.cluster.handles.user_messager import UserMessager
    from ray_messaging.cluster.inspector_process import Inspector
    from ray_messaging.cluster.lifecycle import StartedExperiment
    from ray_messaging.cluster.moves import AgentMove
    from ray_messaging.cluster.placement import ActorOptions, GroupPlacement
    from ray_messaging.cluster.run.arguments import AgentArguments, AgentModel, GroupArguments, GroupModel, Until
    from ray_messaging.cluster.run.result import Result
    from ray_messaging.cluster.run.run import Run, RunActors
    from ray_messaging.compat.msg import Payload
    from ray_messaging.config import Calls, MessagingConfig, OnExisting, ServerConfig, Steps
    from ray_messaging.conversations.answer_stream import GroupAnswers
    from ray_messaging.eventlog.event_log import EventLog
    from ray_messaging.interception.rules.rule import Rule
    from ray_messaging.message import Message
    from ray_messaging.messager import GroupMessager
    from ray_messaging.observability.health.findings import Health
    from ray_messaging.observability.observer import Observer
    from ray_messaging.observability.tracing.settings import Tracing
    from ray_messaging.receipt import Receipts
    from ray_messaging.surveys.surveys import Surveys

T = TypeVar("T")

# Each method imports the modules that it needs. So a process that only connects needs neither the actors' code nor
# pyarrow (80 MB), and `from ray_messaging import Messaging` takes little longer than `import ray`. The module of the
# settings imports pydantic, which takes a quarter of the time of `import ray`.
# ruff: noqa: PLC0415


class Messaging(AbstractContextManager["Messaging"]):
    """One experiment on a Ray cluster, as an object that can be passed to Ray tasks and actors.

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
        self._fork: Fork | None = None  # what to do between a fork's steps; None unless this process started it
        self._doors: list[A2AServer | RemoteAgent] = []  # what this process has opened for clients and agents outside

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
        metrics: bool = False,
        tracing: "Tracing | None" = None,
        shards: "Shards" = None,
        calls: "Calls | None" = None,
    ) -> "Messaging":
        """Start an experiment, and Ray if it does not run yet.

        If this call starts Ray, Ray ends with the last experiment of this process.

        Args:
            exp_id: The experiment's name.
            redis: The address of your own server. None: an embedded server, which ends with the experiment (see
                `data_dir`).
            rules: The rules that messages must pass, in order.
            log_dir: The folder of the event log, a path or a URI of pyarrow's file systems. None: there is no log.
                `messaging.log_dir` is the absolute path.
            on_existing: What to do if `exp_id` has data on the server or in log_dir, or runs already: "error",
                "resume" (go on with the data) or "reset" (delete them).
            settings: Limits and timeouts.
            mirror: Also send each message to an agent by Redis's PUBLISH, so that plain Redis clients can listen.
            steps: Groups send and receive in steps (see docs/steps.md). None: they send and receive at any time.
            data_dir: A folder on this machine where the embedded servers keep their data, for a later start with
                on_existing="resume". None: the folder `<log_dir>-server`; without steps, this folder is removed once
                the log has all rows. Without a log_dir, or with shards="per-node", no data are kept.
            metrics: True: groups count and time what they do, for `metrics_text()` and Ray's metrics
                (docs/operations.md).
            tracing: Record OpenTelemetry spans of a sample of the batches, from sender to handler (see
                docs/operations.md). None: no spans.
            shards: With steps, the number of servers over which large messages are spread (see docs/operations.md).
                This many embedded servers start on this node. With a Redis Cluster of your own, this many hash slots
                are used. "per-node" starts one server on each node that Ray has now. Everything but large messages is
                on the first server. None: one server.
            calls: The limits of the calls that agents make by `me.remember`, such as calls of a language model, for all
                groups together. None: no limits.

        Raises: AlreadyExists if the experiment exists and `on_existing` is "error"; ConfigError for invalid arguments;
        ConnectionFailed within 5 s if the server does not answer; ServerRefused if it refuses the password, user or db;
        RuleError for a rule that cannot be used.
        """
        from ray_messaging.cluster.lifecycle import start_experiment
        from ray_messaging.config import MessagingConfig

        settings = MessagingConfig() if settings is None else settings
        if mirror:
            settings = settings.model_copy(update={"mirror": True})
        try:
            started = start_experiment(
                exp_id,
                server=redis,
                rules=rules,
                log_dir=log_dir,
                on_existing=on_existing,
                settings=settings,
                steps=steps,
                data_dir=data_dir,
                metrics=metrics,
                tracing=tracing,
                shards=shards,
                calls=calls,
            )
        except AlreadyExists as error:
            # The traceback within this library and Ray would not help a user.
            raise error.with_traceback(None) from None
        return cls(started.experiment, started.interceptor, started)

    @classmethod
    def fork(
        cls,
        parent: str | Path,
        exp_id: str,
        *,
        log_dir: str | Path,
        at_step: int | None = None,
        rules: "Sequence[Rule] | None" = None,
        states: "Mapping[AgentId, Mapping[str, Any]] | None" = None,
        redis: "ServerConfig | str | None" = None,
        settings: "MessagingConfig | None" = None,
        data_dir: str | Path | None = None,
        calls: "Calls | None" = None,
        on_existing: Literal["error", "resume"] = "error",
    ) -> "Messaging":
        """Start an experiment, the fork, from a checkpoint in the folder of another run, the parent.

        The fork begins with the last checkpoint before `at_step`. The checkpoint has all states, the messages that are
        not read yet, the audiences, and the `state` of each rule. A call of `run` with the same agents and groups goes
        on from there. In the steps between the checkpoint and `at_step` the groups must send the same messages as in
        the parent. The parent is never changed, and may still run. A fork may be forked.

        Args:
            parent: The log_dir of the other run, which had `Steps(checkpoint=...)`, or a copy of that folder.
            exp_id: The name of the new experiment.
            log_dir: The folder of the fork's event log, which gets the parent's rows up to the checkpoint.
            at_step: The first step that may differ from the parent's step; None: the step after the last checkpoint.
            rules: The fork's rules. A rule that has the name of a rule of the parent begins with the `state` of that
                rule.
            states: Values to set in agents' states before step `at_step`, such as `{3: {"mood": 0.5}}`. In a run with
                by="group" (see `run`) "mood" names an array of the group's state, and the value is set at the agent's
                place in that array.
            redis: As for `start`.
            settings: As for `start`.
            data_dir: As for `start`.
            calls: As for `start`.
            on_existing: What to do if `log_dir` has a log: "error", or "resume" to go on with a fork whose process was
                killed; for "resume", pass the same arguments again.

        Raises: ConfigError if there is no checkpoint before `at_step`, the parent had rules and none are given, or
        `log_dir` has another fork; AlreadyExists if `log_dir` has a log and `on_existing` is "error"; LogError if the
        parent's folder cannot be read; otherwise the same errors as `start`, such as ConnectionFailed and RuleError.
        """
        from ray_messaging.cluster.fork import start_fork
        from ray_messaging.config import MessagingConfig

        started, fork = start_fork(
            parent,
            exp_id,
            at_step=at_step,
            log_dir=log_dir,
            rules=rules,
            states=states,
            server=redis,
            settings=MessagingConfig() if settings is None else settings,
            data_dir=data_dir,
            calls=calls,
            on_existing=on_existing,
        )
        messaging = cls(started.experiment, started.interceptor, started)
        messaging._fork = fork
        return messaging

    @classmethod
    def connect(cls, exp_id: str) -> "Messaging":
        """Find a running experiment from anywhere in its Ray cluster.

        If this process has not called `ray.init`, this joins the cluster at RAY_ADDRESS, or the cluster on this machine
        that has the experiment. If no cluster has the experiment, Ray is left as it was.

        Raises: UnknownName if no such experiment runs; InvalidAddress for an invalid name; ConfigError if there is no
        Ray cluster, or the cluster refuses the connection.
        """
        with RAY_LOCK:
            in_cluster = ray.is_initialized()
            if not join_ray(check_name("exp_id", exp_id), as_driver=True):
                raise ConfigError(
                    f"no Ray cluster runs on this machine, so there is no experiment {exp_id!r}: call ray.init("
                    f"address=...) to join another machine's cluster, or begin by Messaging.start({exp_id!r})"
                )
            try:
                connection = connect(exp_id)
            except UnknownName:
                # This process leaves the cluster, because the next experiment may run in another cluster, and must not
                # start in this one.
                if not in_cluster:
                    ray.shutdown()
                raise
        return cls(connection.experiment, connection.interceptor)

    def shutdown(self, *, erase: bool = False) -> None:
        """Let the groups send the messages that they have accepted, and then stop everything.

        A second call does nothing. Only the process that started the experiment can stop it. In any other process this
        call only ends what that process has opened, and the experiment goes on.

        Args:
            erase: Delete the experiment's data, unread messages included, from your own server or from `data_dir`.
                Without `erase` these data stay, and `on_existing` of the next `start` decides what happens to them. An
                embedded server's data stay only if they are in a folder (see `data_dir` of `start`).
        """
        doors, self._doors = self._doors, []
        for door in doors:
            door.close()
        kept = ("_surveys", "_audience_files", "_user", "_run_actors", "_seat_pages")
        *_, user, runs, seats = (self.__dict__.pop(name, None) for name in kept)
        if user is not None:
            user.close()
        if runs is not None:
            runs.end()
        if seats is not None:
            seats.close()
        started, self._started = self._started, None
        if started is not None:
            started.close(erase=erase)
        self._groups.known.clear()

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return Messaging, (self._connection.experiment.without_password(), self._connection.interceptor)

    def __repr__(self) -> str:
        return f"Messaging({self.exp_id!r}{f', log_dir={self.log_dir!r}' if self.log_dir else ''})"

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(repr(self))}</b></p>{self.agents()._repr_html_()}"

    # -- the experiment -------------------------------------------------------------------------------------------

    @property
    def exp_id(self) -> str:
        """Return the experiment's name."""
        return self._connection.exp_id

    @property
    def redis(self) -> "ServerConfig":
        """Return the server's address and password, for a plain Redis client or your own Messager."""
        return self._connection.with_password().redis

    @property
    def interceptor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        """Return the Ray handle of the interceptor, the actor that holds the experiment's rules for messages."""
        return self._connection.interceptor

    def stats(self) -> dict[str, Any]:
        """Return a dict of counters, such as the numbers of messages that rules have `judged` and `blocked`.

        `waiting` has the number of unread messages of each mailbox, which is the queue of one group or messager on the
        server. `dead_letters` has counts of dead letters, the messages that no mailbox could deliver. If the experiment
        has an event log, `log` has the counters of the log's writer.
        """
        stats: dict[str, Any] = self._connection.ask(self.interceptor.stats.remote())
        if self.log_dir is not None:
            stats["log"] = self._connection.ask(self.log_actor.stats.remote())
        return {"exp_id": self.exp_id} | stats

    def health(self) -> "Health":
        """Check within 5 s whether the experiment is healthy, and return the findings as a Health.

        The Health has a remedy for each problem that was found.
        """
        from ray_messaging.cluster.health_check import check_health

        return check_health(self.exp_id, *self._known)

    def ui(
        self, *, port: int = 8266, host: str = "127.0.0.1", control: bool = False, token: bool = False
    ) -> "Inspector":
        """Open the inspector, web pages about this experiment, in a separate process; return its handle, with `url`.

        Args: the same as the options of `ray-messaging ui` (see docs/inspector.md); port 0 selects a free port.
        Raises: ConfigError if the inspector cannot be opened, for example because the port is taken, or because
        `ray-messaging[ui]` is not installed.
        """
        from ray_messaging.cluster.inspector_process import Inspector

        options = ["--port", str(port), "--host", host, *["--control"] * control, *["--token"] * token]
        return Inspector(self.exp_id, options)

    def seat(
        self,
        agent: AgentId,
        *,
        consent: str = "",
        host: str = "127.0.0.1",
        port: int = 8267,
        allow_host: Sequence[str] = (),
    ) -> "Seat":
        """Let a person act for an agent: the person reads the agent's inbox and writes its messages on a web page.

        Call this before `run`. In each step, `run` then lets the person act in place of the agent's function, and waits
        for the person up to `Steps(seat_timeout_s=)` seconds. What people do is stored, so a step that runs again asks
        nobody twice. One web server, in a process of its own, has the pages of all these people, until `shutdown`. See
        docs/guides/seats.md.

        Args:
            agent: The agent's id. If a person has a link for this agent already, such as in a resumed run, that link
                stays valid.
            consent: A text to which people must agree before they begin; "": no such text.
            host: The address on which the web server listens. People at other machines cannot reach a loopback address.
            port: The port; 0 selects a free port. In a resumed experiment earlier links work only at the same port.
            allow_host: More names by which browsers may reach the server, such as a proxy's name.

        Returns: a Seat; its `url` is the link for the person, and has a secret token.
        Raises: ConfigError if the experiment has no steps; if the web server cannot start, because its port is taken or
        `ray-messaging[ui]` is not installed; or if an earlier call had another `host`, `port` or `allow_host`.
        """
        from ray_messaging.cluster.handles.seat import Seat, SeatPages

        agent, address = check_id(agent), (host, port, tuple(allow_host))
        pages: SeatPages | None = self.__dict__.get("_seat_pages")
        if pages is not None:
            pages.check(address)
        # The seat is opened last. So if an earlier line fails, no run waits for a person who has no link.
        self._connection.ask(self.interceptor.seat_tokens.remote())  # raises ConfigError if there are no steps
        if pages is None:
            pages = self.__dict__["_seat_pages"] = SeatPages(self._connection, address)
        token = self._connection.ask(self.interceptor.open_seat.remote(agent, consent))
        return Seat(self._connection, agent, pages.url, token)

    def metrics_text(self) -> str:
        """Return metrics of this experiment, as text in Prometheus' format, in at most 5 s.

        The metrics describe the server, the groups, the event log, and the interceptor, the actor that applies the
        rules. The counts and durations that groups measure are included only if the experiment was started with
        `Messaging.start(..., metrics=True)`.

        Raises: ImportError if prometheus-client is not installed.
        """
        from ray_messaging.cluster.health_check import ask_experiment
        from ray_messaging.observability.metrics.experiment_metrics import families_of
        from ray_messaging.observability.metrics.families import prometheus_text

        return prometheus_text(families_of(self.exp_id, ask_experiment(self.exp_id, *self._known)))

    @property
    def _known(self) -> "tuple[Experiment, dict[str, Any]]":
        """Return the experiment, and the actors that this process knows, by their Ray names."""
        experiment = self._connection.experiment
        groups = {experiment.group_name(name): group.actor for name, group in self._groups.known.items()}
        return experiment, {experiment.interceptor_name: self.interceptor} | groups

    # -- groups ---------------------------------------------------------------------------------------------------

    def create_group(
        self,
        name: str,
        agents: Iterable[AgentId],
        *,
        subtopics: Sequence[str] = SUBTOPICS,
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
    ) -> "Group":
        """Start a group, a Ray actor that hosts agents. The group lives as long as the process that made it.

        Args: as for `create_groups`.
        Raises: AlreadyExists if the name or an agent is taken; InvalidAddress for an invalid name or id; Closed if the
        experiment has ended.
        """
        made = self.create_groups({name: agents}, subtopics=subtopics, placement=placement, actor_options=actor_options)
        return made[name]

    def create_groups(
        self,
        groups: Mapping[str, Iterable[AgentId]],
        *,
        subtopics: Sequence[str] = SUBTOPICS,
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
    ) -> "dict[str, Group]":
        """Start several groups; return their handles by name. If a group fails to start, all of them are stopped.

        Args:
            groups: The ids of the agents of each group, by the group's name.
            subtopics: The subtopics on which the agents listen.
            placement: On which nodes of the cluster the groups start. "spread": over all nodes. "pack": on the node of
                this process, as long as that node has free resources. A dict gives, for a group, a node's id or name,
                or the resources that the group's node must have, such as `{"east": "host-b", "west": {"GPU": 1}}`.
                Groups that are not in the dict are spread. If a node is lost, its groups start again on other nodes,
                except groups that the dict places on the lost node. If no group becomes ready within 10 s, a warning
                names the requested resources that no node has.
            actor_options: Ray's options for the actors, such as num_cpus or runtime_env, as a dict for all groups, or a
                dict of such dicts by group.

        Raises: ConfigError for a node, a group or an option that does not exist; otherwise the same errors as
        `create_group`, such as AlreadyExists and InvalidAddress.
        """
        return self._groups.create(groups, subtopics, placement, actor_options)

    def group(self, name: str) -> "Group":
        """Return a group by its name; raise UnknownName if the experiment has no such group."""
        return self._groups.find(name)

    def groups(self) -> "list[Group]":
        """Return the groups that `create_group` or `create_groups` made, in any process, sorted by name."""
        return self._groups.all()

    def group_of(self, agent_id: AgentId) -> "Group":
        """Return the group that hosts an agent; raise UnknownName if no group hosts it."""
        return self._groups.host_of(agent_id)

    def agents(self) -> "HostedAgents":
        """Return a mapping from each agent's id to the name of the group that hosts the agent.

        If a messager that `open_messager` made hosts the agent, the name is that of this messager. The mapping does not
        change later. Its method `to_pandas()` returns a DataFrame.
        """
        from ray_messaging.cluster.handles.hosted_agents import HostedAgents

        return HostedAgents(self._connection.ask(self.interceptor.agents.remote()))

    def move_agents(self, agents: Iterable[AgentId], *, to: "str | Group", timeout: float = MOVE_TIMEOUT_S) -> None:
        """Move agents to another group, with the messages that wait for them. No message is lost, doubled or overtaken.

        The agents of one group move together, or none of them moves. This call waits up to `timeout` seconds until all
        messages that were fetched for these agents are committed. In an experiment with steps the agents move when the
        next step opens (see docs/moving-agents.md).

        Raises: UnknownName for an agent or a group that does not exist; AlreadyExists for an agent that is in that
        group already; MoveFailed if the fetched messages were not committed in time; ConfigError in an experiment
        without steps, for an agent of a messager that `open_messager` made.
        """
        from ray_messaging.cluster.moves import move_agents

        move_agents(self._connection, self._groups, agents, to, timeout)

    def rebalance(self, *, dry_run: bool = False, timeout: float = MOVE_TIMEOUT_S) -> "list[AgentMove]":
        """Move agents from groups with much load to groups with little load, and return the moves.

        A move has `agents`, `source` and `target` (the names of the groups).

        The load of a group is the number of messages that it has fetched since its start. If no group has fetched any,
        the load of a group is the number of its agents. Groups whose load differs from the mean by at most a tenth do
        not change.

        Args: With `dry_run`, no agent moves, and the planned moves are returned. `timeout` is as for `move_agents`.
        Raises: the same errors as `move_agents`, such as MoveFailed.
        """
        from ray_messaging.cluster.moves import rebalance

        return rebalance(self._connection, self._groups, timeout, dry_run=dry_run)

    def remove_group(self, name: str) -> None:
        """Stop a group and remove its mailbox; its unread messages become dead letters.

        Raises: UnknownName if the experiment has no such group.
        """
        self._groups.remove(name)

    def schema(self, subtopic: str, kind: object) -> None:
        """Set the type of a subtopic's payloads: from now on senders refuse payloads that do not fit the type.

        Senders then raise PayloadMismatch. When this returns, all senders know the type. The type is valid as long as
        the experiment's data exist.

        Args: `kind` is a pydantic model, a msgspec.Struct, a dataclass, a TypedDict, or a JSON Schema as a dict. None
        removes the type.
        Raises: InvalidAddress for an invalid subtopic; ConfigError for a type that has no JSON Schema, or for a JSON
        Schema that senders cannot check.
        """
        from ray_messaging.addressing.channels import check_subtopic
        from ray_messaging.model.json_types import described

        text = None if kind is None else described(kind)
        self._connection.ask(self.interceptor.set_schema.remote(check_subtopic(subtopic), text))

    # -- audiences ------------------------------------------------------------------------------------------------

    def create_audience(
        self,
        name: str,
        *,
        graph: object = None,
        members: object = None,
        positions: object = None,
        radius: float | None = None,
        ids: object = None,
        most_pairs: int = 250_000_000,
    ) -> "Audience":
        """Create an audience: a set of pairs of sender and hearer, to which agents broadcast (see docs/audiences.md).

        Args:
            graph: Pairs (m, 2) of sender and hearer, as an int array, a list, chunks of arrays, a DataFrame with two
                columns, or a networkx graph.
            members: Ids of agents. Each member hears all broadcasts of the other members.
            positions: Positions (n, 2) or (n, 3). Agents within `radius` of each other hear each other.
            radius: The radius, for positions.
            ids: The agents at the positions; None: all agents, ascending.
            most_pairs: The most pairs that may result from the positions.

        Raises: AlreadyExists if the name is taken; UnknownName for an agent that no group hosts; InvalidColumns if a
        graph, ids or positions are not valid; InvalidAddress for an invalid name or id; ConfigError if the arguments do
        not fit together, or the radius is not valid; AudienceTooLarge if the positions make more than `most_pairs`
        pairs.
        """
        from ray_messaging.cluster.handles.audience import create_audience

        files = self._audience_files
        return create_audience(self._connection, files, name, graph, members, positions, radius, ids, most_pairs)

    def audience(self, name: str) -> "Audience":
        """Return the handle of an existing audience; raise UnknownName if no audience has this name."""
        from ray_messaging.cluster.handles.audience import Audience

        self._connection.ask(self.interceptor.audiences.remote()).of(name)
        return Audience(self._connection, name)

    def audiences(self) -> "list[Audience]":
        """Return all audiences, sorted by name. Each is a named set of pairs of sender and hearer."""
        from ray_messaging.cluster.handles.audience import Audience

        names = self._connection.ask(self.interceptor.audiences.remote()).names()
        return [Audience(self._connection, name) for name in names]

    def remove_audience(self, name: str) -> None:
        """Remove an audience; raise UnknownName if it does not exist. Later broadcasts to it raise UnknownName."""
        from ray_messaging.cluster.audience_files import remove

        self._audience_files.change(name, remove)

    @cached_property
    def _audience_files(self) -> "AudienceFiles":
        from ray_messaging.cluster.audience_files import AudienceFiles

        return AudienceFiles(self._connection.experiment, self.interceptor)

    def broadcast(self, audience: object, payload: "Payload", *, subtopic: str = AGENT_CHAT) -> "Receipts":
        """Send one message from the user to all hearers of an audience; return one receipt for each hearer.

        An audience is a named set of pairs of sender and hearer.

        Args: `audience` is the audience's handle or name, or "*" for all agents.
        Raises: UnknownName if the audience does not exist; otherwise the same errors as `Messager.send_message`, such
        as InvalidPayload, MailboxFull and OutcomeUnknown.
        """
        return self._user.broadcast(audience, payload, subtopic)

    # -- messagers in users' own actors ---------------------------------------------------------------------------

    async def open_messager(
        self,
        name: str,
        agents: Iterable[AgentId],
        *,
        subtopics: Sequence[str] = SUBTOPICS,
        observer: "Observer | None" = None,
    ) -> "GroupMessager":
        """Open a group inside your own actor, as a messager that hosts agents.

        Your actor then sends and fetches directly, not by calls to the actor of a group. You must close the messager.
        An open messager makes the garbage collector of your process run less often, unless you have set the collector's
        thresholds.

        Args: `subtopics` are the subtopics on which the agents listen. `observer` is an `Observer` that is told what
        the messager does.
        Raises: AlreadyExists if a living actor has the name, or an agent is taken.
        """
        from ray_messaging.cluster.handles.messagers import open_messager

        return await open_messager(self._connection, name, agents, subtopics, observer)

    def closed_messagers(self) -> list[str]:
        """Return the names of closed or dead messagers whose mailboxes are kept for a later messager of that name.

        Groups are left out, and so are messagers that host agents, such as those of `open_messager`.

        Raises: ConnectionFailed if the server does not answer; ServerRefused if it refuses the password, user or db.
        """
        from ray_messaging.transports.backend import backend_of

        return backend_of(self.redis).closed_names(self.exp_id)

    def remove_messager(self, name: str) -> None:
        """Remove the mailbox and other data of a named messager from the server; unread messages become dead letters.

        If the messager is open, it raises NotListening or Fenced from then on.

        Raises: ConfigError if the name is that of a living group.
        """
        if find_actor(self._connection.experiment.group_name(check_name("name", name))) is not None:
            raise ConfigError(f"{name!r} is a running group: remove it by messaging.remove_group({name!r})")
        self._connection.ask(self.interceptor.remove.remote(name))

    @property
    def rules(self) -> "ExperimentRules":
        """Return the rules of this experiment, as an object that can list, insert, replace and remove rules."""
        from ray_messaging.cluster.handles.rules import ExperimentRules

        return ExperimentRules(self._connection)

    # -- steps ----------------------------------------------------------------------------------------------------

    @property
    def steps(self) -> "ExperimentSteps":
        """Return an object that shows how far all groups have come in the steps, and that can pause and resume them.

        The object's method `digest(step)` returns a hash of the messages of a step (see `EventLog.digest`).
        """
        from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps

        return ExperimentSteps(self._connection)

    @cached_property
    def _run_actors(self) -> "RunActors":
        from ray_messaging.cluster.run.run import RunActors

        return RunActors()

    @overload
    def run(
        self,
        model: "AgentModel | Mapping[str, AgentModel]",
        *,
        until: "Until",
        max_steps: int | None = None,
        by: Literal["agent"] = "agent",
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
        progress: bool = True,
        **given: "Unpack[AgentArguments]",
    ) -> "Result": ...
    @overload
    def run(
        self,
        model: "GroupModel | Mapping[str, GroupModel]",
        *,
        until: "Until",
        max_steps: int | None = None,
        by: Literal["group"],
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
        progress: bool = True,
        **given: "Unpack[GroupArguments]",
    ) -> "Result": ...
    def run(
        self,
        model: "Callable[..., object] | Mapping[str, Callable[..., object]]",
        *,
        agents: object,
        groups: object = None,
        until: "Until",
        max_steps: int | None = None,
        start: "Callable[..., dict[str, Any]] | Mapping[str, Callable[..., dict[str, Any]]] | None" = None,
        graph: object = None,
        shared: object = None,
        by: str = "agent",
        concurrency: int = 100,
        timeout: float | None = None,
        collect: object = None,
        collect_every: int = 1,
        only_active: bool = False,
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
        progress: bool = True,
    ) -> "Result":
        """Run a model step by step, in one Ray actor per group; return a Result with the agents' states.

        See docs/steps.md.

        If a process dies, its step runs again with the same messages, states and random numbers. To run further steps
        of a model, call `run` again with a higher `until`. To go on with an experiment that has ended, first call
        `start(..., on_existing="resume")`, and then `run`.

        Args:
            model: The function of an agent, `def person(me, inbox)`, or async. With by="group", the function of a
                group, `def crowd(group, step)`. For several kinds of agents, a dict that maps each kind to its
                function, such as {"trader": trader, "book": book}.
            agents: The number of agents (ids 0 to n - 1), their ids, or a DataFrame whose index has the ids and whose
                rows become `me.data`. For several kinds {"trader": range(1000), "book": ["book"]}, or a DataFrame with
                a column `kind`.
            groups: The number of groups, or {name: ids}, or None: one per two CPUs. With n groups, the agents, sorted
                (ints before strs), are dealt out in turn: the first to "group0", the second to "group1", and so on.
                With by="group" and several kinds, each group has agents of only one kind, and each kind has at least
                one group.
            until: The run ends before this step. Or a condition, such as `lambda now: now["mood"] > 1`, which is a
                function that gets a dict of the values that `collect` recorded in a step, by column. The run ends after
                the first step for which the function returns True.
            max_steps: If `until` is a condition, the run ends before this step, even if the condition is never met.
            start: A function that returns an agent's first state, a dict; with by="group" the first state of the group,
                a dict of arrays. For several kinds it may be a dict of such functions; kinds without a function begin
                with {}.
            graph: Edges (m, 2) of sender and hearer, for `me.neighbours`: an array, pairs, a DataFrame with two
                columns, a networkx graph, or an audience or its name.
            shared: Any object, for `me.shared`; it is stored once.
            by: "agent" calls the model for each agent, "group" once for each group, with arrays.
            concurrency: The most agents of a group that run at the same time, if the model is async.
            timeout: The most seconds for one agent in one step. If an agent takes longer, the run ends with StepFailed.
            collect: What is measured at the end of a step, for the `series` of the result. A function of `me` that
                returns a dict, or with by="group" a function of `group` that returns a dict of arrays, records a row
                for each agent. An aggregate over the states of all agents, such as `Mean("mood")` or `Count("health")`,
                or a list of aggregates, records a row for each step. `Of(ids, x)` lets `x`, a function or an aggregate,
                measure only the agents `ids`.
            collect_every: Collect in every n-th step, from step 0 on.
            only_active: After its first step, call an agent only if it has messages, if a rule has blocked one of its
                messages, if a fork has set its state, or if the agent called `me.stay_active()` when it was last
                called. In Pregel, an agent that does not stay active is said to vote to halt. If no agent is active,
                steps go on, and take hardly any time.
            placement: On which nodes the groups start: "spread", "pack", or a dict by group; see `create_groups`.
            actor_options: Ray's options for the groups' actors, for all groups or by group; see `create_groups`.
            progress: Show the progress: a bar on a terminal, otherwise a line on stderr every 10 s.

        Ctrl-C ends the run after the step that is running, and `stopped` of the result is then True. A second Ctrl-C
        ends it at once.

        Raises: StepFailed if the model raises an exception; ConfigError for invalid arguments, or agents and groups
        that differ from those of the earlier steps; StepTooLarge if a group gets more messages in a step than it can
        read.
        """
        from ray_messaging.cluster.run.ending import ending_of
        from ray_messaging.cluster.run.result import say_cost
        from ray_messaging.cluster.run.run import Run
        from ray_messaging.cluster.run.run_plan import RunOptions, check_run

        options = RunOptions(start, by, concurrency, timeout, collect, collect_every, only_active)
        check_run(model, options)
        ending = ending_of(until, max_steps, options)
        try:
            placed = (placement, actor_options)
            with Run(self, model, agents, groups, graph, shared, options, self._run_actors, placed, ending) as standing:
                parts = standing._go_on(ending.most, progress=progress, with_states=True)
            result = standing._gathered(parts, standing.step if standing._fulfilled else ending.most)
            return say_cost(result) if progress else result
        except StepFailed as error:
            # The traceback within this library would not help a user.
            raise error.with_traceback(None) from error.__cause__

    @overload
    def start_run(
        self,
        model: "AgentModel | Mapping[str, AgentModel]",
        *,
        by: Literal["agent"] = "agent",
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
        **given: "Unpack[AgentArguments]",
    ) -> "Run": ...
    @overload
    def start_run(
        self,
        model: "GroupModel | Mapping[str, GroupModel]",
        *,
        by: Literal["group"],
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
        **given: "Unpack[GroupArguments]",
    ) -> "Run": ...
    def start_run(
        self,
        model: "Callable[..., object] | Mapping[str, Callable[..., object]]",
        *,
        agents: object,
        groups: object = None,
        start: "Callable[..., dict[str, Any]] | Mapping[str, Callable[..., dict[str, Any]]] | None" = None,
        graph: object = None,
        shared: object = None,
        by: str = "agent",
        concurrency: int = 100,
        timeout: float | None = None,
        collect: object = None,
        collect_every: int = 1,
        only_active: bool = False,
        placement: "GroupPlacement" = "spread",
        actor_options: "ActorOptions" = None,
    ) -> "Run":
        """Start a run whose steps you run one by one, by `run.advance(1)`; see also `run.states()` and `run.series`.

        The groups' processes live until the run ends, so no step has to start them again. Arguments and errors, such as
        ConfigError, are the same as for `run`. Errors of the model, such as StepFailed, are raised by `run.advance`.
        """
        from ray_messaging.cluster.run.run import Run
        from ray_messaging.cluster.run.run_plan import RunOptions

        options = RunOptions(start, by, concurrency, timeout, collect, collect_every, only_active)
        placed = (placement, actor_options)
        return Run(self, model, agents, groups, graph, shared, options, self._run_actors, placed)

    # -- the user's questions -------------------------------------------------------------------------------------

    @cached_property
    def _user(self) -> "UserMessager":
        from ray_messaging.cluster.handles.user_messager import UserMessager

        return UserMessager(self._connection)

    def ask(
        self,
        to_id: AgentId,
        payload: "Payload",
        *,
        subtopic: str = AGENT_CHAT,
        timeout: float | None = ANSWER_TIMEOUT_S,
    ) -> "Message":
        """Ask an agent as the user, and wait up to `timeout` seconds for its answer. Return the answer as a Message.

        Raises: NoAnswer if there is no answer in time, or at once if no group or messager gets the question;
        AnswerFailed, a subclass of NoAnswer, if the agent's handler fails; QuestionBlocked if a rule blocks the
        question; otherwise the same errors as `Messager.send_message`, such as InvalidPayload, MailboxFull and
        OutcomeUnknown.
        """
        ask = self._user.messager.ask
        return self._user.run(ask(None, to_id, payload, subtopic=subtopic, timeout=timeout))

    def ask_columns(
        self, to_ids: object, payloads: object, *, subtopic: str = AGENT_CHAT, timeout: float | None = ANSWER_TIMEOUT_S
    ) -> "GroupAnswers":
        """Ask many agents as the user; return an object that collects their answers.

        `for answer in answers` yields the answers as they arrive, as Messages, and `answers.wait()` waits for all of
        them; both end after `timeout` seconds. `answers.to_pandas()` has a row for each question.

        Args: to_ids and payloads are as for `Group.send_columns`.
        Raises: the same errors as `Group.send_columns`, such as InvalidColumns, MailboxFull and OutcomeUnknown.
        """
        return self._user.ask_columns(to_ids, payloads, subtopic, timeout)

    # -- agents and clients outside, by A2A -----------------------------------------------------------------------

    def expose(
        self,
        agents: Iterable[AgentId],
        *,
        a2a: str,
        token: str | None = None,
        timeout: float = ANSWER_TIMEOUT_S,
    ) -> "A2AServer":
        """Let outside clients ask agents by the A2A protocol; return a handle.

        The service ends when the handle is closed, or when the experiment ends.

        A client's message becomes a question of the user to the agent. The agent's answer ends the client's A2A task.

        Args:
            agents: The ids of the agents that clients may ask. The clients reach no other agent.
            a2a: The address to listen on, such as "127.0.0.1:8000"; port 0 selects a free port.
            token: The token that clients must pass. None: a random one, `handle.token`.
            timeout: The seconds that an agent has for its answer.

        Raises: ConfigError if the server cannot listen on the address, or if `ray-messaging[a2a]` is not installed.
        """
        with _of_extra_a2a():
            from ray_messaging.cluster.a2a_server import A2AServer
        server = A2AServer(self._connection, agents, a2a, token, timeout)
        self._doors.append(server)
        return server

    def remote_agent(
        self, agent: AgentId, url: str, *, token: str | None = None, wait_s: float = 30.0, late_steps: int = 10
    ) -> "RemoteAgent":
        """Give an outside agent, which speaks the A2A protocol, an id in this experiment; return its handle.

        In an experiment without steps, this call makes a group that hosts the agent. This process passes the agent's
        messages to the outside agent, and sends that agent's answers, until the handle is closed or the experiment
        ends. In an experiment with steps, pass the handle to `run` in place of the agent's function.

        Args:
            agent: The id in this experiment.
            url: The base URL of the outside agent. Its agent card must be below this URL.
            token: A token that the outside agent demands. It is sent to the host of `url` only.
            wait_s: The most seconds that an answer may take. In an experiment with steps, it is the most seconds that a
                step waits for an answer, and an answer that takes longer comes in a later step.
            late_steps: In an experiment with steps, the number of further steps in which a late answer is still
                accepted.

        Raises: ConfigError for an invalid URL or limit, or if `ray-messaging[a2a]` is not installed; AlreadyExists if
        the id is taken.
        """
        with _of_extra_a2a():
            from ray_messaging.cluster.a2a_remote import RemoteAgent
        remote = RemoteAgent(agent, url, experiment=self.exp_id, token=token, wait_s=wait_s, late_steps=late_steps)
        if self._connection.experiment.steps is None:
            remote.serve(self)
            self._doors.append(remote)
        return remote

    # -- surveys --------------------------------------------------------------------------------------------------

    @cached_property
    def _surveys(self) -> "Surveys":
        from ray_messaging.surveys.surveys import Surveys

        return Surveys(self._user.messager.engine)

    def create_survey(
        self,
        model: type[T],
        *,
        question: object,
        to: object = None,
        survey_id: str | None = None,
        subtopic: str = USER_SURVEY,
        timeout: float | None = 600.0,
    ) -> "Survey[T]":
        """Ask many agents as the user; return the survey, which collects the answers as they arrive.

        Args:
            model: The type of the answers: a pydantic model, a dataclass, a TypedDict or a msgspec.Struct.
            question: The question, one payload for all agents.
            to: Ids, a group, a list of groups, or None: all agents that groups host now.
            survey_id: The survey's name, for `messaging.survey(id)`; None: a new random name.
            subtopic: The subtopic of the question.
            timeout: After how many seconds `survey.wait()` stops waiting; None: never.

        Raises: AlreadyExists if the survey_id is taken; ConfigError if the survey asks no agents, or the type has no
        JSON schema; otherwise the same errors as `Messager.send_columns`, such as InvalidPayload and MailboxFull.
        """
        from ray_messaging.cluster.handles.survey import Survey, asked_agents

        agents = self._user.run(asked_agents(self._surveys, to))
        create = self._surveys.create
        asked = create(model, agents, question, survey_id=survey_id, subtopic=subtopic, timeout=timeout)
        return Survey(self._user.run(asked), self._user)

    @overload
    def survey(self, survey_id: str, model: None = None) -> "Survey[dict[str, Any]]": ...
    @overload
    def survey(self, survey_id: str, model: type[T]) -> "Survey[T]": ...
    def survey(self, survey_id: str, model: type[T] | None = None) -> "Survey[Any]":
        """Return a survey that this or another process has created, with all its answers.

        Args: `model` is the type with which the survey was created. None: the answers are dicts, checked by the
        survey's JSON schema.
        Raises: UnknownName if there is no such survey; ConfigError if the survey was created with another type.
        """
        from ray_messaging.cluster.handles.survey import Survey

        return Survey(self._user.run(self._surveys.open(survey_id, model)), self._user)

    def surveys(self) -> list[str]:
        """Return the ids of all surveys."""
        return self._user.run(self._surveys.ids())

    def remove_survey(self, survey_id: str) -> None:
        """Delete a survey with its answers; raise UnknownName if there is no survey with this id."""
        self._user.run(self._surveys.remove(survey_id))

    # -- limits of calls, and the event log -----------------------------------------------------------------------

    @property
    def calls(self) -> "Calls | None":
        """Return the limits of the calls that agents make by `me.remember`, such as calls of a language model.

        Return None if there are no limits. `me` is the object that an agent's function gets in a run.
        """
        return self._connection.experiment.calls

    @property
    def log_dir(self) -> str | None:
        """Return where the event log is kept: an absolute path on the node that started the experiment, or a URI.

        Return None if no log is kept.
        """
        return self._connection.experiment.log_dir

    @property
    def log_actor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        """Return the Ray actor that writes the event log.

        Raises: ConfigError if the experiment has no event log; Closed if the experiment was shut down.
        """
        return self._connection.log_actor()

    @property
    def log(self) -> "EventLog":
        """Return the event log of this experiment, for queries such as `messaging.log.query(agent=17)`.

        Each query waits until the log has all messages that were sent before the query.

        Raises: ConfigError if the experiment has no event log; Closed if the experiment was shut down.
        """
        from ray_messaging.cluster.handles.remote_log import RemoteSource
        from ray_messaging.eventlog.event_log import EventLog

        return EventLog(RemoteSource(self.log_actor, self.exp_id))

    def blocked(self, *, after: int | None = None) -> "BlockedMessages":
        """Iterate (`async for`) over the messages that rules block from now on, each as a BlockedMessage.

        Each message has a `cursor`, its number. To begin after a certain message instead, pass its `cursor` as `after`.

        Raises: ConfigError if the experiment has no event log; Closed if the experiment was shut down.
        """
        from ray_messaging.cluster.handles.remote_log import BlockedMessages

        return BlockedMessages(self.log_actor, after)

    def on_blocked(
        self, callback: "Callable[[BlockedMessage], object]", *, after: int | None = None
    ) -> "BlockedListener":
        """Call a function, in another thread, for each message that a rule blocks; return a listener at once.

        The function gets a BlockedMessage. The calls end when the listener is closed.

        Args: `after` is the cursor of a BlockedMessage: the first call is for the blocked message after that one.
        None: only messages that are blocked from now on.
        Raises: ConfigError if the experiment has no event log; Closed if the experiment was shut down.
        """
        from ray_messaging.cluster.handles.remote_log import BlockedListener

        return BlockedListener(self.log_actor, callback, after)

    # -- dead letters ---------------------------------------------------------------------------------------------

    @property
    def dead_letters(self) -> "DeadLetters":
        """Return the dead letters: messages that no mailbox could deliver, and that the server keeps.

        Examples are messages that cannot be decoded, and unread messages of removed mailboxes.
        """
        from ray_messaging.cluster.handles.dead_letters import DeadLetters

        experiment = self._connection.with_password()
        return DeadLetters(experiment.redis, experiment.exp_id, experiment.settings)


@contextmanager
def _of_extra_a2a() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"A2A needs its SDK ({error}): pip install 'ray-messaging[a2a]'") from error
