"""The steps of a group, in the task that drives it."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack

import ray

from ray_messaging.cluster.handles.actor_calls import find_actor, gone
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.handles.own_loop import OwnLoop
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.process_tuning import relax_collector
from ray_messaging.messager import GroupMessager
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_loop import check_until, driven_loop


def group_steps(experiment: Experiment, name: str, until: int, *, leave: bool = False) -> Iterator[Step]:
    """Yield the steps of a group.

    This process reads and writes on the server itself, under the number of its attempt: a pass through the group's
    actor would double the work of a step.
    """
    check_until(until)
    interceptor = find_actor(f"{experiment.exp_id}/interceptor")
    if interceptor is None:
        raise gone(f"group {name!r} of experiment {experiment.exp_id!r}")
    context = ray.get_runtime_context()
    task = context.get_task_id() or f"driver {context.get_worker_id()}"
    connection = ExperimentConnection(experiment, interceptor)
    connection.with_password()
    relax_collector()
    with OwnLoop(f"steps of {name}") as own:
        driven = own.run(_Driven.begin(connection, name, task, until, leave=leave))
        try:
            while (step := own.run(driven.next())) is not None:
                yield step
        finally:
            own.run(driven.end())


class _Driven:
    """The steps of a group, and the messager that reads and writes them: it hosts nothing."""

    def __init__(self, steps: AsyncGenerator[Step, None], opened: AsyncExitStack) -> None:
        self._steps = steps
        self._opened = opened

    @classmethod
    async def begin(
        cls, connection: ExperimentConnection, name: str, task: str, until: int, *, leave: bool
    ) -> "_Driven":
        """Connect to the server; raise ConfigError without steps."""
        experiment = connection.experiment
        messager = GroupMessager(
            experiment.redis,
            experiment.exp_id,
            connection.interceptor,
            name=name,
            settings=experiment.group_settings,
        )
        opened = AsyncExitStack()
        opened.push_async_callback(messager.close)
        try:
            await messager.init()
            steps = (await driven_loop(messager.engine, task)).steps(until, leave=leave)
        except BaseException:
            await opened.aclose()
            raise
        opened.push_async_callback(steps.aclose)
        return cls(steps, opened)

    async def next(self) -> Step | None:
        """Commit the open step, and open the next one; None: there is none."""
        return await anext(self._steps, None)

    async def end(self) -> None:
        """Leave the open step uncommitted, and disconnect."""
        await self._opened.aclose()
