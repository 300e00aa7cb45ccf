"""The steps of a group, for the Ray task or program that runs them."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial

from ray_messaging.cluster.handles.connection import ExperimentConnection, find_actor, gone
from ray_messaging.cluster.handles.messagers import named_messager, tell_metrics
from ray_messaging.cluster.handles.own_loop import SharedLoop
from ray_messaging.cluster.ray_calls import context
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.backoff import REDIS_RETRY, Backoff
from ray_messaging.common.process_tuning import relax_collector
from ray_messaging.errors import ConnectionFailed, ServerRefused
from ray_messaging.messager import GroupMessager, Messager
from ray_messaging.model.whole_numbers import check_until
from ray_messaging.observability.metrics.messager_metrics import MessagerMetrics
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_loop import driven_loop

# All groups whose steps this process runs share one event loop, in which a single call waits until the next step opens.
# With a loop for each group, the server would have to notify each loop.
_LOOP = SharedLoop("steps")


def group_steps(experiment: Experiment, name: str, until: int, *, leave: bool = False) -> Iterator[Step]:
    """Yield the steps of a group, for a task or program whose calls block."""
    check_until(until)
    steps = driven_steps(experiment, name, driving_task(), until, leave=leave)

    async def following() -> Step | None:
        return await anext(steps, None)

    async def end() -> None:
        await steps.aclose()

    _LOOP.enter()
    try:
        while (step := _LOOP.run(following())) is not None:
            yield step
    finally:
        _LOOP.leave(end())


async def driven_steps(
    experiment: Experiment, name: str, task: str, until: int, *, leave: bool = False
) -> AsyncGenerator[Step, None]:
    """Yield the steps of a group for `task`, the Ray task or program that runs the group's steps.

    This process itself reads from the server and writes to it, because a detour over the group's actor would double the
    work of a step. Each process that begins to run the group's steps gets the next number from the server. It sends
    this number with each write, and the server refuses all numbers but the latest. The messager of this process hosts
    no agents.
    """
    check_until(until)
    interceptor = await asyncio.to_thread(find_actor, f"{experiment.exp_id}/interceptor")
    if interceptor is None:
        raise gone(f"group {name!r} of experiment {experiment.exp_id!r}")
    connection = ExperimentConnection(experiment, interceptor)
    experiment = await connection.with_password_async()
    relax_collector()
    metrics = MessagerMetrics() if experiment.metrics else None
    make = partial(named_messager, GroupMessager, experiment, interceptor, name, metrics, traced=False)
    messager = await connected(make, experiment.settings.cut_timeout_s)
    telling = None
    if metrics is not None:  # the group's actor does not report the sends and fetches of steps
        telling = tell_metrics(lambda: metrics.families({}), experiment, name)
        telling.start()
    try:
        steps = (await driven_loop(messager.engine, task)).steps(until, leave=leave)
        try:
            async for step in steps:
                yield step
        finally:
            await steps.aclose()
    finally:
        if telling is not None:
            await telling.stop()
        await messager.close()


async def connected(make: Callable[[], Messager], patience_s: float) -> Messager:
    """Return a connected messager; try for `patience_s` seconds to reach the server, then raise ConnectionFailed."""
    backoff = Backoff(REDIS_RETRY, deadline=time.monotonic() + patience_s)
    while True:
        messager = make()
        try:
            await messager.init()
        except BaseException as error:
            await messager.close()
            refused = isinstance(error, ServerRefused)  # another try would not help against a wrong password
            if refused or not isinstance(error, ConnectionFailed) or backoff.exhausted:
                raise
        else:
            return messager
        await backoff.sleep()


def driving_task() -> str:
    """Return the id of the running Ray task, or outside of a task a name of the driver's process."""
    here = context()
    return here.get_task_id() or f"driver {here.get_worker_id()}"
