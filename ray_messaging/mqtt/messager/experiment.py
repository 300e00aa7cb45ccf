"""An experiment that an MQTT messager joins: its interceptor judges, its event log is told."""

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
from ray_messaging.transports.base import Transport


class Joined(NamedTuple):
    """Hold an experiment's interceptor, and the way to its event log (None: it keeps none)."""

    interceptor: object
    log: Transport | None


NOBODY = Joined(None, None)


async def join(exp_id: str, settings: MessagingConfig) -> Joined:
    """Find a running experiment; raise UnknownName, and ConfigError outside a Ray cluster."""
    if not ray.is_initialized():
        # Ray would start a cluster of its own to look for it there.
        raise ConfigError(
            f"exp_id={exp_id!r} joins an experiment that runs on Ray, and this process is in no Ray cluster: "
            "ray.init(address='auto') first, or leave exp_id out"
        )
    interceptor = await asyncio.to_thread(find_interceptor, exp_id)  # it waits
    try:
        experiment = await interceptor.ready.remote()  # not by ray.get: Ray warns of that in an actor, in any thread
    except (RayTaskError, RayActorError) as error:
        raise translated(error, actor_name=f"experiment {exp_id!r}") from error
    return await asyncio.to_thread(_join, Messaging(experiment, interceptor), settings)


def _join(messaging: Messaging, settings: MessagingConfig) -> Joined:
    try:
        messaging.log_actor  # noqa: B018 - it is there, or it raises
    except ConfigError:
        return Joined(messaging.interceptor, None)
    return Joined(messaging.interceptor, open_transport(messaging.redis, messaging.exp_id, settings))


class _ByUuid:
    """Be an interceptor's handle that is asked with str ids, as AgentSociety's on MQTT is."""

    def __init__(self, handle: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self._handle = handle
        self.forward = self

    def remote(self, from_id: AgentId, to_id: AgentId, msg: str) -> object:
        """Ask it."""
        return self._handle.forward.remote(uuid_of(from_id), uuid_of(to_id), msg)


def make_judge(interceptor: object, settings: MessagingConfig, exp_id: str | None) -> VerdictClient:
    """Choose the way to ask an interceptor; raise ConfigError. Without exp_id it judges for every experiment."""
    judge = verdict_client_for(interceptor, settings.interceptor_timeout_s, exp_id)
    return (
        ForeignVerdictClient(_ByUuid(interceptor), settings.interceptor_timeout_s)
        if isinstance(judge, ForeignVerdictClient)
        else judge
    )
