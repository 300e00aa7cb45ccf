"""Dead letters on the server: how much of a frame is kept, and requests that come too late."""

import asyncio

import pytest
from support.contracts import fetch_all, vanish
from support.log_writing import begin_log
from support.patience import WAIT_S
from support.server_side import Letters, remove_mailbox

from ray_messaging.transports.dead_letter_store import HEAD_BYTES, WHOLE_BYTES, Requeued, Returned, kept_of
from ray_messaging.transports.transport_values import LOG, FrameWrite, LoggedFrame, SendRequest

GARBAGE = b"no frame at all"


@pytest.fixture
async def sender(messagers):
    return await messagers()


@pytest.fixture
def dead_letters(sender):
    return Letters(sender)


async def test_an_unreadable_log_note_becomes_a_letter_and_the_log_continues(
    messagers, sender, transports, exp_id, dead_letters, tmp_path
):
    transport = await transports()
    writer = await begin_log(transport, tmp_path / "log", exp_id)
    state = await transport.take_sender_epoch("hand", keep_s=60)
    version = (await transport.load_directory(-1)).version
    noted = LoggedFrame(GARBAGE, b"no note", 1)
    await transport.send(SendRequest("hand", state.epoch, version, -1, [FrameWrite(LOG, 1, 1, noted=noted)]))
    receiver = await messagers(name="group", host=[1])
    await sender.send(None, 1, {})
    await asyncio.wait_for(writer.caught_up(), WAIT_S)
    assert (writer.rows, writer.stats()["unreadable"], writer.error) == (1, 1, None)
    (letter,) = await dead_letters.letters()
    assert (letter.mailbox, letter.frame) == (LOG, GARBAGE)
    await writer.close()
    assert len(await fetch_all(receiver, 1)) == 1


def test_of_a_huge_unreadable_frame_the_beginning_is_kept():
    assert kept_of(GARBAGE, "why") == (GARBAGE, "why")
    huge = bytes(WHOLE_BYTES + 1)
    assert kept_of(huge, "why") == (huge[:HEAD_BYTES], f"why (of its {len(huge)} bytes the first 1024 are kept)")


async def test_a_letter_is_not_requeued_with_an_outdated_directory(messagers, sender, dead_letters):
    old = await messagers(host=[1])
    await sender.send(None, 1, {})
    await old.close()
    await messagers(name="new", host=[1])
    (letter,) = await dead_letters.letters()
    version = (await dead_letters.listeners()).version
    for known, mailbox, outcome in (
        (0, "new", Requeued.STALE_DIRECTORY),
        (version, "nowhere", Requeued.STALE_DIRECTORY),
        (version, "new", Requeued.DONE),
    ):
        returned = [Returned(mailbox, 1, letter.frame)]
        assert (await dead_letters.requeue(letter.id, known, returned, b""))[0] is outcome


async def test_a_late_reader_of_a_removed_mailbox_writes_no_letter(messagers, sender, dead_letters, store):
    receiver = await messagers(name="group", host=[1])
    await vanish(receiver)
    await store.write("group", GARBAGE)
    await remove_mailbox(sender, "group")
    await sender.engine.transport.bury("group", "1-0", GARBAGE, "a reader that is late")
    assert [one.reason for one in await dead_letters.letters()] == ["the mailbox was removed"]
