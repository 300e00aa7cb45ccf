"""A town on Ray, and the end of an actor's process at a chosen call."""

import itertools
import os
import signal
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from support import cluster as cluster_support
from support.cluster import PATIENCE_S, alive, pid_of, wait_for

from ray_messaging import Group, Messaging, MessagingConfig
from ray_messaging.errors import AlreadyExists

GROUPS = {"west": range(10), "east": range(10, 20)}


@dataclass
class Town:
    """An experiment with groups west (agents 0 to 9) and east (10 to 19)."""

    messaging: Messaging
    groups: dict[str, Group]

    @property
    def west(self):
        return self.groups["west"]

    @property
    def east(self):
        return self.groups["east"]

    def group_of(self, agent):
        return next(group for name, group in self.groups.items() if agent in GROUPS[name])


@contextmanager
def a_town(*rules, exp_id=None, log_dir=None, redis=None, on_existing="error", actor_options=None, **settings):
    """Start a town; settings: of MessagingConfig; actor_options: of its groups."""
    by_value()
    with Messaging.start(
        exp_id or f"town-{uuid.uuid4().hex[:8]}",
        rules=rules,
        log_dir=log_dir,
        redis=redis,
        on_existing=on_existing,
        settings=MessagingConfig(**settings),
    ) as messaging:
        made = {name: partial(_create, messaging, name, agents, actor_options) for name, agents in GROUPS.items()}
        yield Town(messaging, {name: wait_for(create, f"group {name}") for name, create in made.items()})


def _create(messaging, name, agents, actor_options):
    """Create a group; None: its former process died without a word, and its lease must end."""
    try:
        return messaging.create_group(name, agents, actor_options=actor_options)
    except AlreadyExists:
        return None


def by_value():
    """Pickle the helper modules by value for Ray's workers, which cannot import tests; may be called twice."""
    from faults import ledger
    from faults import ray_support as here

    for module in (cluster_support, here, ledger):
        ray.cloudpickle.register_pickle_by_value(module)


# -- crash points -------------------------------------------------------------------------------------------------


def holder_of(actor, point):
    """Return the object in an actor's process that has the method of a crash point."""
    if point == "answer":
        return actor._newest.interceptor
    if point == "save":
        return actor._newest._store
    host = actor._host
    engine = host.messager.engine
    if point == "judge":
        return engine.accumulator.verdict_client
    return host if point in {"relay", "fetch"} else engine.transport


def _arm(actor, point, when, nth):
    holder = holder_of(actor, point)
    real = getattr(holder, point)
    calls = itertools.count(1)

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    async def dies_later(result):
        await result
        die()

    def deadly(*args: Any, **kwargs: Any) -> Any:
        if next(calls) != nth:
            return real(*args, **kwargs)
        if when == "before":
            die()
        result = real(*args, **kwargs)
        return dies_later(result) if hasattr(result, "__await__") else die()

    setattr(holder, point, deadly)


def arm(actor, point, when, *, nth=1):
    """Have an actor's process die right before, or after, its nth call from now on; return its pid.

    Points of a group: judge, send, read, commit, renew, and relay and fetch, after which an answer is lost on its way
    to the caller. Of the interceptor: answer, save.
    """
    pid = pid_of(actor)
    ray.get(actor.__ray_call__.remote(_arm, point, when, nth), timeout=PATIENCE_S)
    return pid


def wait_dead(pid):
    wait_for(lambda: not alive(pid), f"the death of process {pid}")
