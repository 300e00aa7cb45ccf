"""The files of an experiment's audiences, from any node of the cluster."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.storage.source import LocalFolder
from ray_messaging.cluster.audiences.audience_maker import AudienceMaker, Change
from ray_messaging.cluster.audiences.changes import Moving
from ray_messaging.cluster.handles.actor_calls import NAMESPACE, result, translated
from ray_messaging.cluster.spec import AudienceHome, Experiment
from ray_messaging.errors import ConfigError
from ray_messaging.model.columns import IdColumn


class AudienceActor:
    """Ray actor on the node with the files: it reads and changes audiences for other nodes, and keeps nothing."""

    def __init__(self, folder: str, interceptor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self._maker = AudienceMaker(Path(folder), interceptor)

    def load(self, name: str, version: int) -> Edges:
        """Return the pairs of a version."""
        return asyncio.run(self._maker.source.load(name, version))

    def create(self, name: str, kind: str, edges: Edges) -> None:
        """Create an audience."""
        self._maker.create(name, kind, edges)

    def change(self, name: str, change: Change) -> None:
        """Make another version of an audience."""
        self._maker.change(name, change)

    def move_in_step(self, name: str, step: int, change: Change) -> None:
        """Make the version that counts from a step on, unless it is there."""
        self._maker.move_in_step(name, step, change)


class AudienceFiles:
    """The files of an experiment's audiences: an AudienceSource, and the calls that make versions.

    On their node they are read and written directly, elsewhere through an actor there.
    """

    def __init__(self, experiment: Experiment, interceptor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self._experiment = experiment
        self._interceptor = interceptor

    @property
    def _home(self) -> AudienceHome:
        if self._experiment.audiences is None:
            raise ConfigError(f"experiment {self._experiment.exp_id!r} was started without a folder for audiences")
        return self._experiment.audiences

    def _here(self) -> bool:
        # A driver on Ray Client is not on the node that it is told.
        client = ray.util.client.ray.is_connected()
        return not client and ray.get_runtime_context().get_node_id() == self._home.node

    def _actor(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        home = self._home
        options: dict[str, Any] = {"num_cpus": 0, "namespace": NAMESPACE, "name": self._experiment.audiences_name}
        options |= {"get_if_exists": True, "max_restarts": -1, "max_task_retries": -1}
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(home.node, soft=False)
        return ray.remote(**options)(AudienceActor).remote(home.folder, self._interceptor)

    @property
    def _name(self) -> str:
        return f"the audiences of experiment {self._experiment.exp_id!r}"

    async def load(self, name: str, version: int) -> Edges:
        """Return the pairs of exactly this version; raise UnknownName, FrameError where they are damaged."""
        if self._here():
            return await LocalFolder(Path(self._home.folder)).load(name, version)
        try:
            found: Edges = await self._actor().load.remote(name, version)
        except (RayTaskError, RayActorError) as error:
            raise translated(error, actor_name=self._name) from error
        return found

    async def move_in_step(self, name: str, step: int, ids: IdColumn, points: NDArray[np.float64]) -> None:
        """Make the version that counts from a step on, unless it is there; raise AudienceTooLarge."""
        change = Moving(name, ids, points)
        if self._here():
            maker = AudienceMaker(Path(self._home.folder), self._interceptor)
            await asyncio.to_thread(maker.move_in_step, name, step, change)
            return
        try:
            await self._actor().move_in_step.remote(name, step, change)
        except (RayTaskError, RayActorError) as error:
            raise translated(error, actor_name=self._name) from error

    def create(self, name: str, kind: str, edges: Edges) -> None:
        """Create an audience; raise AlreadyExists, ConfigError on MQTT."""
        if self._here():
            AudienceMaker(Path(self._home.folder), self._interceptor).create(name, kind, edges)
        else:
            result(self._actor().create.remote(name, kind, edges), actor_name=self._name)

    def change(self, name: str, change: Change) -> None:
        """Make another version of an audience; raise UnknownName, ConfigError where it is of another kind."""
        if self._here():
            AudienceMaker(Path(self._home.folder), self._interceptor).change(name, change)
        else:
            result(self._actor().change.remote(name, change), actor_name=self._name)
