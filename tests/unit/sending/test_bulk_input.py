"""Messages of bulk sends, before the first one is sent."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.addressing.channels import parse_channel
from ray_messaging.default_limits_and_leases import BATCH_BYTES, BATCH_ROWS
from ray_messaging.errors import MailboxFull, OutcomeUnknown
from ray_messaging.outgoing import Outgoing
from ray_messaging.sending.bulk_input import batches_of
from ray_messaging.sending.bulk_sender import join_receipts


def batches(messages):
    return batches_of(messages, lambda channel: parse_channel("e", channel), 2**26, None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([1, "x", None]), st.integers(0, 2))))
def test_batches_have_each_message_for_each_recipient_in_order(sent):
    messages = [
        Outgoing.to_agents([*range(copies)], {"n": number}, from_id, topic)
        for number, (topic, from_id, copies) in enumerate(sent)
    ]
    found = [
        (batch.topic_of(row), batch.from_ids[row], batch.to_ids[row], batch.lines.row(row))
        for batch in batches(messages)
        for row in range(batch.rows)
    ]
    assert found == [
        (topic, from_id, to_id, b'{"n":%d}' % number)
        for number, (topic, from_id, copies) in enumerate(sent)
        for to_id in range(copies)
    ]


def test_batches_keep_to_rows_and_bytes():
    many = Outgoing.to_agents(range(BATCH_ROWS + 1), {})
    assert [batch.rows for batch in batches([many, many])] == [BATCH_ROWS, 1, BATCH_ROWS, 1]
    large = [Outgoing.to_agent(1, {"t": "a" * (BATCH_BYTES // 2)})] * 6
    assert max(batch.lines.nbytes for batch in batches(large)) <= BATCH_BYTES + 100


async def test_one_unknown_part_makes_a_bulk_send_unknown():
    loop = asyncio.get_running_loop()
    full, unknown = loop.create_future(), loop.create_future()
    full.set_exception(MailboxFull("full", receipts=[None], message_ids=["a"]))
    unknown.set_exception(OutcomeUnknown("who knows", receipts=[None], message_ids=["b"]))
    with pytest.raises(OutcomeUnknown) as caught:
        await join_receipts([full, unknown], None, 3)
    assert (caught.value.receipts, caught.value.message_ids) == ([None] * 3, ["a", "b"])
