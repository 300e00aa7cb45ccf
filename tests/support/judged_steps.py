"""Groups in steps under rules: all that counts in the end, whoever has died meanwhile."""

import asyncio
import random
from collections import Counter
from contextlib import aclosing, suppress
from types import SimpleNamespace

from ray_messaging.cluster import rule_store
from ray_messaging.cluster.actors.interceptor_host import InterceptorHost
from ray_messaging.cluster.actors.rule_editor import RuleRequest
from ray_messaging.cluster.rule_store import pickled
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.config import MessagingConfig, Steps
from ray_messaging.errors import AlreadyExists, ConnectionFailed, StepAborted, TransitError
from ray_messaging.interception.interceptor import state_writer
from ray_messaging.interception.rules import ALLOW, Rule, SlowRule, StepRule, StepVerdicts, Table, block, label, rewrite
from ray_messaging.interception.rules.rule import forces_all
from ray_messaging.transports.step_values import StepSettings
from support.delegation import Method
from support.step_faults import FaultyStore, Killed, Process
from support.step_society import LoggedGroups, digests_of, sealed

WAIT_S = 20.0
_AGAIN = (StepAborted, TransitError, AlreadyExists)


class Kv:
    """Ray's cluster state, in this process."""

    def __init__(self, monkeypatch):
        self.kept = {}
        monkeypatch.setattr(rule_store, "kv_put", lambda key, value, **_: self.kept.update({_b(key): value}))
        monkeypatch.setattr(rule_store, "kv_get", lambda key, **_: self.kept.get(_b(key)))
        monkeypatch.setattr(rule_store, "kv_delete", lambda key, **_: self.kept.pop(_b(key), None))
        monkeypatch.setattr(
            rule_store, "kv_names", lambda start, **_: [key for key in self.kept if key.startswith(_b(start))]
        )
        monkeypatch.setattr(state_writer, "_CLOSE_S", 0.02)  # of an interceptor that is dead anyway


def _b(key):
    return key.encode() if isinstance(key, str) else key


class Deaths:
    """Deaths at calls of the protocol, before or after the server has executed them.

    Args: `at` names calls, as "group0 commit 3 before", the third one; else each call is one by chance, `most` in all.
    """

    def __init__(self, at=(), *, chance=None, rate=0.0, most=8, in_parts=False):
        self.at, self.rate, self.left, self.in_parts = set(at), rate, most, in_parts
        self.chance = chance or random.Random(0)
        self.counts, self.met = Counter(), []
        self.begun = False  # deaths by chance

    async def call(self, process, name, call):
        self.counts[process.name, name] += 1
        where = f"{process.name} {name} {self.counts[process.name, name]}"
        side = next((side for side in ("before", "after") if f"{where} {side}" in self.at), None)
        if side is None and self.begun and self.left > 0 and self.chance.random() < self.rate:
            side = self.chance.choice(["before", "after"])
        if side is None:
            return await call()
        self.left -= 1
        process.die()
        self.met.append(f"{where} {side}")
        if side == "after":
            with suppress(TransitError):
                await call()
        raise Killed(f"{where} failed")


class Town(LoggedGroups):
    """Groups of agents in steps, each driven by processes that may die, under the rules of an interceptor.

    `lane`: the interceptor has a process of its own, which may die, too; else it is in this one. `say(step, agent,
    attempt)` returns what an agent says: (to_id, text), ... `said` has what counts in the end, and `blocked` what an
    agent learns in a step of its blocked messages.
    """

    def __init__(
        self, server, exp_id, rules, say, *, lane, groups=2, agents=4, steps=4, changes=(), deaths=None, faults=None
    ):
        super().__init__(server, exp_id)
        self.make_rules, self.say = rules, say
        self.lane, self.count, self.agents, self.steps = lane, groups, agents, steps
        self.changes, self.deaths = changes, deaths or Deaths()
        self.faults = faults  # of the supervisor in this process
        self.settings = MessagingConfig(interceptor_timeout_s=30.0)
        self.said, self.blocked, self.attempts = {}, {}, Counter()
        self.host = self.interceptor = None
        self.restarts = 0
        self.alive = asyncio.Event()  # the interceptor

    # -- the interceptor ----------------------------------------------------------------------------------------------

    async def __aenter__(self):
        if self.lane:
            self.spec = InterceptorSpec(
                self.exp_id, "run", self.settings, rules=tuple(map(pickled, self.make_rules())), on_existing="error",
                steps=Steps(groups=self.count, digest=True),
            )  # fmt: skip
            await self._begin()
            for at_step, change, which, rule in self.changes:
                made = None if rule is None else self.host.checked(rule)
                await self.host.editor.edit(RuleRequest(f"{at_step} {change} {which}", change, which, made, at_step))
            self.tasks.append(asyncio.create_task(self._follow()))
        else:
            await self._begin_here()
        return self

    async def _begin_here(self):
        rules, settings = self.make_rules(), StepSettings(groups=self.count, digest=True)
        self.interceptor = self.judge(*rules)
        await (await self.transport()).steps.begin(settings)
        if forces_all(rules):
            await self.supervise(self.interceptor, settings, self.faults)

    async def _begin(self):
        process = Process("interceptor")
        host = InterceptorHost(self.spec, self.server)
        host._store._server = FaultyStore(host._server, process, self.deaths, ["write"])
        host.transport.steps = FaultyStore(host.transport.steps, process, self.deaths)
        try:
            await host.start("127.0.0.1")
        except TransitError:
            await host.abandon()
            await self._begin()
            return
        self.host, self.process = host, process
        if not process.dead:
            self.alive.set()

    async def _follow(self):
        """Start the interceptor's process anew whenever it dies."""
        while True:
            await self.process.died.wait()
            self.alive.clear()
            host, self.host = self.host, None
            await host._lane.close()
            await host.abandon()
            self.restarts += 1
            await self._begin()

    @property
    def handle(self):
        """Return a handle like that of the interceptor's actor."""
        if not self.lane:
            return self.interceptor
        return SimpleNamespace(
            lane=Method(lambda **_: self._alive().lane_address),
            forward_batch=Method(self._forward),
        )

    def _alive(self):
        if self.host is None:
            raise ConnectionFailed("the interceptor restarts", host="", port=0)
        return self.host

    async def _forward(self, request, patient, **_):
        found = self._alive().interceptor.answer(request, patient=patient)
        return found if isinstance(found, bytes) else await found

    # -- groups -------------------------------------------------------------------------------------------------------

    async def _open(self, number):
        process = Process(f"group{number}")
        messager = await self.messager(self.handle, name=process.name, settings=self.settings)
        await messager.host_agents(range(number, self.agents, self.count), ["agent-chat"])
        transport = messager.engine.transport
        transport.steps = FaultyStore(transport.steps, process, self.deaths)
        return messager, process

    async def _live(self, number, messager, process):
        while True:
            try:
                if process.dead:
                    messager, process = await self._open(number)
                async with aclosing(messager.steps(until=self.steps)) as steps:
                    async for step in steps:
                        self.attempts[number, step.number] += 1
                        for agent in range(number, self.agents, self.count):
                            words = self.say(step.number, agent, self.attempts[number, step.number])
                            self.said[step.number, agent] = words
                            place = step.places.place(agent)
                            self.blocked[step.number, agent] = [tuple(each) for each in step.blocked.of(place)]
                            for to_id, text in words:
                                step.send(agent, to_id, {"t": text})
            except _AGAIN:
                continue
            return

    async def run(self):
        """Run all steps; return the digests, the violations and the tables of all rules."""
        async with asyncio.timeout(WAIT_S):
            opened = [(number, *await self._open(number)) for number in range(self.count)]
            self.deaths.begun = True
            await asyncio.gather(*(self._live(*each) for each in opened))
            self.deaths.left, self.deaths.at = 0, set()
            store = (await self.transport()).steps
            await sealed(store, self.steps - 1)
            digests = [each.hex() for each in await digests_of(store, self.steps)]
            interceptor = await self._settled()
            tables = {rule.name: dict(rule.state) for rule in interceptor.rules if rule.state is not None}
            return digests, dict(interceptor.violations), tables

    async def _settled(self):
        """Return the living interceptor, once the last step has ended for its rules."""
        if self.lane:
            await self.alive.wait()
        interceptor = self.host.interceptor if self.lane else self.interceptor
        before = interceptor.before_step(self.steps)
        if before is not None:
            await before
        return interceptor

    async def __aexit__(self, *_):
        await super().__aexit__()
        if self.host is not None:
            await self.host.abandon()


# -- rules ------------------------------------------------------------------------------------------------------------


class Model(SlowRule):
    """A slow rule that judges by words; how long it takes depends on the text, and is in turns of the loop."""

    def __init__(self, name="model", turns=7):
        self.name, self.turns = name, turns

    async def judge(self, message):
        text = message.payload["t"]
        for _ in range(sum(text.encode()) * 31 % self.turns):
            await asyncio.sleep(0)
        if "insult" in text:
            return block("insult")
        if "odd" in text:
            return rewrite({"t": f"{text} mended"}, "mended")
        return label("seen") if "tag" in text else ALLOW


class Shout(Rule):
    """A rule that rewrites each text."""

    needs_payload = True

    def check(self, message):
        return rewrite({"t": f"{message.payload['t']}!"})


class Hearers(Rule):
    """A rule that counts the messages for each agent, whoever sends them."""

    def __init__(self):
        self.state = Table()

    def check(self, message):
        self.state[message.to_id] = self.state.get(message.to_id, 0) + 1
        return ALLOW


class Seen(StepRule):
    """A rule that writes how many messages it has seen by now into a label, and counts steps."""

    def __init__(self, name="seen"):
        self.name, self.state = name, Table()

    async def check_step(self, number, batch, exp_id):
        self.state["seen"] = self.state.get("seen", 0) + len(batch)
        return StepVerdicts({row: label(f"{self.name} {self.state['seen']}") for row in range(len(batch))})


class OncePerRound(StepRule):
    """A rule that lets one message through in each round."""

    def __init__(self, name="once"):
        self.name, self.state = name, Table()

    async def check_step(self, number, batch, exp_id):
        passed, found = self.state.get("passed", 0), {}
        for row in range(len(batch)):
            if passed:
                found[row] = block("one per round")
            passed += 1
        self.state["passed"] = passed
        return StepVerdicts(found)

    def new_round(self):
        self.state["passed"] = 0


def say(seed, most=4):
    """Return what agents say by chance, and anew in each attempt."""

    def says(step, agent, attempt):
        chance = random.Random(f"{seed} {step} {agent} {attempt}")
        words = ["hello", "insult", "odd", "tag", "bad", "casino"]
        return [(chance.randrange(4), f"{chance.choice(words)} {n}") for n in range(chance.randrange(most + 1))]

    return says
