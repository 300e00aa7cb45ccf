"""What nobody will read is kept with its reason, within limits, and comes back once to those who listen."""

import asyncio
import time

import pytest
from support.contracts import WAIT_S, fetch_all, take_in, until, vanish

from ray_messaging.config import MessagingConfig
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.base import LOG, FrameWrite, LoggedFrame, SendRequest
from ray_messaging.transports.dead_letters import HEAD_BYTES, LETTER_BYTES, WHOLE_BYTES, Requeued, Returned, kept_of
from ray_messaging.transports.memory.dead_letters import MemoryDeadLetters
from ray_messaging.transports.memory.transport import MemoryTransport
from ray_messaging.transports.redis.dead_letters import RedisDeadLetters
from ray_messaging.transports.requeueing import Requeueing
from ray_messaging.wire.frames import decode

pytestmark = pytest.mark.beyond_mqtt("dead-letters")

GARBAGE = b"no frame at all"


@pytest.fixture
async def sender(messagers):
    return await messagers()


@pytest.fixture
def office(sender, exp_id):
    """Look after the dead letters of the server under test."""
    transport = sender.engine.transport
    store = (MemoryDeadLetters if isinstance(transport, MemoryTransport) else RedisDeadLetters)(transport)

    class Office:
        facts, page, get, drop = store.facts, store.page, store.get, store.drop

        async def letters(self):
            return await store.page("", 1000)

        async def requeue(self, letter):
            return await Requeueing(store, exp_id).requeue(letter)

        async def requeue_all(self):
            requeueing = Requeueing(store, exp_id)
            return [await requeueing.requeue(letter) for letter in await self.letters()]

        async def write(self, letter, mailbox, *frames, version=None):
            listeners = await store.listeners()
            returned = [Returned(mailbox, 1, frame) for frame in frames]
            return await store.requeue(letter.id, listeners.version if version is None else version, returned, b"")

        async def remove(self, mailbox):
            await transport.remove(mailbox, None)

    return Office()


async def send(sender, *to_ids, from_id=7):
    """Send one message to each, in one frame per mailbox; return their ids."""
    receipts = await sender.send_columns([from_id] * len(to_ids), list(to_ids), [{}] * len(to_ids))
    return [receipt.message_id for receipt in receipts]


def ids_of(messages):
    return [message.id for message in messages]


# -- what dies --------------------------------------------------------------------------------------------------------


async def test_what_a_mailbox_leaves_unread_says_whose_it_was_and_why(messagers, sender, office):
    receiver = await messagers(host=[1])
    sent = await send(sender, 1, 1, 1)
    await take_in(receiver, 3)
    await receiver.fetch_messages(limit=2)
    await receiver.close()
    (letter,) = await office.letters()
    assert (letter.mailbox, letter.reason, letter.row) == (receiver.name, "the mailbox was removed", 2)
    assert [decode(letter.frame).message_id(row) for row in range(3)] == sent
    assert (await office.get(letter.id)) == letter
    assert (await office.facts())[:3] == (1, len(letter.frame) + LETTER_BYTES, 0)


async def test_pages_follow_each_other(messagers, sender, office):
    receiver = await messagers(host=[1])
    for _ in range(5):
        await send(sender, 1)
    await receiver.close()
    first = await office.page("", 2)
    rest = await office.page(first[-1].id, 10)
    assert (len(first), len(rest), await office.page(rest[-1].id, 10)) == (2, 3, [])
    assert first + rest == await office.letters()


async def test_what_cannot_be_decoded_dies_once_however_often_its_reader_comes_back(messagers, sender, office, store):
    receiver = await messagers(name="group", host=[1])
    await store.write("group", GARBAGE)
    await send(sender, 1)
    await take_in(receiver, 1)
    await vanish(receiver)
    again = await messagers(name="group", host=[1])
    await take_in(again, 1)
    await vanish(again)
    await office.remove("group")
    garbage, frame = await office.letters()
    assert garbage.frame == GARBAGE
    assert "it does not begin with RM" in garbage.reason
    assert frame.reason == "the mailbox was removed"


async def test_a_note_that_the_log_cannot_read_dies_and_the_log_goes_on(
    messagers, sender, server, exp_id, office, tmp_path
):
    transport = open_transport(server, exp_id, MessagingConfig())
    writer = LogWriter(transport, Folder(tmp_path / "log"), exp_id)
    await writer.start()
    state = await transport.take_sender_epoch("hand", keep_s=60)
    version = (await transport.load_directory(-1)).version
    noted = LoggedFrame(GARBAGE, b"no note", 1)
    await transport.send(SendRequest("hand", state.epoch, version, -1, [FrameWrite(LOG, 1, 1, noted=noted)]))
    receiver = await messagers(name="group", host=[1])
    await send(sender, 1)
    async with asyncio.timeout(WAIT_S):
        await writer.caught_up()
    assert (writer.rows, writer.stats()["unreadable"], writer.error) == (1, 1, None)
    (letter,) = await office.letters()
    assert (letter.mailbox, letter.frame) == (LOG, GARBAGE)
    await writer.close()
    await transport.close()
    assert len(await fetch_all(receiver, 1)) == 1


async def test_no_letter_is_kept_of_a_mailbox_that_is_gone(messagers, sender, office, store):
    receiver = await messagers(name="group", host=[1])
    await vanish(receiver)
    await store.write("group", GARBAGE)
    await office.remove("group")
    await sender.engine.transport.bury("group", "1-0", GARBAGE, "a reader that is late")
    assert [one.reason for one in await office.letters()] == ["the mailbox was removed"]


async def test_the_oldest_are_dropped_and_counted_where_there_are_too_many(messagers, office, sender):
    receiver = await messagers(host=[1], dead_bytes=4000)
    sent = [(await sender.send_message(sender.get_agent_chat_channel(1), {})).message_id for _ in range(120)]
    await receiver.close()
    left = await office.letters()
    sizes = [len(one.frame) + LETTER_BYTES for one in left]
    assert [decode(one.frame).message_id(0) for one in left] == sent[-len(left) :]
    assert 4000 - max(sizes) < sum(sizes) <= 4000
    facts = await office.facts()
    assert facts[:3] == (len(left), sum(sizes), 120 - len(left))
    assert facts.dropped_bytes >= (120 - len(left)) * min(sizes) - 120 * 4  # ids of few digits take less


async def test_one_that_is_above_the_limit_leaves_the_others_and_its_reason(messagers, office, sender):
    receiver = await messagers(host=[1], dead_bytes=4000)
    channel = sender.get_agent_chat_channel(1)
    first = (await sender.send_message(channel, {})).message_id
    await sender.send_message(channel, {"content": "x" * 5000})
    await receiver.close()
    small, large = await office.letters()
    assert decode(small.frame).message_id(0) == first
    assert large.frame == b""
    assert large.reason.startswith("the mailbox was removed (its frame of 5")
    facts = await office.facts()
    assert facts[:3] == (2, len(small.frame) + 2 * LETTER_BYTES, 1)
    assert facts.dropped_bytes > 5000
    assert "cannot be decoded" in (await office.requeue(large)).why


def test_of_a_huge_frame_that_cannot_be_decoded_its_beginning_is_kept():
    assert kept_of(GARBAGE, "why") == (GARBAGE, "why")
    huge = bytes(WHOLE_BYTES + 1)
    assert kept_of(huge, "why") == (huge[:HEAD_BYTES], f"why (of its {len(huge)} bytes the first 1024 are kept)")


# -- what comes back ---------------------------------------------------------------------------------------------------


async def test_messages_come_back_once_under_their_ids_but_for_those_that_were_handled(messagers, sender, office):
    old = await messagers(host=[1])
    sent = await send(sender, 1, 1, 1)
    await take_in(old, 3)
    await old.fetch_messages(limit=1)
    await old.close()
    new = await messagers(name="new", host=[1])
    (letter,) = await office.letters()
    assert await office.requeue(letter) == (2, 0, "", False)
    assert await office.requeue(letter) == (0, 0, "it is not there any more", False)
    more = await send(sender, 1)
    found = await fetch_all(new, 3)
    assert ids_of(found) == sent[1:] + more
    assert (await office.facts())[:2] == (0, 0)


async def test_agents_that_moved_get_theirs_where_they_are_now(messagers, sender, office):
    old = await messagers(host=[1, 2, 3])
    sent = await send(sender, 1, 2, 3, 1)
    await old.close()
    west, east = await messagers(name="west", host=[1]), await messagers(name="east", host=[2, 3])
    assert await office.requeue_all() == [(4, 0, "", False)]
    assert ids_of(await fetch_all(west, 2)) == [sent[0], sent[3]]
    assert ids_of(await fetch_all(east, 2)) == sent[1:3]


async def test_a_group_that_was_there_takes_the_agents_of_one_that_left(messagers, sender, office):
    stays = await messagers(name="stays", host=[2])
    leaves = await messagers(host=[1])
    sent = await send(sender, 1, 2)
    await leaves.close()
    await stays.host_agents([1], ["agent-chat"])
    assert await office.requeue_all() == [(1, 0, "", False)]
    assert sorted(ids_of(await fetch_all(stays, 2))) == sorted(sent)


async def test_what_nobody_listens_for_stays_dead_by_itself(messagers, sender, office):
    old = await messagers(host=[1, 2])
    sent = await send(sender, 1, 2)
    await old.close()
    (letter,) = await office.letters()
    assert (await office.requeue(letter))[:2] == (0, 2)
    assert await office.letters() == [letter]
    one = await messagers(name="one", host=[1])
    assert (await office.requeue(letter))[:2] == (1, 1)
    assert ids_of(await fetch_all(one, 1)) == sent[:1]
    (rest,) = await office.letters()
    assert (rest.mailbox, rest.reason, rest.row) == (letter.mailbox, letter.reason, 0)
    assert abs(rest.at - letter.at) < 0.002
    two = await messagers(name="two", host=[2])
    assert await office.requeue(rest) == (1, 0, "", False)
    assert ids_of(await fetch_all(two, 1)) == sent[1:]
    assert (await office.facts())[:2] == (0, 0)


async def test_who_had_a_copy_of_its_own_gets_none_again(messagers, sender, office):
    stays, leaves = await messagers(listen=["news"]), await messagers(listen=["news"])
    receipt = await sender.send_message("news", {"n": 1})
    assert len(await fetch_all(stays, 1)) == 1
    await leaves.close()
    (outcome,) = await office.requeue_all()
    assert outcome[:2] == (0, 1)
    assert "may have these messages already" in outcome.why
    comes = await messagers(listen=["news"])
    assert await office.requeue_all() == [(1, 0, "", False)]
    assert ids_of(await fetch_all(comes, 1)) == [receipt.message_id]
    assert not await stays.fetch_messages()


async def test_who_came_while_the_dead_one_was_not_missed_gets_what_it_has_not(messagers, sender, office, store):
    old = await messagers(listen=["news"])
    before = await sender.send_message("news", {"n": 1})
    await take_in(old, 1)
    await vanish(old)
    await until(_the_next_ms())
    new = await messagers(listen=["news"])  # a process that was started again, while the lease still runs
    await until(_the_next_ms())
    both = await sender.send_message("news", {"n": 2})
    await store.expire(old.name)
    await sender.send_message("news", {"n": 3})
    found = ids_of(await fetch_all(new, 2))
    assert found[0] == both.message_id
    assert [outcome[:2] for outcome in await office.requeue_all()] == [(1, 0), (0, 1)]
    assert ids_of(await fetch_all(new, 1)) == [before.message_id]
    assert not await new.fetch_messages()


def _the_next_ms():
    begin = time.time()

    async def passed():
        return time.time() > begin + 0.002

    return passed


async def test_a_mailbox_that_is_full_takes_none_of_a_letter(messagers, sender, office, store):
    old = await messagers(host=[1])
    sent = await send(sender, *[1] * 4)
    await old.close()
    new = await messagers(name="new", host=[1], mailbox_messages=5)
    await send(sender, 1)
    await send(sender, 1)
    await take_in(new, 2)
    (letter,) = await office.letters()
    outcome = await office.requeue(letter)
    assert (outcome.messages, outcome.left, outcome.full) == (0, 4, True)
    assert "'new' has no room" in outcome.why
    assert (await office.letters(), await store.waiting("new")) == ([letter], 2)
    await fetch_all(new, 2)
    await new.ack()
    assert (await office.requeue(letter))[:2] == (4, 0)  # in frames of one row, as this mailbox takes them
    assert ids_of(await fetch_all(new, 4)) == sent
    await new.ack()
    assert await store.waiting("new") == 0


async def test_a_letter_goes_only_by_the_directory_it_was_cut_for(messagers, sender, office):
    old = await messagers(host=[1])
    await send(sender, 1)
    await old.close()
    await messagers(name="new", host=[1])
    (letter,) = await office.letters()
    assert (await office.write(letter, "new", letter.frame, version=0))[0] is Requeued.STALE_DIRECTORY
    assert (await office.write(letter, "nowhere", letter.frame))[0] is Requeued.STALE_DIRECTORY
    assert await office.write(letter, "new", letter.frame) == (Requeued.DONE, "")


async def test_what_cannot_be_decoded_stays_until_it_is_dropped(messagers, office, store):
    receiver = await messagers(name="group", host=[1])
    await store.write("group", GARBAGE)

    async def dead():
        return await office.letters()

    await until(dead)
    (letter,) = await office.letters()
    outcome = await office.requeue(letter)
    assert (outcome.messages, outcome.left) == (0, 0)
    assert "cannot be decoded" in outcome.why
    assert await office.drop([letter.id, "1-1", letter.id]) == 1
    assert (await office.facts())[:2] == (0, 0)
    await receiver.close()


async def test_the_log_has_what_comes_back_already(messagers, sender, office):
    old = await messagers(host=[1])
    await send(sender, 1, 1)
    await old.close()
    new = await messagers(name="new", host=[1])
    await office.requeue_all()
    found = await new.fetch_messages(timeout=5)
    assert [part.batch.noted.tolist() for part in found.slices] == [[0, 1]]  # the rows that its writer leaves out
