"""The event log of an experiment with steps: each counted message once, those of other attempts never."""

import asyncio
import json
from contextlib import aclosing

import pytest
from support.command_line import ended
from support.log_writing import POINTS, Crash, failed, rows_in_memory
from support.patience import WAIT_S
from support.step_faults import FailAt, disturb
from support.step_society import AGENTS, SEED, STEPS, LoggedGroups, digests_of, live, run_step, sequential
from support.step_society import messages_of as sent_in
from support.stepped import begin_steps
from support.steps_on_the_server import frames_in_box, history_of, holds_once_open

from ray_messaging import EventLog, Rule, columns, rules
from ray_messaging.errors import StepAborted


@pytest.fixture
async def society(server, exp_id, tmp_path):
    async with Society(server, exp_id, tmp_path / "log") as found:
        yield found


class Society(LoggedGroups):
    async def begin(self, **settings):
        return await begin_steps(self, seed=SEED, **{"lag": 4} | settings)  # a file after each step


async def within(awaitable):
    async with asyncio.timeout(60):
        return await awaitable


def digests(folder):
    log = EventLog.open(folder)
    return [log.digest(step) for step in range(STEPS)]


def has_each_message_once(society):
    """Fail unless the log of the undisturbed society has the digests of one loop, and no row twice."""
    assert digests(society.folder) == sequential()[1]
    found = EventLog.open(society.folder).query()["message_id"].to_pylist()
    assert len(found) == len(set(found))


@pytest.mark.parametrize("count", [1, 3])
async def test_the_logs_digests_are_those_of_one_loop_and_rows_come_in_canonical_order(society, count):
    await society.begin(groups=count, digest=True)
    writer = await society.writer()
    await within(asyncio.gather(*map(live, await society.groups(count))))
    await within(writer.close())
    has_each_message_once(society)
    log = EventLog.open(society.folder)
    table = log.query()
    assert log.balance().sends == len(table)
    keys = list(zip(*(table[name].to_pylist() for name in ("step", "to_id", "from_id", "ordinal")), strict=True))
    assert keys == sorted(keys)
    assert {row["step_read"] - row["step"] for row in table.to_pylist()} == {1, 2}


async def test_an_attempt_that_died_after_its_sends_is_not_in_the_log(society):
    store = await society.begin(groups=2, digest=True)
    writer = await society.writer()
    first, second = await society.groups(2)
    disturb(first, FailAt(5, "before", deadly=False, in_parts=True), ["commit", "close"])
    other = asyncio.create_task(live(second))
    async with aclosing(first.steps(until=STEPS)) as steps:
        async for step in steps:
            if step.number < 4:
                run_step(step)
                continue
            for agent in step.agents:
                step.send(agent, agent, {"word": "never seen"})
                step.send(agent, 10**6, {"word": "never seen"})
            break
        with pytest.raises(StepAborted, match="close failed"):
            await anext(steps)
    assert any(b"never seen" in frame for frame in await frames_in_box(store, "group0", 5))
    await within(live(first))
    await within(other)
    await within(writer.close())
    has_each_message_once(society)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("after", [0, pytest.param(2, marks=pytest.mark.long)])
async def test_each_row_is_there_once_although_the_log_dies(society, point, after):
    await society.begin(groups=2, digest=True)
    writer = await society.writer(segment_rows=300, crash=Crash(point, after))
    living = asyncio.gather(*map(live, await society.groups(2)))
    await failed(writer)  # the steps go on until they wait for the log
    later = await society.writer(segment_rows=300)
    await within(living)
    await within(later.close())
    has_each_message_once(society)


async def test_a_log_that_lags_behind_the_counts_that_the_server_keeps_lacks_nothing(society):
    await society.begin(groups=2, digest=True, lag=100, horizon=2)
    writer = await society.writer(segment_rows=1, crash=Crash("checked"))
    await within(asyncio.gather(*map(live, await society.groups(2))))
    await failed(writer)
    later = await society.writer()
    await within(later.close())
    assert later.stats()["missing"] == []
    assert EventLog.open(society.folder).balance().sends == sent_in(STEPS)


async def test_steps_wait_for_a_log_that_lags_and_no_longer(society):
    store = await society.begin(lag=2)
    writer = await society.writer(crash=Crash("checked"))
    (group,) = await society.groups(1)
    living = asyncio.create_task(live(group))
    await failed(writer)
    assert await holds_once_open(store, 1) == {"event log": -1}
    assert not living.done()
    later = await society.writer()
    await within(living)
    await within(later.close())
    has_each_message_once(society)


async def test_a_query_sees_what_was_sealed_and_what_came_from_outside_before_it(society):
    await society.begin()
    writer = await society.writer()
    (group,) = await society.groups(1)
    user = await society.messager()
    await within(live(group, until=3))
    await user.send_message(user.get_user_chat_channel(3), {"n": 1}, to_id=3)
    await user.send_message(user.get_agent_chat_channel(4), {"n": 2}, to_id=4)
    await within(writer.caught_up())
    rows = rows_in_memory(writer)
    outside = [row for row in rows if row["from_id"] is None]
    assert [(row["step"], row["step_read"], row["to_id"], row["payload"]) for row in outside] == [
        (3, 3, 3, '{"n":1}'),
        (3, 3, 4, '{"n":2}'),
    ]
    assert {row["step"] for row in rows if row["from_id"] is not None} == {0, 1, 2}
    await user.send_message(user.get_agent_chat_channel(5), {"n": 3}, to_id=5)
    heard = [message.payload async for step in group.steps(until=5) for message in step.messages if not message.from_id]
    await within(writer.close())
    assert EventLog.open(society.folder).query(from_id=None)["to_id"].to_pylist() == [3, 4, 5]
    assert [each for each in heard if "n" in each] == [{"n": 1}, {"n": 2}, {"n": 3}]


async def hear_the_user(society, count, words):
    """Run the society, with messages of a user between its steps; return the digests of the server and of the log."""
    store = await society.begin(groups=count, digest=True)
    writer = await society.writer()
    groups, user = await society.groups(count), await society.messager()
    for step, word in enumerate(words, 2):
        await within(asyncio.gather(*(live(group, until=step) for group in groups)))
        for agent in (*range(9), 3, 3):
            await user.send_message(user.get_user_chat_channel(agent), {"word": f"{word} {agent}"}, to_id=agent)
        await user.send_columns([None] * 60, [*range(60)], [{"word": f"{word} all"}] * 60)
        if step % 2:
            await within(writer.caught_up())  # the log has them before the step
    await within(asyncio.gather(*map(live, groups)))
    await within(writer.close())
    log = EventLog.open(society.folder)
    outside = [row for row in log.query(from_id=None).to_pylist() if row["step"] is not None]
    assert len(outside) == 71 * len(words)
    assert {row["step"] for row in outside} == {row["step_read"] for row in outside} == {*range(2, 2 + len(words))}
    assert log.history_digest(STEPS - 1) == await history_of(store, STEPS)
    return await digests_of(store), digests(society.folder)


@pytest.mark.long
async def test_messages_from_outside_are_in_the_digest_of_their_step_on_every_layout(server, exp_id, tmp_path):
    found = []
    for run, (count, words) in enumerate([(1, ["a", "b"]), (3, ["a", "b"]), (2, ["a", "c"])]):
        async with Society(server, f"{exp_id}-{run}", tmp_path / f"log{run}") as society:
            found.append(await hear_the_user(society, count, words))
    (first, logged), (second, again), (other, _) = found
    assert first == logged == second == again
    assert first[:2] == sequential()[1][:2]
    assert first[2] != sequential()[1][2]
    assert other[:3] == first[:3]
    assert other[3] != first[3]


async def test_a_second_run_goes_on_in_the_folder(society):
    await society.begin(digest=True)
    first = await society.writer()
    (group,) = await society.groups(1)
    await within(live(group, until=3))
    await within(first.retire())
    second = await society.writer()
    await within(live(group))
    await within(second.retire())
    has_each_message_once(society)


class Calm(Rule):
    """A rule that takes the shouting out of a message."""

    name = "calm"
    needs_payload = True

    def check(self, message):
        return (
            rules.rewrite({"word": message.payload["word"].lower()})
            if message.payload["word"].isupper()
            else rules.ALLOW
        )


async def test_blocked_rewritten_and_undeliverable_messages_have_their_fates_and_reasons(society):
    store = await society.begin(digest=True)
    writer = await society.writer()
    (group,) = await society.groups(1, society.judge(rules.BlackList([(1, 2)]), Calm()))
    async with asyncio.timeout(WAIT_S):
        async for step in group.steps(until=2):
            if step.number == 0:
                step.send(1, 2, {"word": "no"})
                step.send(1, 3, {"word": "HEY"}, deliver_at=2)
                step.send(1, 10**6, {"word": "lost"})
                step.send(1, 4, {"word": "yes"})
    await within(writer.close())
    log = EventLog.open(society.folder)
    found = [
        (row["message_id"], row["to_id"], row["step_read"], row["fate"], row["rule"], row["payload"])
        for row in log.query(step=0).to_pylist()
    ]
    assert found == [
        ("0-0-1", 2, 1, "blocked", "black_list", '{"word":"no"}'),
        ("0-1-1", 3, 2, "delivered", "calm", '{"word":"hey"}'),
        ("0-3-1", 4, 1, "delivered", None, '{"word":"yes"}'),
        ("0-2-1", 10**6, 1, "undeliverable", None, '{"word":"lost"}'),
    ]
    assert log.query(rule="calm")["payload_before"].to_pylist() == ['{"word":"HEY"}']
    assert log.query(fate="blocked")["reason"].to_pylist()[0]
    assert log.digest(0) == (await digests_of(store))[0]
    assert log.balance().fates == {"delivered": 2, "published": 0, "undeliverable": 1, "blocked": 1}
    assert log.history_digest(1) != log.history_digest(0)


class Mute(Rule):
    """A rule that lets nobody write to agent 2."""

    name = "mute"

    def check(self, message):
        return rules.block("muted") if message.to_id == 2 else rules.ALLOW


async def test_messages_from_outside_that_a_rule_judged_are_logged_with_their_step(society):
    store = await society.begin(digest=True)
    writer = await society.writer()
    (group,) = await society.groups(1)
    user = await society.messager(society.judge(Mute(), Calm()))
    await within(live(group, until=3))
    receipts = await user.send_columns([None] * 3, [2, 3, 4], [{"word": "no"}, {"word": "HEY"}, {"word": "yes"}])
    assert receipts.fates.tolist() == ["blocked", "delivered", "delivered"]
    await within(live(group))
    await within(writer.close())
    log = EventLog.open(society.folder)
    found = [
        (row["step"], row["step_read"], row["to_id"], row["fate"], row["rule"], row["payload"], row["payload_before"])
        for row in log.query(from_id=None).to_pylist()
    ]
    assert sorted(found, key=lambda row: row[2]) == [
        (3, 3, 2, "blocked", "mute", '{"word":"no"}', None),
        (3, 3, 3, "delivered", "calm", '{"word":"hey"}', '{"word":"HEY"}'),
        (3, 3, 4, "delivered", None, '{"word":"yes"}', None),
    ]
    ids = {row["to_id"]: row["message_id"] for row in log.query(fate="delivered", from_id=None).to_pylist()}
    assert ids == {3: f"3-{2**31}-None", 4: f"3-{2**31 + 1}-None"}
    assert digests(society.folder) == await digests_of(store)


async def test_two_logs_differ_first_where_an_agent_sent_something_else(valkey_config, exp_id, tmp_path):
    async def log_of(name, changed=None):
        async with Society(valkey_config, f"{exp_id}-{name}", tmp_path / name) as run:
            await run.begin()
            writer = await run.writer()
            (group,) = await run.groups(1)
            async for step in group.steps(until=4):
                for agent in range(4):
                    word = {"word": f"{agent} in {step.number}"}
                    if (step.number, agent) != changed:
                        step.send(agent, 9 - agent, word)
                    elif name == "other":
                        step.send(agent, 9 - agent, {"word": "else"})
            await within(writer.close())
        return EventLog.open(run.folder)

    log, same = await log_of("log"), await log_of("same")
    other, less = await log_of("other", (2, 1)), await log_of("less", (2, 3))
    assert log.diff(same) is None
    assert [log.history_digest(step) == other.history_digest(step) for step in range(4)] == [True, True, False, False]
    found = log.diff(other)
    assert (found.step, found.agent, found.message_id) == (2, 1, "2-0-1")
    assert (found.mine.payload, found.theirs.payload) == ({"word": "1 in 2"}, {"word": "else"})
    assert (log.diff(less).mine.from_id, log.diff(less).theirs) == (3, None)
    assert (less.diff(log).mine, less.diff(log).theirs.from_id) == (None, 3)

    folders = {name: str(tmp_path / name) for name in ("log", "same", "other", "less")}
    assert ended("log", "diff", folders["log"], folders["same"]) == (0, "Both runs sent the same messages.\n")
    code, told = ended("log", "diff", folders["log"], folders["other"])
    assert code == 1
    assert "differ first in step 2, in message 2-0-1 of agent 1" in told
    assert "1 in 2" in told
    assert "else" in told
    code, told = ended("log", "diff", folders["less"], folders["log"], "--json")
    assert code == 1
    line = json.loads(told)
    assert (line["step"], line["agent"], line["mine"], line["theirs"]["payload"]) == (2, 3, None, {"word": "3 in 2"})


async def test_typed_payloads_are_in_canonical_order_and_have_the_digests_of_the_groups(society):
    """Columns of two types under one name, and JSON: a step's rows are in three files, and one order."""
    store = await society.begin(groups=2, digest=True)
    writer = await society.writer()

    async def drive(messager):
        async with aclosing(messager.steps(until=3)) as steps:
            async for step in steps:
                agents = step.agents
                francs = columns(price=[f"{agent} francs" for agent in agents])
                step.send_columns(agents, 0, columns(price=[agent + step.number / 4 for agent in agents]))
                step.send_columns(agents, 1, francs, subtopic="user-chat")
                step.send_columns(agents, 0, [{"price": agent} for agent in agents])

    await within(asyncio.gather(*map(drive, await society.groups(2))))
    await within(writer.close())
    log = EventLog.open(society.folder)
    counted = await digests_of(store, 3)
    for step in range(3):
        assert log.digest(step) == counted[step]
        found = log.query(step=step, text=True)
        order = [*zip(*(found[name].to_pylist() for name in ("to_id", "from_id", "ordinal")), strict=True)]
        assert order == sorted(order)
        assert len(order) == 3 * AGENTS
        prices = [json.loads(text)["price"] for text in found["payload"].to_pylist()]
        assert prices[: 2 * AGENTS : 2] == [agent + step / 4 for agent in range(AGENTS)]
        assert prices[2 * AGENTS :] == [f"{agent} francs" for agent in range(AGENTS)]
    log.balance()


@pytest.mark.long
async def test_more_subtopics_than_two_bytes_can_number_are_read_answered_and_logged(valkey_config, exp_id, tmp_path):
    names = [f"t{number}" for number in range(2**16 + 10)]
    async with Society(valkey_config, exp_id, tmp_path / "log") as society:
        store = await society.begin(groups=1, digest=True)
        writer = await society.writer()
        group = await society.messager(name="all")
        await group.host_agents([1, 2], names)
        async with asyncio.timeout(10 * WAIT_S), aclosing(group.steps(until=3)) as steps:
            async for step in steps:
                if step.number == 0:
                    for name in names:
                        step.ask(1, 2, {"of": name}, subtopic=name)
                elif step.number == 1:
                    assert [message.payload["of"] for message in step.inbox(2)] == names
                    step.reply_columns(step.messages, {"yes": True})
                else:
                    assert [message.subtopic for message in step.inbox(1)] == names
        await within(writer.close())
        log = EventLog.open(tmp_path / "log")
        assert log.query(step=0)["subtopic"].to_pylist() == names
        assert [log.digest(step) for step in range(3)] == await digests_of(store, 3)
