"""The class `Groups`, which starts, finds and removes the groups of a running experiment."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ray_messaging.addressing.channels import AgentId, check_id, check_name, check_subtopic
from ray_messaging.cluster.actors.group_actor import GroupActor
from ray_messaging.cluster.handles.connection import ExperimentConnection, find_actor, result, start_in_turn
from ray_messaging.cluster.handles.group.group import Group
from ray_messaging.cluster.lifecycle import ACTOR, StartedExperiment, leave
from ray_messaging.cluster.placement import ActorOptions, GroupPlacement, Placement
from ray_messaging.cluster.ray_calls import kill, start_actor, wait
from ray_messaging.errors import AlreadyExists, Closed, UnknownName, ended
from ray_messaging.model.agent_sets import column_of
from ray_messaging.model.columns import IdColumn


class Groups:
    """Groups of one experiment.

    Args: In the process that started the experiment, `started` is the object that stops the experiment's actors when
    the experiment ends. New groups are added to this object. In all other processes `started` is None.
    """

    def __init__(self, connection: ExperimentConnection, started: StartedExperiment | None) -> None:
        self.known: dict[str, Group] = {}
        self._connection = connection
        self._started = started

    @property
    def _exp_id(self) -> str:
        return self._connection.exp_id

    def create(
        self,
        groups: Mapping[str, Iterable[AgentId]],
        subtopics: Sequence[str],
        placement: GroupPlacement,
        actor_options: ActorOptions,
    ) -> dict[str, Group]:
        """Start several groups, a limited number at a time. If one fails to start, all of them are stopped."""
        topics = tuple(map(check_subtopic, subtopics))
        hosted = {check_name("group name", name): column_of(agents, once=True) for name, agents in groups.items()}
        before = self._names_while_it_runs()
        places = Placement(placement, actor_options, hosted)
        experiment = self._connection.with_password()
        actors: dict[str, Any] = {}
        opened: dict[Any, str] = {}  # for each call that opens a mailbox, the group's name

        def start(name: str, agents: IdColumn) -> Any:  # noqa: ANN401 - an ObjectRef
            named: dict[str, Any] = ACTOR | {"max_restarts": -1, "name": experiment.group_name(name)}
            try:
                actor = start_actor(self._exp_id, GroupActor, named | places.of(name), experiment, name)
                call = actor.open.remote(agents, topics)  # on Ray Client this call raises the error of a taken name
            except ValueError as error:
                raise AlreadyExists(
                    f"experiment {self._exp_id!r} already has a group {name!r}: choose another name, or use "
                    f"messaging.group({name!r})",
                    kind="group",
                    value=name,
                    owner=None,
                ) from error
            actors[name], opened[call] = actor, name
            return call

        try:
            start_in_turn(
                (partial(start, *group) for group in hosted.items()),
                lambda call: result(call, actor_name=f"group {opened[call]!r}"),
                lambda calls: places.warn([opened[call] for call in calls]),
            )
        except BaseException:
            for actor in actors.values():
                kill(actor)
            if opened:
                wait([*opened], num_returns=len(opened))
            for name in actors.keys() - {*before}:  # mailboxes from before this call are kept
                self._remove_mailbox(name)
            raise
        made = {name: self._handle(name, actor) for name, actor in actors.items()}
        if self._started is not None:
            self._started.groups.update(actors)
        self.known.update(made)
        return made

    def _handle(self, name: str, actor: Any) -> Group:  # noqa: ANN401 - a Ray actor handle
        return Group(self._connection.experiment, name, actor, keep=self._started)

    def find(self, name: str) -> Group:
        """Return a group by its name; raise UnknownName if the experiment has no such group."""
        known = self.known.get(name)
        if known is not None:
            return known
        actor = find_actor(self._connection.experiment.group_name(name))
        if actor is None:
            names = self._names()
            text = (
                f"group {name!r} of experiment {self._exp_id!r} was made by messaging.run, or by open_messager in an "
                "actor of yours, so it has no handle. Its agents are in messaging.agents(), their states in the "
                "result of run, their messages in messaging.log"
                if name in names
                else f"experiment {self._exp_id!r} has no group {name!r}; there are: {', '.join(names) or 'none'}"
            )
            raise UnknownName(text, kind="group", value=name)
        return self.known.setdefault(name, self._handle(name, actor))

    def all(self) -> list[Group]:
        """Return the groups that `create` made, in any process, sorted by name."""
        found = []
        for name in self._names():
            try:
                found.append(self.find(name))
            except UnknownName:
                continue  # the group is in a user's own actor, or its actor is gone
        return found

    def host_of(self, agent_id: AgentId) -> Group:
        """Return the group that hosts an agent; raise UnknownName if no group hosts it."""
        owner = self._connection.ask(self._connection.interceptor.owner_of.remote(check_id(agent_id)))
        if owner is None:
            raise UnknownName(
                f"no group of experiment {self._exp_id!r} hosts agent {agent_id!r}: create such a group by "
                f"create_group(name, [{agent_id!r}])",
                kind="agent",
                value=agent_id,
            )
        return self.find(owner)

    def remove(self, name: str) -> None:
        """Stop a group and remove its mailbox."""
        group = self.find(name)
        leave([group.actor])
        self.known.pop(name, None)
        if self._started is not None:
            self._started.groups.pop(name, None)
        self._remove_mailbox(name)

    def _remove_mailbox(self, name: str) -> None:
        self._connection.ask(self._connection.interceptor.remove.remote(name))

    def _names(self) -> list[str]:
        found: list[str] = self._connection.ask(self._connection.interceptor.groups.remote())
        return found

    def _names_while_it_runs(self) -> list[str]:
        try:
            return self._names()
        except Closed as error:
            lost = None
            with suppress(Closed):  # raised if the interceptor is gone
                lost = self._connection.ask(self._connection.interceptor.lost_server.remote())
            raise (ended(self._exp_id) if lost is None else Closed(lost)) from error
