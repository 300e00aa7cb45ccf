"""What a test alone does to steps on their server: a log's hold, frames of an attempt, drivers of other processes."""

import asyncio

from ray_messaging.cluster.actors import interceptor_host
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.config import MessagingConfig
from ray_messaging.eventlog.forking import outside_of
from ray_messaging.eventlog.writing.step_rows import HOLD
from ray_messaging.steps import digests, step_account, step_loop
from ray_messaging.transports.step_values import Driver
from support.patience import WAIT_S


async def hold_for_the_log(messager):
    """Let the server keep all steps, as for a log that has read none yet."""
    await messager.engine.transport.steps.hold(HOLD, -1)


async def holds_once_open(store, step):
    """Wait until a group has opened a step; return the last step that each hold has let go."""
    async with asyncio.timeout(WAIT_S):
        while (found := await store.progress()).latest < step:
            await store.wait(found.news, 1.0)
    return found.holds


async def frames_in_box(store, group, step):
    """Return the frames that the server has for a group and a step, also of attempts that do not count."""
    return [each.frame for each in await store.read_box(f"{group}@{step}", count=1000)]


async def state_of_group(messager, group):
    """Return the state that a group left after its last step."""
    return (await messager.engine.transport.steps.take(group, Driver("reader"), 1.0)).state


async def history_of(store, until):
    """Return the digest of all that groups have counted in the steps before one."""
    history = b""
    for step in range(until):
        counts = await step_account.sealed_counts(store, step)
        history = digests.history_digest(
            history, step, step_account.messages_of(counts), step_account.digest_of(counts)
        )
    return history


async def steps_driven_by(messager, task, until):
    """Drive a messager's group from this process, as a task of Ray that does not host it."""
    return (await step_loop.driven_loop(messager.engine, task)).steps(until=until)


async def resume(messager, steps):
    """Start the experiment of a messager again with some `Steps`, as `on_existing="resume"` does."""
    spec = InterceptorSpec(messager.exp_id, "run", MessagingConfig(), None, steps, rules=(), on_existing="resume")
    await interceptor_host.begin_steps(messager.engine.transport.steps, spec.exp_id, spec.steps)


def said_from_outside(log):
    """Return what came from outside of the steps, each broadcast once, as a fork says it again."""
    return outside_of(log, slice(0, None))
