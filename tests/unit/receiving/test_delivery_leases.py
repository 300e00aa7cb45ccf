"""Delivery leases: messages held for too long go to other callers, and the late caller gets an error."""

import asyncio

import pytest
from support.contracts import WAIT_S, fetch_all, numbers, send_numbers, vanish

from ray_messaging.errors import CommitFailed
from ray_messaging.receiving.ack_ranges import by_loan, spans_of
from ray_messaging.receiving.delivery_leases import DeliveryLeases, FetchOptions


@pytest.fixture
async def pair(messagers):
    return await messagers(), await messagers(name="group", host=[1])


def leases_of(messager, lease_s):
    return DeliveryLeases(messager.engine.fetcher, lease_s)


async def waiting(messager):
    return (await messager.engine.transport.waiting())["group"]


async def give_back(lending, token):
    _, late = await lending.give_back([(token, None)])
    if late is not None:
        raise late


async def test_a_late_ack_is_accepted_if_no_other_caller_has_the_messages(pair):
    sender, receiver = pair
    await send_numbers(sender, 1, 2)
    lending = leases_of(receiver, 0.0)  # each lease expires at once
    token, _ = await lending.fetch("late", None, None, WAIT_S)
    await give_back(lending, token)
    await give_back(lending, token)  # as Ray repeats calls
    assert await waiting(sender) == 0


async def test_an_ack_of_redelivered_messages_raises_and_names_how_many(pair):
    sender, receiver = pair
    await send_numbers(sender, *range(6))
    lending = leases_of(receiver, 0.0)
    first, _ = await lending.fetch("one", None, None, WAIT_S)
    second, messages = await lending.fetch("two", None, 2, WAIT_S)
    assert (numbers(messages), messages.more) == ([0, 1], True)
    says = r"6 messages of group 'group' could not be committed, .* MessagingConfig.loan_s=0 seconds, had passed"
    with pytest.raises(CommitFailed, match=says):
        await give_back(lending, first)
    assert await waiting(sender) == 6
    third, messages = await lending.fetch("three", None, None, WAIT_S)
    assert numbers(messages) == [0, 1]  # these have expired, too: the oldest is handed out first
    with pytest.raises(CommitFailed):
        await give_back(lending, second)
    await give_back(lending, third)
    assert await waiting(sender) == 4
    assert numbers((await lending.fetch("three", None, None, WAIT_S))[1]) == [2, 3, 4, 5]
    with pytest.raises(CommitFailed):
        await lending.fetch("one", first, None, 0.0)


async def test_a_caller_that_missed_an_answer_gets_it_again(pair):
    sender, receiver = pair
    await send_numbers(sender, *range(6))
    lending = leases_of(receiver, 60.0)
    _, held = await lending.fetch("one", None, 2, WAIT_S, FetchOptions("acked", number=1, received=0))
    token, lost = await lending.fetch("one", None, 2, WAIT_S, FetchOptions("acked", number=2, received=1))
    _, same = await lending.fetch("one", None, 2, WAIT_S, FetchOptions("acked", number=2, received=1))
    assert numbers(lost) == numbers(same)
    with pytest.raises(CommitFailed):
        await give_back(lending, token)
    _, rest = await lending.fetch("one", None, None, WAIT_S, FetchOptions("acked", number=3, received=2))
    assert [numbers(each) for each in (held, same, rest)] == [[0, 1], [2, 3], [4, 5]]


async def test_a_fetch_and_its_end_that_come_late_take_nothing_from_the_next_one(pair):
    """Ray runs the calls of an async actor out of order."""
    sender, receiver = pair
    lending = leases_of(receiver, 60.0)
    second = asyncio.create_task(lending.fetch("one", None, None, WAIT_S, FetchOptions(number=2)))
    await asyncio.sleep(0)
    _, none = await lending.fetch("one", None, None, WAIT_S, FetchOptions(number=1))
    assert not none
    await lending.abandon("three", received=0, number=1)  # its end came before it
    await send_numbers(sender, 1, 2)
    _, none = await lending.fetch("three", None, None, None, FetchOptions(number=1))
    assert not none
    token, messages = await second
    assert numbers(messages) == [1, 2]
    await lending.abandon("one", received=0, number=1)
    _, none = await lending.fetch("two", None, None, 0.0, FetchOptions(number=1))
    assert not none
    await give_back(lending, token)
    assert await waiting(sender) == 0


async def test_a_fetch_that_another_one_of_its_holder_follows_takes_nothing(pair):
    sender, receiver = pair
    lending = leases_of(receiver, 60.0)
    cancelled, second = (
        asyncio.create_task(lending.fetch("one", None, None, WAIT_S, FetchOptions(number=number))) for number in (1, 2)
    )
    await asyncio.sleep(0)
    await send_numbers(sender, 1, 2)
    await send_numbers(sender, 3, 4)
    token, messages = await second
    assert not (await cancelled)[1]
    assert numbers(messages)[0] == 1
    await give_back(lending, token)
    left_s = 0.0 if len(messages) == 4 else WAIT_S  # the reader may not have come to the last ones yet
    assert numbers(messages) + numbers((await lending.fetch("one", None, None, left_s))[1]) == [1, 2, 3, 4]


async def test_what_is_given_up_comes_at_once_and_before_newer_messages(pair):
    sender, receiver = pair
    lending = leases_of(receiver, 60.0)
    await send_numbers(sender, 1, 2)
    token, _ = await lending.fetch("one", None, None, WAIT_S)
    waiting = asyncio.create_task(lending.fetch("two", None, None, WAIT_S))
    await asyncio.sleep(0)
    await lending.give_up("one", token)
    await send_numbers(sender, 3)
    assert numbers((await waiting)[1]) == [1, 2]


async def test_the_rest_of_a_lost_answer_comes_before_newer_messages(pair):
    sender, receiver = pair
    lending = leases_of(receiver, 60.0)
    await send_numbers(sender, *range(4))
    await lending.fetch("one", None, None, WAIT_S, FetchOptions("acked", number=1, received=0))
    await send_numbers(sender, 4, 5)
    found = []
    for number in range(2, 5):
        options = FetchOptions("acked", number=number, received=number - 1 if number > 2 else 0)
        found += numbers((await lending.fetch("one", None, 2, WAIT_S, options))[1])
    assert found == list(range(6))


async def overtaken(sender, lending):
    """Let nobody await the answer of "one" with 0 and 1, after "two" has got 2 and 3; return the lease of "two"."""
    await send_numbers(sender, *range(4))
    await lending.fetch("one", None, 2, WAIT_S, FetchOptions(number=1))
    token, later = await lending.fetch("two", None, None, WAIT_S, FetchOptions(number=1))
    assert numbers(later) == [2, 3]
    await lending.abandon("one", received=0, number=1)
    return token


async def test_an_answer_that_nobody_awaited_goes_to_its_holder_before_one_that_has_had_later_messages(pair):
    sender, receiver = pair
    lending = leases_of(receiver, 60.0)
    token = await overtaken(sender, lending)
    assert (await lending.fetch("two", token, None, 0.0, FetchOptions(number=2)))[0] is None
    assert numbers((await lending.fetch("one", None, None, WAIT_S, FetchOptions(number=2)))[1]) == [0, 1]
    await lending.abandon("one", received=0, number=2)
    assert numbers((await lending.fetch("three", None, None, WAIT_S, FetchOptions(number=1)))[1]) == [0, 1]


async def test_an_answer_that_nobody_awaited_goes_to_any_caller_after_the_time_of_a_lease(pair):
    sender, receiver = pair
    lending = leases_of(receiver, 2.0)  # longer than a busy machine needs for the fetches of `overtaken`
    await give_back(lending, await overtaken(sender, lending))
    assert numbers((await lending.fetch("two", None, None, WAIT_S, FetchOptions(number=2)))[1]) == [0, 1]


async def test_rows_of_several_fetches_are_acknowledged_in_one_write(pair, messagers):
    sender, receiver = pair
    await send_numbers(sender, *range(6))
    lending = leases_of(receiver, 60.0)
    spans = []
    for number in (1, 2):
        token, found = await lending.fetch(
            "one", None, 3, WAIT_S, FetchOptions("acked", number=number, received=number - 1)
        )
        spans += [span._replace(loan=token) for span in spans_of(found[1:], "group")]
    over, failed = await lending.give_back(by_loan(spans))
    assert (over, failed) == ([], None)
    assert (lending.lent, await waiting(sender)) == (2, 2)
    await vanish(receiver)
    successor = await messagers(name="group", host=[1])
    assert numbers(await fetch_all(successor, 2)) == [0, 3]


async def test_foreign_messages_are_handed_out_once_with_explicit_acks(pair, store):
    _, receiver = pair
    lending = leases_of(receiver, 0.0)
    await store.publish(receiver.get_user_chat_channel(1), b'{"n":7}')
    _, messages = await lending.fetch("one", None, None, WAIT_S, FetchOptions("acked", number=1))
    assert numbers(messages) == [7]
    assert lending.lent == 0
    assert (await lending.fetch("two", None, None, 0.0))[0] is None
