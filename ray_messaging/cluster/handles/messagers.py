"""Messagers in users' own processes."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import ray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.audience_files import AudienceFiles
from ray_messaging.cluster.embedded_servers import config_here
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.owner_liveness import gone_for
from ray_messaging.cluster.ray_metrics import RayMetrics
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.process_tuning import relax_collector
from ray_messaging.messager import GroupMessager, Messager
from ray_messaging.model.agent_sets import AgentSet, column_of
from ray_messaging.observability.metrics.families import Family
from ray_messaging.observability.metrics.messager_metrics import MessagerMetrics
from ray_messaging.observability.observer import Observer

M = TypeVar("M", bound=Messager)


def named_messager(
    kind: type[M],
    experiment: Experiment,
    interceptor: object,
    name: str,
    observer: Observer | None,
    *,
    traced: bool = True,
) -> M:
    """Make the messager of a group for this process; it is not connected yet."""
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
    """Return what tells Ray the metrics of a group, once it is started."""
    return RayMetrics(metrics, (("experiment", experiment.exp_id), ("messager", name)))


async def open_messager(
    connection: ExperimentConnection,
    name: str,
    agents: Iterable[AgentId],
    subtopics: Sequence[str],
    observer: Observer | None,
) -> GroupMessager:
    """Open a messager in this process that hosts agents; raise AlreadyExists where its name or an agent is taken."""
    hosted = AgentSet.of(column_of(agents, once=True))
    experiment = await connection.with_password_async()
    metrics = MessagerMetrics() if experiment.metrics and observer is None else None
    counting = metrics if observer is None else observer
    messager = named_messager(GroupMessager, experiment, connection.interceptor, name, counting)
    context = ray.get_runtime_context()
    owner = f"{experiment.run}/{context.get_actor_id() or context.get_worker_id()}"
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
