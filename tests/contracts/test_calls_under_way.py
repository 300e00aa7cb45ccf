"""Several calls of one sender under way: nothing is lost, doubled or overtaken, whatever becomes of each call."""

import asyncio
import random
from collections import defaultdict

import pytest
from faults.proxy import Proxy
from support.calls_under_way import (
    Faults,
    Gate,
    count_as_far,
    count_as_near,
    hold_later_verdicts,
    kill,
    lose_one_of_three,
    reroute_in_a_send,
)
from support.contracts import fetch_all, until
from support.patience import WAIT_S
from support.sending_faults import know_the_directory

from ray_messaging import Messager, MessagingError
from ray_messaging.errors import OutcomeUnknown

LANES, SENDS = 8, 12
RECEIVERS = (101, 102, 103)


def seeds(usual, long, all_of_them):
    """Give the seeds of random tests: of the default suite, of the long tests, and of those that CI leaves out."""
    more, most = pytest.mark.long, [pytest.mark.long, pytest.mark.soak]
    return [
        *range(usual),
        *(pytest.param(seed, marks=more) for seed in range(usual, long)),
        *(pytest.param(seed, marks=most) for seed in range(long, all_of_them)),
    ]


def send_all(sender, *parts, to=1):
    """Begin to send each part, a list of numbers, as a batch of its own; return the tasks."""
    return [
        asyncio.create_task(sender.send_columns([7] * len(part), [to] * len(part), [{"n": n} for n in part]))
        for part in parts
    ]


@pytest.fixture
def far(monkeypatch):
    """Have each server count as far."""
    count_as_far(monkeypatch)


@pytest.fixture
async def pair(far, messagers):
    """Open a receiver, and a sender that has sent some batches, so that several calls may be under way."""
    receiver = await messagers(host=[1, 2])
    sender = await messagers()
    for n in range(4):
        await asyncio.gather(*send_all(sender, [-3 * n - 3, -3 * n - 2, -3 * n - 1]))
    assert len(await fetch_all(receiver, 12)) == 12
    return sender, receiver


async def test_batches_do_not_wait_for_the_replies_of_earlier_batches(pair):
    sender, receiver = pair
    gate = Gate(sender)
    gate.open.clear()
    sends = send_all(sender, [0, 1], [2, 3], [4, 5])
    await until(lambda: asyncio.sleep(0, gate.under_way == 3))
    gate.open.set()
    assert [(await send).counts()["delivered"] for send in sends] == [2, 2, 2]
    assert [message.payload["n"] for message in await fetch_all(receiver, 6)] == [*range(6)]


async def test_a_near_server_gets_two_large_calls_while_single_messages_gather(pair, monkeypatch):
    count_as_near(monkeypatch)
    sender, receiver = pair
    await sender.send(7, 1, {"n": -1})
    await fetch_all(receiver, 1)
    gate = Gate(sender)
    gate.open.clear()
    sends = send_all(sender, [0], [1], [2])
    await until(lambda: asyncio.sleep(0, gate.under_way == 2))
    channel = sender.get_agent_chat_channel(1)
    singles = [asyncio.create_task(sender.send_message(channel, {"n": n}, 7)) for n in (3, 4, 5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert gate.most == 2
    gate.open.set()
    await asyncio.gather(*sends, *singles)
    assert gate.most == 2
    assert [message.payload["n"] for message in await fetch_all(receiver, 6)] == [*range(6)]


async def test_single_messages_do_not_wait_for_calls_under_way(pair):
    sender, receiver = pair
    gate, channel = Gate(sender), sender.get_agent_chat_channel(1)
    gate.open.clear()
    singles = []
    for under_way, numbers in ((1, [0, 1, 2]), (2, [3, 4]), (3, [5, 6, 7, 8]), (4, [9])):
        singles += [asyncio.create_task(sender.send_message(channel, {"n": n}, 7)) for n in numbers]
        await until(lambda most=under_way: asyncio.sleep(0, gate.under_way == most))
    gate.open.set()
    assert [(await single).fate for single in singles] == ["delivered"] * 10
    assert [message.payload["n"] for message in await fetch_all(receiver, 10)] == [*range(10)]


@pytest.mark.parametrize("turns", [0, 4, 8, None])
async def test_receipts_do_not_wait_for_the_verdicts_on_later_messages(pair, turns):
    sender, _ = pair
    gate, (asked, decided) = Gate(sender), hold_later_verdicts(sender)
    gate.open.clear()
    first = [asyncio.create_task(sender.send(7, 1, {"n": n})) for n in range(3)]
    await until(lambda: asyncio.sleep(0, gate.under_way == 1))
    if turns is not None:
        gate.open.set()
    for _ in range(turns or 0):
        await asyncio.sleep(0)
    second = [asyncio.create_task(sender.send(7, 1, {"n": n})) for n in range(3)]
    await until(lambda: asyncio.sleep(0, len(asked) == 2))
    gate.open.set()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*first)
    assert not any(single.done() for single in second)
    decided.set()
    await asyncio.gather(*second)


async def test_a_transaction_waits_for_all_calls_under_way(far, messagers):
    receiver = await messagers(host=[1])
    bank = await messagers(name="bank", host=[3])
    await asyncio.gather(*send_all(bank, [-1], [-2]))
    gate = Gate(bank)
    gate.open.clear()
    sends = send_all(bank, [0], [1])

    async def transact():
        async with bank.transaction() as tx:
            tx.send_message(bank.get_agent_chat_channel(1), {"n": 2}, 3)

    await until(lambda: asyncio.sleep(0, gate.under_way == 2))
    transaction = asyncio.create_task(transact())
    for _ in range(20):
        await asyncio.sleep(0)
    assert gate.most == 2
    gate.open.set()
    await asyncio.gather(*sends, transaction)
    assert gate.most == 2
    assert [message.payload["n"] for message in await fetch_all(receiver, 5)][2:] == [0, 1, 2]


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("taken", [True, False], ids=["reply lost", "request lost"])
async def test_after_a_call_without_an_answer_later_calls_tell_what_they_know(pair, lost, taken):
    sender, receiver = pair
    await know_the_directory(sender)
    restore = lose_one_of_three(sender, lost, taken=taken)
    outcomes = await asyncio.gather(*send_all(sender, [0], [1], [2]), return_exceptions=True)
    restore()
    assert isinstance(outcomes[2] if lost == 2 or not taken else None, OutcomeUnknown | None)
    await asyncio.gather(*send_all(sender, [3]))
    found = [message.payload["n"] for message in await fetch_all(receiver, 4 if taken else 1 + lost)]
    assert found == ([0, 1, 2, 3] if taken else [*range(lost), 3])
    for n, outcome in enumerate(outcomes):
        if not isinstance(outcome, MessagingError):
            assert n in found
        else:
            assert isinstance(outcome, OutcomeUnknown)
            assert n >= lost or not taken
    if taken and lost < 2:  # the server took a later frame, and so this one as well
        assert not any(isinstance(outcome, MessagingError) for outcome in outcomes)


async def test_a_full_mailbox_holds_up_its_own_messages_in_order(far, messagers):
    full = await messagers(host=[1], mailbox_messages=4, inbox_messages=1)
    free = await messagers(host=[2])
    sender = await messagers()
    await asyncio.gather(*send_all(sender, [-1], to=2), *send_all(sender, [-2], [-3], to=2))
    sends = send_all(sender, *([n] for n in range(12)))
    others = send_all(sender, *([n] for n in range(12)), to=2)
    await asyncio.gather(*others)
    assert [message.payload["n"] for message in await fetch_all(free, 15)][3:] == [*range(12)]
    found = []
    while len(found) < 12:
        found += [message.payload["n"] for message in await full.fetch_messages(timeout=WAIT_S)]
        await full.ack()
    assert found == [*range(12)]
    await asyncio.gather(*sends)


async def test_a_new_listener_comes_while_calls_are_under_way(messagers, pair):
    sender, receiver = pair
    gate = Gate(sender)
    gate.open.clear()
    sends = send_all(sender, [0], [1], [2])
    await until(lambda: asyncio.sleep(0, gate.under_way == 3))
    other = await messagers(listen=[sender.get_agent_chat_channel(1)])
    sends += send_all(sender, [3])
    gate.open.set()
    await asyncio.gather(*sends)
    for each in (receiver, other):
        assert [message.payload["n"] for message in await fetch_all(each, 4)] == [0, 1, 2, 3]


async def test_what_is_under_way_when_a_messager_is_killed_has_an_unknown_outcome(pair):
    sender, receiver = pair
    gate = Gate(sender)
    gate.open.clear()
    sends = send_all(sender, [0], [1], [2])
    await until(lambda: asyncio.sleep(0, gate.under_way == 3))
    await kill(sender)
    assert all(isinstance(each, OutcomeUnknown) for each in await asyncio.gather(*sends, return_exceptions=True))
    assert len(await receiver.fetch_messages()) == 0


async def test_sets_of_agents_that_new_routes_name_are_kept_before_frames_name_them(messagers, pair):
    sender, receiver = pair
    done = reroute_in_a_send(sender, lambda: messagers(host=[900]))
    await asyncio.gather(*send_all(sender, [0]))
    assert done == ["kept", "called"]
    assert [message.payload["n"] for message in await fetch_all(receiver, 1)] == [0]


# -- random faults ----------------------------------------------------------------------------------------------------


class Traffic:
    """Lanes that send numbered messages, each under an id of its own, and what was received of them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.told = defaultdict(dict)  # pair -> {number: what its sender was told}
        self.came = defaultdict(list)  # pair -> numbers

    async def run(self, sender, receivers, between=None):
        receiving = [asyncio.create_task(self._receive(each)) for each in receivers]
        async with asyncio.timeout(WAIT_S):
            lanes = [asyncio.create_task(self._lane(sender, lane)) for lane in range(LANES)]
            if between is not None:
                await between()
            await asyncio.gather(*lanes)
            await until(self._all_came)
        for each in receiving:
            each.cancel()
        await asyncio.gather(*receiving, return_exceptions=True)

    async def _lane(self, sender, lane):
        for _ in range(SENDS):
            rows = self.random.choice([1, 1, 2, 5])
            pairs = [(lane, self.random.choice(RECEIVERS)) for _ in range(rows)]
            numbers = []
            for pair in pairs:
                numbers.append(len(self.told[pair]))
                self.told[pair][numbers[-1]] = None
            try:
                receipts = await self._sent(sender, lane, pairs, numbers)
            except MessagingError as error:
                receipts = error.receipts or [None] * rows
                what = "unknown" if isinstance(error, OutcomeUnknown) else "unsent"
            for pair, n, receipt in zip(pairs, numbers, receipts, strict=True):
                self.told[pair][n] = what if receipt is None else receipt.fate

    async def _sent(self, sender, lane, pairs, numbers):
        if len(pairs) == 1 and self.random.random() < 0.5:
            channel = sender.get_agent_chat_channel(pairs[0][1])
            try:
                return [await sender.send_message(channel, {"n": numbers[0]}, lane)]
            except MessagingError as error:
                error.receipts = None
                raise
        return await sender.send_columns([lane] * len(pairs), [to for _, to in pairs], [{"n": n} for n in numbers])

    async def _receive(self, receiver):
        while True:
            for message in await receiver.fetch_messages(timeout=0.05):
                self.came[message.from_id, message.to_id].append(message.payload["n"])
            await receiver.ack()

    async def _all_came(self):
        return all(
            n in self.came[pair] for pair, told in self.told.items() for n, what in told.items() if what == "delivered"
        )

    def check(self):
        """Compare what came with what the senders were told."""
        for pair, numbers in self.came.items():
            assert numbers == sorted(set(numbers)), f"{pair} had {numbers}"
            assert {self.told[pair][n] for n in numbers} <= {"delivered", "unknown"}, (pair, self.told[pair], numbers)


@pytest.mark.one_server("the faults lie before the server")
@pytest.mark.parametrize("seed", seeds(16, 32, 200))
async def test_random_faults_of_calls(messagers, seed, caplog, request):
    if far := seed % 4 > 0:
        request.getfixturevalue("far")
    small = random.Random(seed).choice((5, 20, 10_000))
    receivers = [await messagers(host=[to], mailbox_messages=small) for to in RECEIVERS]
    sender = await messagers()
    faults, traffic = Faults(sender, seed), Traffic(seed)
    more = []

    async def change_the_directory():
        for _ in range(30):
            await asyncio.sleep(0)
        more.append(await messagers(host=[999 + seed]))

    await traffic.run(sender, receivers, change_the_directory if seed % 2 else None)
    await asyncio.gather(*faults.late, return_exceptions=True)
    for receiver in receivers:
        while found := await receiver.fetch_messages(timeout=0.05):
            for message in found:
                traffic.came[message.from_id, message.to_id].append(message.payload["n"])
            await receiver.ack()
    traffic.check()
    # A mailbox that is always full gets its messages one by one.
    assert not far or faults.most > 1 or small == 5
    assert "the server has lost messages" not in caplog.text


@pytest.mark.one_server("it cuts the link to one server")
@pytest.mark.parametrize("seed", seeds(6, 12, 40))
async def test_random_cuts_of_the_connection(server, opener, seed, caplog, request):
    if seed % 2:
        request.getfixturevalue("far")
    receivers = [await opener(server, host=[to]) for to in RECEIVERS]
    with Proxy(server, seed) as proxy:
        sender = await opener(proxy.config)
        proxy.lose_some(12, lambda: None)
        traffic = Traffic(seed)
        await traffic.run(sender, receivers)
        proxy.spare()
        assert {what for told in traffic.told.values() for what in told.values()} == {"delivered"}
        traffic.check()
        await sender.close()
    assert "the server has lost messages" not in caplog.text


@pytest.mark.parametrize("end", [Messager.flush, Messager.close], ids=["flush", "close"])
async def test_flush_and_close_wait_until_the_last_group_of_callers_has_its_receipts(pair, end):
    sender, _ = pair
    singles = [asyncio.create_task(sender.send(7, 1, {"n": n})) for n in range(12)]
    await asyncio.sleep(0)
    await end(sender)
    assert [single.done() for single in singles] == [True] * 12
