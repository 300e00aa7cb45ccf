"""The facade: start an experiment, find its groups, shut it down."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ray

from ray_messaging.addressing.channels import AgentId, check_id, check_name, check_subtopic
from ray_messaging.cluster.handles.actor_calls import NAMESPACE, result
from ray_messaging.cluster.handles.dead_letters import DeadLetterAccess
from ray_messaging.cluster.handles.event_log import LogAccess
from ray_messaging.cluster.handles.group import Group, check_agents
from ray_messaging.cluster.handles.start_groups import Starting, end_started, start_group, wait_started
from ray_messaging.cluster.health_check import check_health, named_actors, warn_of_data_loss
from ray_messaging.cluster.lifecycle import (
    Owned,
    check_rules,
    end_server,
    ensure_ray,
    finish_log,
    leave,
    runs_already,
)
from ray_messaging.cluster.owner_liveness import is_dead
from ray_messaging.cluster.spec import SUBTOPICS, Experiment, InterceptorSpec, absolute
from ray_messaging.common.process_tuning import relax_process
from ray_messaging.config import MessagingConfig, OnExisting, ServerConfig
from ray_messaging.errors import Closed, ConfigError, Fenced, MessagingError, UnknownName, ended
from ray_messaging.interception.rules import Rule
from ray_messaging.messager import GroupMessager
from ray_messaging.model.agent_sets import column_of
from ray_messaging.model.id_column import IdColumn
from ray_messaging.observability import Health
from ray_messaging.transports.backend import backend_of, experiment_config


class Messaging(LogAccess, DeadLetterAccess):
    """Run one experiment's messaging on a Ray cluster; pass it to Ray tasks and actors as it is.

    The experiment lives as long as the process that started it, or until `shutdown`.
    """

    def __init__(self, experiment: Experiment, interceptor: Any, owned: "Owned | None" = None) -> None:  # noqa: ANN401 - a handle
        self._experiment = experiment
        self._interceptor = interceptor
        self._owned = owned
        self._groups: dict[str, Group] = {}

    # -- life -----------------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        exp_id: str,
        *,
        redis: ServerConfig | str | None = None,
        rules: Sequence[Rule] = (),
        log_dir: str | Path | None = None,
        on_existing: OnExisting = "error",
        settings: MessagingConfig | None = None,
        mirror: bool = False,
    ) -> "Messaging":
        """Start an experiment; Ray too, where it does not run yet.

        Args: redis is a server of yours (None: an embedded one, which ends with the experiment). log_dir is where
        the event log is kept: a folder, or a URI of pyarrow's file systems (None: no log); `messaging.log_dir` says the
        absolute path. on_existing says what to do
        where `exp_id` has data on the server or in log_dir, or runs already. mirror has messages to agents PUBLISHed,
        too, for foreign listeners.
        Raises: AlreadyExists, ConfigError, ConnectionFailed within 5 s, ServerRefused, RuleError.
        """
        check_name("exp_id", exp_id)
        if on_existing not in {"error", "resume", "reset"}:
            raise ConfigError(f"on_existing={on_existing!r} is unknown: write 'error', 'resume' or 'reset'")
        config = experiment_config(redis)
        settings = settings or MessagingConfig()
        if mirror:
            settings = settings.model_copy(update={"mirror": True})
        owned = Owned(ray_is_ours=ensure_ray())
        try:
            _make_way(exp_id, on_existing)
            spec = InterceptorSpec(
                exp_id, secrets.token_hex(4), settings, check_rules(rules), on_existing, absolute(log_dir)
            )
            experiment = owned.start(spec, config)
            if config is not None:
                warn_of_data_loss(config)
        except BaseException:
            owned.close(erase=False)
            raise
        return cls(experiment, owned.interceptor, owned)

    @classmethod
    def connect(cls, exp_id: str) -> "Messaging":
        """Find a running experiment from anywhere in its Ray cluster; raise UnknownName."""
        interceptor = find_interceptor(exp_id)
        return cls(result(interceptor.ready.remote(), what=f"experiment {exp_id!r}"), interceptor)

    def shutdown(self, *, erase: bool = False) -> None:
        """Let the groups send what they accepted, then stop everything; twice does no harm.

        Args: erase deletes the experiment's data from a server of yours, unread messages, too; else `on_existing`
        says at the next start what becomes of them. The embedded server's data always go with it. Stopping an
        experiment is for whoever started it: elsewhere this only lets go.
        """
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close(erase=erase)
        self._groups.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        return Messaging, (self._experiment.without_password(), self._interceptor)

    def __repr__(self) -> str:
        return f"Messaging({self.exp_id!r}{f', log_dir={self.log_dir!r}' if self.log_dir else ''})"

    # -- the experiment -------------------------------------------------------------------------------------------

    @property
    def interceptor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        """Return the handle of the interceptor actor."""
        return self._interceptor

    def stats(self) -> dict[str, Any]:
        """Return the interceptor's counters, what waits in each mailbox, and how the event log is doing."""
        stats: dict[str, Any] = self._ask(self._interceptor.stats.remote())
        if self._experiment.log_dir is not None:
            stats["log"] = self._ask(self.log_actor.stats.remote())
        return {"exp_id": self.exp_id} | stats

    def health(self) -> Health:
        """Return what is well and what is not, each with its remedy: within 5 s, whatever hangs or is dead."""
        handles = {self._experiment.group_name(name): group.actor for name, group in self._groups.items()}
        known = {self._experiment.interceptor_name: self._interceptor} | handles
        return check_health(self.exp_id, self._experiment, known)

    # -- groups ---------------------------------------------------------------------------------------------------

    def create_group(
        self,
        name: str,
        agents: Iterable[AgentId],
        *,
        subtopics: Sequence[str] = SUBTOPICS,
        actor_options: dict[str, Any] | None = None,
    ) -> Group:
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
    ) -> dict[str, Group]:
        """Start several groups at a time, {name: agents}, in about the time of one: all of them, or none.

        Raises: as `create_group`.
        """
        topics = tuple(map(check_subtopic, subtopics))
        hosted = {check_name("group name", name): _column(agents) for name, agents in groups.items()}
        before = self._names_while_it_runs()
        starting: list[Starting] = []
        try:
            for name, agents in hosted.items():
                starting.append(start_group(self._whole, name, agents, topics, actor_options or {}))
            wait_started(starting)
        except BaseException:
            for name in end_started(starting):
                if name not in before:  # a mailbox of an earlier run is as it was
                    self._ask(self._interceptor.remove.remote(name))
            raise
        made = {each.name: Group(self._experiment, each.name, each.actor, keep=self) for each in starting}
        if self._owned is not None:
            self._owned.groups.update({each.name: each.actor for each in starting})
        self._groups.update(made)
        return made

    def group(self, name: str) -> Group:
        """Find a group by its name; raise UnknownName."""
        known = self._groups.get(name)
        if known is not None:
            return known
        try:
            actor = ray.get_actor(self._experiment.group_name(name), namespace=NAMESPACE)
        except ValueError as error:
            raise UnknownName(
                f"experiment {self.exp_id!r} has no group {name!r}; there are: {', '.join(self._names()) or 'none'}. "
                "A group that open_messager made lives in your own actor, which alone can use it",
                kind="group",
                value=name,
            ) from error
        return self._groups.setdefault(name, Group(self._experiment, name, actor, keep=self))

    def groups(self) -> list[Group]:
        """Return the groups that `create_group` made, wherever it was called, by name."""
        found = []
        for name in self._names():
            try:
                found.append(self.group(name))
            except UnknownName:
                continue  # a group in somebody's own actor, or one whose actor is gone
        return found

    def _names(self) -> list[str]:
        names: list[str] = self._ask(self._interceptor.groups.remote())
        return names

    def _names_while_it_runs(self) -> list[str]:
        """Return the names of the groups; raise Closed once the experiment has ended."""
        if not ray.is_initialized():  # a call would start another Ray
            raise ended(self.exp_id)
        try:
            return self._names()
        except Closed as error:
            raise ended(self.exp_id) from error

    def group_of(self, agent_id: AgentId) -> Group:
        """Find the group that hosts an agent; raise UnknownName."""
        owner = self._ask(self._interceptor.owner_of.remote(check_id(agent_id)))
        if owner is None:
            raise UnknownName(
                f"no group of experiment {self.exp_id!r} hosts agent {agent_id!r}: create_group(name, [{agent_id!r}])",
                kind="agent",
                value=agent_id,
            )
        return self.group(owner)

    def remove_group(self, name: str) -> None:
        """Stop a group and remove its mailbox; what is unread becomes dead letters."""
        group = self.group(name)
        leave([group.actor])
        self._groups.pop(name, None)
        if self._owned is not None:
            self._owned.groups.pop(name, None)
        self._ask(self._interceptor.remove.remote(name))

    # -- names that last ------------------------------------------------------------------------------------------

    def closed_messagers(self) -> list[str]:
        """Return the names of messagers that are closed, or dead, and whose mailboxes wait for successors.

        Groups are not among them. Raises ConnectionFailed, ServerRefused.
        """
        return backend_of(self._whole.redis).closed_names(self.exp_id)

    def remove_messager(self, name: str) -> None:
        """Remove a named messager's mailbox, and what else the server keeps of it; what is unread becomes dead letters.

        One that is open raises NotListening from then on. Raises ConfigError for a group whose actor lives.
        """
        check_name("name", name)
        try:
            ray.get_actor(self._experiment.group_name(name), namespace=NAMESPACE)
        except ValueError:
            self._ask(self._interceptor.remove.remote(name))
            return
        raise ConfigError(f"{name!r} is a group, which runs: messaging.remove_group({name!r}) ends it first")

    async def open_messager(
        self, name: str, agents: Iterable[AgentId], *, subtopics: Sequence[str] = SUBTOPICS
    ) -> GroupMessager:
        """Open a group inside your own actor: a messager that hosts agents, without an extra hop. Close it yourself.

        The garbage collector of your process looks less often from then on, unless you have set its thresholds.

        Raises: AlreadyExists where the name is held by a living actor, or an agent is taken.
        """
        check_agents(agents)
        redis = (await self._complete()).redis
        settings = self._experiment.group_settings
        messager = GroupMessager(redis, self.exp_id, self._interceptor, name=name, settings=settings)
        context = ray.get_runtime_context()
        owner = f"{self._experiment.run}/{context.get_actor_id() or context.get_worker_id()}"
        try:
            await messager.init()
            await messager.host_agents(agents, subtopics, owner=owner, gone=is_dead)
        except BaseException:
            await messager.close()
            raise
        relax_process()
        return messager


def _column(agents: Iterable[AgentId]) -> IdColumn:
    check_agents(agents)
    return column_of(agents)


def find_interceptor(exp_id: str) -> Any:  # noqa: ANN401 - a handle
    """Return the interceptor of a running experiment; raise UnknownName."""
    check_name("exp_id", exp_id)
    try:
        return ray.get_actor(f"{exp_id}/interceptor", namespace=NAMESPACE)
    except ValueError as error:
        raise UnknownName(
            f"no experiment {exp_id!r} runs in this Ray cluster: Messaging.start({exp_id!r}) first",
            kind="experiment",
            value=exp_id,
        ) from error


def _make_way(exp_id: str, on_existing: str) -> None:
    """See to an experiment of this name that runs already."""
    try:
        running = Messaging.connect(exp_id)
    except UnknownName:
        return
    except Fenced:  # another start has it on the server: what is left of this one can do nothing
        for actor in named_actors(f"{exp_id}/").values():
            ray.kill(actor)
        return
    except MessagingError as error:  # one that is just ending, or did not start
        raise runs_already(exp_id) from error
    if on_existing != "reset":
        raise runs_already(exp_id)
    leave([group.actor for group in running.groups()])
    if running.stats().get("log") is not None:
        finish_log(running.log_actor)
    leave([running.interceptor], erase=True)
    end_server(exp_id)
