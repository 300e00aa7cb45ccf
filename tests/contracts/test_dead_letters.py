"""Dead letters: unread messages are kept with a reason, within limits, and are requeued once to present listeners."""

import time

import numpy as np
import pytest
from support.contracts import LETTER_BYTES, WAIT_S, fetch_all, take_in, until, vanish
from support.server_side import Letters, remove_mailbox
from support.typed_tables import all_typed

from ray_messaging import columns
from ray_messaging.wire.frames import decode

GARBAGE = b"no frame at all"


@pytest.fixture
async def sender(messagers):
    return await messagers()


@pytest.fixture
def dead_letters(sender):
    return Letters(sender)


async def send(sender, *to_ids, from_id=7):
    """Send one message to each recipient, one frame per mailbox; return their ids."""
    receipts = await sender.send_columns([from_id] * len(to_ids), list(to_ids), [{}] * len(to_ids))
    return [receipt.message_id for receipt in receipts]


def ids_of(messages):
    return [message.id for message in messages]


# -- what becomes a dead letter ---------------------------------------------------------------------------------------


async def test_unread_messages_of_a_removed_mailbox_have_its_name_and_the_reason(messagers, sender, dead_letters):
    receiver = await messagers(host=[1])
    sent = await send(sender, 1, 1, 1)
    await take_in(receiver, 3)
    await receiver.fetch_messages(limit=2)
    await receiver.close()
    (letter,) = await dead_letters.letters()
    assert (letter.mailbox, letter.reason, letter.row) == (receiver.name, "the mailbox was removed", 2)
    assert [decode(letter.frame).message_id(row) for row in range(3)] == sent
    assert (await dead_letters.get(letter.id)) == letter
    assert (await dead_letters.facts())[:3] == (1, len(letter.frame) + LETTER_BYTES, 0)


async def test_letters_are_listed_page_by_page(messagers, sender, dead_letters):
    receiver = await messagers(host=[1])
    for _ in range(5):
        await send(sender, 1)
    await receiver.close()
    first = await dead_letters.page("", 2)
    rest = await dead_letters.page(first[-1].id, 10)
    assert (len(first), len(rest), await dead_letters.page(rest[-1].id, 10)) == (2, 3, [])
    assert first + rest == await dead_letters.letters()


async def test_an_unreadable_frame_becomes_one_letter_over_reader_restarts(messagers, sender, dead_letters, store):
    receiver = await messagers(name="group", host=[1])
    await store.write("group", GARBAGE)
    await send(sender, 1)
    await take_in(receiver, 1)
    await vanish(receiver)
    again = await messagers(name="group", host=[1])
    await take_in(again, 1)
    await vanish(again)
    await remove_mailbox(sender, "group")
    garbage, frame = await dead_letters.letters()
    assert garbage.frame == GARBAGE
    assert "the frame does not begin with the letters RM" in garbage.reason
    assert frame.reason == "the mailbox was removed"


async def test_above_the_limit_the_oldest_letters_are_dropped_and_counted(messagers, dead_letters, sender):
    receiver = await messagers(host=[1], dead_bytes=4000)
    sent = [(await sender.send_message(sender.get_agent_chat_channel(1), {})).message_id for _ in range(120)]
    await receiver.close()
    left = await dead_letters.letters()
    sizes = [len(one.frame) + LETTER_BYTES for one in left]
    assert [decode(one.frame).message_id(0) for one in left] == sent[-len(left) :]
    assert 4000 - max(sizes) < sum(sizes) <= 4000
    facts = await dead_letters.facts()
    assert facts[:3] == (len(left), sum(sizes), 120 - len(left))
    assert facts.dropped_bytes >= (120 - len(left)) * min(sizes) - 120 * 4  # ids of few digits take less


async def test_a_letter_above_the_limit_keeps_only_its_reason(messagers, dead_letters, sender):
    receiver = await messagers(host=[1], dead_bytes=4000)
    first = (await sender.send(None, 1, {})).message_id
    await sender.send(None, 1, {"content": "x" * 5000})
    await receiver.close()
    small, large = await dead_letters.letters()
    assert decode(small.frame).message_id(0) == first
    assert large.frame == b""
    assert large.reason.startswith("the mailbox was removed (its frame of 5")
    facts = await dead_letters.facts()
    assert facts[:3] == (2, len(small.frame) + 2 * LETTER_BYTES, 1)
    assert facts.dropped_bytes > 5000
    assert "cannot be decoded" in (await dead_letters.move(large)).why


# -- requeueing --------------------------------------------------------------------------------------------------------


async def test_unhandled_messages_are_requeued_once_with_their_ids(messagers, sender, dead_letters):
    old = await messagers(host=[1])
    sent = await send(sender, 1, 1, 1)
    await take_in(old, 3)
    await old.fetch_messages(limit=1)
    await old.close()
    new = await messagers(name="new", host=[1])
    (letter,) = await dead_letters.letters()
    assert await dead_letters.move(letter) == (2, 0, "", False)
    assert await dead_letters.move(letter) == (0, 0, "it is not there any more", False)
    await take_in(new, 2)
    found = await new.fetch_messages()
    assert ids_of(found) == sent[1:]
    assert [part.batch.noted.tolist() for part in found.slices] == [[0, 1]]  # the log has them: its writer skips these
    more = await send(sender, 1)
    assert ids_of(await fetch_all(new, 1)) == more
    assert (await dead_letters.facts())[:2] == (0, 0)


async def test_typed_columns_are_requeued_as_they_were_sent(messagers, sender, dead_letters):
    old = await messagers(host=[1, 2])
    sent = columns(price=np.array([0.5, 1.5, 2.5, 3.5]), name=["a", "b", "ü", ""])
    receipts = await sender.send_columns(7, [1, 2, 1, 2], sent)
    await take_in(old, 4)
    await old.fetch_messages(limit=1)
    await old.close()
    (letter,) = await dead_letters.letters()
    assert decode(letter.frame).column("price").tolist() == [0.5, 1.5, 2.5, 3.5]
    west, east = await messagers(name="west", host=[1]), await messagers(name="east", host=[2])
    assert await dead_letters.move(letter) == (3, 0, "", False)  # in parts, each of them typed
    for receiver, rows in ((west, [2]), (east, [1, 3])):
        messages = await receiver.fetch_messages(timeout=WAIT_S)
        assert all_typed(messages)
        assert ids_of(messages) == [receipts[row].message_id for row in rows]
        assert messages.column("price").tolist() == [0.5 + row for row in rows]
        assert messages.column("name").tolist() == [["a", "b", "ü", ""][row] for row in rows]


async def test_an_older_group_that_has_a_copy_by_a_pattern_gets_no_second_one(messagers, sender, dead_letters, exp_id):
    listens = await messagers(name="listens", host=[3], listen=[f"exps:{exp_id}:agents:1:*"])
    leaves = await messagers(host=[1, 2])
    sent = await send(sender, 1, 2)
    assert ids_of(await fetch_all(listens, 1)) == sent[:1]
    await leaves.close()
    await listens.host_agents([1, 2], ["agent-chat"])
    (outcome,) = await dead_letters.move_all()
    assert outcome[:2] == (1, 1)
    assert ids_of(await fetch_all(listens, 1)) == sent[1:]
    assert not await listens.fetch_messages()


async def test_messages_without_a_listener_remain_in_a_letter_of_their_own(messagers, sender, dead_letters):
    old = await messagers(host=[1, 2])
    sent = await send(sender, 1, 2)
    await old.close()
    (letter,) = await dead_letters.letters()
    assert (await dead_letters.move(letter))[:2] == (0, 2)
    assert await dead_letters.letters() == [letter]
    one = await messagers(name="one", host=[1])
    assert (await dead_letters.move(letter))[:2] == (1, 1)
    assert ids_of(await fetch_all(one, 1)) == sent[:1]
    (rest,) = await dead_letters.letters()
    assert (rest.mailbox, rest.reason, rest.row) == (letter.mailbox, letter.reason, 0)
    assert abs(rest.at - letter.at) < 0.002
    two = await messagers(name="two", host=[2])
    assert await dead_letters.move(rest) == (1, 0, "", False)
    assert ids_of(await fetch_all(two, 1)) == sent[1:]
    assert (await dead_letters.facts())[:2] == (0, 0)


async def test_a_mailbox_with_its_own_copy_gets_no_second_one(messagers, sender, dead_letters):
    stays, leaves = await messagers(listen=["news"]), await messagers(listen=["news"])
    receipt = await sender.send_message("news", {"n": 1})
    assert len(await fetch_all(stays, 1)) == 1
    await leaves.close()
    (outcome,) = await dead_letters.move_all()
    assert outcome[:2] == (0, 1)
    assert "may have these messages already" in outcome.why
    comes = await messagers(listen=["news"])
    assert await dead_letters.move_all() == [(1, 0, "", False)]
    assert ids_of(await fetch_all(comes, 1)) == [receipt.message_id]
    assert not await stays.fetch_messages()


async def test_a_mailbox_opened_before_the_lease_expired_gets_the_missing_messages(
    messagers, sender, dead_letters, store
):
    old = await messagers(listen=["news"])
    before = await sender.send_message("news", {"n": 1})
    await take_in(old, 1)
    await vanish(old)
    await _the_next_ms()
    new = await messagers(listen=["news"])  # a process that was started again, while the lease still runs
    await _the_next_ms()
    both = await sender.send_message("news", {"n": 2})
    await store.expire(old.name)
    await sender.send_message("news", {"n": 3})
    found = ids_of(await fetch_all(new, 2))
    assert found[0] == both.message_id
    assert [outcome[:2] for outcome in await dead_letters.move_all()] == [(1, 0), (0, 1)]
    assert ids_of(await fetch_all(new, 1)) == [before.message_id]
    assert not await new.fetch_messages()


async def _the_next_ms():
    begin = time.time()
    await until(lambda: time.time() > begin + 0.002)


async def test_a_full_mailbox_takes_no_part_of_a_letter(messagers, sender, dead_letters, store):
    old = await messagers(host=[1])
    sent = await send(sender, *[1] * 4)
    await old.close()
    new = await messagers(name="new", host=[1], mailbox_messages=5)
    await send(sender, 1)
    await send(sender, 1)
    await take_in(new, 2)
    (letter,) = await dead_letters.letters()
    outcome = await dead_letters.move(letter)
    assert (outcome.messages, outcome.left, outcome.full) == (0, 4, True)
    assert "'new' has no room" in outcome.why
    assert (await dead_letters.letters(), await store.waiting("new")) == ([letter], 2)
    await fetch_all(new, 2)
    await new.ack()
    assert (await dead_letters.move(letter))[:2] == (4, 0)  # in frames of one row, which this mailbox accepts
    assert ids_of(await fetch_all(new, 4)) == sent
    await new.ack()
    assert await store.waiting("new") == 0
