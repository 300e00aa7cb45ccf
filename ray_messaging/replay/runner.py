"""The run of a replay on Ray: an actor for each group sends, receives and checks messages."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.actors.restarts import OfHost
from ray_messaging.cluster.handles.connection import translated
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.cluster.ray_calls import get, kill, put, start_actor, wait
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.messager import Messager
from ray_messaging.model.fates import IS_STORED
from ray_messaging.replay.account import ReplayAccount, build_account, fate_codes, percentiles
from ray_messaging.replay.replay_plan import Plan, Reference, WorkerShare
from ray_messaging.replay.trace import Traffic
from ray_messaging.replay.worker import ReceivedTally, ReplaySent, Worker

Progress = Callable[[int, int, int | None], None]  # the numbers of messages sent, received, expected (None: not known)

REFRESH_S = 0.25
CLOSE_S = 10.0
ROUNDS, WARM_UP = 150, 20  # how many messages each side sends one by one, and how many of the first are not measured
PROBES: tuple[AgentId, AgentId] = ("latency-probe-1", "latency-probe-2")


of_worker = OfHost[Worker]()


class ReplayActor:
    """The Ray actor of one group. It runs the group's `Worker`."""

    def __init__(self, messaging: Messaging, share: WorkerShare) -> None:
        self._messaging = messaging
        self._share = share
        self._messager: Messager | None = None
        self._host: Worker

    async def open(self, reference: Reference) -> None:
        """Listen for the group's agents."""
        self._messager = await self._messaging.open_messager(
            self._share.name, self._share.agents, subtopics=("agent-chat",)
        )
        self._host = Worker(self._messager, reference, self._share)
        tune_process()

    send = of_worker(lambda worker: worker.send)
    receive = of_worker(lambda worker: worker.receive)
    exchange = of_worker(lambda worker: worker.exchange)

    async def expect(self, messages: int) -> None:
        """Set the number of messages to receive."""
        self._host.expect(messages)

    async def progress(self) -> tuple[int, int]:
        """Return the numbers of messages sent and received."""
        return self._host.progress

    async def close(self) -> None:
        """Commit the received messages, and close the messager."""
        if self._messager is not None:
            await self._messager.close()


class ReplayRunner:
    """A run of a plan on Ray, with one actor per group. It is a context manager."""

    def __init__(self, messaging: Messaging, plan: Plan) -> None:
        self._plan = plan
        self._shares = plan.shares()
        started = partial(start_actor, messaging.exp_id, ReplayActor, {"num_cpus": 0}, messaging)
        self._actors: list[Any] = [started(share) for share in self._shares]

    def __enter__(self) -> Self:
        """Start listening in every group. Raises the same errors as `Messaging.open_messager`."""
        try:
            reference = put(self._plan.reference())
            _gathered([actor.open.remote(reference) for actor in self._actors])
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, on_progress: Progress) -> ReplayAccount:
        """Send and receive all messages; return the account.

        Raises: OutcomeUnknown if the server does not answer about a send; Closed if a group died.
        """
        receiving = [actor.receive.remote() for actor in self._actors]
        sending = [actor.send.remote() for actor in self._actors]
        # Receivers do not know yet how many messages to expect. If a receiver ends now, it has failed, and its error is
        # raised.
        sent: list[ReplaySent] = self._watch(sending, receiving, on_progress)
        counts = self._delivered(sent)
        for actor, count in zip(self._actors, counts, strict=True):
            actor.expect.remote(count)
        tallies: list[ReceivedTally] = self._watch(receiving, [], on_progress, sum(counts))
        return build_account(self._plan, self._shares, sent, tallies)

    def lone_latency_ms(self) -> dict[str, float | None]:
        """Return p50 and p99 of the latency in ms of single messages between the first agents of two groups."""
        one, other = (share.agents[0] for share in self._shares)
        found = _gathered(
            [
                self._actors[0].exchange.remote(one, other, ROUNDS, first=True),
                self._actors[1].exchange.remote(other, one, ROUNDS, first=False),
            ]
        )
        return percentiles(np.concatenate([latencies[WARM_UP:] for latencies in found]))

    def close(self) -> None:
        """Close the groups, and end their actors. A second call does nothing."""
        actors, self._actors = self._actors, []
        if actors and ray.is_initialized():
            leaving = [actor.close.remote() for actor in actors]
            wait(leaving, num_returns=len(leaving), timeout=CLOSE_S)
            for actor in actors:
                kill(actor)

    def _delivered(self, sent: list[ReplaySent]) -> list[int]:
        """Return the number of messages that were delivered to each group."""
        plan = self._plan
        delivered = IS_STORED[fate_codes(plan, self._shares, sent)]
        counts: list[int] = np.bincount(plan.group_of[plan.traffic.targets[delivered]], minlength=plan.groups).tolist()
        return counts

    def _watch(
        self, refs: list[Any], others: list[Any], on_progress: Progress, expected: int | None = None
    ) -> list[Any]:
        """Wait for the calls `refs`, and return their results.

        If one of these calls fails, or one of the calls `others`, raise the error of that call at once.

        Args: `expected` is the number of messages that are to be received, for `on_progress` (None: not known).
        """
        pending = [*refs, *others]
        while not set(refs).isdisjoint(pending):
            done, pending = wait(pending, num_returns=len(pending), timeout=REFRESH_S)
            _gathered(done)
            self._report(on_progress, expected)
        return _gathered(refs)

    def _report(self, on_progress: Progress, expected: int | None) -> None:
        # If a group has just died, `_watch` raises the error of the group's `send` or `receive`, and not the error of
        # `progress` here.
        with suppress(RayActorError):
            counts = get([actor.progress.remote() for actor in self._actors])
            on_progress(sum(sent for sent, _ in counts), sum(received for _, received in counts), expected)


def lone_latency_ms(messaging: Messaging) -> dict[str, float | None]:
    """Return p50 and p99 of the latency in ms of single messages between two new groups.

    The experiment must have no agents.
    """
    nothing, ends = np.zeros(0, np.int32), np.arange(2, dtype=np.int32)
    plan = Plan(Traffic("single messages", [*PROBES], nothing, nothing, np.zeros(0), None), ends)
    with ReplayRunner(messaging, plan) as runner:
        return runner.lone_latency_ms()


def _gathered(refs: Sequence[Any]) -> list[Any]:
    """Return the results of calls to actors; raise an actor's error in its original form."""
    try:
        results: list[Any] = get(list(refs))
    except (RayTaskError, RayActorError) as error:
        raise translated(error, actor_name="a group of the replay") from error
    return results
