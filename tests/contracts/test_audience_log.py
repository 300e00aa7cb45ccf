"""Broadcasts under rules: receipts, arrivals and the event log agree about each pair."""

import asyncio
import json
import re
import shutil
from collections import Counter
from contextlib import aclosing

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from support.audience_society import AGENTS, LOST, Broadcasters, Society, agrees_with_steps, rows_of
from support.command_line import command
from support.contracts import WAIT_S
from support.step_society import digests_of
from support.stepped import fates_in

from ray_messaging import Rule, columns, rules
from ray_messaging.errors import LogError, Unbalanced


@pytest.fixture
async def opened(server, exp_id, tmp_path):
    async with Society(server, exp_id, tmp_path / "log") as found:
        yield found


@pytest.fixture
async def society(opened):
    await opened.begin()
    await opened.befriend("friends", np.random.default_rng(11).integers(0, AGENTS, (600, 2)))
    return opened


async def test_receipts_arrivals_and_log_agree_about_each_pair(society):
    senders = [*range(0, AGENTS, 2)]
    listed = {pair for pair in society.pairs() if sum(pair) % 5 == 0}
    await society.broadcast("friends", senders, [{"n": n} for n in senders])
    await society.interceptor.change(lambda: society.black_list.set(listed))
    before = society.fates.copy()
    receipts = await society.broadcast("friends", senders, [{"n": n} for n in senders])
    since = society.fates - before
    assert {(a, b) for _, a, b, fate in since if fate == "blocked"} == {pair for pair in listed if pair[0] % 2 == 0}
    assert receipts.blocked_by() == {"black_list": receipts.counts()["blocked"]}
    await society.broadcast("friends", [1, 3], [{"text": "x" * 100}, {"text": "short"}])
    await society.fetch(sum(count for (*_, fate), count in society.fates.items() if fate == "delivered"))
    assert society.arrived == Counter({each: 1 for each in society.fates if each[3] == "delivered"})
    log = await society.log()
    assert Counter(rows_of(log.query(expand=True))) == society.fates
    counts = Counter(fate for *_, fate in society.fates)
    assert counts["undeliverable"]
    balance = log.balance()
    assert (balance.sends, {fate: count for fate, count in balance.fates.items() if count}) == (counts.total(), counts)
    assert balance.rows < counts.total()
    whole = log.balance(expand=True)
    assert (whole.sends, whole.rows, whole.fates) == (balance.sends, counts.total(), balance.fates)


class Loud(Rule):
    """Rewrites and labels what is said to some hearers of one broadcast."""

    needs_payload = True

    def __init__(self, hearers):
        self.hearers = hearers

    def check(self, message):
        heard = message.to_id in self.hearers and message.payload["n"] == 2
        return rules.rewrite({"n": "loud"}, "raised") if heard else rules.ALLOW


async def step_broadcasts(society, until=6, *, say):
    """Take both groups of a society through some steps, in the first of which agent 0 speaks; return who heard what."""
    heard = Counter()

    async def drive(messager):
        async with aclosing(messager.steps(until=until)) as steps:
            async for step in steps:
                heard.update((message.to_id, message.payload["n"], message.labels) for message in step.messages)
                if not step.number and 0 in step.places.agents:
                    say(step)

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*map(drive, society.messagers))
    return heard


def said(log):
    """Return which messages the log has as delivered, by hearer, payload and labels."""
    found = log.query(fate="delivered", expand=True).to_pylist()
    return Counter((row["to_id"], json.loads(row["payload"])["n"], tuple(row["labels"] or ())) for row in found)


IN_STEPS = {"seed": 1, "groups": 2, "digest": True}
HOSTED = [*range(1, AGENTS - LOST)]


@pytest.mark.parametrize("ruled", [False, True])
async def test_a_step_whose_broadcasts_are_read_in_several_steps_is_logged_with_all_hearers(opened, ruled):
    if not ruled:
        opened.interceptor = None
    society = await opened.begin(IN_STEPS)
    await society.gather("all", range(AGENTS))

    def say(step):
        for later in (1, 2, 3):
            step.broadcast(0, "all", {"n": later}, deliver_at=later)

    heard = await step_broadcasts(society, say=say)
    assert heard == Counter((agent, n, ()) for agent in HOSTED for n in (1, 2, 3))
    log = await agrees_with_steps(society)
    assert said(log) == heard
    assert log.query(fate="undeliverable", expand=True)["to_id"].to_pylist() == [57, 57, 57, 58, 58, 58, 59, 59, 59]
    edges = log.edges(fate="delivered")
    assert sorted({*edges["to_id"].to_pylist()}) == HOSTED


@pytest.mark.parametrize("hearers", [range(AGENTS), [1, 40], [58]])
async def test_a_rule_that_rewrites_one_broadcast_leaves_the_others_of_its_frame_their_hearers(opened, hearers):
    society = await opened.begin(IN_STEPS)
    await society.interceptor.change(lambda: society.interceptor.rules.insert(Loud(hearers)))
    await society.gather("all", range(AGENTS))
    heard = await step_broadcasts(society, say=lambda step: [step.broadcast(0, "all", {"n": n}) for n in (1, 2, 3)])
    wanted = Counter((agent, n, ()) for agent in HOSTED for n in (1, 3))
    wanted.update((agent, "loud", ("raised",)) if agent in hearers else (agent, 2, ()) for agent in HOSTED)
    assert heard == wanted
    assert said(await agrees_with_steps(society)) == wanted


@pytest.mark.parametrize("hearers", [range(AGENTS), [1, 40], [58]])
async def test_outside_of_steps_a_rewritten_broadcast_leaves_the_others_their_hearers(society, hearers):
    await society.interceptor.change(lambda: society.interceptor.rules.insert(Loud(hearers)))
    await society.gather("all", range(AGENTS))
    await society.broadcast("all", [0, 0, 0], [{"n": n} for n in (1, 2, 3)])
    got = [message for messager in society.messagers for message in await messager.fetch_messages(timeout=WAIT_S)]
    wanted = Counter((agent, n, ()) for agent in HOSTED for n in (1, 3))
    wanted.update((agent, "loud", ("raised",)) if agent in hearers else (agent, 2, ()) for agent in HOSTED)
    assert Counter((message.to_id, message.payload["n"], message.labels) for message in got) == wanted
    for agent in HOSTED:
        in_order = [message.payload["n"] for message in got if message.to_id == agent]
        assert in_order == [1, "loud" if agent in hearers else 2, 3]
    log = await society.log()
    assert said(log) == wanted
    for expand in (False, True):
        found = log.balance(expand=expand).fates
        assert (found["delivered"], found["undeliverable"]) == (3 * len(HOSTED), 3 * LOST)


@pytest.mark.parametrize("steps", [None, IN_STEPS])
async def test_a_broadcast_without_hearers_in_the_log_is_in_its_health_and_balance(opened, steps, tmp_path):
    opened.audiences = tmp_path / "elsewhere"  # the log looks in its own folder
    society = await opened.begin(steps)
    await society.gather("all", range(AGENTS - LOST))
    if steps is None:
        await society.broadcast("all", [0], [{"n": 1}])
    else:
        await step_broadcasts(society, 2, say=lambda step: step.broadcast(0, "all", {"n": 1}))
    await society.log_writer.caught_up()
    why = r"broadcasts of west to audience 'all', version 1, have no hearers .*, because .* no files in .*audiences"
    missing = society.log_writer.stats()["missing"]
    assert re.match(why, missing[0])
    assert len(missing) == (1 if steps is None else 2)  # the groups have counted them, too
    assert [(each.what, each.value) for each in society.findings() if each.level == "critical"] == [
        ("log: incomplete", each) for each in missing
    ]
    log = await society.log()
    with pytest.raises(Unbalanced, match=why):
        log.balance()
    (society.folder / "_account.json").unlink()
    with pytest.raises(Unbalanced, match=r"2 of 2 sends .* in entry .* of east has no hearers in the log"):
        log.balance()


async def test_one_row_for_each_broadcast_and_mailbox_stays_where_the_files_of_its_audience_are_gone(society):
    await society.broadcast("friends", [1], [{"n": 1}])
    log = await society.log()
    shutil.rmtree(society.folder / "audiences")
    found = log.query(fate="delivered")
    assert sorted(found["mailbox"].to_pylist()) == ["east", "west"]
    assert set(found["to_id"].to_pylist()) == {None}
    assert set(found["audience"].to_pylist()) == {"friends"}
    assert sum(found["pairs"].to_pylist()) == sum(fate == "delivered" for *_, fate in society.fates)
    assert set(found["channel"].to_pylist()) == {f"exps:{society.exp_id}:audiences:friends:agent-chat"}
    assert [row.pairs for row in log.tail(timeout_s=0, after=-1, fate="delivered")] == found["pairs"].to_pylist()
    with pytest.raises(LogError, match="the hearers of audience 'friends', version 1, are not known"):
        log.query(expand=True)


async def test_queries_find_the_hearers(society):
    hearers = [b for a, b in society.pairs() if a == 1 and b < AGENTS - LOST]
    one = hearers[3]
    await society.interceptor.change(lambda: society.black_list.set({(1, hearers[0])}))
    await society.broadcast("friends", [1, 2], [{"n": 1}, {"n": 2}])
    await society.send(1, one, {"text": "and you?"})
    log = await society.log()
    own = {f"exps:{society.exp_id}:agents:{one}:agent-chat"}
    assert log.query(from_id=1, to_id=one, expand=True)["channel"].to_pylist() == [*own] * 2
    assert log.query(channel=[*own], from_id=1, expand=True)["to_id"].to_pylist() == [one] * 2
    assert log.query(from_id=1, to_id=one)["payload"].to_pylist() == ['{"text":"and you?"}']
    both = log.query(agent=one, expand=True)
    assert one in both["to_id"].to_pylist()
    assert all(one in pair for pair in zip(both["from_id"].to_pylist(), both["to_id"].to_pylist(), strict=True))
    assert log.conversation(1, one)["payload"].to_pylist() == ['{"n":1}', '{"text":"and you?"}']
    assert log.conversation(1, one, limit=1)["payload"].to_pylist() == ['{"n":1}']
    whole = log.query(from_id=1, fate="delivered", expand=True)
    assert sorted(whole["to_id"].to_pylist()) == sorted([*hearers[1:], one])
    for limit in (1, 5, len(whole), len(whole) + 1):
        assert log.query(from_id=1, fate="delivered", expand=True, limit=limit).equals(whole.slice(0, limit))
        pages = [*log.pages(from_id=1, fate="delivered", expand=True, rows=1, limit=limit)]
        assert pa.concat_tables(pages).equals(whole.slice(0, limit))
    shown = command("log", "query", society.folder, "--to-id", one, "--expand", "--json").splitlines()
    assert {json.loads(line)["to_id"] for line in shown} == {one}
    assert log.export(society.folder.parent / "one.csv", to_id=one) < len(shown)
    edges = log.edges()
    assert Counter(zip(edges["from_id"].to_pylist(), edges["to_id"].to_pylist(), strict=True)) == Counter(
        (a, b) for _, a, b, fate in society.fates if fate == "delivered"
    )


async def test_members_with_names_and_typed_columns_are_expanded(society):
    await society.gather("plaza", [1, 2, 40, "guest"])
    await society.messagers[1].host_agents(["guest"], ["agent-chat"])
    await society.broadcast("plaza", [1, "guest"], columns(x=np.array([0.5, 1.5])))
    await society.messagers[0].broadcast(None, "plaza", {"text": "from the user"})
    await society.fetch(4 + 6)
    log = await society.log()
    found = log.query(expand=True)
    ends = [*zip(found["from_id"].to_pylist(), found["to_id"].to_pylist(), found["payload.x"].to_pylist(), strict=True)]
    assert sorted(ends, key=str) == sorted(
        [
            *(("1", b, 0.5) for b in ("2", "40", "guest")),
            *(("guest", b, 1.5) for b in ("1", "2", "40")),
            *((None, b, None) for b in ("1", "2", "40", "guest")),
        ],
        key=str,
    )
    assert log.query(to_id="guest", expand=True)["from_id"].to_pylist() == ["1", None]
    file = society.folder.parent / "heard.csv"
    assert log.export(file, from_id=1, expand=True) == 3  # no row of these has a str id before they are expanded
    assert sorted(pacsv.read_csv(file)["to_id"].to_pylist()) == ["2", "40", "guest"]


@pytest.mark.parametrize("listed", [[], [(1, 5), (2, 7), (2, 40), (30, 2)]])
async def test_the_logs_digests_of_steps_are_those_of_the_groups(opened, listed):
    society = await opened.begin(IN_STEPS)
    await society.befriend("friends", np.random.default_rng(11).integers(0, AGENTS, (600, 2)))
    if listed:
        society.black_list.set([*listed, *society.pairs()[:20]])

    async def drive(messager):
        async with aclosing(messager.steps(until=2)) as steps:
            async for step in steps:
                ids = step.places.ints
                step.broadcast_columns(ids, "friends", columns(x=ids * 1.5))
                step.broadcast(int(ids[0]), "*", {"n": step.number})
                step.send(int(ids[1]), 3, {"n": step.number})

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*map(drive, society.messagers))
    counts = [fates for step in range(2) for fates in (await fates_in(society.store.steps, step)).values()]
    log = await society.log()
    assert [log.digest(number) for number in range(2)] == await digests_of(society.store.steps, 2)
    fates = sum(map(Counter, counts), Counter())
    assert Counter(log.query(expand=True)["fate"].to_pylist()) == fates
    assert {fate: count for fate, count in log.balance(expand=True).fates.items() if count} == fates


@pytest.mark.parametrize(
    "listed", [[], pytest.param([(None, 5), (2, 7), (1, 9), (None, 12)], marks=pytest.mark.long)], ids=["free", "ruled"]
)
async def test_digests_of_broadcasts_are_those_of_the_log_on_every_layout(valkey_config, exp_id, tmp_path, listed):
    found = []
    for count in (1, 4):
        async with Broadcasters(valkey_config, f"{exp_id}-{count}", tmp_path / f"log{count}") as society:
            found += await society.run(count, *listed)
    assert found == found[:1] * 4
