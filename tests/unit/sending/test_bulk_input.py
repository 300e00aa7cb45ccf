"""Messages of bulk sends, before the first one is sent."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.default_limits_and_leases import BATCH_BYTES
from ray_messaging.errors import MailboxFull, OutcomeUnknown
from ray_messaging.sending.bulk_input import payloads_of
from ray_messaging.sending.bulk_sender import join_receipts
from ray_messaging.sending.pending_batch import Entry


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, "x", None]), st.integers(0, 2))))
def test_payloads_are_checked_in_their_order(sent):
    entries = [
        Entry(from_id, [1] * copies, topic, b'{"n":%d}' % number)
        for number, (topic, from_id, copies) in enumerate(sent)
    ]
    found = [
        (batch.topic_of(row), batch.from_ids[row], batch.lines.row(row))
        for batch in payloads_of(entries)
        for row in range(batch.rows)
    ]
    assert found == [(entry.topic, entry.from_id, entry.line) for entry in entries]


def test_payloads_of_one_topic_are_checked_together():
    assert [batch.rows for batch in payloads_of([Entry(1, [2], "a", b"{}")] * 5_000)] == [5_000]
    large = [Entry(1, [2], "a", b'"%s"' % (b"a" * (BATCH_BYTES // 2)))] * 6
    assert max(batch.lines.nbytes for batch in payloads_of(large)) <= 2 * BATCH_BYTES


async def test_one_unknown_part_makes_a_bulk_send_unknown():
    loop = asyncio.get_running_loop()
    full, unknown = loop.create_future(), loop.create_future()
    full.set_exception(MailboxFull("full", receipts=[None], message_ids=["a"]))
    unknown.set_exception(OutcomeUnknown("who knows", receipts=[None], message_ids=["b"]))
    with pytest.raises(OutcomeUnknown) as caught:
        await join_receipts([full, unknown], None, 3)
    assert (caught.value.receipts, caught.value.message_ids) == ([None] * 3, ["a", "b"])
