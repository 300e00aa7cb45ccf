"""Ray actor of a group."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any

import ray
from ray.util import get_node_ip_address

from ray_messaging.cluster.actors.group_host import GroupHost, MoreAnswers
from ray_messaging.cluster.actors.restarts import restarted, worth_a_retry
from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from ray_messaging.cluster.ray_metrics import RayMetrics
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.backoff import ACTOR_RECONNECT
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.conversations.handling import Asker
from ray_messaging.errors import CommitFailed, MessagingError
from ray_messaging.message import Message
from ray_messaging.messages import Messages
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.observability.health.findings import Report
from ray_messaging.receipt import Receipts
from ray_messaging.receiving.ack_ranges import Span
from ray_messaging.receiving.delivery_leases import NEXT, FetchOptions, Token


class GroupActor:
    """Ray actor that hosts agents: one mailbox and one sender.

    Its agents come by `open`, not by the constructor, because Ray keeps no large arguments for a restart.
    """

    async def __init__(self, experiment: Experiment, name: str) -> None:  # type: ignore[misc]
        context = ray.get_runtime_context()
        interceptor = ray.get_actor(experiment.interceptor_name, namespace=NAMESPACE)
        # All processes that Ray starts for this actor have this name, and succeed each other as owners of its mailbox.
        owner = f"{experiment.run}/{context.get_actor_id()}"
        self._failure: MessagingError | None = None
        self._metrics: RayMetrics | None = None
        self._host = GroupHost(experiment, interceptor, name, owner)
        if restarted():
            while not await self._begin(self._host.resume()):
                # The server does not answer, or its memory is full: that may pass.
                await asyncio.sleep(ACTOR_RECONNECT.first_s)
                self._host = GroupHost(experiment, interceptor, name, owner)
        if experiment.metrics:
            labels = (("experiment", experiment.exp_id), ("messager", name))
            self._metrics = RayMetrics(self._host.metrics, labels)
            self._metrics.start()
        tune_process()

    async def _begin(self, start: Coroutine[Any, Any, None]) -> bool:
        """Start the host; keep an error for `ready`. Return False where another try may succeed."""
        self._failure = None
        try:
            await start
        except MessagingError as error:
            self._failure = error
            await self._host.close()
        return not worth_a_retry(self._failure)

    async def open(self, agents: IdColumn, subtopics: tuple[str, ...]) -> None:
        """Open the mailbox for agents; raise the error where that fails."""
        await self._begin(self._host.start(agents, subtopics))
        await self.ready()

    async def ready(self) -> None:
        """Return once the group listens; raise the error that prevents it."""
        if self._failure is not None:
            raise self._failure

    async def relay(self, caller: str, number: int, oldest: int, frames: list[bytes]) -> Receipts:
        """Send the frames of a handle: in the handle's order, and once also where Ray repeats the call."""
        await self.ready()
        return await self._host.relay(caller, number, oldest, frames)

    async def relay_again(self, caller: str, number: int, oldest: int, process: str) -> Receipts | None:
        """Return the receipts of a send that may have begun over the lane; None where it has not."""
        await self.ready()
        return await self._host.relay_again(caller, number, oldest, process)

    async def lane(self) -> tuple[str, int, str]:
        """Return host, port and token of the lane, over which handles call this actor faster than by Ray."""
        await self.ready()
        return await self._host.lane.address(get_node_ip_address())

    async def ask(self, call: str, frame: bytes, timeout: float | None, asker: Asker | None = None) -> Message:
        """Ask a handle's question, of a handler there; return its answer. `call` is the same where Ray repeats this."""
        await self.ready()
        return await self._host.questions.ask(call, frame, timeout, asker)

    async def ask_many(self, call: str, frames: list[bytes], timeout: float | None) -> Receipts:
        """Ask a handle's questions; return their receipts."""
        await self.ready()
        return await self._host.questions.ask_many(call, frames, timeout)

    async def more_answers(self, call: str, parts: int, wait_s: float, errors: int) -> MoreAnswers:
        """Return the answers to a handle's questions behind some parts and errors; wait for the first."""
        await self.ready()
        return await self._host.questions.more(call, parts, wait_s, errors)

    async def begin_service(self) -> None:
        """Note that a handle serves from now on."""
        await self.ready()
        await self._host.messager.conversation.begin()

    async def end_service(self, caller: str, ended: str) -> None:
        """Note why a handle serves no more, unless others do."""
        await self.ready()
        await self._host.end_service(caller, ended)

    async def keep_failed(self, mailbox: str, entry: str, row: int, frame: bytes, reason: str) -> None:
        """Make a message on which a handle's handler has failed a dead letter."""
        await self.ready()
        await self._host.messager.engine.transport.bury(mailbox, entry, frame, reason, row=row)

    async def fetch(
        self, caller: str, token: Token | None, limit: int | None, timeout: float | None, asking: FetchOptions = NEXT
    ) -> tuple[Token | None, Messages]:
        """Commit the messages of a handle's last fetch, and return the next ones."""
        await self.ready()
        return await self._host.fetch(caller, token, limit, timeout, asking)

    async def ack_some(
        self, loans: Sequence[tuple[Token, Sequence[Span] | None]]
    ) -> tuple[list[Token], CommitFailed | None]:
        """Commit some fetched messages; return the finished leases and the error of those that failed."""
        await self.ready()
        return await self._host.ack_some(loans)

    async def give_up(self, caller: str, token: Token | None) -> None:
        """Return the messages of a handle's last fetch to the mailbox, for the next fetch."""
        await self.ready()
        await self._host.give_up(caller, token)

    async def abandon(self, caller: str, received: int) -> None:
        """End a handle's fetch, as nobody waits for its answer: its messages are for the next fetch."""
        await self.ready()
        await self._host.abandon(caller, received)

    async def step_state(self) -> bytes | None:
        """Return the state that the last committed step left."""
        await self.ready()
        return await self._host.steps.state()

    async def step_fates(self, step: int) -> "Counter[str]":
        """Return the fates of the group's messages of a step that all groups have committed."""
        await self.ready()
        return await self._host.steps.fates(step)

    async def add_agents(self, agents: IdColumn) -> None:
        """Host more agents."""
        await self.ready()
        await self._host.messager.add_agents(AgentSet.of(agents))

    async def let_go(self, agents: IdColumn, target: str | None, timeout: float, *, again: bool) -> None:
        """Move agents to another group, or (None) remove them; `again`: an earlier process may have done it."""
        await self.ready()
        await self._host.let_go(AgentSet.of(agents), target, timeout, again=again)

    async def agents(self) -> IdColumn:
        """Return the agents of this group, as the directory has them: others may have moved some here."""
        subscription = self._host.messager.engine.subscription
        if subscription is not None:
            await subscription.adopt()
        return self._host.agents

    async def stats(self) -> dict[str, Any]:
        """Return counters of this group."""
        return self._host.stats()

    async def health(self) -> Report:
        """Return a health report, at once and without a call to the server."""
        if self._failure is not None:
            return Report(time.time(), error=str(self._failure))
        report = self._host.health()
        if self._metrics is not None:
            report.loops += self._metrics.health()
        return report

    async def close(self) -> None:
        """Send accepted messages, commit handled ones, and leave the mailbox."""
        if self._metrics is not None:
            await self._metrics.stop()
        await asyncio.shield(self._host.close())
