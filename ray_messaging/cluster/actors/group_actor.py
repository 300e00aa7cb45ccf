"""The Ray actor of a group, which hosts the group's agents."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

import ray
from ray.util import get_node_ip_address

from ray_messaging.cluster.actors.group_host import GroupHost
from ray_messaging.cluster.actors.restarts import OfHost, restarted, worth_a_retry
from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.handles.messagers import tell_metrics
from ray_messaging.cluster.ray_metrics import RayMetrics
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.backoff import ACTOR_RECONNECT, ACTOR_START_RETRY
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.common.task_health import end
from ray_messaging.errors import MessagingError, NotListening, ServerRefused
from ray_messaging.model.columns import IdColumn
from ray_messaging.observability.health.findings import Report

logger = logging.getLogger(__name__)

of_host = OfHost[GroupHost]()


class GroupActor:
    """Ray actor that hosts agents. It has one mailbox and one sender for all of them.

    It gets its agents from `open` and not from the constructor, because Ray does not store large arguments of a
    constructor for a restart.
    """

    async def __init__(self, experiment: Experiment, name: str) -> None:  # type: ignore[misc]
        context = ray.get_runtime_context()
        interceptor = ray.get_actor(experiment.interceptor_name, namespace=NAMESPACE)
        # Ray may start several processes for this actor, one after the other. All of them own the mailbox under this
        # name.
        owner = f"{experiment.run}/{context.get_actor_id()}"
        self._name = name
        self._failure: MessagingError | None = None
        self._metrics: RayMetrics | None = None
        self._retrying: asyncio.Task[None] | None = None
        self._make = partial(GroupHost, experiment, interceptor, name, owner)
        self._newest = self._make()
        if restarted():
            await self._resume()
        if experiment.metrics:
            self._metrics = tell_metrics(lambda: self._newest.metrics(), experiment, name)  # noqa: PLW0108 - `_newest` changes
            self._metrics.start()
        tune_process()

    async def _resume(self) -> None:
        """Host the agents of the actor's earlier process, which died.

        While the server does not answer, or its memory is full, wait and try again. If the server refuses the
        connection, try again in the background. Until a try succeeds, calls to the actor raise the server's error.
        """
        while not await self._begin(self._newest.resume()):
            await asyncio.sleep(ACTOR_RECONNECT.first_s)
            self._newest = self._make()
        if isinstance(self._failure, ServerRefused):
            self._retrying = asyncio.create_task(self._retry(), name="ray_messaging restart of a group")

    async def _retry(self) -> None:
        while isinstance(self._failure, ServerRefused) or worth_a_retry(self._failure):
            await asyncio.sleep(ACTOR_START_RETRY.first_s)
            host = self._make()
            try:
                await host.resume()
            except MessagingError as error:
                self._failure = error
                await host.close()
            except Exception as error:  # nobody awaits this task, so the group's calls must raise this error
                logger.exception("group %r cannot start again", self._name)
                self._failure = MessagingError(
                    f"group {self._name!r} cannot start again ({type(error).__name__}: {error}): please report this"
                )
                await host.close()
            else:
                self._newest, self._failure = host, None

    async def _begin(self, start: Coroutine[Any, Any, None]) -> bool:
        """Await `start`, which starts the object that does the actor's work; store its error for later calls.

        Return False if another try may succeed, because the server did not answer, or had no memory left. Return True
        after success, and after any other error.
        """
        self._failure = None
        try:
            await start
        except MessagingError as error:
            self._failure = error
            await self._newest.close()
        return not worth_a_retry(self._failure)

    async def open(self, agents: IdColumn, subtopics: tuple[str, ...]) -> None:
        """Open the group's mailbox, in which the agents get their messages; raise the error that prevents this."""
        if isinstance(self._failure, NotListening):  # Ray restarted this actor before `open` was called
            self._newest = self._make()
        elif self._failure is not None:
            raise self._failure
        await self._begin(self._newest.start(agents, subtopics))
        await self.ready()

    @property
    def _host(self) -> GroupHost:
        """Return the plain object that does the actor's work; raise the error that prevents its start."""
        if self._failure is not None:
            raise self._failure
        return self._newest

    async def ready(self) -> None:
        """Return once the actor has started; raise the error that prevents the group's start, if there is one."""
        _ = self._host

    async def lane(self) -> tuple[str, int, str]:
        """Return host, port and token of the lane, a socket for calls of this actor, faster than calls through Ray."""
        return await self._host.lane.start(get_node_ip_address())

    # Handles call these methods. A handle repeats a call if the actor restarts during it, so repeats must do no harm.
    answer = of_host(lambda host: host.answer)
    ask = of_host(lambda host: host.questions.ask)
    ask_many = of_host(lambda host: host.questions.ask_many)
    more_answers = of_host(lambda host: host.questions.more)
    begin_service = of_host(lambda host: host.begin_service)
    end_service = of_host(lambda host: host.end_service)
    keep_failed = of_host(lambda host: host.messager.engine.transport.bury)
    give_up = of_host(lambda host: host.leases.give_up)
    abandon = of_host(lambda host: host.leases.abandon)
    step_state = of_host(lambda host: host.state)
    step_fates = of_host(lambda host: host.fates)
    add_agents = of_host(lambda host: host.messager.add_agents)
    let_go = of_host(lambda host: host.let_go)

    async def agents(self) -> IdColumn:
        """Return the agents of this group according to the server's directory of mailboxes."""
        return await self._newest.agents()

    async def stats(self) -> dict[str, Any]:
        """Return counters of this group, such as the numbers of batches sent and of messages fetched."""
        return self._newest.stats()

    async def health(self) -> Report:
        """Return a health report, at once and without a call to the server."""
        if self._failure is not None:
            return Report(time.time(), error=str(self._failure))
        report = self._newest.health()
        if self._metrics is not None:
            report.loops += self._metrics.health()
        return report

    async def close(self) -> None:
        """Send accepted messages, commit handled ones, and leave the mailbox."""
        if self._retrying is not None:
            await end(self._retrying)
        if self._metrics is not None:
            await self._metrics.stop()
        await asyncio.shield(self._newest.close())
