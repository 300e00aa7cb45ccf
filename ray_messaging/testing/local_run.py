"""A run in this process: the engine, rules and order of `Messaging.run` on a private server, without Ray."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from ray_messaging.cluster.run.plan import GroupPlan
from ray_messaging.cluster.run.result import Result
from ray_messaging.cluster.run.run import KEPT_STEPS, check_run, gathered, plans_for
from ray_messaging.cluster.run.run_actor import GroupResult, RunActor, RunOptions
from ray_messaging.cluster.spec import SUBTOPICS
from ray_messaging.common.task_health import end
from ray_messaging.config import Steps
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.interception.rules.rule import Rule, forces_all
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.step_judge import RuleReviewer
from ray_messaging.interception.verdicts import FOREIGN
from ray_messaging.limits_and_timeouts import STEP_NEWS_TIMEOUT_S
from ray_messaging.messager import GroupMessager
from ray_messaging.steps.step_account import StepCounts, digest_of
from ray_messaging.steps.supervisor import Supervisor
from ray_messaging.transports.step_values import SUPERVISOR, StepSettings

_EXPERIMENT = "local"


def run(
    model: Callable[..., object],
    *,
    agents: object,
    until: int,
    groups: object = 1,
    start: Callable[..., dict[str, Any]] | None = None,
    graph: object = None,
    shared: object = None,
    by: str = "agent",
    concurrency: int = 100,
    timeout: float | None = None,
    rules: Iterable[Rule] = (),
    seed: int = 0,
) -> Result:
    """Run a model in this process, without Ray, and return the agents' states; for tests and quick looks.

    Messages, rules, order, states and digests are those of `Messaging.run` with the same seed, whatever `groups` says.
    The server is private, keeps its data in memory, and ends with the run; there is no event log.

    Args: as those of `Messaging.run` and `Messaging.start`; `seed` is that of `Steps`.

    Raises: StepFailed if the model raises an exception; ConfigError for invalid arguments; StepTooLarge if a group gets
    more messages in a step than it can read.
    """
    options = RunOptions(start, by, concurrency, timeout)
    check_run(model, until, options)
    plans = plans_for(options, agents, groups, graph, 1)
    whole = _run(plans, model, until, options, shared, list(rules), seed)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole)
    with ThreadPoolExecutor(1) as pool:  # a notebook has a running event loop
        return pool.submit(asyncio.run, whole).result()


async def _run(
    plans: Sequence[GroupPlan],
    model: object,
    until: int,
    options: RunOptions,
    shared: object,
    rules: Sequence[Rule],
    seed: int,
) -> Result:
    steps = Steps(seed=seed, groups=len(plans), digest=True)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(LocalServer(steps=steps))
        interceptor = Interceptor(_EXPERIMENT, rules)
        stack.push_async_callback(interceptor.close)
        settings = StepSettings.of(steps)
        reviewer = RuleReviewer(interceptor, settings.horizon) if forces_all(rules) else None
        messagers = [
            await stack.enter_async_context(
                GroupMessager(server, _EXPERIMENT, interceptor if rules else None, name=plan.name)
            )
            for plan in plans
        ]
        transport = messagers[0].engine.transport
        store = transport.steps
        if reviewer is not None:
            await store.join(SUPERVISOR)
            supervisor = Supervisor(transport, store, settings, reviewer, FOREIGN)
            stack.push_async_callback(end, asyncio.create_task(supervisor.run(), name="ray_messaging step rules"))
        for plan, messager in zip(plans, messagers, strict=True):
            await messager.host_agents(plan.agents, SUBTOPICS)
        parts = await _all_groups(stack, plans, messagers, model, until, options, shared)
        while (progress := await store.progress()).sealed < until - 1:  # rules judge the last step after the groups
            await store.wait(progress.news, STEP_NEWS_TIMEOUT_S)
        sealed = {
            step: {name: StepCounts.decode(left.counts) for name, left in (await store.closed_step(step)).items()}
            for step in range(max(0, until - KEPT_STEPS), until)
        }
        by_rules = sealed[until - 1].get(SUPERVISOR) if sealed else None
        digests = {step: digest_of(counts).hex() for step, counts in sealed.items()}
        return gathered(parts, until, {} if by_rules is None else by_rules.total, digests)


async def _all_groups(
    stack: AsyncExitStack,
    plans: Sequence[GroupPlan],
    messagers: Sequence[GroupMessager],
    model: object,
    until: int,
    options: RunOptions,
    shared: object,
) -> list[GroupResult]:
    """Run the model in all groups; raise the first error."""
    others = {plan.name: asyncio.get_running_loop().create_future() for plan in plans}
    for plan in plans:
        others[plan.name].set_result(plan)
    calls = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for plan, messager in zip(plans, messagers, strict=True):
                actor = RunActor(messager)
                stack.push_async_callback(actor.close)
                calls.append(tasks.create_task(actor.run(None, plan, model, until, options, shared, others)))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from several.exceptions[0].__cause__
    return [call.result() for call in calls]
