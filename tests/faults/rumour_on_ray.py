"""A rumour that groups on Ray live through, by their handles, while processes die and links fail."""

import itertools
import json
import os
import random
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import ray
import redis
from support import cluster as cluster_support
from support import rumour as rumour_support
from support.cluster import kill, wait_for
from support.rumour import blocks, live_step, sequential
from support.servers import RedisProcess

from faults import ray_support
from faults.injector import at_call
from faults.proxy import Proxy
from ray_messaging import Group, Messaging, Steps, rules
from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.errors import StepAborted
from ray_messaging.interception.verdict_client import RemoteVerdictClient
from ray_messaging.transports.steps import RedisSteps

POINTS = ("open", "read_box", "judge", "send", "close")  # calls of the protocol, each from the task
SIDES = ("before", "after")
DEATHS = list(itertools.product(POINTS, SIDES))
SEALED_S = 240.0  # within which a step must be committed, whatever died in it
ENDED_S = 400.0  # within which all must be


class Words(rules.Rule):
    """Block some words."""

    name = "words"
    needs_payload = True

    def check(self, message):
        return rules.block("a bad word") if blocks(message.payload["word"]) else rules.ALLOW


# -- in the tasks -------------------------------------------------------------------------------------------------


def repeating(folder, number):
    """Make this task make each call of the protocol twice, and count the calls in a file."""
    made = folder / f"repeated-{number}"

    def repeated(owner, point):
        real = getattr(owner, point)

        async def call(self, *args, **more):
            await real(self, *args, **more)
            with made.open("a") as file:
                file.write(f"{point}\n")
            return await real(self, *args, **more)

        setattr(owner, point, call)

    for point in POINTS:
        repeated(owner_of(point), point)


def owner_of(point):
    """Return the class whose method a call of the protocol is."""
    return RemoteVerdictClient if point == "judge" else RedisSteps


def dying(point, side, mark):
    """Make this task die right before, or after, its next call at a point."""

    def die():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    at_call(owner_of(point), point, side, die)


# One call for each process: Ray would give it to later tasks, with the changes that this one has made to classes.
@ray.remote(num_cpus=0, max_calls=1, max_retries=-1, retry_exceptions=[StepAborted])
def drive(groups, rumour, folder, number, repeated, dies):
    """Drive some groups through a rumour; several at once in threads."""
    (folder / f"task-{number}").write_text(str(os.getpid()))
    for point, side in dies:
        mark = folder / f"died-{number}-{point}-{side}"
        if not mark.exists():
            dying(point, side, mark)
            break
    if repeated:
        repeating(folder, number)

    def live(group):
        for step in group.steps(until=rumour.steps):
            live_step(rumour, step)

    if len(groups) == 1:
        live(groups[0])
    else:
        with ThreadPoolExecutor(len(groups)) as threads:
            list(threads.map(live, groups))


# -- the society --------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Outcome of a rumour: the kills or cuts that it met, and the differences from one loop.

    `bodies` are the calls by which each server has taken large frames, since its last start.
    """

    faults: int = 0
    differs: list[str] = field(default_factory=list)
    bodies: list[int] = field(default_factory=list)


@dataclass
class Society:
    """An experiment with a rule and a log, its groups, and the tasks that drive them."""

    messaging: Messaging
    groups: list[Group]
    rumour: object
    folder: Path
    proxy: Proxy | None
    shards: int = 1
    refs: list = field(default_factory=list)

    def start(self, tasks, *, repeated=False, dies=lambda _number: ()):
        """Start tasks, each of which drives its share of the groups."""
        rumour, folder = ray.put(self.rumour), self.folder
        parts = [self.groups[number::tasks] for number in range(tasks)]
        self.refs = [
            drive.remote(part, rumour, folder, number, repeated, dies(number)) for number, part in enumerate(parts)
        ]

    def one_step(self, number, trouble):
        """Let the groups run one step, and have trouble in it."""
        self.messaging.steps.advance()
        trouble()
        self.messaging.steps.wait(number + 1, timeout=SEALED_S)

    def outcome(self, faults):
        """Wait for the end; return the differences from one loop."""
        self.messaging.steps.resume()
        ray.get(self.refs, timeout=ENDED_S)
        cuts = 0
        if self.proxy is not None:
            self.proxy.spare()
            cuts = self.proxy.cuts
        states, digests = sequential(self.rumour, rule=True)
        found = {}
        for group in self.groups:
            found |= {int(agent): state for agent, state in json.loads(group.state).items()}
        steps, log = self.messaging.steps, self.messaging.log
        differs = [f"digest {n}" for n, digest in enumerate(digests) if steps.digest(n) != digest]
        differs += [f"log {n}" for n, digest in enumerate(digests) if log.digest(n) != digest]
        differs += ["states"] if found != states else []
        return Outcome(faults + cuts, differs, self.bodies())

    def bodies(self):
        """Return how often each server has taken large frames."""
        found = []
        for server in self.messaging.redis.servers if self.shards > 1 else ():
            with redis.Redis(server.server, server.port, password=server.password) as client:
                found.append(client.info("commandstats").get("cmdstat_sadd", {"calls": 0})["calls"])
        return found


@contextmanager
def a_society(rumour, folder, groups, *, senders=False, cut=False, shards=1):
    """Start a society; with `senders` groups wait for their senders, with `cut` its one server is behind a proxy."""
    ray_support.by_value()
    from faults import rumour_on_ray as here

    for module in (cluster_support, rumour_support, here):
        ray.cloudpickle.register_pickle_by_value(module)
    proxy, redis_config = None, None
    parts = {f"group{n}": part for n, part in enumerate(rumour.parts(groups, senders=senders))}
    steps = Steps(seed=7, groups=groups, digest=True, wait_for="senders" if senders else "all")
    with ExitStack() as stack:
        if cut:
            server = RedisProcess(folder)
            stack.callback(server.kill)
            proxy = stack.enter_context(Proxy(server.start().config))
            redis_config = proxy.config
        name = f"rumour-{uuid.uuid4().hex[:8]}"
        messaging = stack.enter_context(
            Messaging.start(
                name, rules=[Words()], log_dir=folder / "log", redis=redis_config, steps=steps, shards=shards
            )
        )
        made = list(messaging.create_groups(parts).values())
        if senders:
            messaging.steps.declare(rumour.hears(parts))
        yield Society(messaging, made, rumour, folder, proxy, shards)


# -- faults -------------------------------------------------------------------------------------------------------


def nothing(society, tasks):
    """Let nothing fail."""
    society.start(tasks)
    return 0


def calls_repeated(society, tasks):
    """Make each call of the protocol twice."""
    society.start(tasks, repeated=True)
    ray.get(society.refs, timeout=ENDED_S)
    return sum(len(path.read_text().splitlines()) for path in society.folder.glob("repeated-*"))


def replies_cut(society, tasks):
    """Lose 30% of the server's replies."""
    society.proxy.cut_replies = 0.3
    society.start(tasks)
    return 0


def task_at_each_call(society, tasks):
    """Kill each task right before, and after, its calls of the protocol, one after the other."""
    society.start(tasks, dies=lambda number: DEATHS[number::tasks])
    ray.get(society.refs, timeout=ENDED_S)
    return len(list(society.folder.glob("died-*")))


def at_random(victim, times=6):
    """Return a fault that kills a victim at any moment of some steps."""

    def fault(society, tasks):
        chance = random.Random(7)
        society.messaging.steps.pause()
        society.start(tasks)
        for number in range(times):
            society.one_step(number, lambda: victim(society, chance))
        return times

    fault.__doc__ = victim.__doc__
    return fault


def group_actor(society, chance):
    """Kill a group's actor."""
    kill(chance.choice(society.groups).actor)


def task(society, chance):
    """Kill a task that drives groups."""
    paths = wait_for(lambda: sorted(society.folder.glob("task-*")), "a task that drives groups")
    with suppress(ProcessLookupError):  # Ray has not started it again
        os.kill(int(chance.choice(paths).read_text()), signal.SIGKILL)


def interceptor(society, _chance):
    """Kill the interceptor."""
    kill(society.messaging.interceptor)


def log(society, _chance):
    """Kill the event log's actor."""
    kill(society.messaging.log_actor)


def server(society, _chance):
    """Kill the embedded server; of several the primary."""
    kill_server(society, 0)


def another_server(society, chance):
    """Kill another server than the primary."""
    kill_server(society, chance.randrange(1, society.shards))


def any_server(society, chance):
    """Kill any server."""
    kill_server(society, chance.randrange(society.shards))


def kill_server(society, shard):
    name = f"server-{shard}" if shard else "server"
    actor = ray.get_actor(f"{society.messaging.exp_id}/{name}", namespace=NAMESPACE)
    with suppress(ProcessLookupError):  # the last kill was a moment ago
        os.kill(ray.get(actor.stats.remote())["pid"], signal.SIGKILL)


def everything(society, chance):
    """Kill a group's actor, a task, the interceptor, the log and the server."""
    for victim in chance.sample([group_actor, task, interceptor, log, any_server], 5):
        victim(society, chance)


FAULTS = {
    "no fault": nothing,
    "group actor killed at random": at_random(group_actor),
    "task killed at each call of the protocol": task_at_each_call,
    "task killed at random": at_random(task),
    "interceptor killed at random": at_random(interceptor),
    "log killed at random": at_random(log),
    "embedded server killed at random": at_random(server),
    "another server killed at random": at_random(another_server),
    "all of them killed at random": at_random(everything, 3),
    "30% of the replies cut": replies_cut,
    "each call of the protocol repeated": calls_repeated,
}


def run(rumour, folder, fault, groups, tasks, *, senders=False, shards=1):
    """Run a rumour with a fault; return its outcome."""
    cut = FAULTS[fault] is replies_cut
    with a_society(rumour, folder, groups, senders=senders, cut=cut, shards=shards) as society:
        return society.outcome(FAULTS[fault](society, tasks))
