"""Plays of a program: by the product's own parts, on any number of groups, without Ray."""

import asyncio
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Literal

import msgspec
import numpy as np
from societies.program import FITTING, PLACE, RADIUS, acts_of, barred, chosen_in, hear, traits
from support.delegation import Method
from support.patience import WAIT_S
from support.step_faults import FaultyStore, Killed, Process
from support.step_society import LoggedGroups, sealed
from support.survey_records import ask_survey, surveys_of

from ray_messaging import Count, EventLog, Mean, Message, Of, Steps, Sum
from ray_messaging.addressing.channels import agent_channel, id_tuple
from ray_messaging.audiences.audience_kinds import AudienceFacts, AudienceKind, encode_facts
from ray_messaging.audiences.building import Positions, build_edges
from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.audiences.files import read_edges, version_folder, write_edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.cluster.actors.interceptor_host import InterceptorHost
from ray_messaging.cluster.actors.rule_editor import RuleRequest
from ray_messaging.cluster.audience_files import move
from ray_messaging.cluster.fork import Fork
from ray_messaging.cluster.rule_store import pickled
from ray_messaging.cluster.run.run_actor import RunActor, RunInputs
from ray_messaging.cluster.run.run_plan import RunOptions, plans_for
from ray_messaging.cluster.spec import SUBTOPICS, InterceptorSpec
from ray_messaging.common.awaitables import is_async
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import AlreadyExists, ConnectionFailed, StepAborted, TransitError
from ray_messaging.eventlog.checkpoint_files import read_checkpoint
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import FORMAT, RunRecord, write_run
from ray_messaging.eventlog.forking import checkpoint_before, copy_run, outside_of
from ray_messaging.eventlog.series_tables import series_table
from ray_messaging.interception import rules
from ray_messaging.messager import GroupMessager
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import IdColumn
from ray_messaging.steps.step_account import StepCounts, digest_of, sealed_history

SETTINGS = MessagingConfig(interceptor_timeout_s=30.0)


# -- rules ------------------------------------------------------------------------------------------------------------


class Pairs(rules.Rule):
    """A rule on pairs, which blocks one of `parts`."""

    def __init__(self, name, parts):
        self.name, self.parts = name, parts

    def check(self, message):
        return rules.block("odd pair") if barred(message.from_id, message.to_id, self.parts) else rules.ALLOW


class Word(rules.Rule):
    """A rule that blocks a text, or does what `verdict` says; each hearer of a broadcast is judged."""

    needs_payload = True

    def __init__(self, name, word, verdict=None):
        self.name, self.word, self.verdict = name, word, verdict or rules.block("said so")

    def check(self, message):
        return self.verdict if message.payload["t"] == self.word else rules.ALLOW


class OfAll(Word):
    """The same rule, which judges a broadcast once."""

    judges_broadcasts = "message"


class Fails(OfAll):
    """A rule that fails on a text."""

    def __init__(self, name, word, on_error):
        super().__init__(name, word)
        self.on_error = on_error

    def check(self, message):
        if message.payload["t"] == self.word:
            raise ValueError(self.word)
        return rules.ALLOW


class Shout(OfAll):
    """A rule that rewrites each text."""

    def __init__(self, name):
        super().__init__(name, None)

    def check(self, message):
        return rules.rewrite(message.payload | {"t": f"{message.payload['t']}!"}, "shouted")


class Said(rules.Rule):
    """A rule that counts what each agent has said, and blocks what is too much."""

    judges_broadcasts = "message"

    def __init__(self, name, most):
        self.name, self.most, self.state = name, most, rules.Table()

    def check(self, message):
        said = self.state.get(message.from_id, 0)
        if said >= self.most:
            return rules.block(f"said {said}")
        self.state[message.from_id] = said + 1
        return rules.ALLOW


class Slow(rules.SlowRule):
    """A slow rule that blocks, rewrites and labels, and takes longer for some agents."""

    def __init__(self, name):
        self.name = name

    async def judge(self, message):
        text = message.payload["t"]
        for _ in range(zlib.crc32(f"{message.from_id}{text}".encode()) % 5):
            await asyncio.sleep(0)
        if text == "rude":
            return rules.block("rude")
        if text == "odd":
            return rules.rewrite(message.payload | {"t": "mended"}, "mended")
        return rules.label("seen") if text == "tag" else rules.ALLOW


class Crowd(rules.StepRule):
    """A rule on whole steps: nobody hears more than `most`, a word is mended, and agent 0 hears the counts."""

    def __init__(self, name, most, word):
        self.name, self.most, self.word, self.state = name, most, word, rules.Table()

    async def check_step(self, number, batch, exp_id):
        found, heard = {}, {}
        for row in range(len(batch)):
            message = Message(exp_id, batch, row)
            heard[message.to_id] = heard.get(message.to_id, 0) + 1
            if heard[message.to_id] > self.most:
                found[row] = rules.block("a crowd")
            elif message.payload["t"] == self.word:
                found[row] = rules.rewrite(message.payload | {"t": "better"}, "bettered")
        self.state["seen"] = self.state.get("seen", 0) + len(batch)
        return rules.StepVerdicts(found, [rules.Added(0, {"t": f"{self.state['seen']} seen"}, from_id="warden")])


RULES = {
    "ban": lambda name, pairs: rules.BlackList([tuple(pair) for pair in pairs], name=name),
    "graph": lambda name, edges: rules.AllowGraph([tuple(edge) for edge in edges], name=name),
    "pairs": Pairs,
    "words": lambda name, word: rules.Pattern([word], name=name),
    "mask": lambda name, word: rules.Pattern([word], action="mask", name=name),
    "length": lambda name, most: rules.MaxLength(most, name=name),
    "rate": lambda name, most: rules.RateLimit(per_round=most, name=name),
    "said": Said,
    "quota": lambda name, contacts, blocked: rules.RoundQuota(contacts, blocked, name=name),
    "label": lambda name, word: OfAll(name, word, rules.label(f"has {word}")),
    "shout": Shout,
    "slow": Slow,
    "fails": Fails,
    "sender_ban": lambda name, word, after: rules.SenderBan(Word("word", word), after, name=name),
    "edge_ban": lambda name, word, after: rules.EdgeBan(Word("word", word), after, name=name),
    "crowd": Crowd,
}


def rule_of(given):
    kind, *settings = given
    return RULES[kind](*settings)


# -- the model --------------------------------------------------------------------------------------------------------


def person(me, inbox):
    """Live a step of the program in `me.shared`, as an agent."""

    def do(verb, *given):
        if verb == "move":
            me.move(to=f"group{given[0] % me.shared['groups']}")
        elif verb == "stop":
            me.stop()
        else:
            return getattr(me, verb)
        return None

    words = live(me.shared, me.id, me.step, inbox, me.blocked, me.state["w"], do)
    me.state |= {"w": words, "luck": me.rng.random() + me.step_rng.random(), **traits(words)}


async def thinker(me, inbox):
    """Live a step as `person` does, after a call that is remembered, and so may be made before the step."""
    me.state["thought"] = await me.remember(think, me.state["w"], [message.payload["t"] for message in inbox])
    person(me, inbox)


async def think(words, heard):
    """Return the same for the same arguments, after more or less time."""
    for _ in range(zlib.crc32(f"{words} {heard}".encode()) % 9):
        await asyncio.sleep(0)
    return f"{words[-6:]} {heard}"


def crowd(group, step):
    """Live a step of the program in `group.shared`, as all agents of a group."""
    found = []
    for at, (agent, inbox) in enumerate(step.by_agent()):

        def do(verb, *given, agent=agent):
            if verb == "walk":
                if isinstance(agent, int):
                    step.move("near", [agent], [[float(each) for each in given]])
                return None
            return partial(getattr(step, verb), *([] if verb == "reply" else [agent]))

        blocked = step.blocked.of(step.places.place(agent))
        words = live(group.shared, agent, step.number, inbox, blocked, str(group.state["w"][at]), do)
        found.append({"w": words, "luck": step.rng(agent).random() + step.rng().random(), **traits(words)})
    group.state |= {name: np.array([each[name] for each in found]) for name in found[0]} if found else {}


def live(made, agent, step, inbox, blocked, words, do):
    """Hear, and do what the program says; return the agent's words."""
    heard = [
        [m.from_id, m.payload, sorted(m.labels), m.subtopic, m.step, m.expects_answer, m.in_reply_to] for m in inbox
    ]
    words = hear(words, step, heard, [[b.message_id, b.to_id, b.rule] for b in blocked])
    asked = [message for message in inbox if message.expects_answer]
    for verb, *given in acts_of(made, step, agent):
        if verb in {"move", "walk", "stop"}:
            do(verb, *given)
        elif verb == "answer":
            for message in asked:
                do("reply")(message, {"t": given[0], "w": words[-6:]})
            asked = []
        elif verb == "ask":
            do(verb)(given[0], {"t": given[1], "w": words[-6:]}, deliver_at=step + given[2])
        else:
            to, text, topic, later = given
            # An id that was given as a tuple is sent to as a tuple, too.
            do(verb)(as_given(to), {"t": text, "w": words[-6:]}, subtopic=topic, deliver_at=step + later)
    return words


def as_given(agent):
    """Return an id as the user passes it: for the text of a tuple the tuple."""
    return id_tuple(agent) if agent == PLACE else agent


def of_kind(kind):
    return lambda agent: (agent if isinstance(agent, int) else len(agent)) % 2 == (kind == "odd")


def only(kind, model):
    """Return the model of agents of one kind."""

    def alike(me, inbox):
        assert me.kind == kind
        assert of_kind(kind)(me.id)
        return model(me, inbox)

    async def alike_later(me, inbox):
        await alike(me, inbox)

    return alike_later if is_async(model) else alike


class Told(msgspec.Struct):
    """An answer to a survey."""

    t: Literal[FITTING]
    w: str


def begin(me):
    return {"w": "", "luck": 0.0, "n": 0, "k": ""}


def begin_crowd(group):
    count = len(group.ids)
    empty = np.array([""] * count, dtype="U1")
    return {"w": empty, "luck": np.zeros(count), "n": np.zeros(count, int), "k": empty}


def collect_crowd(group):
    return {"n": group.state["n"], "k": group.state["k"]}


def collect_agent(me):
    return {"n": me.state["n"], "k": me.state["k"]}


def options_of(made):
    """Return model, start and collect of a program."""
    agentwise = made["by"] == "agent"
    collect = None
    if made["collect"] is not None:
        per_agent = collect_agent if agentwise else collect_crowd
        collect, ids = per_agent if made["collect"] == "agents" else [Mean("n"), Count("k")], chosen_in(made)
        if ids:
            part = per_agent if made["collect"] == "agents" else [Sum("m", of="n"), Count("c", of="k")]
            chosen = Of([*map(as_given, ids)], part)
            collect = chosen if part is per_agent else [*collect, chosen]
    by_agent = person if made["ahead"] is None else thinker
    return by_agent if agentwise else crowd, begin if agentwise else begin_crowd, collect


def graph_of(made):
    """Return who may hear whom, where agents run ahead: most of the ways that messages go."""
    if made["ahead"] is None:
        return None
    agents = {*made["agents"]}
    asked = [(act[1], act[3], act[2]) for act in made["acts"] if act[2] in {"send", "ask"} and act[3] in agents]
    found = {(one, other) for one, other, _ in asked} | {(other, one) for one, other, verb in asked if verb == "ask"}
    return sorted({*found, *made["friends"]} & {(a, b) for a in agents for b in agents}, key=str)


# -- without Ray ------------------------------------------------------------------------------------------------------


@dataclass
class Played:
    """What a play has left. `asked` and `surveys` are what the user knows of its questions, of a fork None."""

    states: dict
    fates: list
    digests: list
    history: bytes
    series: list
    log: EventLog
    folder: Folder
    asked: list | None = None
    surveys: list | None = None


class Audiences(LocalFolder):
    """Audiences in a folder, whose versions this process makes."""

    def __init__(self, folder, town):
        super().__init__(folder)
        self._town, self._making = town, asyncio.Lock()

    async def create(self, name, kind, edges, since=None):
        host = await self._town.judge_living()
        version = (await host.audiences()).last_version(name) + 1
        write_edges(version_folder(self.folder, name, version), edges)
        facts = AudienceFacts(kind, edges.pairs, edges.digest.hex(), -1 if since is None else since - 1)
        assert await host.transport.set_audience(name, version, encode_facts(facts), since) is not None

    async def move_in_step(self, name, step, ids, points):
        async with self._making:
            known = await (await self._town.judge_living()).audiences()
            if not known.moved_with(name, step):
                last = known.of(name, step)
                edges = read_edges(version_folder(self.folder, name, last.version), name, last.version)
                await self.create(name, last.facts.kind, move(name, ids, points, edges), step)


class Victim:
    """What may die at the next call to the server: a group's process, or the interceptor's."""

    in_parts = False

    def __init__(self, number):
        self.dies, self.after = False, number % 2 == 0

    async def call(self, process, name, call):
        if not self.dies:
            return await call()
        process.die()
        if self.after:
            with suppress(TransitError):
                await call()
        raise Killed(f"{name} was the last call")


class DrivenGroup:
    """A group, which is driven again whenever its driver, or its process, has died."""

    def __init__(self, town, plan, inputs):
        self.town, self.plan, self.inputs = town, plan, inputs
        self.messager = self.actor = self.task = None
        self.process = Process(plan.name)
        self.dropped = False

    async def open(self):
        """Host the group in a new process."""
        town, name = self.town, self.plan.name
        self.process, self.victim = Process(name), Victim(len(town.died))
        messager = GroupMessager(
            town.server, town.exp_id, town.handle, name=name, audiences=town.audiences, settings=SETTINGS
        )
        town.messagers.append(messager)
        await messager.init()
        await messager.host_agents(
            [] if name in await (await town.judge_living()).moved() else self.plan.agents, SUBTOPICS
        )
        gossips = {*town.made["gossip"]}
        if listeners := [agent for agent in messager.subscription.hosted if agent in gossips]:
            channels = [agent_channel(town.exp_id, agent, "gossip") for agent in listeners]
            await messager.subscribe_and_start_listening(channels)
        transport = messager.engine.transport
        transport.steps = FaultyStore(transport.steps, self.process, self.victim)
        self.messager = messager
        self.begin()

    def begin(self):
        self.actor = RunActor(self.messager)
        self.town.actors.append(self.actor)

    async def run(self, until):
        while True:
            self.task = asyncio.create_task(
                self.actor.run(self.plan.name, [known((None, self.inputs))], until, until, with_states=True)
            )
            try:
                return await self.task
            except (StepAborted, TransitError, AlreadyExists, asyncio.CancelledError):
                if not (self.dropped or self.process.dead):
                    raise
            self.dropped = False
            if self.process.dead:
                await self.town.until_it_lives(self.open)
            else:
                self.begin()


class Town(LoggedGroups):
    """A program's groups, its rules and its log in this process, where each may die.

    Args: `own` is the server's process, which dies, too.
    """

    def __init__(self, server, exp_id, folder, made, groups, fork=None, own=None):
        super().__init__(server, exp_id, folder)
        self.fork, self.own, self.host, self.actors, self.driven, self.died = fork, own, None, [], {}, set()
        self.made, self.count = made, min(groups, len(made["agents"]))
        self.alive, self.up = asyncio.Event(), asyncio.Event()  # the interceptor, the server
        self.asked, self.surveys, self.dying = [], [], []
        self.up.set()
        self.loop = asyncio.get_running_loop()

    # -- deaths ---------------------------------------------------------------------------------------------------

    def lives(self, group, step, agents):
        """Let die what is to die when one of these agents takes this step; called in a thread of the model."""
        for at, agent, victim in self.made["deaths"]:
            if at == step and agent in agents and victim not in self.died:
                self.died.add(victim)
                self.loop.call_soon_threadsafe(self.kill, victim, group)

    def kill(self, victim, group):
        driven = self.driven[group]
        if victim == "driver":
            driven.dropped = True
            driven.task.cancel()
        elif victim == "group":
            driven.victim.dies = True
        elif victim == "interceptor":
            self.interceptor_dies.dies = True
        else:
            self.dying.append(asyncio.create_task(getattr(self, f"{victim}_dies")()))

    async def log_dies(self):
        self.log_writer._cancel_tasks()
        self.log_writer = await self.until_it_lives(self.log)

    async def server_dies(self):
        self.up.clear()
        self.own.kill()
        await asyncio.to_thread(self.own.start)
        self.up.set()

    async def until_it_lives(self, begin):
        """Begin a process, again and again while the server dies meanwhile."""
        while True:
            await self.up.wait()
            with suppress(TransitError):
                return await begin()

    async def follow_interceptor(self):
        """Start the interceptor's process anew whenever it dies."""
        while True:
            await self.process.died.wait()
            self.alive.clear()
            host, self.host = self.host, None
            await host._lane.close()
            await host.abandon()
            await self.until_it_lives(self.judge_anew)

    async def judge_anew(self):
        self.process, self.interceptor_dies = Process("interceptor"), Victim(len(self.died))
        host = InterceptorHost(self.spec, self.server)
        host._audiences = AudienceCache(LocalFolder(self.folder / "audiences"))  # as without Ray
        host._store._server = FaultyStore(host._server, self.process, self.interceptor_dies, ["write"])
        host.transport.steps = FaultyStore(host.transport.steps, self.process, self.interceptor_dies)
        host._retire_log = self.no_actor  # it knows of no log, whose actor it would need for changes of rules
        try:
            await host.start("127.0.0.1")
        except TransitError:
            await host.abandon()
            raise
        self.host = host
        self.alive.set()

    async def no_actor(self):
        pass

    def judge_now(self):
        if self.host is None:
            raise ConnectionFailed("the interceptor restarts", host="", port=0)
        return self.host

    async def judge_living(self):
        await self.alive.wait()
        return self.host

    # -- life -----------------------------------------------------------------------------------------------------

    async def log(self):
        return await self.writer(checkpoint=self.made["fork"] and self.made["fork"]["every"])

    async def begin(self):
        made, self.first = self.made, 0
        if self.fork is None:
            write_run(Folder(str(self.folder)), RunRecord(FORMAT, self.exp_id, steps={}))
        else:
            parent, at_step = self.fork
            step = checkpoint_before(parent.folder, at_step)
            self.first = step + 1
            copy_run(parent.folder, Folder(str(self.folder)), self.exp_id, step)
            outside = outside_of(parent.log, slice(step + 1, None))
            self.again = Fork(parent.log, step, at_step, outside, None, checkpoints=parent.folder.checkpoints())
            self.outside = outside
        self.spec = InterceptorSpec(
            self.exp_id, "run", SETTINGS, on_existing="error",
            steps=Steps(seed=made["seed"], groups=self.count, digest=True),
            rules=tuple(pickled(rule_of(each)) for each in in_force(made, self.first)),
        )  # fmt: skip
        if self.fork is not None:
            await (await self.transport()).checkpoints.write(
                [*read_checkpoint(Folder(str(self.folder)), self.first - 1)]
            )
        await self.judge_anew()
        self.tasks.append(asyncio.create_task(self.follow_interceptor()))
        self.handle = SimpleNamespace(
            lane=Method(lambda **_: self.judge_now().lane_address),
            # where the lane's sockets do not lead
            forward_batch=Method(
                lambda request, patient, **_: self.judge_now().interceptor.answer(request, patient=patient)
            ),
            step_rules=Method(lambda: [rule.name for rule in self.judge_now().interceptor.rules.whole]),
        )
        self.log_writer = await self.log()
        self.audiences = Audiences(self.folder / "audiences", self)
        acts = [*made["acts"], *(made["fork"] or {"acts": ()})["acts"]]
        names = {act[3] for act in acts if act[2] == "broadcast"} | {"near" for act in acts if act[2] == "walk"}
        for name in sorted(names - {"*"}) if self.fork is None else ():
            await self.audiences.create(name, *edges_of(made, name))
        model, start, collect = options_of(made)
        options = RunOptions(start, made["by"], 100, None, collect)
        given = {kind: filter(of_kind(kind), made["agents"]) for kind in ("even", "odd")}
        kinds = {kind: found for kind, ids in given.items() if (found := [*map(as_given, ids)])}
        several = made["by"] == "agent" and made["seed"] % 2  # kinds whose models do the same change nothing
        agents, models = (kinds, dict.fromkeys(kinds)) if several else ([*map(as_given, made["agents"])], None)
        ahead, graph = made["ahead"] or 0, graph_of(made)
        pairs = None if graph is None else [(as_given(one), as_given(other)) for one, other in graph]
        plans = plans_for(options, agents, self.count, pairs, 1, models, near=ahead > 0)
        inputs = [known(each) for each in (options, made | {"groups": len(plans)})]
        plan_of = {plan.name: known(plan) for plan in plans}
        for plan in plans:
            mortal = self.mortal(model, plan.name)
            mortal = known({kind: only(kind, mortal) for kind in kinds} if several else mortal)
            self.driven[plan.name] = DrivenGroup(self, plan, RunInputs(mortal, *inputs, plan_of, ahead=ahead))
            await self.driven[plan.name].open()
        self.user = await self.messager(self.handle, settings=SETTINGS)
        later = [each for each in made["changes"] if self.first == 0 or each[0] > self.first]
        for number, (step, change, which, rule) in enumerate(later):
            new = None if rule is None else self.host.checked(rule_of(rule))
            await self.host.editor.edit(RuleRequest(f"change {number}", change, which, new, step))

    def mortal(self, model, name):
        """Return the model of a group, during which the program's deaths happen."""
        if not self.made["deaths"]:
            return model
        if self.made["by"] == "agent":

            def person(me, inbox):
                self.lives(name, me.step, [me.id])
                return model(me, inbox)

            async def thinker(me, inbox):
                await person(me, inbox)

            return thinker if is_async(model) else person

        def crowd(group, step):
            self.lives(name, step.number, [*step.agents])
            model(group, step)

        return crowd

    async def advance(self, until):
        """Run all groups up to a step; return their results."""
        results = await asyncio.gather(*(each.run(until) for each in self.driven.values()))
        await sealed((await self.transport()).steps, until - 1)
        return results

    async def say(self, verb, *given):
        """Do what the user does."""
        *to, text, topic = given or (None, None)
        payload = {"t": text}
        if verb == "broadcast":
            await self.user.broadcast(None, "*", payload, subtopic=topic)
        elif verb == "send":
            await self.user.send(None, *to, payload, subtopic=topic)
        elif verb == "ask":
            self.asked.append(await self.user.ask_columns(None, *to, payload, subtopic=topic, timeout=None))
        elif verb == "survey":
            survey = await ask_survey(surveys_of(self.user), Told, *to, payload, subtopic=topic, timeout=None)
            self.surveys.append(survey)
        elif self.surveys:
            await self.surveys[-1].remind(None)

    async def say_again(self, step):
        """Send again what came to the parent from outside before a step."""
        if rows := [row for row in self.outside if row.step_read == step]:
            await self.again.send_again(self.user.engine, rows)

    async def run(self):
        results, end = None, self.made["steps"]
        for step in sorted({0, end, *(each[0] for each in self.made["outside"])}):
            if step >= self.first:
                results = await self.advance(step) if step > self.first or step == end else None
                if self.fork is not None:
                    await self.say_again(step)
                    continue
                for said in (given for at, *given in self.made["outside"] if at == step):
                    await self.say(*said)
        return await self.played(results)

    async def played(self, results):
        store, last = (await self.transport()).steps, self.made["steps"] - 1
        counts = [
            {name: StepCounts.decode(left.counts) for name, left in (await store.closed_step(step)).items()}
            for step in range(last + 1)
        ]
        history = await sealed_history(store, last)
        kept = series_table(await store.collected(last)).to_pylist() if self.made["collect"] else []
        await asyncio.gather(*self.dying)
        await self.log_writer.close()
        log = EventLog.open(self.folder)
        series = log.series().to_pylist()  # of a fork, what its parent has collected before
        series += [row for row in kept if row["step"] not in {each["step"] for each in series}]
        asked = surveys = None
        if self.fork is None:
            asked = [await self.answers(*each) for each in zip(self.asked, to_come(self.made), strict=True)]
            surveys = [await self.counted(each) for each in self.surveys]
        return Played(
            states_of(results), [fates_of(each) for each in counts], [digest_of(each) for each in counts],
            history, series, log, Folder(str(self.folder)), asked, surveys,
        )  # fmt: skip

    async def answers(self, asked, wanted):
        """Return the answers to questions, by place, once so many are there."""
        while len(asked.answered) < wanted:
            await asked.change()
        return answers_of(asked)

    async def counted(self, survey):
        await survey.update()
        return count_of(survey.tally)

    async def __aexit__(self, *error):
        for actor in self.actors:
            await actor.close()
        await super().__aexit__(*error)
        if self.host is not None:
            await self.host.abandon()


def to_come(made):
    """Return how many answers the user waits for, to the questions of each time: none says that it is the last."""
    from societies.oracle import Oracle

    return [len(each.answers) for each in Oracle(made).run().asked]


def answers_of(asked):
    return {place: asked[place].payload for place in asked.answered.tolist()}


def count_of(survey):
    """Return what a survey, or its tally, has counted."""
    return survey.counts(), {agent: answer.t for agent, answer in survey.answers.items()}, survey.late


def in_force(made, step):
    """Return the rules of a program that judge a step from its beginning; of the first one, those before any change."""
    found = [*made["rules"]]
    for at, change, which, rule in made["changes"]:
        if step and at <= step:
            place = which if change == "insert" else [name for _, name, *_ in found].index(which)
            found[place : place + (change != "insert")] = [] if rule is None else [rule]
    return found


def edges_of(made, name):
    """Return the kind and the pairs of an audience."""
    if name == "friends":
        return AudienceKind.GRAPH, build_edges([made["friends"]] if made["friends"] else [])
    if name == "club":
        return AudienceKind.MEMBERS, MemberEdges.among(AgentSet.of(made["club"]))
    ids, points = IdColumn.of([*made["near"]]), np.array([*made["near"].values()], float)
    return AudienceKind.POSITIONS, Positions.given(ids, points, RADIUS, 10**6).edges()


def known(value):
    found = asyncio.get_running_loop().create_future()
    found.set_result(value)
    return found


def states_of(results):
    found = {}
    for result in results:
        if result.ids:
            for group, arrays in result.states.items():
                for at, agent in enumerate(result.ids[group].tolist()):
                    found[agent] = {name: array[at].item() for name, array in arrays.items()}
        else:
            found |= result.states
    return found


def fates_of(counts):
    found = {}
    for each in counts.values():
        for fate, count in each.fates.items():
            found[fate] = found.get(fate, 0) + count
    return {fate: count for fate, count in found.items() if count}


async def played(server, exp_id, folder, made, groups, fork=None, own=None):
    """Play a program on so many groups. Args: `fork` is a played parent, and the step at which this differs from it."""
    async with Town(server, exp_id, folder, made, groups, fork, own) as town, asyncio.timeout(WAIT_S):
        await town.begin()
        return await town.run()
