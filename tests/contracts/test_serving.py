"""Serving where handlers fail or wait for each other: what their askers learn, and what becomes of the messages."""

import asyncio
import json

import pytest
from support.contracts import WAIT_S, ended, fetch_all, until
from support.interceptors import interceptor_with

from ray_messaging import Outgoing, rules
from ray_messaging.errors import AnswerFailed, ConfigError, NoAnswer
from ray_messaging.wire.frames import decode

LONG_S = 600.0  # a question that waits for this long has not been told that it waits in vain


async def picky(message):
    """Fail on odd numbers."""
    if message.payload["n"] % 2:
        raise ValueError("no odd \ud83d numbers")
    return {"n": message.payload["n"]} if message.expects_answer else None


# -- a handler that fails ---------------------------------------------------------------------------------------------


async def test_the_asker_of_a_handler_that_fails_is_told_at_once_and_the_service_goes_on(pair, serve):
    west, east = pair
    serve(east, picky)
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(AnswerFailed, match=r"agent 11 failed on question west-.* \(ValueError: no odd") as caught:
            await west.ask(1, 11, {"n": 1}, timeout=LONG_S)
        assert (await west.ask(1, 11, {"n": 2}, timeout=LONG_S)).payload == {"n": 2}
    assert (caught.value.agent, caught.value.error, caught.value.text) == (11, "ValueError", "no odd \\ud83d numbers")
    assert isinstance(caught.value, NoAnswer)


async def test_columns_of_questions_of_which_some_fail(pair, serve):
    west, east = pair
    serve(east, picky)
    answers = await west.ask_columns(1, [11, 12] * 20, [{"n": n} for n in range(40)], timeout=LONG_S)
    await asyncio.wait_for(answers.wait(), WAIT_S)
    assert answers.answered.tolist() == [*range(0, 40, 2)]
    assert answers.failed.tolist() == [*range(1, 40, 2)]
    assert (answers.errors[3].agent, answers.errors[3].error, len(answers.pending)) == (12, "ValueError", 0)
    assert answers.to_pandas().fate.tolist() == ["answered", "failed"] * 20
    assert "20 failed" in repr(answers)


async def test_a_message_on_which_its_handler_failed_is_a_dead_letter(pair, serve, messagers, store):
    west, east = pair
    serving = serve(east, picky)
    await west.send_columns(1, [11, 12] * 4, [{"n": n} for n in (1, 2, 3, 5, 4, 7, 6, 9)])

    async def all_odd_ones_are_dead():
        return len(await store.dead()) == 5

    await until(all_odd_ones_are_dead)
    assert {(mailbox, reason) for mailbox, reason, _ in await store.dead()} == {
        ("east", "its handler failed: ValueError: no odd \\ud83d numbers")
    }
    failed = [decode(frame) for _, _, frame in await store.dead()]
    assert sorted(json.loads(batch.lines.row(0))["n"] for batch in failed) == [1, 3, 5, 7, 9]
    await ended(serving)
    await east.close()
    again = await messagers(name="east", host=[11, 12])
    assert not await again.fetch_messages(timeout=0.2)  # what failed is committed


async def test_a_failed_message_is_tried_again(pair, serve):
    west, east = pair
    tries = []

    async def third_time_lucky(message):
        tries.append(message.id)
        if len(tries) < 3:
            raise ConnectionError("the model is away")
        return {"tries": len(tries)}

    serve(east, third_time_lucky, retries=2)
    answer = await west.ask(1, 11, {}, timeout=LONG_S)
    assert (answer.payload, len(set(tries))) == ({"tries": 3}, 1)


async def never_ends(_message):
    await asyncio.get_running_loop().create_future()  # as of a thread that has died


async def is_cancelled(_message):
    given_up = asyncio.get_running_loop().create_future()
    given_up.cancel()
    await given_up


async def answers_nonsense(_message):
    return {"n": object()}


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (never_ends, "TimeoutError"),
        (is_cancelled, "a handler of `serve` was cancelled"),
        (answers_nonsense, "InvalidPayload"),
    ],
)
async def test_a_handler_that_gives_no_answer_that_can_be_sent_has_failed(pair, serve, handler, says):
    west, east = pair
    serve(east, handler, timeout=0.05 if handler is never_ends else None)
    with pytest.raises(AnswerFailed, match=says):
        await west.ask(1, 11, {}, timeout=LONG_S)


async def test_the_asker_of_an_answer_that_a_rule_blocks_is_told(messagers, serve):
    interceptor = interceptor_with(rules.Pattern(["secret"]))
    west = await messagers(interceptor, name="west", host=[1])
    east = await messagers(interceptor, name="east", host=[11])

    async def handler(message):
        return {"text": "".join(message.payload["say"])}

    serve(east, handler)
    with pytest.raises(AnswerFailed, match="AnswerBlocked: rule 'pattern' blocked it"):
        await west.ask(1, 11, {"say": ["s", "ecret"]}, timeout=LONG_S)


async def test_a_failure_that_comes_too_late_is_no_message(pair, serve):
    west, east = pair
    gate = asyncio.Event()

    async def handler(message):
        if message.payload["n"] == 1:
            await gate.wait()
            raise ValueError("no model")
        return {}

    serve(east, handler)
    with pytest.raises(NoAnswer, match=r"within 0.3 s"):
        await west.ask(1, 11, {"n": 1}, timeout=0.3)
    gate.set()
    assert await west.ask(1, 11, {"n": 2}, timeout=WAIT_S)  # its answer comes behind the failure
    assert not await west.fetch_messages(timeout=0.2)


# -- the end of a service ---------------------------------------------------------------------------------------------


async def test_where_a_service_has_ended_all_who_ask_are_told(pair, serve, messagers):
    west, east = pair
    gate = asyncio.Event()

    async def handler(message):
        if message.payload["n"]:
            await gate.wait()
            raise ValueError("no model")
        return {}

    serving = serve(east, handler, on_error="end", concurrency=1)
    asking = [asyncio.create_task(west.ask(1, 11, {"n": 1}, timeout=LONG_S)) for _ in range(3)]
    many = await west.ask_columns(1, 12, [{"n": n} for n in (1, 2, 3)], timeout=LONG_S)
    gate.set()
    with pytest.raises(ValueError, match="no model"):
        await serving
    await east.close()
    async with asyncio.timeout(WAIT_S):
        told = await asyncio.gather(*asking, return_exceptions=True)
        await many.wait()
        with pytest.raises(NoAnswer, match="because `serve` of 'east' has ended"):
            await west.ask(2, 11, {"n": 0}, timeout=LONG_S)  # also later
    told += [many.errors[row] for row in many.failed]
    assert (len(told), sum(isinstance(error, AnswerFailed) for error in told)) == (6, 1)
    assert sum("`serve` of 'east' has ended (ValueError: no model)" in str(error) for error in told) == 5
    again = await messagers(name="east", host=[11, 12])
    serve(again, picky)  # it answers as if nothing had been
    assert (await west.ask(1, 11, {"n": 2}, timeout=WAIT_S)).payload == {"n": 2}


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_handler_that_wants_to_exit_ends_serve_and_nothing_hangs(pair, serve, error):
    west, east = pair
    begun = asyncio.Event()

    async def handler(message):
        if message.payload["n"] == 0:
            begun.set()
            await asyncio.sleep(0)
            raise error("enough")
        await begun.wait()
        return {}

    async def run():
        try:
            await east.serve(handler)
        except (SystemExit, KeyboardInterrupt) as found:
            return found

    asking = asyncio.create_task(west.ask(1, 11, {"n": 0}, timeout=LONG_S))
    serving = asyncio.create_task(run())
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(AnswerFailed, match=error.__name__):
            await asking
        assert isinstance(await serving, error)


async def test_serve_again_hands_out_at_once_what_an_ended_service_had_left(pair, serve):
    west, east = pair

    async def broken(_message):
        raise ValueError("no model")

    serving = serve(east, broken, on_error="end")
    with pytest.raises(AnswerFailed):
        await west.ask(1, 11, {"n": 2}, timeout=LONG_S)
    with pytest.raises(ValueError, match="no model"):
        await serving
    seen = asyncio.Queue()

    async def handler(message):
        seen.put_nowait(message.payload)

    serve(east, handler)
    assert await asyncio.wait_for(seen.get(), WAIT_S) == {"n": 2}


async def test_serve_again_hands_out_once_what_a_cancelled_service_had_in_hand(pair, serve):
    west, east = pair
    begun, seen = asyncio.Queue(), asyncio.Queue()

    async def never_ends(message):
        begun.put_nowait(message.payload["n"])
        await asyncio.get_running_loop().create_future()

    async def handler(message):
        seen.put_nowait(message.payload["n"])

    await west.send_columns(1, 11, [{"n": n} for n in range(3)])
    async with asyncio.timeout(WAIT_S):
        for concurrency in (10, 2):  # the second one ends before it has handed out all
            serving = serve(east, never_ends, concurrency=concurrency)
            assert [await begun.get() for _ in range(min(concurrency, 3))] == [0, 1, 2][:concurrency]
            await ended(serving)
        serve(east, handler)
        await west.send(1, 11, {"n": 3})
        assert [await seen.get() for _ in range(4)] == [0, 1, 2, 3]


async def test_what_serve_cannot_do(pair):
    west, east = pair
    with pytest.raises(ConfigError, match="on_error='stop'"):
        await east.serve(picky, on_error="stop")
    with pytest.raises(ConfigError, match="concurrency=0"):
        await east.serve(picky, concurrency=0)
    with pytest.raises(ConfigError, match="retries=-1"):
        await east.serve(picky, retries=-1)
    with pytest.raises(ConfigError, match="retries=True"):
        await east.serve(picky, retries=True)
    await west.send(1, 11, {"n": 1})
    for unfit in (lambda: None, lambda message, more: None, {}):  # the message stays
        with pytest.raises(ConfigError, match=r"handler=.* must take one argument, async def answer\(message\), but "):
            await east.serve(unfit)
    with pytest.raises(ConfigError, match="must be an async function, and returned dict"):
        await east.serve(lambda message: {})


# -- questions that wait for each other -------------------------------------------------------------------------------


@pytest.fixture
async def ring(messagers, serve):
    """Make services of one handler each, whose agents ask each other: agent n asks as its message tells."""
    seen = {}

    async def make(agents, concurrency=1):
        for agent in agents:
            seen[agent] = await messagers(name=f"m{agent}", host=[agent])
            serve(seen[agent], handler_of(agent), concurrency=concurrency)
        return seen

    def handler_of(agent):
        async def handler(message):
            if not message.payload["asks"]:
                return {"by": [agent]}
            first, *others = message.payload["asks"]
            try:
                answer = await seen[agent].ask(agent, first, {"asks": others}, timeout=LONG_S)
            except NoAnswer as error:
                return {"by": [agent], "error": str(error), "asked": [error.question, error.fate]}
            told = {name: answer.payload.get(name) for name in ("error", "asked")}
            return {"by": [agent, *answer.payload["by"]], **told}

        return handler

    return make


@pytest.mark.parametrize("way", [[1], [2, 1], [2, 3, 1]])
async def test_an_answer_that_would_wait_for_itself_is_told_as_such_at_once(ring, messagers, way):
    user = await messagers()
    await ring([1, 2, 3])
    answer = await user.ask(None, 1, {"asks": way}, timeout=WAIT_S)
    assert answer.payload["by"] == [1, *way[:-1]]
    told = [f"agent {one} waits for agent {other}" for one, other in zip([1, *way], way, strict=False)]
    assert f"has a free handler: {', '.join(told)}. Raise" in answer.payload["error"]
    unsent = len(way) > 1  # an agent that asks itself has sent its question
    assert ("was not sent" in answer.payload["error"]) is unsent
    assert (answer.payload["asked"] == ["", "unknown"]) is unsent


@pytest.mark.parametrize("agents", [[1, 2], [1, 2, 3]])
async def test_agents_that_ask_each_other_at_the_same_time(ring, messagers, agents):
    user, outside = await messagers(), await messagers()
    await ring(agents)
    following = zip(agents, [*agents[1:], agents[0]], strict=True)
    asking = [user.ask(None, agent, {"asks": [other]}, timeout=LONG_S) for agent, other in following]
    third = outside.ask(None, 1, {"asks": []}, timeout=LONG_S)
    *answers, last = await asyncio.wait_for(asyncio.gather(*asking, third), WAIT_S)
    assert last.payload == {"by": [1]}
    told = [answer.payload["error"] for answer in answers if answer.payload.get("error")]
    assert len(told) == 1  # the others go on
    assert all(f"agent {agent} waits for agent" in told[0] for agent in agents)


async def test_who_asks_back_where_a_handler_is_free_has_an_answer(ring, messagers):
    user = await messagers()
    await ring([1, 2], concurrency=2)
    answer = await user.ask(None, 1, {"asks": [2, 1]}, timeout=WAIT_S)
    assert answer.payload == {"by": [1, 2, 1], "error": None, "asked": None}


# -- agents that are gone ---------------------------------------------------------------------------------------------


async def test_a_question_to_agents_that_are_removed_waits_no_longer(pair):
    west, east = pair
    asking = asyncio.create_task(west.ask(1, 11, {"n": 1}, timeout=LONG_S))
    many = await west.ask_columns(1, [11, 12], {"n": 1}, timeout=LONG_S)
    await east.remove_agents([11])
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(NoAnswer, match="no group hosts the agent any more"):
            await asking
        while not len(many.failed):
            await many.change()
    assert (many.failed.tolist(), many.pending.tolist()) == ([0], [1])
    assert "no group hosts the agent any more" in str(many.errors[0])


async def test_a_question_ends_by_its_timeout_where_the_outbox_is_full(messagers):
    west = await messagers(name="west", host=[1], outbox_messages=2, send_timeout_s=LONG_S)
    east = await messagers(name="east", host=[11], mailbox_messages=1)
    sends = [asyncio.ensure_future(west.send(1, 11, {"n": n})) for n in range(2)]
    await asyncio.sleep(0)  # they wait for room in the mailbox, and fill the outbox
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(NoAnswer, match="has not confirmed the question to agent 11"):
            await west.ask(1, 11, {"n": 2}, timeout=0.2)
        with pytest.raises(NoAnswer, match="has not confirmed the questions"):
            await west.ask_columns(1, 11, [{"n": 2}], timeout=0.2)
    await fetch_all(east, 2)
    await asyncio.gather(*sends)


# -- what a handler sends ---------------------------------------------------------------------------------------------


async def test_what_a_handler_sends_names_the_message_that_it_handles(pair, serve, messagers):
    west, east = pair
    north = await messagers(name="north", host=[21])
    done, found = asyncio.Event(), {}
    exp_id = west.exp_id

    async def note(message):
        found.setdefault(message.payload["by"], []).append(message.caused_by)
        return {} if message.expects_answer else None

    async def act(message):
        await west.send_message(f"exps:{exp_id}:agents:11:agent-chat", {"by": "send_message"}, from_id=1)
        await asyncio.gather(*(west.send(1, 11, {"by": "many"}) for _ in range(50)))
        await west.send_messages([Outgoing.to_agent(11, {"by": "send_messages"}, 1)] * 2)
        await west.send_columns([1, 2], [11, 12], [{"by": "send_columns"}] * 2)
        await north.send(21, 21, {})
        async for inner in north:
            await north.send(21, 11, {"by": inner.id})
            break
        await north.ack()
        await west.send(1, 11, {"by": "large", "text": "x" * 100_000})
        await west.ask(1, 11, {"by": "ask"}, timeout=LONG_S)
        async with north.transaction() as tx:
            tx.send_message(f"exps:{exp_id}:agents:11:agent-chat", {"by": "tx.send_message"}, from_id=21)
            tx.send_columns([21], [11], [{"by": "tx.send_columns"}])
        done.set()

    serve(east, note)
    serve(west, act)
    sent = await east.send(11, 1, {})
    await asyncio.wait_for(done.wait(), WAIT_S)
    await west.send(1, 11, {"by": "the test"})
    await until(lambda: "the test" in found and len(found) == 10)
    counts = {"send_message": 1, "many": 50, "send_messages": 2, "send_columns": 2, "large": 1, "ask": 1}
    counts |= {"tx.send_message": 1, "tx.send_columns": 1}
    [inner] = [by for by in found if by.startswith("north")]  # of the loop in the handler
    assert found.pop(inner) == [inner]
    assert found == {by: [sent.message_id] * count for by, count in counts.items()} | {"the test": [None]}


async def test_what_the_body_of_a_loop_sends_names_its_message_until_the_next_one_or_the_end(pair):
    west, east = pair
    ids = [(await east.send(11, to, {})).message_id for to in (1, 1, 2)]
    async with asyncio.timeout(WAIT_S):
        async for _ in west:
            await west.send(1, 11, {})
            break
        await west.send(1, 11, {})  # in the same turn of the event loop
    received = await fetch_all(east, 2)
    assert [message.caused_by for message in received] == [ids[0], None]
