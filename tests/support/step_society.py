"""A society in steps whose result depends on the order of every message, and the same in one loop without messaging."""

import asyncio
import json
from contextlib import aclosing
from hashlib import blake2b

import numpy as np

from ray_messaging import Messager
from ray_messaging.audiences.audience_kinds import AudienceFacts, AudienceKind, Audiences, encode_facts
from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.audiences.files import version_folder, write_edges
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.common.task_health import end
from ray_messaging.config import MessagingConfig
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.step_judge import RuleReviewer
from ray_messaging.interception.verdicts import FOREIGN
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.digests import DigestRow, step_digest, sum_of
from ray_messaging.steps.random_numbers import agent_generator
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_account import StepCounts
from ray_messaging.steps.step_inbox import StepInbox
from ray_messaging.steps.step_sends import StepSends
from ray_messaging.steps.step_supervisor import StepSupervisor
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.step_values import SUPERVISOR
from support.patience import WAIT_S
from support.step_faults import FaultyStore, Process

AGENTS, STEPS, SEED = 60, 8, 7
FRIENDS = {agent: [int(x) for x in np.random.default_rng(agent).permutation(AGENTS)[:4]] for agent in range(AGENTS)}


def hears(count):
    """Return which of so many groups, which share the agents round robin, send to each of them."""
    found = {f"group{number}": set() for number in range(count)}
    for agent, friends in FRIENDS.items():
        for friend in friends:
            found[f"group{friend % count}"].add(f"group{agent % count}")
    return found


def listen(state, inbox, generator):
    """Return an agent's next state: a hash that depends on the order of what it heard."""
    heard = "|".join(f"{from_id}:{payload['word']}" for from_id, payload in inbox)
    return blake2b(f"{state}/{heard}/{generator.random():.17g}".encode(), digest_size=6).hexdigest()


def spread(agent, state, step):
    """Return what an agent says in a step: (to_id, payload, step of delivery)."""
    later = step + 2 if int(state, 16) % 5 == 0 else step + 1
    return [(friend, {"word": state}, later) for friend in FRIENDS[agent] if int(state, 16) % 3]


def person(me, inbox):
    """Take a step as an agent of a run."""
    heard = [(message.from_id, message.payload) for message in inbox]
    me.state["word"] = listen(me.state.get("word", "0"), heard, me.rng)
    for friend, payload, later in spread(me.id, me.state["word"], me.step):
        me.send(friend, payload, deliver_at=later)


def open_step(number=0, state=None, agents=5, state_bytes=10_000):
    """Return an open step of a group of agents that have heard nothing, without any server."""
    places = AgentPlaces(AgentSet.of(range(agents)))
    return Step(
        number,
        seed=SEED,
        agents=places,
        inbox=StepInbox("exp", places, []),
        sends=StepSends(places, number, 1, 64, 1000, Audiences(), "town"),
        state=state,
        state_bytes=state_bytes,
    )


def sequential():
    """Run the society in one loop without any messaging; return its states and the digests of its steps."""
    return _sequential()[:2]


def messages_of(steps):
    """Return how many messages the society sends in its first steps."""
    return sum(_sequential()[2][:steps])


def _sequential():
    states, waiting, digests, counts = dict.fromkeys(range(AGENTS), "0"), {}, [], []
    for step in range(STEPS):
        rows = []
        for agent in range(AGENTS):
            inbox = sorted(waiting.get((step, agent), []))
            states[agent] = listen(
                states[agent], [(row[1], row[3]) for row in inbox], agent_generator(SEED, step, agent)
            )
            for n, (friend, payload, later) in enumerate(spread(agent, states[agent], step)):
                waiting.setdefault((later, friend), []).append((step, agent, n, payload))
                text = json.dumps(payload, separators=(",", ":")).encode()
                rows.append(DigestRow(step, later, agent, n, friend, "agent-chat", "delivered", None, (), text))
        digests.append(step_digest([sum_of(rows)]))
        counts.append(len(rows))
    return states, digests, counts


def run_step(step):
    """Run one step of the society for the agents of a group; return their states."""
    before, states = json.loads(step.state) if step.state else {}, {}
    for agent, inbox in step.by_agent():
        heard = [(message.from_id, message.payload) for message in inbox]
        states[agent] = listen(before.get(str(agent), "0"), heard, step.rng(agent))
        for friend, payload, later in spread(agent, states[agent], step.number):
            step.send(agent, friend, payload, deliver_at=later)
    step.state = json.dumps(states).encode()
    return states


async def live(messager, *, until=STEPS, run=run_step, hook=None):
    """Drive a group through the society; return the states of its agents. `hook` is awaited before each step."""
    states = {}
    async with aclosing(messager.steps(until=until)) as steps:
        async for step in steps:
            if hook is not None:
                await hook(step)
            states = run(step)
    return states


async def agree(messager, *states):
    """Fail unless the states of all groups, and the digests of a messager's experiment, are those of one loop."""
    wanted, digests = sequential()
    assert {agent: state for part in states for agent, state in part.items()} == wanted
    assert sum(map(len, states)) == AGENTS
    assert await digests_of(messager.engine.transport.steps) == digests


async def sealed(store, step):
    """Wait until a step is sealed."""
    while (progress := await store.progress()).sealed < step:
        await store.wait(progress.news, WAIT_S)


async def digests_of(store, until=STEPS):
    """Return the digest of each step, from what the groups left in a step store."""
    found = []
    for step in range(until):
        left = [StepCounts.decode(each.counts) for each in (await store.closed_step(step)).values()]
        found.append(step_digest([int.from_bytes(each.digest, "little") for each in left]))
    return found


class LoggedGroups:
    """Groups in steps, which share the agents round robin, the writers of their log, and audiences in its folder."""

    def __init__(self, server, exp_id, folder=None):
        self.server, self.exp_id, self.folder = server, exp_id, folder
        self.audiences = None if folder is None else folder / "audiences"
        self.messagers, self.transports, self.interceptors, self.tasks = [], [], [], []

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            await end(task)
        for opened in (*reversed(self.messagers), *self.transports, *self.interceptors):
            await opened.close()

    async def transport(self):
        transport = open_transport(self.server, self.exp_id, MessagingConfig())
        self.transports.append(transport)
        await transport.connect()
        return transport

    async def writer(self, **settings):
        transport, settings = await self.transport(), {"segment_age_s": 1e9} | settings
        writer = LogWriter(transport, Folder(self.folder), self.exp_id, **settings)
        await writer.start()
        return writer

    async def messager(self, interceptor=None, **settings):
        audiences = None if self.audiences is None else LocalFolder(self.audiences)
        messager = Messager(self.server, self.exp_id, interceptor, **{"audiences": audiences} | settings)
        self.messagers.append(messager)
        await messager.init()
        return messager

    async def groups(self, count, interceptor=None, agents=range(AGENTS)):
        found = [await self.messager(interceptor, name=f"group{n}") for n in range(count)]
        for number, group in enumerate(found):
            await group.host_agents(agents[number::count], ["agent-chat", "user-chat"])
        return found

    def judge(self, *rules):
        """Return an interceptor with rules."""
        self.interceptors.append(Interceptor(self.exp_id, rules))
        return self.interceptors[-1]

    async def supervise(self, interceptor, settings=None, faults=None):
        """Let an interceptor's rules judge whole steps; return their supervisor, some of whose calls may fail."""
        transport = await self.transport()
        settings = settings or await transport.steps.settings()
        await transport.steps.join(SUPERVISOR)
        reviewer = RuleReviewer(interceptor, settings.horizon)
        audiences = AudienceCache(None if self.audiences is None else LocalFolder(self.audiences))
        store = transport.steps if faults is None else FaultyStore(transport.steps, Process(SUPERVISOR), faults)
        supervisor = StepSupervisor(transport, store, settings, reviewer, FOREIGN, audiences)
        self.tasks.append(asyncio.create_task(supervisor.run()))
        return supervisor

    async def create(self, name, edges, version=1):
        """Make a version of an audience."""
        write_edges(version_folder(self.audiences, name, version), edges)
        facts = AudienceFacts(AudienceKind.GRAPH, edges.pairs, edges.digest.hex())
        assert await self.transports[0].set_audience(name, version, encode_facts(facts)) is not None
