"""Rows that wait for their verdicts, with a verdict client that answers on demand."""

import asyncio

import pytest
from support.contracts import fetch_all, numbers
from support.patience import WAIT_S

from ray_messaging.errors import InterceptorUnavailable
from ray_messaging.interception.verdicts import BatchVerdict


class Judge:
    """A verdict client that answers each question when, and as, the test says."""

    route = "held"

    def __init__(self):
        self.questions = asyncio.Queue()
        self.waits = asyncio.Queue()

    async def judge(self, batch):
        return await self._answer(self.questions, batch)

    async def wait(self, batch):
        return await self._answer(self.waits, batch)

    async def _answer(self, queue, batch):
        future = asyncio.get_running_loop().create_future()
        queue.put_nowait((batch, future))
        return await future

    async def close(self):
        pass


async def next_of(queue):
    return await asyncio.wait_for(queue.get(), WAIT_S)


async def defer_the_first(judge):
    """Answer that the first row has no verdict yet; return the answer that it then waits for."""
    _, answer = await next_of(judge.questions)
    answer.set_result(BatchVerdict(deferred={0}))
    return (await next_of(judge.waits))[1]


@pytest.fixture
async def pair(opener, local):
    receiver = await opener(local, host=[1, 2])
    sender = await opener(local)
    judge = sender.engine.accumulator.send_loop.verdict_client = Judge()
    return sender, receiver, judge


def send(sender, n, agent=1):
    return asyncio.create_task(sender.send_message(sender.get_agent_chat_channel(agent), {"n": n}, from_id=5))


async def test_a_row_whose_verdict_comes_while_a_later_one_is_judged_goes_first(pair):
    sender, receiver, judge = pair
    first = send(sender, 0)
    late = await defer_the_first(judge)
    second = send(sender, 1)
    _, answer = await next_of(judge.questions)
    late.set_result(BatchVerdict())  # now the first one may go, and the second one is still with the judge
    for _ in range(5):
        await asyncio.sleep(0)
    answer.set_result(BatchVerdict())
    assert numbers(await fetch_all(receiver, 2)) == [0, 1]
    assert {(await task).fate for task in (first, second)} == {"delivered"}


async def test_rows_waiting_for_a_removed_interceptor_fail_and_later_ones_pass(pair):
    sender, receiver, judge = pair
    first, second = send(sender, 0), send(sender, 1)
    late = await defer_the_first(judge)
    late.set_exception(InterceptorUnavailable("gone"))
    with pytest.raises(InterceptorUnavailable) as caught:
        await asyncio.wait_for(first, WAIT_S)
    assert caught.value.message_ids == [f"{sender.name}-{sender.engine.frame_sender.epoch}-0"]
    assert (await asyncio.wait_for(second, WAIT_S)).fate == "delivered"
    assert numbers(await fetch_all(receiver, 1)) == [1]
    assert sender.stats()["outbox"] == sender.stats()["deferred"] == 0


async def test_an_unexpected_error_of_the_verdict_client_ends_all_waits(pair, caplog):
    sender, _, judge = pair
    first = send(sender, 0)
    late = await defer_the_first(judge)
    late.set_exception(ZeroDivisionError())
    with pytest.raises(Exception, match="please report"):
        await asyncio.wait_for(first, WAIT_S)
    assert "waiting for the verdicts of a slow rule failed" in caplog.text


async def test_a_failed_send_loop_fails_waiting_sends(pair):
    sender, _, judge = pair
    first = send(sender, 0)
    late = await defer_the_first(judge)
    second = send(sender, 1, agent=2)
    _, answer = await next_of(judge.questions)
    answer.set_exception(ZeroDivisionError())
    for task in (first, second):
        with pytest.raises(Exception, match="please report"):
            await asyncio.wait_for(task, WAIT_S)
    assert late.cancelled()
    assert sender.stats()["deferred"] == 0
