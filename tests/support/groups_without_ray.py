"""Groups whose handles call their hosts without Ray: over a real lane, and by calls that run out of order, as Ray's."""

import asyncio
import functools
import random
from contextlib import asynccontextmanager
from types import SimpleNamespace

from ray_messaging.cluster.actors.group_actor import GroupActor
from ray_messaging.cluster.actors.group_host import GroupHost
from ray_messaging.cluster.handles.group import async_group
from ray_messaging.cluster.handles.group.async_group import AsyncGroup, StepStamp
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig
from ray_messaging.messager import GroupMessager
from ray_messaging.model.columns import IdColumn
from ray_messaging.observability.health.actor_checks import check_actor
from ray_messaging.observability.health.findings import ActorFacts
from support.servers import HOST

LATE_S = (0.0, 0.0, 0.001, 0.004)  # by so much a call may be late


class ActorWithoutRay:
    """A group's host behind the methods of its actor, each with a `remote` that returns what can be awaited."""

    def __init__(self, host, seed):
        self._calls, self._random, self._host = set(), random.Random(seed), host

    def __getattr__(self, name):
        if name not in vars(GroupActor):  # what Ray's handles have beside them
            raise AttributeError(name)
        return SimpleNamespace(remote=functools.partial(self._begin, name))

    def _begin(self, name, *args, **kwargs):
        call = asyncio.ensure_future(self._run(name, self._random.choice(LATE_S), args, kwargs))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return asyncio.shield(call)  # who awaits it may be cancelled: the call goes on

    async def _run(self, name, late_s, args, kwargs):
        await asyncio.sleep(late_s)
        if name == "lane":
            return await self._host.lane.start(HOST)
        return await vars(GroupActor)[name](SimpleNamespace(_host=self._host), *args, **kwargs)

    async def settle(self):
        """Wait until all calls have ended, but those that wait for messages."""
        for call in [*self._calls]:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


class GroupWithoutRay:
    """A group, of which any number of handles can be had."""

    def __init__(self, experiment, name, seed):
        self.experiment, self.name = experiment, name
        self.host = GroupHost(experiment, None, name, f"{experiment.run}/{name}")
        self.actor = ActorWithoutRay(self.host, seed)

    def findings(self):
        """Return what a check of health finds about this group."""
        return [*check_actor(ActorFacts(f"group {self.name!r}", self.host.health()))]

    def handle(self):
        """Return a new handle, as another task would have."""
        return AsyncGroup(self.experiment, self.name, self.actor, StepStamp())

    @property
    def messager(self):
        """Return the messager of the group's host."""
        return self.host.messager

    @property
    def lent(self):
        """Return how many messages handles have and have not given back."""
        return self.host.leases.lent


@asynccontextmanager
async def groups_without_ray(monkeypatch, config, exp_id, hosted, *, seed=0, **settings):
    """Open groups by name, with their agents, on one server; give them by name."""
    monkeypatch.setattr(async_group, "ray", SimpleNamespace(is_initialized=lambda: True))
    experiment = Experiment(exp_id=exp_id, run="run", settings=MessagingConfig(**settings), redis=config)
    groups = {name: GroupWithoutRay(experiment, name, seed + n) for n, name in enumerate(hosted)}
    try:
        for name, agents in hosted.items():
            ids = agents if isinstance(agents, IdColumn) else IdColumn.of([*agents])
            await groups[name].host.start(ids, ("agent-chat",))
        yield groups
    finally:
        for group in groups.values():
            await group.actor.settle()
            await group.host.close()


async def own_group(opener, server, exp_id, name, agents, **settings):
    """Open a group in this process, as `messaging.open_messager` does; it is closed with the opener's messagers."""
    messager = GroupMessager(server, exp_id, name=name, settings=MessagingConfig(**settings))
    opener.opened.append(messager)
    await messager.init()
    await messager.host_agents(agents, ["agent-chat"])
    return messager
