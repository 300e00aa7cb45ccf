"""The experiment that an MQTT messager joins, for its interceptor and its event log."""

import asyncio
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayActorError, RayTaskError

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.handles.actor_calls import translated
from ray_messaging.cluster.handles.connection import find_interceptor
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import ConfigError
from ray_messaging.interception.client.verdict_client import ForeignVerdictClient, VerdictClient, verdict_client_for
from ray_messaging.mqtt.messager.addresses import uuid_of
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.transport import Transport


class JoinedExperiment(NamedTuple):
    """Interceptor of an experiment, and the transport to its event log (None: it keeps none)."""

    interceptor: object
    log: Transport | None


NO_EXPERIMENT = JoinedExperiment(None, None)


async def join(exp_id: str, settings: MessagingConfig) -> JoinedExperiment:
    """Find a running experiment; raise UnknownName, or ConfigError outside a Ray cluster."""
    if not ray.is_initialized():
        # Ray would start its own cluster and search there.
        raise ConfigError(
            f"exp_id={exp_id!r} joins an experiment that runs on Ray, and this process is in no Ray cluster: "
            "ray.init(address='auto') first, or leave exp_id out"
        )
    interceptor = await asyncio.to_thread(find_interceptor, exp_id)  # it blocks
    try:
        experiment = await interceptor.ready.remote()  # Ray warns of ray.get in an actor, in any thread
    except (RayTaskError, RayActorError) as error:
        raise translated(error, actor_name=f"experiment {exp_id!r}") from error
    return await asyncio.to_thread(_join, Messaging(experiment, interceptor), settings)


def _join(messaging: Messaging, settings: MessagingConfig) -> JoinedExperiment:
    try:
        messaging.log_actor  # noqa: B018 - raises ConfigError without a log
    except ConfigError:
        return JoinedExperiment(messaging.interceptor, None)
    return JoinedExperiment(messaging.interceptor, open_transport(messaging.redis, messaging.exp_id, settings))


class _UuidHandle:
    """Handle of an interceptor that takes str ids, as AgentSociety's on MQTT does."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self._handle = handle
        self.forward = self

    def remote(self, from_id: AgentId, to_id: AgentId, msg: str) -> object:
        """Call `forward` of the actor."""
        return self._handle.forward.remote(uuid_of(from_id), uuid_of(to_id), msg)


def verdict_client(interceptor: object, settings: MessagingConfig, exp_id: str | None) -> VerdictClient:
    """Return the client of an interceptor, for all experiments without exp_id; raise ConfigError."""
    client = verdict_client_for(interceptor, settings.interceptor_timeout_s, exp_id)
    if isinstance(client, ForeignVerdictClient):
        return ForeignVerdictClient(_UuidHandle(interceptor), settings.interceptor_timeout_s)
    return client
