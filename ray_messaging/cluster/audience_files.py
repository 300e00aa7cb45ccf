"""The files of an experiment's audiences, which any node of the cluster can read and change."""

import asyncio
import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_messaging.audiences.audience_kinds import AudienceFacts, AudienceKind, Audiences, encode_facts
from ray_messaging.audiences.building import Positions
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.files import version_folder, write_edges
from ray_messaging.audiences.graph_edges import GraphEdges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.cluster.handles.connection import NAMESPACE, translated
from ray_messaging.cluster.handles.own_loop import run_in_own_loop
from ray_messaging.cluster.ray_calls import context, start_actor
from ray_messaging.cluster.ray_internals import on_ray_client
from ray_messaging.cluster.spec import AudienceHome, Experiment
from ray_messaging.errors import AlreadyExists, ConfigError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn

if TYPE_CHECKING:
    from ray_messaging.eventlog.stored_audiences import StoredAudiences

_ATTEMPTS: Final = 5  # a call to the actor is tried at most this often; each try starts the actor if it is gone


# A function that changes an audience. It gets the audience's pairs (sender, hearer), and returns the new pairs, or None
# to remove the audience. Ray sends such functions to other nodes.
Change = Callable[[Edges], Edges | None]


def join(name: str, agents: AgentSet, edges: Edges) -> Edges:
    """Add `agents` to an audience's members; return all pairs (sender, hearer) of the larger audience.

    Raises: ConfigError if the audience was not made from members.
    """
    return MemberEdges.among(_members(name, edges) | agents)


def leave(name: str, agents: AgentSet, edges: Edges) -> Edges:
    """Remove `agents` from an audience's members; return the new pairs (sender, hearer).

    Raises: ConfigError if the audience was not made from members.
    """
    return MemberEdges.among(_members(name, edges) - agents)


def move(name: str, ids: IdColumn, points: object, edges: Edges) -> Edges:
    """Give agents of an audience new positions; return the new pairs (sender, hearer).

    Raises: ConfigError if the audience has no positions; InvalidColumns if `ids` and `points` do not fit together;
    UnknownName for an agent without a position; AudienceTooLarge if there are too many pairs.
    """
    return positions_of(name, edges).moved(ids, points).edges()


def remove(_edges: Edges) -> None:
    """Remove an audience: return None in place of its new pairs (see `Change`)."""


def positions_of(name: str, edges: Edges) -> Positions:
    """Return the positions from which an audience was made; raise ConfigError if it has no positions."""
    if not isinstance(edges, GraphEdges) or edges.positions is None:
        raise ConfigError(
            f"audience {name!r} has no positions: make an audience with positions by create_audience(..., "
            "positions=..., radius=...)"
        )
    return edges.positions


def _members(name: str, edges: Edges) -> AgentSet:
    if not isinstance(edges, MemberEdges):
        raise ConfigError(
            f"audience {name!r} was not made from members, so agents cannot be added or removed: make it by "
            f"create_audience({name!r}, members=ids), or, to change a graph, call remove_audience and then "
            "create_audience"
        )
    return edges.members


class AudienceMaker:
    """Maker of versions of audiences.

    The files of a new version are written first. Then the version is recorded in the experiment's directory, the list
    of mailboxes and audiences on the server.

    A lock in the folder lets only one process change audiences at a time. A Ray actor of this class, on the node with
    the files, serves processes on other nodes. The actor has no state.

    Args: `log_dir` is the folder of the event log. If it is a URI, it gets copies of the files.
    """

    def __init__(self, folder: str, interceptor: Any, log_dir: str | None) -> None:  # noqa: ANN401 - a Ray actor handle
        self._folder = Path(folder)
        self._interceptor = interceptor
        self._log_dir = log_dir

    def load(self, name: str, version: int) -> Edges:
        """Return the pairs (sender, hearer) of a version of an audience."""
        return (self._store() or LocalFolder(self._folder)).read(name, version)

    def _store(self) -> "StoredAudiences | None":
        """Return the copies of the audiences in the log's folder, or None if the folder has no copies."""
        if self._log_dir is None or "://" not in self._log_dir:
            return None
        from ray_messaging.eventlog.folder import Folder  # noqa: PLC0415 - brings pyarrow
        from ray_messaging.eventlog.stored_audiences import StoredAudiences  # noqa: PLC0415 - as above

        return StoredAudiences(Folder(self._log_dir), self._folder)

    @contextmanager
    def _alone(self) -> Iterator[Audiences]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._ask(self._interceptor.audiences.remote())

    def create(self, name: str, kind: str, edges: Edges) -> None:
        """Create an audience; raise AlreadyExists if one has this name."""
        with self._alone() as audiences:
            if name in audiences.names():
                raise AlreadyExists(
                    f"audience {name!r} exists already: messaging.audience({name!r}) returns it",
                    kind="audience",
                    value=name,
                    owner=None,
                )
            self._publish(name, audiences.last_version(name) + 1, AudienceKind(kind), edges)

    def change(self, name: str, change: Change, step: int | None = None) -> None:
        """Make a new version of an audience, which is used at once, or from step `step` on.

        No version is made if another process has already made the version for `step`, or if `step` is None and the
        pairs do not change.
        """
        with self._alone() as audiences:
            if step is not None and audiences.moved_with(name, step):
                return
            last = audiences.of(name, step)
            edges = change(self.load(name, last.version))
            if step is not None or edges is None or edges.digest.hex() != last.facts.digest:
                self._publish(name, audiences.last_version(name) + 1, last.facts.kind, edges, step)

    def _publish(
        self, name: str, version: int, kind: AudienceKind, edges: Edges | None, since: int | None = None
    ) -> None:
        facts = ""
        if edges is not None:
            write_edges(version_folder(self._folder, name, version), edges)
            if (store := self._store()) is not None:
                store.keep(name, version)
            moved = -1 if since is None else since - 1
            facts = encode_facts(AudienceFacts(kind, edges.pairs, edges.digest.hex(), moved))
        if self._ask(self._interceptor.set_audience.remote(name, version, facts, since)) is None:
            raise ConfigError(
                f"audience {name!r} has a version that this Ray cluster did not make: use the experiment from one Ray "
                "cluster only"
            )

    def _ask(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        try:
            return ref.future().result()  # in a thread of an async actor, ray.get would warn of a blocked event loop
        except (RayTaskError, RayActorError) as error:
            raise translated(error, actor_name="the interceptor") from error


class AudienceFiles:
    """Reader and writer of the files of an experiment's audiences, for any process of the Ray cluster.

    The files of an audience have its pairs (sender, hearer). Each change of an audience makes a new version of it. A
    process on the node with the files reads and writes them directly. A process on another node calls an actor on the
    node with the files. Processes find the actor by its name. The actor ends when its last handle is gone.
    """

    def __init__(self, experiment: Experiment, interceptor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self._experiment = experiment
        self._interceptor = interceptor
        self._kept: Any = None  # a handle of the actor, so that it does not end between two calls

    @property
    def _home(self) -> AudienceHome:
        if self._experiment.audiences is None:
            raise ConfigError(
                f"experiment {self._experiment.exp_id!r} cannot have audiences, because it was started without a "
                "folder for their files: start the experiment by Messaging.start"
            )
        return self._experiment.audiences

    def _here(self) -> bool:
        # On Ray Client, the node that Ray returns is not the node of this process.
        return not on_ray_client() and context().get_node_id() == self._home.node

    def _actor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        if self._kept is None:
            home = self._home
            options: dict[str, Any] = {"num_cpus": 0, "namespace": NAMESPACE, "name": self._experiment.audiences_name}
            options |= {"get_if_exists": True, "max_restarts": -1, "max_task_retries": -1}
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(home.node, soft=False)
            exp_id = self._experiment.exp_id
            self._kept = start_actor(
                exp_id, AudienceMaker, options, home.folder, self._interceptor, self._experiment.log_dir
            )
        return self._kept

    async def _through_actor(self, call: str, *arguments: object) -> Any:  # noqa: ANN401 - the call's value
        """Call a method of the actor that reads and writes audiences on the node with the files.

        If the actor has ended, the call is repeated. An actor ends when another process drops the last handle of it.
        """
        name = f"the audiences of experiment {self._experiment.exp_id!r}"
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await getattr(self._actor(), call).remote(*arguments)
            except (RayTaskError, RayActorError) as error:
                if not isinstance(error, ActorDiedError):
                    raise translated(error, actor_name=name) from error
                self._kept = None
                if not left:
                    raise translated(error, actor_name=name) from error
        raise AssertionError  # the last attempt returns or raises

    async def load(self, name: str, version: int) -> Edges:
        """Return the pairs (sender, hearer) of exactly this version of an audience.

        Raises: UnknownName if the version does not exist, FrameError if its files are damaged.
        """
        if self._here():
            return await asyncio.to_thread(self._maker().load, name, version)
        found: Edges = await self._through_actor("load", name, version)
        return found

    async def move_in_step(self, name: str, step: int, ids: IdColumn, points: NDArray[np.float64]) -> None:
        """Make a version of an audience with the agents' new positions, used from `step` on.

        Do nothing if `step` has a version already.
        """
        change = partial(move, name, ids, points)
        if self._here():
            await asyncio.to_thread(self._maker().change, name, change, step)
        else:
            await self._through_actor("change", name, change, step)

    def create(self, name: str, kind: str, edges: Edges) -> None:
        """Create an audience; raise AlreadyExists if one has this name."""
        self._make("create", name, kind, edges)

    def change(self, name: str, change: Change) -> None:
        """Make a new version of an audience.

        Raises: UnknownName if there is no such audience; ConfigError if its kind does not allow this change.
        """
        self._make("change", name, change)

    def _make(self, call: str, *arguments: object) -> None:
        if self._here():  # the change runs in the caller's thread, where Ctrl-C can end it
            getattr(self._maker(), call)(*arguments)
        else:
            run_in_own_loop(lambda: self._through_actor(call, *arguments))

    def _maker(self) -> AudienceMaker:
        return AudienceMaker(self._home.folder, self._interceptor, self._experiment.log_dir)
