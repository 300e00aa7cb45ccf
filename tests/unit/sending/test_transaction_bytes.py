"""The limit of what a transaction sends, with the copy for the log."""

import pytest

from ray_messaging.errors import PayloadTooLarge
from ray_messaging.sending import transaction_sender


async def test_a_transaction_is_bounded_in_bytes_with_the_copy_for_the_log(messagers, monkeypatch):
    bank, shop = await messagers(name="bank", host=[1]), await messagers(host=[2])
    monkeypatch.setattr(transaction_sender, "TRANSACTION_BYTES", 1000)
    with pytest.raises(PayloadTooLarge, match="copy"):
        async with bank.transaction() as tx:
            tx.send_message(bank.get_agent_chat_channel(2), {"n": "x" * 1000})
    assert (await bank.send_message(bank.get_agent_chat_channel(2), {"n": 1})).fate == "delivered"
    assert [message.payload for message in await shop.fetch_messages(timeout=10)] == [{"n": 1}]
