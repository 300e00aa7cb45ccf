"""Single messages of a step: in batches they have their own payloads, senders, recipients and ordinals."""

import asyncio
import math
import sys
from collections import Counter
from threading import Barrier, Thread

import pytest
from support.step_society import open_step

from ray_messaging.cluster.run.agent import AgentLoop
from ray_messaging.default_limits_and_leases import BATCH_ROWS
from ray_messaging.errors import ConfigError, InvalidPayload, StepFailed


def rows_of(step):
    """Return (from_id, ordinal, to_id, payload) of each message that was sent in a step."""
    found = []
    for batch in step.sends.batches():
        ids = zip(batch.from_ids.tolist(), batch.ordinal.tolist(), batch.to_ids.tolist(), strict=True)
        found += [(*each, batch.lines.row(row)) for row, each in enumerate(ids)]
    return found


SENDS = [
    (0, 1, {"n": 1}),
    (0, 2, {"n": 1}),
    (0, 2, {"n": 2}),
    (1, 0, {"n": 2}),
    (0, -7, {"n": 2}),
    (0, 2**40, {"n": 1}),
    (0, "ann", {"n": 1}),
    (0, 3, {"n": None}),
    (0, 4, {"n": None}),
    (0, 4, {"n": [1]}),
    (0, 4, {"n": None}),
    (1, 4, {"n": 1}),
]


def expected(sends):
    counts, found = {}, []
    for sender, to_id, payload in sends:
        ordinal = counts[sender] = counts.get(sender, -1) + 1
        text = str(payload).replace("'", '"').replace(" ", "").replace("None", "null")
        found.append((sender, ordinal, to_id, text.encode()))
    return found


def test_each_message_of_a_run_of_like_messages_is_its_own():
    step = open_step()
    for send in SENDS:
        step.send(*send)
    assert rows_of(step) == expected(SENDS)


async def test_messages_of_a_model_are_the_same_as_those_of_a_loop():
    def model(me, inbox):
        for sender, to_id, payload in SENDS:
            if sender == me.id:
                me.send(to_id, payload)

    step = open_step()
    await AgentLoop("east", model).run(step)
    assert rows_of(step) == expected(sorted(SENDS, key=lambda send: send[0]))


def test_the_ordinals_of_questions_count_all_messages_before():
    step = open_step()
    for number in range(3):
        step.send(0, 1, {})
        step.send(0, 2, {})
        step.send(1, 2, {})
        assert step.ask(0, 1, {}) == f"0-{3 * number + 2}-0"
        assert step.ask(1, 1, {}) == f"0-{2 * number + 1}-1"


async def test_not_a_number_is_refused_after_an_equal_line_with_null():
    def model(me, inbox):
        me.send(1, {"x": None})
        me.send(1, {"x": None})
        with pytest.raises(InvalidPayload):
            me.send(1, {"x": math.nan})

    step = open_step()
    await AgentLoop("east", model).run(step)
    assert len(rows_of(step)) == 2 * 5


async def test_an_agent_may_send_more_messages_than_a_batch_has():
    def model(me, inbox):
        for number in range(BATCH_ROWS + 3 if me.id == 1 else 2):
            me.send(number % 5, {})

    step = open_step()
    await AgentLoop("east", model).run(step)
    batches = step.sends.batches()
    assert max(batch.rows for batch in batches) <= BATCH_ROWS
    assert [ordinal for sender, ordinal, *_ in rows_of(step) if sender == 1] == [*range(BATCH_ROWS + 3)]


async def test_another_thread_cannot_go_on_with_an_agents_messages():
    def model(me, inbox):
        errors = []

        def send():
            try:
                me.send(1, {})
            except ConfigError as error:
                errors.append(error)

        me.send(1, {})
        other = Thread(target=send)
        other.start()
        other.join()
        raise errors[0]

    with pytest.raises(StepFailed, match="from another thread"):
        await AgentLoop("east", model).run(open_step())


@pytest.mark.parametrize("calls", ["send", "ask", "broadcast"])
async def test_of_two_threads_that_send_at_once_one_sends_all_its_messages_and_the_other_none(calls):
    sends = {
        "send": lambda me, number: me.send(number, {"n": number}),
        "ask": lambda me, number: me.ask(number, {"n": number}),
        "broadcast": lambda me, number: me.broadcast("*", {"n": number}),
    }
    refused = []

    def send(me, number, begin):
        begin.wait()
        for _ in range(20):
            try:
                sends[calls](me, number)
            except ConfigError as error:
                assert "from another thread" in str(error)  # noqa: PT017
                refused.append(number)

    async def model(me, inbox):
        if me.id == 0:
            begin = Barrier(2)
            await asyncio.gather(*(asyncio.to_thread(send, me, number, begin) for number in (1, 2)))

    switches = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(30):
            refused.clear()
            step = open_step()
            await AgentLoop("east", model).run(step)
            ((late, count),) = Counter(refused).items()
            assert count == 20
            assert {line for *_, line in rows_of(step)} == {b'{"n":%d}' % (3 - late)}
            assert [ordinal for _, ordinal, *_ in rows_of(step)] == [*range(20)]
    finally:
        sys.setswitchinterval(switches)
