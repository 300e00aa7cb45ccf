"""Random societies against a plain oracle: whatever they do, on any number of groups."""

import asyncio
import uuid
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from itertools import zip_longest

import pytest
from societies.oracle import Oracle
from societies.play import played
from societies.program import FEATURES, FITTING, forked, line, order, program, shown, smaller
from support.judged_steps import Kv
from support.servers import RedisProcess

from ray_messaging import compare
from ray_messaging.interception.interceptor import rule_delegation


def check(made, many):
    """Compare plays of a program, by their number of groups, with the oracle; raise AssertionError."""
    wanted = Oracle(made).run()
    first = many[min(many)]
    for groups, one in many.items():
        where = f"on {groups} groups: "
        words = {agent: state["w"].split() for agent, state in one.states.items()}
        same(where + "states", words, {agent: each.split() for agent, each in wanted.words.items()})
        same(where + "fates", one.fates, wanted.fates)
        same(where + "log", *both(rows_of(one.log), map(row_of, wanted.rows)))
        same(where + "edges", *both(edges_of(one.log), edges_in(wanted)))
        assert_balance(where, one, wanted)
        for row in [row for row in wanted.rows if row.from_id in wanted.words][::20]:
            same(f"{where}why {row.id}", as_tree(one.log.why(row.id, 2, most=4)), wanted.why(row, 2, 4))
        if one.log.history_digest(made["steps"] - 1) != one.history:
            logged = [one.log.digest(step).hex() for step in range(made["steps"])]
            same(where + "digests of the log", logged, [each.hex() for each in one.digests])
            raise AssertionError(f"{where}history")
        if one.asked is not None:
            same(where + "answers", one.asked, [first_answers(each) for each in wanted.asked])
            same(where + "surveys", one.surveys, [counts_in(each) for each in wanted.surveys])
        same(where + "series", numbers(one.series), numbers(wanted.series))
        same(where + "digests, and those of another layout", one.digests, first.digests)
        same(where + "states, and those of another layout", one.states, first.states)
        same(where + "the first difference from another layout", compare(one.log, first.log).first, None)


def first_answers(asked):
    return {place: found[0] for place, found in asked.answers.items() if found}


def counts_in(survey):
    """Return the agents by state, the answers that fit, and how many answers do not count."""
    states = dict.fromkeys(["pending", "answered", "invalid", "blocked", "undeliverable"], 0)
    fitting, late = {}, 0
    for agent in survey.asked:
        states[survey.state(agent)] += 1
        texts = [each["t"] for each in survey.answers[agent]]
        fits = next((n for n, text in enumerate(texts) if text in FITTING), None)
        if fits is not None:
            fitting[agent] = texts[fits]
            late += len(texts) - fits - 1
    return states, fitting, late


def assert_balance(where, one, wanted):
    balance = one.log.balance(expand=True)
    same(
        where + "balance",
        {fate: count for fate, count in balance.fates.items() if count},
        dict(Counter(row.fate for row in wanted.rows)),
    )
    one.log.balance()


def as_tree(found):
    message = found.message
    ours = message.from_id in {None, "warden"}
    name = f"{message.from_id}: {message.text}" if ours else message.message_id
    return name, [as_tree(each) for each in found.causes], found.more


def same(what, mine, wanted):
    if mine != wanted:
        raise AssertionError(f"{what}:\n  is     {mine}\n  wanted {wanted}")


def both(mine, wanted):
    """Return what only one of two collections has."""
    one, other = Counter(mine), Counter(wanted)
    return sorted((one - other).elements(), key=str), sorted((other - one).elements(), key=str)


def rows_of(log):
    rows = log.query(expand=True, text=True).to_pylist()
    names = {row["message_id"]: row["message_id"] for row in rows}
    names |= {row["message_id"]: f"None: {row['payload']}" for row in rows if row["from_id"] is None}
    return [
        (
            "outside" if row["from_id"] is None else "added" if row["from_id"] == "warden" else row["message_id"],
            row["step"], row["step_read"], str(row["from_id"]), str(row["to_id"]), row["subtopic"], row["fate"],
            row["rule"], tuple(sorted(row["labels"] or ())), row["payload"], row["payload_before"], row["audience"],
            names.get(row["in_reply_to"], row["in_reply_to"]), bool(row["expects_answer"]),
        )
        for row in rows
    ]  # fmt: skip


def row_of(row):
    before = None if row.before is None else line(row.before)
    name = "outside" if row.from_id is None else "added" if row.from_id == "warden" else row.id
    return (
        name, row.step, row.read, str(row.from_id), str(row.to_id), None if row.to_id is None else row.topic, row.fate,
        row.rule, tuple(sorted(row.labels)), line(row.payload), before, row.audience,
        row.reply, row.asks,
    )  # fmt: skip


def edges_of(log):
    table = log.edges()
    return zip(map(str, table["from_id"].to_pylist()), map(str, table["to_id"].to_pylist()), strict=True)


def edges_in(wanted):
    rows = [row for row in wanted.rows if row.fate == "delivered" and None not in {row.from_id, row.to_id}]
    return [(str(row.from_id), str(row.to_id)) for row in rows]


def numbers(series):
    """Return the rows of a series, without what is not there: a str id is in another column, a count of 0 in none."""
    found = []
    for row in series:
        agent = row.get("agent_name") if row.get("agent") is None else row["agent"]
        kept = {name: value for name, value in row.items() if name not in {"agent", "agent_name"} and value}
        found.append(kept | ({} if agent is None else {"agent": agent}))
    return found


async def plays(server, folder, made, counts):
    found, own = {}, None
    if any(victim == "server" for *_, victim in made["deaths"]):
        own = RedisProcess(folder / uuid.uuid4().hex[:8]).start()
        server = own.config
    try:
        for groups in counts:
            name = uuid.uuid4().hex[:8]
            (folder / name).mkdir()
            found[groups] = await played(server, f"soc-{name}", folder / name, made, groups, own=own)
    finally:
        if own is not None:
            own.kill()
    return found


async def fork_of(server, folder, made, groups, parent):
    name = uuid.uuid4().hex[:8]
    fork = parent, made["fork"]["at_step"]
    return await played(server, f"fork-{name}", folder / name, forked(made), groups, fork)


def check_fork(made, groups, parent, fork):
    """Compare a fork, which has its parent's messages up to its step, with the oracle, and with its parent."""
    before = Oracle(made).run()
    other = forked(made) | {"outside": before.said}  # it sends again what its parent has sent
    check(other, {groups: fork})
    found = compare(fork.log, parent.log).table.to_pylist()
    differ = {row["step"]: (row["differ"], row["agents"]) for row in found if row["differ"]}
    same("compare with the parent", differ, compared(Oracle(other).run(), before))


def compared(mine, theirs):
    """Return for each step in which two runs differ: how many messages do, and how many agents sent them."""
    found = {}
    for step in range(mine.made["steps"]):
        one, other = said_in(mine, step), said_in(theirs, step)
        agents = [agent for agent in {*one, *other} if one[agent] != other[agent]]
        if agents:
            found[step] = sum(changed(one[agent], other[agent]) for agent in agents), len(agents)
    return found


def said_in(run, step):
    """Return what each agent has said in a step, in order; of a broadcast those who hear it unchanged are one."""
    rows, found = {}, defaultdict(list)
    for row in (row for row in run.rows if row.step == step and not row.outside):
        whole = row.audience is not None and row.fate == "delivered" and row.before is None
        rows[order(row.from_id), row.ordinal or 0, order(None if whole else row.to_id)] = row, whole
    for _, (row, whole) in sorted(rows.items()):
        rule, asked = row.rule if row.fate == "blocked" else None, row.question
        said = row.read, row.topic, row.audience, row.fate, rule, sorted(row.labels), line(row.payload), row.asks
        found[row.from_id].append((None if whole else row.to_id, str(said), asked and (asked.step, asked.from_id)))
    return found


def changed(one, other):
    """Return how many messages differ, where of those that neither run has in common those to one agent are paired."""
    count = 0
    for kind, *ends in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        parts = one[slice(*ends[:2])], other[slice(*ends[2:])]
        for to in {said[0] for part in parts for said in part} if kind != "equal" else ():
            sides = ([said for said in part if said[0] == to] for part in parts)
            count += sum(a != b for a, b in zip_longest(*sides))
    return count


@pytest.fixture
def asks(valkey_config, tmp_path, monkeypatch):
    """Return a function that plays a program, and compares."""
    Kv(monkeypatch)

    def ask(made, counts):
        # Agents run ahead once it is known that there are no rules, which takes a second otherwise.
        monkeypatch.setattr(rule_delegation, "CALM_S", 1.0 if made["ahead"] is None else 0.0)
        proves(valkey_config, tmp_path, made, counts)

    return ask


def proves(server, folder, made, counts):
    """Play a program on several numbers of groups, and its fork on the last; raise AssertionError for a difference."""
    many = asyncio.run(plays(server, folder, made, counts))
    check(made, many)
    if made["fork"] is not None and checkpoints(made):
        parent = many[counts[-1]]
        check_fork(made, counts[-1], parent, asyncio.run(fork_of(server, folder, made, counts[-1], parent)))


def checkpoints(made):
    """Return whether there is a checkpoint before the fork's step."""
    return made["fork"]["every"] <= made["fork"]["at_step"] <= made["steps"]


def holds(asks, made, counts):
    """Fail with a small program if a program differs from the oracle."""

    def error_of(less):
        try:
            asks(less, counts)
        except Exception as error:  # noqa: BLE001 - any is a difference
            return f"{type(error).__name__}: {error}"
        return None

    if (first := error_of(made)) is not None:
        alike = first.partition("\n")[0][:40]  # a smaller program may fail for another reason
        less = smaller(made, lambda less: (error_of(less) or "").startswith(alike))
        pytest.fail(f"seed {made['seed']} differs, as this does:\n{shown(less)}\n{error_of(less)}", pytrace=False)


@pytest.mark.parametrize("seed", range(100))
def test_a_society_does_what_the_oracle_says(asks, seed):
    without = set() if seed % 4 == 0 else {"forks"}  # a fork takes as long as its parent
    without |= set() if seed % 2 else {"deaths"}
    counts = (1 + seed % 4,) if seed % 10 else (1, 2 + seed // 10 % 3)
    holds(asks, program(seed, FEATURES - without), counts)


@pytest.mark.parametrize("seed", range(8))
def test_a_society_whose_agents_run_ahead_does_what_the_oracle_says(asks, seed):
    without = {"rules", "steprules", "changes", "crowds", "everybody", "surveys", *(["forks"] if seed % 4 else [])}
    made = program(1000 + seed, FEATURES - without)
    holds(asks, made | {"ahead": 1 + seed}, (1 + seed % 4,))


@pytest.mark.long
@pytest.mark.parametrize("first", [100, *(pytest.param(n, marks=pytest.mark.soak) for n in range(120, 600, 20))])
def test_twenty_societies_on_one_to_four_groups_do_what_the_oracle_says(asks, first):
    for seed in range(first, first + 20):
        holds(asks, program(seed, FEATURES), (1, 2 + seed % 3))


def test_the_thread_of_an_answer_has_the_question_from_outside_that_a_rule_rewrote(
    valkey_config, tmp_path, monkeypatch
):
    Kv(monkeypatch)
    acts, outside = [[1, 0, "answer", "odd"]], [[1, "ask", [0], "rude", "agent-chat"]]
    made = program(0) | {"agents": [0], "steps": 2, "by": "agent", "acts": acts, "outside": outside, "collect": None}
    made |= {"rules": [["mask", "mask", "rude"]], "changes": [], "deaths": [], "fork": None}
    (one,) = asyncio.run(plays(valkey_config, tmp_path, made, [1])).values()
    assert one.log.thread("1-0-0")["payload"].to_pylist()[0] == '{"t":"***"}'
