"""One limit for the calls of several groups: an even rate, a number at once, a budget, and groups that begin again."""

import asyncio
from decimal import Decimal
from itertools import pairwise

import pytest
from support.instant_loop import run
from support.patience import WAIT_S

from ray_messaging import Calls, Price
from ray_messaging.errors import BudgetSpent, Closed
from ray_messaging.model.call_usage import CallUsage, parts_of
from ray_messaging.steps.call_limits import CallGate, CallLimits, HeldCalls

GROUPS = ["east", "north", "south", "west"]


def now():
    """Return the time of the running loop."""
    return asyncio.get_running_loop().time()


class Oracle:
    """A model that takes some time, and counts the calls at once; `began` has when each began, in seconds."""

    def __init__(self, seconds):
        self.seconds, self.running, self.most, self.began = seconds, 0, 0, []

    async def ask(self, gate):
        await gate.enter()
        self.began.append(now())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        gate.leave()


def gate_of(limits, group="east", delay_s=0.002):
    """Return a gate whose messages take a while, and whose notes may come in any order."""

    async def take(held, wanted):
        await asyncio.sleep(delay_s)
        grant = await limits.take(held, wanted)
        await asyncio.sleep(delay_s)
        return grant

    def note(held):
        notes.add(asyncio.get_running_loop().create_task(later(held)))

    async def later(held):
        await asyncio.sleep(delay_s * (len(notes) % 3))
        limits.note(held)

    notes = set()
    return CallGate(group, take, note)


async def asked(oracle, limits, each):
    gates = [gate_of(limits, group) for group in GROUPS]
    async with asyncio.timeout(WAIT_S):
        return await asyncio.gather(*(oracle.ask(gate) for gate in gates for _ in range(each)), return_exceptions=True)


@pytest.mark.parametrize("per_minute", [2400, 12000])
def test_four_groups_hold_a_rate_at_an_even_pace(per_minute):
    oracle = Oracle(0.05)
    run(asked(oracle, CallLimits(Calls(rate_per_minute=per_minute), clock=now), per_minute // 80))
    took = oracle.began[-1] - oracle.began[0]
    assert (len(oracle.began) - 1) / took * 60 == pytest.approx(per_minute)
    in_order = sorted(oracle.began)
    most = max(sum(other < began + 0.5 for other in in_order[place:]) for place, began in enumerate(in_order))
    assert most <= per_minute / 120 + 1  # no half second has more than its share


def test_a_number_at_once_is_never_exceeded_and_always_reached():
    oracle = Oracle(0.01)
    run(asked(oracle, CallLimits(Calls(concurrency=6), clock=now), 30))
    assert oracle.most == 6
    assert len(oracle.began) == 120
    assert oracle.began[-1] < 120 / 6 * 0.01 * 3  # an answer takes about as long as a call


async def test_a_budget_is_spent_to_the_last_call_and_not_exceeded():
    oracle, limits = Oracle(0.001), CallLimits(Calls(budget=50, rate_per_minute=60_000))
    found = await asked(oracle, limits, 20)
    assert len(oracle.began) == 50
    assert [type(each) for each in found if each is not None] == [BudgetSpent] * 30
    with pytest.raises(BudgetSpent):
        await gate_of(limits).enter()


async def test_calls_of_the_earliest_step_begin_first():
    limits, began = CallLimits(Calls(concurrency=1)), []
    gate = CallGate("east", limits.take, limits.note)

    async def ask(step):
        await gate.enter(step)
        began.append(step)
        await asyncio.sleep(0)
        gate.leave()

    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*map(ask, [4, 7, 5, 6, 5, 4]))
    assert began == [4, 4, 5, 5, 6, 7]


@pytest.mark.parametrize("budget", [1, 3, 5])
async def test_the_budget_that_is_left_goes_to_the_earliest_steps(budget):
    limits = CallLimits(Calls(budget=budget))
    gate = CallGate("east", limits.take, limits.note)
    steps = [4, 7, 5, 6, 5, 4]
    async with asyncio.timeout(WAIT_S):
        found = await asyncio.gather(*map(gate.enter, steps), return_exceptions=True)
    made = sorted(step for step, error in zip(steps, found, strict=True) if error is None)
    assert made == sorted(steps)[:budget]


async def test_callers_that_give_up_use_nothing():
    limits = CallLimits(Calls(concurrency=1, budget=3))
    gate, other = gate_of(limits), gate_of(limits, "west")
    await gate.enter()
    waiting = [asyncio.create_task(each.enter()) for each in (gate, other, gate)]
    await asyncio.sleep(0.05)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    gate.leave()
    async with asyncio.timeout(WAIT_S):
        for each in (other, gate):
            await each.enter()
            each.leave()
    with pytest.raises(BudgetSpent):
        await gate.enter()


async def test_the_last_call_of_the_budget_is_made_although_a_call_before_it_gave_up():
    limits, asked, answers = CallLimits(Calls(budget=1)), asyncio.Event(), asyncio.Event()

    async def take(held, wanted):
        asked.set()
        await answers.wait()
        return await limits.take(held, wanted)

    gate = CallGate("east", take, limits.note)
    waiting = [asyncio.create_task(gate.enter(0, text)) for text in ("a", "b", "c")]
    await asked.wait()
    waiting[0].cancel()
    await asyncio.wait([waiting[0]])
    answers.set()
    async with asyncio.timeout(WAIT_S):
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in found] == [asyncio.CancelledError, type(None), BudgetSpent]


async def test_a_group_that_begins_again_frees_what_its_process_held_and_the_budget_knows_of_it():
    limits = CallLimits(Calls(concurrency=2, budget=4))
    former = gate_of(limits)
    await asyncio.gather(former.enter(), former.enter())
    stale = asyncio.create_task(former.enter())
    await asyncio.sleep(0.05)
    async with asyncio.timeout(WAIT_S):
        later = gate_of(limits)
        await asyncio.gather(later.enter(), later.enter())
    with pytest.raises(Closed, match="later process"):
        await stale
    later.leave()
    with pytest.raises(BudgetSpent):
        await later.enter()


async def test_a_group_that_begins_again_and_makes_no_call_frees_what_its_process_held():
    """Its calls may all be answered by what its former process has kept."""
    limits = CallLimits(Calls(concurrency=1))
    await gate_of(limits).enter()
    waiting = asyncio.create_task(gate_of(limits, "west").enter())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    gate_of(limits)
    async with asyncio.timeout(WAIT_S):
        await waiting


async def test_limits_that_were_lost_learn_from_the_gates_what_they_hold():
    limits = [CallLimits(Calls(concurrency=2, budget=5))]

    async def take(held, wanted):
        return await limits[0].take(held, wanted)

    gate = CallGate("east", take, lambda held: limits[0].note(held))
    for _ in range(2):
        await gate.enter()
    limits[0] = CallLimits(Calls(concurrency=2, budget=5))
    waiting = asyncio.create_task(gate.enter())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    gate.leave()
    async with asyncio.timeout(WAIT_S):
        await waiting
        for _ in range(2):
            gate.leave()
            await gate.enter()
        with pytest.raises(BudgetSpent):
            await gate.enter()


async def test_totals_of_a_former_gate_that_arrive_late_do_not_count_twice():
    limits = CallLimits(Calls(budget=5))
    former, gate = HeldCalls("east", "former"), HeldCalls("east", "gate")
    assert len((await limits.take(former, 2)).delays) == 2
    assert len((await limits.take(gate, 1)).delays) == 1
    limits.note(former._replace(granted=2, ended=2))
    grant = await limits.take(gate._replace(granted=1, ended=1), 9)
    assert (len(grant.delays), (await limits.take(gate._replace(granted=3, ended=3), 9)).spent) == (2, True)


async def test_calls_after_a_pause_are_no_burst():
    now = [0.0]
    limits, held = CallLimits(Calls(rate_per_minute=6000), clock=lambda: now[0]), HeldCalls("east", "gate")
    for now[0] in (0.0, 100.0):
        delays = [delay for _ in range(3) for delay in (await limits.take(held, 10)).delays]
        assert len(delays) == 30
        assert all(later - delay == pytest.approx(0.01) for delay, later in pairwise([-0.01, *delays]))


def used(tokens, cost=0):
    return CallUsage("small", tokens, 0, 0, cost)


class Reader(Oracle):
    """A model whose calls use so many tokens as `sizes` say, in turn."""

    def __init__(self, seconds, sizes, price=0):
        super().__init__(seconds)
        self.sizes, self.price, self.tokens = iter(sizes), price, 0

    async def ask(self, gate):
        await gate.enter()
        self.began.append(now())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        self.tokens += (size := next(self.sizes))
        gate.leave(used(size, size * self.price))


def test_four_groups_hold_a_rate_of_tokens_though_calls_differ():
    sizes = [50, 150, 100, 300] * 100
    oracle = Reader(0.3, sizes)
    run(asked(oracle, CallLimits(Calls(tokens_per_minute=600_000), clock=now), 100))  # 10,000 in a second
    began = sorted(oracle.began)
    assert oracle.tokens == sum(sizes) == 60_000
    assert began[-1] - began[1] == pytest.approx(6, rel=0.1)
    for at in range(1, 6):  # no second has more than its share, with the error of the average
        assert sum(at <= each < at + 1 for each in began) * 150 == pytest.approx(10_000, rel=0.25)


def test_tokens_that_were_not_used_in_time_are_no_burst_later():
    async def calls():
        limits = CallLimits(Calls(tokens_per_minute=6000), clock=now)
        oracle = Reader(0.01, [10] * 30)
        await asked(oracle, limits, 5)
        await asyncio.sleep(60)
        first, gate = now(), gate_of(limits, "north")
        await asyncio.gather(*(oracle.ask(gate) for _ in range(10)))
        return oracle.began[-1] - first

    assert run(calls()) == pytest.approx(0.9, abs=0.15)  # ten calls of a tenth of a second


def test_a_budget_of_money_is_spent_and_exceeded_by_no_more_than_is_under_way():
    limits = CallLimits(Calls(budget="1 USD", cost=Price(input=1, output=1)))
    oracle = Reader(0.05, [7] * 200, price=parts_of(Decimal("0.01")))  # a call costs 7 cents
    found = run(asked(oracle, limits, 50))
    refused = [each for each in found if each is not None]
    assert {type(each) for each in refused} == {BudgetSpent}
    assert len(oracle.began) == 15  # 14 cost 98 cents, so one more may begin
    assert oracle.most > 5


def test_a_budget_is_exceeded_by_calls_that_cost_more_than_those_before_but_no_further_call_begins():
    limits = CallLimits(Calls(budget="1 USD", cost=Price(input=1, output=1), concurrency=4))
    oracle = Reader(0.05, [1] * 10 + [50] * 100, price=parts_of(Decimal("0.01")))
    run(asked(oracle, limits, 50))
    assert oracle.tokens <= 100 + 4 * 50
    assert oracle.most == 4
