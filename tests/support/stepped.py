"""Steps without Ray: begun by a messager or a society, and what its groups have left of them on the server."""

import numpy as np

from ray_messaging.audiences import cache
from ray_messaging.audiences.building import build_edges
from ray_messaging.steps.step_account import StepCounts
from ray_messaging.transports.step_values import StepSettings, WaitFor

EVERYBODY = cache.EVERYBODY  # the audience "*", as a step of a bare messager takes it


async def begin_steps(opened, *, wait_for="all", **settings):
    """Begin the steps of the experiment of a messager or a society; return their store."""
    store = await steps_of(opened)
    await store.begin(StepSettings(wait_for=WaitFor(wait_for), **settings))
    return store


async def steps_of(opened):
    """Return the store of steps of a messager or a society."""
    transport = opened.engine.transport if hasattr(opened, "engine") else await opened.transport()
    return transport.steps


async def declare(messager, senders):
    """Say which groups may send to each group, as `messaging.steps.declare` does."""
    await messager.engine.transport.steps.declare(senders)


async def leave_steps(messager):
    """Let a named messager's group leave the steps, as the end of `steps(leave=True)` does."""
    await messager.engine.transport.steps.leave(messager.name)


async def fates_in(store, step):
    """Return for each group how many of its messages in a step have ended in each fate."""
    return {name: StepCounts.decode(left.counts).fates for name, left in (await store.closed_step(step)).items()}


async def befriend(society, name, *pairs, version=1):
    """Make a version of an audience from arrays of pairs of sender and hearer."""
    await society.create(name, build_edges([np.array(each) for each in pairs]), version)
