"""Rules that judge whole steps: verdicts before delivery, on every server and after every fault."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from itertools import count
from random import Random

import numpy as np
import pytest
from support.contracts import until
from support.interceptors import failures_of, interceptor_with
from support.step_faults import Abort
from support.step_society import AGENTS, FRIENDS, SEED, LoggedGroups, digests_of, sealed
from support.stepped import befriend, begin_steps, fates_in
from support.steps_on_the_server import said_from_outside

from ray_messaging import EventLog, Messager, MessagingConfig, Rule, rules
from ray_messaging.compat.supervisor import Message, MessageKind, SupervisorBase
from ray_messaging.errors import ConfigError, RuleError

STEPS = 4


@pytest.fixture
async def societies(server, exp_id, tmp_path):
    """Make societies, each in an experiment of its own."""
    names = (f"{exp_id}-{number}" for number in count())
    async with AsyncExitStack() as stack:

        async def make(kind=Society):
            name = next(names)
            return await stack.enter_async_context(kind(server, name, tmp_path / name))

        yield make


@pytest.fixture
async def society(societies):
    return await societies()


class Society(LoggedGroups):
    """Groups in steps under rules, with their supervisor and log."""

    def __init__(self, server, exp_id, folder):
        super().__init__(server, exp_id, folder)
        self.heard = {}

    async def begin(self, *rules, groups=2, faults=None, **settings):
        """Begin an experiment with rules, their supervisor, a log and groups; return the groups."""
        self.store = await begin_steps(self, seed=SEED, groups=groups, digest=True, **settings)
        self.interceptor = self.judge(*rules)
        await self.supervise(self.interceptor, faults=faults)
        self.log = await self.writer()
        return await self.groups(groups, self.interceptor)

    async def live(self, messager, until=STEPS):
        """Let each agent tell its friends a word in each step, some of it for a later one."""
        async with aclosing(messager.steps(until=until)) as steps:
            async for step in steps:
                for agent, inbox in step.by_agent():
                    self.heard[step.number, agent] = [
                        (message.from_id, message.payload["word"], message.labels) for message in inbox
                    ]
                    for n, friend in enumerate(FRIENDS[agent]):
                        later = step.number + 1 + (agent + n) % 3
                        step.send(agent, friend, {"word": f"{step.number} {agent} {n}"}, deliver_at=later)

    async def run(self, groups, until=STEPS):
        async with asyncio.timeout(60):
            await asyncio.gather(*(self.live(group, until) for group in groups))
            await sealed(self.store, until - 1)

    async def logged(self):
        """Return the log, and the digests of its steps, which are those that groups and supervisor counted."""
        await self.log.close()
        log, counted = EventLog.open(self.folder), await digests_of(self.store, STEPS)
        assert [log.digest(step) for step in range(STEPS)] == counted
        return log, counted

    async def fates(self, until=STEPS):
        found = Counter()
        for step in range(until):
            for fates in (await fates_in(self.store, step)).values():
                found.update(fates)
        return +found


class Censor(rules.StepRule):
    """A rule that blocks, rewrites and labels by the word, adds messages, and counts steps."""

    def __init__(self):
        self.state = rules.Table()
        self.seen = []

    async def check_step(self, number, batch, exp_id):
        lines = [json.loads(batch.lines.row(row))["word"] for row in range(len(batch))]
        self.seen.append((number, lines))
        count = self.state["steps"] = self.state.get("steps", 0) + 1
        rows = {}
        for row, word in enumerate(lines):
            _, agent, n = map(int, word.split())
            if agent % 7 == 0:
                rows[row] = rules.block(f"word {n}")
            elif agent % 7 == 1:
                rows[row] = rules.rewrite({"word": word.replace(" ", "-")}, "mended")
            elif agent % 7 == 2:
                rows[row] = rules.label("odd")
        added = [rules.Added(agent, {"word": f"news {count}"}, from_id="censor") for agent in (3, 5)]
        return rules.StepVerdicts(rows, [*added, rules.Added(10**6, {"word": "to nobody"}, deliver_at=number + 2)])


def expected(until=STEPS):
    """Return the words that each agent hears in each step under the Censor."""
    heard = {(step, agent): [] for step in range(until) for agent in range(AGENTS)}
    for step in range(until):
        for agent in range(AGENTS):
            for n, friend in enumerate(FRIENDS[agent]):
                later, word = step + 1 + (agent + n) % 3, f"{step} {agent} {n}"
                if later < until and agent % 7:
                    entry = (agent, word.replace(" ", "-"), ("mended",)) if agent % 7 == 1 else (agent, word, ())
                    heard[later, friend].append((step, (agent, word, ("odd",)) if agent % 7 == 2 else entry))
        for agent in (3, 5):
            if step + 1 < until:
                heard[step + 1, agent].append((step, ("censor", f"news {step + 1}", ())))
    order = lambda row: (row[0], isinstance(row[1][0], str), row[1][0])  # noqa: E731
    return {key: [entry for _, entry in sorted(rows, key=order)] for key, rows in heard.items()}


async def test_groups_digests_fates_and_log_follow_the_rule(societies):
    digests = {}
    for groups in (1, 4):
        society = await societies()
        await society.run(await society.begin(Censor(), groups=groups))
        assert society.heard == expected()
        log, digests[groups] = await society.logged()
    assert digests[1] == digests[4]
    rows = log.query().to_pylist()
    assert len({row["message_id"] for row in rows}) == len(rows)
    assert +Counter(row["fate"] for row in rows) == await society.fates()
    blocked = [row for row in rows if row["fate"] == "blocked"]
    assert {(row["rule"], int(row["from_id"]) % 7) for row in blocked} == {("censor", 0)}
    assert {row["reason"] for row in blocked} == {f"word {n}" for n in range(4)}
    mended = [row for row in rows if row["labels"] == ["mended"]]
    assert {(row["rule"], int(row["from_id"]) % 7) for row in mended} == {("censor", 1)}
    assert all(json.loads(row["payload_before"])["word"].replace(" ", "-") in row["payload"] for row in mended)
    added = [row for row in rows if row["from_id"] == "censor"]
    assert Counter((row["fate"], row["rule"]) for row in added) == {("delivered", "censor"): 2 * STEPS}
    assert log.balance().sends == len(rows)


def canonical(heard):
    """Return the place of a message in canonical order among those to one agent."""
    step, ordinal, from_id = map(int, heard[0].split("-"))
    return step, from_id, ordinal


class MixedSociety(Society):
    """Agents that use several subtopics and steps of delivery, and ask, answer and broadcast, all in one step."""

    async def live(self, messager, until=STEPS):
        async with aclosing(messager.steps(until=until)) as steps:
            async for step in steps:
                for agent, inbox in step.by_agent():
                    heard = self.heard[step.number, agent] = [(message.id, message.subtopic) for message in inbox]
                    assert heard == sorted(heard, key=canonical)
                    questions = [message for message in inbox if message.expects_answer]
                    choice = Random(f"{step.number} {agent}")
                    if agent % 3 == 0:
                        step.reply_columns(questions, {"from": agent})
                        questions = []
                    for friend in choice.sample(range(AGENTS), 6):
                        match choice.choice(["send", "ask", "reply", "broadcast"]):
                            case "ask":
                                topic = choice.choice(["agent-chat", "user-chat"])
                                step.ask(agent, friend, {"to": friend}, subtopic=topic)
                            case "reply" if questions:
                                step.reply(questions.pop(), {"to": friend})
                            case "broadcast":
                                step.broadcast(agent, "*", {"to": friend})
                            case _:
                                topic, later = choice.choice(["agent-chat", "user-chat"]), choice.choice([1, 1, 2])
                                step.send(agent, friend, {"to": friend}, subtopic=topic, deliver_at=step.number + later)


async def test_the_first_messages_of_a_sender_pass_whatever_their_kind_and_groups(societies):
    found = []
    for groups in (1, 3):
        society = await societies(MixedSociety)
        await society.run(await society.begin(rules.RateLimit(per_round=3), groups=groups))
        log, counted = await society.logged()
        found.append((society.heard, counted))
        ordinals = {}
        for row in log.query(expand=True, step=1).select(["fate", "from_id", "ordinal"]).to_pylist():
            ordinals.setdefault(row["from_id"], {}).setdefault(row["fate"] == "blocked", set()).add(row["ordinal"])
        for sender, by_blocked in ordinals.items():
            assert max(by_blocked[False]) <= min(by_blocked.get(True, {9})), sender
    assert found[0] == found[1]


async def test_the_first_answers_in_columns_pass_whatever_their_subtopics(society):
    (group,) = await society.begin(rules.RateLimit(per_round=2), groups=1)
    async for step in group.steps(until=3):
        if step.number == 0:
            for agent, topic in enumerate(["user-chat", "agent-chat"] * 2):
                step.ask(agent, 9, {}, subtopic=topic)
        elif step.number == 1:
            step.reply_columns(step.messages, {})
        answered = [message.in_reply_to for message in step.messages]
    assert answered == ["0-0-0", "0-0-1"]


class Polite(Rule):
    """A rule that rewrites what it does not like."""

    needs_payload = True

    def check(self, message):
        word = message.payload["word"]
        return rules.rewrite({"word": f"polite {word}"}, "polite") if int(word.split()[1]) % 3 else rules.ALLOW


def of_word(word):
    """Return what both kinds of Hush do with a word."""
    number = int(word.split()[-2])
    made = [
        lambda: rules.block("hush"),
        lambda: rules.rewrite({"word": f"quiet {word}"}, "quiet"),
        lambda: rules.label("heard"),
    ]
    return made[number % 4]() if number % 4 < 3 else rules.ALLOW


class Hush(Rule):
    name, needs_payload = "hush", True

    def check(self, message):
        return of_word(message.payload["word"])


class StepHush(rules.StepRule):
    name = "hush"

    async def check_step(self, number, batch, exp_id):
        words = [json.loads(batch.lines.row(row))["word"] for row in range(len(batch))]
        return rules.StepVerdicts({row: of_word(word) for row, word in enumerate(words)})


async def test_the_log_has_the_same_of_a_rewritten_message_whichever_rule_judges_it_later(societies):
    found = []
    for rule in (Hush(), StepHush()):
        society = await societies()
        await society.run(await society.begin(Polite(), rule, groups=2))
        log, digests = await society.logged()
        columns = ["step", "from_id", "to_id", "fate", "rule", "reason", "labels", "payload_before", "payload"]
        found.append((digests, society.heard, sorted(map(str, log.query().select(columns).to_pylist()))))
    assert found[0] == found[1]
    row = log.query(step=0, from_id=4, to_id=FRIENDS[4][0], fate="blocked").to_pylist()[0]
    assert (row["payload_before"], row["payload"]) == ('{"word":"0 4 0"}', '{"word":"polite 0 4 0"}')
    assert (row["rule"], row["labels"]) == ("hush", ["polite"])
    assert log.balance().sends == STEPS * sum(map(len, FRIENDS.values()))


# -- broadcasts -------------------------------------------------------------------------------------------------------

EDGES = [(agent, friend) for agent, friends in FRIENDS.items() for friend in friends if friend != agent]


class SayingSociety(Society):
    """Agents that broadcast to their friends, some of it for a later step, and to all, and send."""

    async def begin(self, *rules, **settings):
        groups = await super().begin(*rules, **settings)
        await befriend(self, "friends", EDGES)
        return groups

    async def live(self, messager, until=STEPS):
        async with aclosing(messager.steps(until=until)) as steps:
            async for step in steps:
                heard = step.heard("friends")
                counts = dict(zip(step.places.ints.tolist(), heard.count().tolist(), strict=True))
                for agent, inbox in step.by_agent():
                    said = [(message.from_id, message.payload["word"], message.labels) for message in inbox]
                    self.heard[step.number, agent] = said
                    assert counts[agent] == sum(" f" in word for _, word, _ in said)
                    later = step.number + 1 + agent % 2
                    step.broadcast(agent, "friends", {"word": f"{step.number} f{agent}"}, deliver_at=later)
                    if agent % 20 == 3:
                        step.broadcast(agent, "*", {"word": f"{step.number} *{agent}"})
                    step.send(agent, (agent + 1) % AGENTS, {"word": f"{step.number} s{agent}"})


class OutsideCensor(Rule):
    """A rule that rewrites, labels and blocks pairs of what agent 1000 says, the second broadcast to more agents."""

    name, needs_payload = "outside", True

    def __init__(self):
        self.heard = Counter()

    def check(self, message):
        if message.from_id != 1000:
            return rules.ALLOW
        self.heard[message.to_id] += 1
        if message.to_id % 3 == 0 and self.heard[message.to_id] == 2:
            return rules.block("twice")
        made = [
            lambda: rules.rewrite({"word": "0 mended"}, "mended"),
            lambda: rules.label("heard"),
            lambda: rules.block("no"),
        ]
        return made[message.to_id % 5]() if message.to_id % 5 < len(made) else rules.ALLOW


async def test_a_broadcast_from_outside_is_found_once_whatever_rules_do_with_its_pairs_and_the_groups(societies):
    for groups in (1, 2, 3):
        society = await societies(SayingSociety)
        hosts = await society.begin(OutsideCensor(), groups=groups)
        user = await society.messager(society.interceptor, settings=MessagingConfig(strict_senders=False))
        words = [f"0 {word}" for word in ("one", "two", "one")]
        await user.broadcast_columns([1000] * 3, "*", [{"word": word} for word in words])
        await society.run(hosts)
        log, _ = await society.logged()
        found = said_from_outside(log)
        said = [(row.from_id, row.to_id, row.audience, (row.text_before or row.text)) for row in found]
        assert said == [(1000, None, "*", json.dumps({"word": word}, separators=(",", ":"))) for word in words]


def fate_of(from_id, to_id):
    """Return what a PairCensor does with messages of this pair."""
    return ["block", "rewrite", "label", "own words", "pass", "pass", "pass"][(3 * from_id + to_id) % 7]


class PairCensor(rules.StepRule):
    """A rule that judges by the pair, and counts the messages that it has seen in each step."""

    def __init__(self):
        self.seen = {}

    async def check_step(self, number, batch, exp_id):
        pairs = [*zip(batch.from_ids.tolist(), batch.to_ids.tolist(), strict=True)]
        self.seen[number] = len(pairs)
        made = {
            "block": lambda word, to_id: rules.block("no"),
            "rewrite": lambda word, to_id: rules.rewrite({"word": f"{word}!"}, "mended"),
            "label": lambda word, to_id: rules.label("odd", "pair"),
            "own words": lambda word, to_id: rules.rewrite({"word": f"{word}@{to_id}"}),
            "pass": lambda word, to_id: rules.ALLOW,
        }
        return rules.StepVerdicts(
            {
                row: made[fate_of(*pair)](json.loads(batch.lines.row(row))["word"], pair[1])
                for row, pair in enumerate(pairs)
            }
        )


def said_in(until=STEPS):
    """Return what agents say: (step, step of reading, from_id, to_id, word), ..."""
    found = []
    for step in range(until):
        for agent in range(AGENTS):
            word = f"{step} f{agent}"
            found += [(step, step + 1 + agent % 2, agent, b, word) for a, b in EDGES if a == agent]
            if agent % 20 == 3:
                found += [(step, step + 1, agent, b, f"{step} *{agent}") for b in range(AGENTS) if b != agent]
            found.append((step, step + 1, agent, (agent + 1) % AGENTS, f"{step} s{agent}"))
    return found


def heard_under(judged, until=STEPS):
    """Return the sorted words that each agent hears in each step, if a PairCensor judges the steps in `judged`."""
    heard = {(step, agent): [] for step in range(until) for agent in range(AGENTS)}
    for step, read, from_id, to_id, word in said_in(until):
        fate = fate_of(from_id, to_id) if step in judged else "pass"
        word = {"rewrite": f"{word}!", "own words": f"{word}@{to_id}"}.get(fate, word)
        labels = {"rewrite": ("mended",), "label": ("odd", "pair")}.get(fate, ())
        if read < until and fate != "block":
            heard[read, to_id].append((from_id, word, labels))
    return {key: sorted(entries) for key, entries in heard.items()}


def logged_under(judged, until=STEPS):
    """Return the rows of the log: (step, step of reading, from_id, to_id, fate, payload before, payload)."""
    for step, read, from_id, to_id, word in said_in(until):
        fate = fate_of(from_id, to_id) if step in judged else "pass"
        new = {"rewrite": f"{word}!", "own words": f"{word}@{to_id}"}.get(fate)
        text = f'{{"word":"{word}"}}'
        texts = (None, text) if new is None else (text, f'{{"word":"{new}"}}')
        yield step, read, from_id, to_id, "blocked" if fate == "block" else "delivered", *texts


async def test_broadcasts_are_judged_for_each_hearer(societies):
    digests = {}
    for groups in (1, 3):
        society, rule = await societies(SayingSociety), PairCensor()
        await society.run(await society.begin(rule, groups=groups))
        assert {key: sorted(said) for key, said in society.heard.items()} == heard_under(range(STEPS))
        said = said_in()
        assert rule.seen == Counter(step for step, *_ in said)
        log, digests[groups] = await society.logged()
        expected = Counter(logged_under(range(STEPS)))
        rows = log.query(expand=True).to_pylist()
        columns = "step", "step_read", "from_id", "to_id", "fate", "payload_before", "payload"
        found = [tuple(int(row[name]) if name.endswith("_id") else row[name] for name in columns) for row in rows]
        assert Counter(found) == expected
        assert await society.fates() == Counter(fate for *_, fate, _, _ in expected.elements())
        assert log.balance(expand=True).sends == len(said)
    assert digests[1] == digests[3]


class Nothing(rules.StepRule):
    """A rule that lets nothing pass."""

    async def check_step(self, number, batch, exp_id):
        return rules.StepVerdicts(dict.fromkeys(range(len(batch)), rules.block("nothing")))


async def test_what_comes_from_outside_passes_rules_on_whole_steps(society):
    groups = await society.begin(Nothing())
    speaker = await society.messager(society.interceptor, settings=MessagingConfig(strict_senders=False))
    await speaker.send_message(speaker.get_agent_chat_channel(5), {"word": "to one"})
    assert (await speaker.broadcast(None, "*", {"word": "to all"})).counts()["delivered"] == AGENTS
    await society.run(groups)
    said = {
        agent: [word for step in range(STEPS) for _, word, _ in society.heard[step, agent]] for agent in range(AGENTS)
    }
    assert said == {agent: ["to one", "to all"] if agent == 5 else ["to all"] for agent in range(AGENTS)}


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["send", "close"])
async def test_a_step_that_rules_judge_again_is_heard_and_logged_once(society, call):
    """The server has executed a call, and its reply is lost: the supervisor begins the step again."""
    lost = Abort(call, "after", [False, True, False, True])
    await society.run(await society.begin(Censor(), groups=2, faults=lost))
    assert [*lost.which] == []
    assert society.heard == expected()
    await society.logged()


class Fails(rules.StepRule):
    def __init__(self, answer, on_error="block"):
        self.answer, self.on_error = answer, on_error

    async def check_step(self, number, batch, exp_id):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


NONSENSE = {
    "an error": ValueError("no idea"),
    "no verdicts": None,
    "a row that is not there": rules.StepVerdicts({10**6: rules.block("x")}),
    "a verdict that is none": rules.StepVerdicts({0: True}),
    "a message for no agent": rules.StepVerdicts({}, [rules.Added(1.5, {})]),
    "a message in the past": rules.StepVerdicts({}, [rules.Added(1, {}, deliver_at=0)]),
    "a message for a step that is a bool": rules.StepVerdicts({}, [rules.Added(1, {}, deliver_at=True)]),
    "a payload that is no JSON": rules.StepVerdicts({}, [rules.Added(1, {"x": object()})]),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
async def test_a_rule_that_fails_blocks_the_step(society, answer):
    await society.run(await society.begin(Fails(answer)), until=2)
    assert not any(society.heard.values())
    assert await society.fates(2) == {"blocked": 2 * 4 * AGENTS}
    assert failures_of(society.interceptor, "fails") == 2 * 4 * AGENTS


async def test_a_rule_may_add_a_message_for_a_step_that_numpy_has_counted(society):
    added = rules.Added(1, {"word": "news"}, from_id="warden", deliver_at=np.int64(3))
    await society.run(await society.begin(Fails(rules.StepVerdicts({}, [added]))), until=4)
    assert [entry for entry in society.heard[3, 1] if entry[0] == "warden"] == [("warden", "news", ())] * 3


async def test_a_rule_that_may_fail_lets_the_step_pass(society):
    await society.run(await society.begin(Fails(ValueError(), "allow")), until=2)
    assert await society.fates(2) == {"delivered": 2 * 4 * AGENTS}


# -- rounds -----------------------------------------------------------------------------------------------------------


class Rounds(Rule):
    def __init__(self):
        self.rounds = 0

    def check(self, message):
        return rules.label(f"round {self.rounds}")

    def new_round(self):
        self.rounds += 1


async def test_each_step_is_a_round(society):
    rule = Rounds()
    await society.run(await society.begin(rule, groups=3))
    await until(lambda: rule.rounds == STEPS)  # the last one ends behind the groups
    log, _ = await society.logged()
    labels = {(row["step"], *row["labels"]) for row in log.query().to_pylist()}
    assert labels == {(step, f"round {step}") for step in range(STEPS)}


async def test_a_step_that_is_closed_again_ends_no_further_round(society):
    rule = Rounds()
    await society.run(await society.begin(rule, faults=Abort("close", "before", [True, True, False, True])))
    await until(lambda: rule.rounds >= STEPS)  # the last one ends behind the groups
    assert rule.rounds == STEPS


async def test_a_rule_that_nobody_would_ask_is_refused(server, exp_id):
    with pytest.raises(ConfigError, match="'censor' judges whole steps"):
        await Messager(server, exp_id, interceptor_with(Censor())).init()


# -- AgentSociety's supervisors ---------------------------------------------------------------------------------------


class Keeper(SupervisorBase):
    """A supervisor as it is written for AgentSociety 1.5, but for the import."""

    async def forward(self, current_round_messages: list[Message]) -> tuple[dict[Message, bool], list[Message]]:
        validation, persuasion = {}, []
        for message in current_round_messages:
            validation[message] = message.from_id % 7 != 0 or message.kind != MessageKind.AGENT_CHAT
            if message.from_id == 8:
                told = {"word": f"be kind ({len(current_round_messages)})"}
                persuasion.append(
                    Message(from_id=None, to_id=8, day=message.day, t=message.t, kind=message.kind, payload=told)
                )
        return validation, persuasion


async def test_a_supervisor_of_agentsociety_judges_steps(society):
    groups = await society.begin(rules.Supervisor(Keeper(1, "keeper")))
    async with asyncio.timeout(60):
        heard = dict(zip(range(2), await asyncio.gather(*map(say_one_word, groups)), strict=True))
    told = [{"word": f"be kind ({AGENTS})"}]
    for agent, inbox in {**heard[0], **heard[1]}.items():
        before = (agent - 1) % AGENTS
        words = [] if before % 7 == 0 else [{"word": before}]
        failed = [{"content": "Message sent failed"}] if agent % 7 == 0 else []
        assert sorted(inbox, key=str) == sorted([*words, *failed, *(told if agent == 8 else [])], key=str)


async def say_one_word(messager):
    """Let each agent of a group tell the next one a word; return each one's words of the next step."""
    heard = {}
    async with aclosing(messager.steps(until=2)) as steps:
        async for step in steps:
            for agent, inbox in step.by_agent():
                heard[agent] = [message.payload for message in inbox]
                if step.number == 0:
                    step.send(agent, (agent + 1) % AGENTS, {"word": agent})
    return heard


def test_a_supervisor_without_forward_is_refused():
    with pytest.raises(RuleError, match="is not a supervisor of AgentSociety"):
        rules.Supervisor(object())
