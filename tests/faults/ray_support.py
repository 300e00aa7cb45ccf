"""End, or stop, an actor's process at a chosen call; run a second process of a group beside it."""

import os
import signal
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import ray
from support import cluster as cluster_support
from support.cluster import PATIENCE_S, alive, pid_of, states, wait_for

from faults import injector, ledger
from faults.injector import at_call
from ray_messaging import Group, Messaging, MessagingConfig
from ray_messaging.cluster.actors.group_actor import GroupActor
from ray_messaging.cluster.actors.group_host import GroupHost
from ray_messaging.cluster.actors.interceptor_host import InterceptorHost
from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.spec import InterceptorSpec
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
        return self.west if agent in GROUPS["west"] else self.east


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
        yield Town(
            messaging,
            {
                name: wait_for(partial(_create, messaging, name, agents, actor_options), f"group {name}")
                for name, agents in GROUPS.items()
            },
        )


def _create(messaging, name, agents, actor_options):
    """Create a group; None: its former process died without a word, and its lease must end."""
    try:
        return messaging.create_group(name, agents, actor_options=actor_options)
    except AlreadyExists:
        return None


def by_value():
    """Pickle the helper modules by value for Ray's workers, which cannot import tests; may be called twice."""
    from faults import ray_support as here

    for module in (cluster_support, here, injector, ledger):
        ray.cloudpickle.register_pickle_by_value(module)


# -- crash points -------------------------------------------------------------------------------------------------


def holder_of(actor, point):
    """Return the object in an actor's process that has the method of a crash point."""
    if point == "answer":
        return actor._newest._lane
    if point == "save":
        return actor._newest._store
    host = actor._host
    engine = host.messager.engine
    if point == "judge":
        return engine.accumulator.send_loop.verdict_client
    return {"relay": host.messager, "fetch": host.leases}.get(point, engine.transport)


def _arm(actor, point, when, nth, number):
    at_call(holder_of(actor, point), point, when, partial(os.kill, os.getpid(), number), nth)


def arm(actor, point, when, *, nth=1, number=signal.SIGKILL):
    """Have an actor's process send itself a signal right before, or after, its nth call from now on; return its pid.

    Points of a group: judge, send, read, commit, renew, listen, take_sender_epoch, load_directory, and relay and
    fetch, after which an answer is lost on its way to the caller. Of the interceptor: answer, save.
    """
    pid = pid_of(actor)
    ray.get(actor.__ray_call__.remote(_arm, point, when, nth, int(number)), timeout=PATIENCE_S)
    return pid


def wait_dead(pid):
    wait_for(lambda: not alive(pid), f"the death of process {pid}")


def wait_stopped(pid):
    wait_for(lambda: states(pid) == {"T"}, "the stop")


@contextmanager
def stopped_at(actor, point, when, *, nth=1):
    """Have an actor's process stand still from its nth call of a crash point on; give a function that waits for it."""
    pid = arm(actor, point, when, nth=nth, number=signal.SIGSTOP)
    try:
        yield lambda: wait_stopped(pid)
    finally:
        os.kill(pid, signal.SIGCONT)


# -- a second process of a group ----------------------------------------------------------------------------------


class _Twin(GroupActor):
    """A second process of a group, as Ray starts one after it lost an actor's node."""

    async def __init__(self, experiment, name, owner):
        interceptor = ray.get_actor(experiment.interceptor_name, namespace=NAMESPACE)
        self._failure = None
        self._newest = GroupHost(experiment, interceptor, name, owner)

    async def connect(self):
        """Open the connections only, so that the later steps can be armed."""
        await self._host.messager.init()

    async def resume(self):
        await self._host.resume()


@contextmanager
def twin_of(group, *, resume=True):
    """Run a second process of a group, which takes its mailbox and its name over; give a handle of the group on it."""
    experiment = group._experiment
    owner = f"{experiment.run}/{group.actor._actor_id.hex()}"
    actor = ray.remote(num_cpus=0, max_concurrency=1000)(_Twin).remote(experiment, group.name, owner)
    try:
        ray.get((actor.resume if resume else actor.connect).remote(), timeout=PATIENCE_S)
        yield Group(experiment, group.name, actor)
    finally:
        ray.kill(actor)


# -- a second interceptor -----------------------------------------------------------------------------------------


class _Deputy:
    """Judge for an experiment in place of its interceptor, as the one does that Ray starts after a node was lost."""

    async def __init__(self, spec, redis):
        self.host = InterceptorHost(spec, redis)

    async def start(self):
        await self.host.start(ray.util.get_node_ip_address())

    async def ban(self, pair):
        await self.host.editor.change(lambda: self.host.interceptor.black_list.add({pair}))

    async def abandon(self):
        await self.host.abandon()


@contextmanager
def deputy_of(messaging):
    """Run a second interceptor, which takes the experiment over; give its actor."""
    experiment = messaging._connection.experiment
    spec = InterceptorSpec(
        experiment.exp_id, experiment.run, experiment.settings, experiment.log_dir, rules=(), on_existing="error"
    )
    actor = ray.remote(num_cpus=0, max_concurrency=100)(_Deputy).remote(spec, experiment.redis)
    try:
        ray.get(actor.start.remote(), timeout=PATIENCE_S)
        yield actor
        ray.get(actor.abandon.remote(), timeout=PATIENCE_S)
    finally:
        ray.kill(actor)
