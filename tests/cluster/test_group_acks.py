"""Acknowledgements by a group's handles: committed despite messages held by others; late ones raise."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
from support.cluster import EmptyGroups, drain, kill_and_wait, new_handle, numbered, numbers, wait_for

from ray_messaging.errors import CommitFailed, ConfigError, FetchTooLarge


@pytest.fixture(scope="module")
def hasty_groups(hasty):
    return EmptyGroups(hasty)


@pytest.fixture
def group(hasty_groups):
    """Give a new handle of a group with short delivery leases and an empty mailbox."""
    return hasty_groups.give("hasty")


def fill(group, count, start=0):
    sender, receiver = group.agents[:2]
    return group.send_columns([sender] * count, [receiver] * count, numbered(count, start))


def expired(group):
    """Wait until a new handle gets the messages of another one; return the handle and them."""
    thief = new_handle(group)
    return thief, wait_for(lambda: thief.fetch_messages(timeout=1.0), "the end of the loan")


# -- durably -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["next", "acked"])
def test_a_with_block_commits_although_another_handle_holds_earlier_messages(messaging, pair, commit):
    west, _ = pair
    fill(west, 4)
    holder, other = new_handle(west), new_handle(west)
    held = holder.fetch_messages(limit=1, timeout=60)
    with other.fetch_messages(timeout=60, commit=commit) as messages:
        assert numbers(messages) == [1, 2, 3]
    assert messaging.stats()["waiting"][west.name] == 1
    kill_and_wait(west.actor)
    with new_handle(west).fetch_messages(timeout=60) as messages:
        assert numbers(messages) == numbers(held) == [0]


@pytest.mark.long
def test_messages_held_over_a_restart_can_be_acknowledged(pair):
    west, _ = pair
    fill(west, 6)
    first, second, third = (new_handle(west) for _ in range(3))
    held = [numbers(each.fetch_messages(limit=2, timeout=60)) for each in (first, second)]
    rest = third.fetch_messages(timeout=60, commit="acked")
    assert [*held, numbers(rest)] == [[0, 1], [2, 3], [4, 5]]
    kill_and_wait(west.actor)
    second.ack()  # behind the first handle's messages
    second.ack()
    third.ack(rest[1])
    kill_and_wait(west.actor)
    assert numbers(new_handle(west).fetch_messages(timeout=60, complete=True)) == [0, 1, 4]


@pytest.mark.long
def test_an_ack_of_messages_redelivered_after_a_restart_raises(pair):
    west, _ = pair
    fill(west, 2)
    holder = new_handle(west)
    holder.fetch_messages(timeout=60)
    kill_and_wait(west.actor)
    assert numbers(new_handle(west).fetch_messages(timeout=60)) == [0, 1]
    with pytest.raises(CommitFailed, match="2 messages of group"):
        holder.ack()


def test_handlers_in_threads_each_acknowledge_their_own_message(messaging, pair):
    west, _ = pair
    fill(west, 40)
    handle = new_handle(west)
    held = [handle.fetch_messages(limit=5, timeout=60, commit="acked") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(handle.ack, [message for messages in reversed(held) for message in messages]))
    assert messaging.stats()["waiting"][west.name] == 0
    assert west.stats()["lent"] == 0
    handle.ack()
    assert len(handle._calls._unacked) == 0


def test_a_fetch_of_another_thread_at_the_end_of_a_with_block_gets_other_messages(messaging, pair, monkeypatch):
    west, _ = pair
    fill(west, 2)
    handle = new_handle(west)
    ack, between = handle._calls._ack, []

    async def ack_later(loans):
        between.append(numbers(await handle._calls.fetch_messages(timeout=60)))
        await ack(loans)

    with handle.fetch_messages(limit=1, timeout=60) as messages:
        assert numbers(messages) == [0]
        monkeypatch.setattr(handle._calls, "_ack", ack_later)
    monkeypatch.undo()
    assert between == [[1]]
    handle.ack()
    assert messaging.stats()["waiting"][west.name] == 0


def test_a_fetch_of_another_thread_commits_no_messages_that_are_given_up(pair, monkeypatch):
    west, _ = pair
    fill(west, 1)
    handle = new_handle(west)
    insist, between = handle._calls._insist, []

    async def give_up_first(call):
        monkeypatch.undo()
        result = await insist(call)
        between.append(numbers(await handle._calls.fetch_messages(timeout=60)))
        return result

    held = handle.fetch_messages(timeout=60)
    monkeypatch.setattr(handle._calls, "_insist", give_up_first)
    with pytest.raises(ZeroDivisionError), held:
        raise ZeroDivisionError
    assert between == [[0]]
    handle.ack()


def test_messages_of_another_group_are_not_acknowledged(pair):
    west, east = pair
    fill(west, 1)
    [message] = west.fetch_messages(timeout=60)
    with pytest.raises(ConfigError, match="has fetched it"):
        east.ack(message)
    west.ack(message)


# -- too late ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_an_ack_of_redelivered_messages_of_a_group_raises(hasty, group):
    fill(group, 3)
    holder = new_handle(group)
    holder.fetch_messages(timeout=60)
    thief, again = expired(group)
    assert numbers(again) == [0, 1, 2]
    # On a busy machine another handle may have lost messages, too, which has a finding of its own.
    told = [each.value for each in hasty.health().findings if each.what == f"group {group.name!r}: commits"]
    assert any(f"of process {os.getpid()}" in one and "3 messages were delivered again" in one for one in told)
    with pytest.raises(CommitFailed, match="3 messages of group") as caught:
        holder.ack()
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.group, error.messages, error.loan_s) == (group.name, 3, 0.5)
    assert error.held_s >= 0.5
    thief.ack()
    holder.ack()  # it holds no more messages
    assert hasty.stats()["waiting"][group.name] == 0


@pytest.mark.long
def test_a_with_block_that_lasts_too_long_and_the_next_fetch_raise(group):
    fill(group, 3)
    with pytest.raises(CommitFailed, match="3 messages of group"), new_handle(group).fetch_messages(timeout=60):
        holder, _ = expired(group)
    thief, _ = expired(group)
    with pytest.raises(CommitFailed):
        holder.fetch_messages()
    assert len(holder.fetch_messages()) == 0
    thief.ack()


# -- completely ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_complete_fetch_has_all_that_was_delivered_and_given_up_by_others(hasty, make_group):
    group = make_group(hasty)
    for low in range(0, 400, 20):
        fill(group, 20, start=low)
    holder = new_handle(group)
    assert holder.fetch_messages(limit=2, timeout=60).more
    holder.give_up()
    with group.fetch_messages(complete=True) as messages:
        assert numbers(messages) == list(range(400))
        assert not messages.more
    for low in range(0, 600, 20):
        fill(group, 20, start=low)
    with pytest.raises(FetchTooLarge, match="600 messages"):
        group.fetch_messages(complete=True)
    assert numbers(drain(group, 600)) == list(range(600))


def test_a_task_acknowledges_messages_fetched_by_the_driver(messaging, pair):
    west, _ = pair
    fill(west, 2)
    messages = west.fetch_messages(timeout=60, commit="acked")

    @ray.remote(num_cpus=0)
    def handle(group, some):
        group.ack(some)
        return numbers(some)

    assert ray.get(handle.remote(west, messages)) == [0, 1]
    assert messaging.stats()["waiting"][west.name] == 0
