"""Functions that make the messager of a group, and that say whether the owner of a mailbox still lives in Ray.

The name of an owner is `<run>/<id of an actor or a worker>`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.audience_files import AudienceFiles
from ray_messaging.cluster.embedded_servers import config_here
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.ray_calls import context
from ray_messaging.cluster.ray_internals import owner_known_dead
from ray_messaging.cluster.ray_metrics import RayMetrics
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.process_tuning import relax_collector
from ray_messaging.messager import GroupMessager, Messager
from ray_messaging.model.agent_sets import AgentSet, column_of
from ray_messaging.observability.metrics.families import Family
from ray_messaging.observability.metrics.messager_metrics import MessagerMetrics
from ray_messaging.observability.observer import Observer
from ray_messaging.receiving.mailbox_lease import IsDead

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Messager)

_ASK_S = 5.0  # seconds for Ray's answer, after which an owner is treated as alive


def named_messager(
    kind: type[M],
    experiment: Experiment,
    interceptor: object,
    name: str,
    observer: Observer | None,
    *,
    traced: bool = True,
) -> M:
    """Make the messager of a group for this process, an object of the class `kind`; it is not connected yet.

    Args: with `traced`, the messager records spans if the experiment has tracing.
    """
    return kind(
        config_here(experiment.redis),
        experiment.exp_id,
        interceptor,
        name=name,
        settings=experiment.group_settings,
        observer=observer,
        tracing=experiment.tracing if traced else None,
        audiences=AudienceFiles(experiment, interceptor),
    )


def tell_metrics(metrics: Callable[[], list[Family]], experiment: Experiment, name: str) -> RayMetrics:
    """Return an object that reports a group's metrics to Ray. The caller must call its `start`."""
    return RayMetrics(metrics, (("experiment", experiment.exp_id), ("messager", name)))


async def open_messager(
    connection: ExperimentConnection,
    name: str,
    agents: Iterable[AgentId],
    subtopics: Sequence[str],
    observer: Observer | None,
) -> GroupMessager:
    """Open a messager in this process that hosts agents; raise AlreadyExists if its name or an agent is taken."""
    hosted = AgentSet.of(column_of(agents, once=True))
    experiment = await connection.with_password_async()
    metrics = MessagerMetrics() if experiment.metrics and observer is None else None
    counting = metrics if observer is None else observer
    messager = named_messager(GroupMessager, experiment, connection.interceptor, name, counting)
    if experiment.steps:
        import ray_messaging.steps.step_loop  # noqa: F401, PLC0415 - the first step would wait for it
    here = context()
    owner = f"{experiment.run}/{here.get_actor_id() or here.get_worker_id()}"
    try:
        await messager.init()
        await messager.host_agents(hosted, subtopics, owner=owner, gone=gone_for(experiment.run))
    except BaseException:
        await messager.close()
        raise
    relax_collector()
    if metrics is not None:
        told = tell_metrics(lambda: metrics.families(messager.stats()), experiment, name)
        told.start(lambda: messager.engine.closed)
    return messager


def gone_for(run: str) -> IsDead:
    """Return a function that says whether the owner of a mailbox is gone.

    `run` names this start of the experiment. Owners of earlier starts are treated as gone, even if they live, because
    the server refuses what they send.
    """

    async def is_gone(owner: str) -> bool:
        start, _, _ = owner.rpartition("/")
        if start and start != run:
            return True
        try:
            async with asyncio.timeout(_ASK_S):
                return await asyncio.to_thread(owner_known_dead, owner.rpartition("/")[2])
        except TimeoutError:
            logger.warning(
                "Ray has not answered whether %s is dead, so its mailbox can be used again only after its lease has "
                "expired",
                owner,
            )
            return False

    return is_gone
