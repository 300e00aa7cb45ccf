"""A mailbox that two owners take: the later one has it, whatever arrives late."""

import pytest

from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.errors import Fenced
from ray_messaging.transports.cursors import Cursor
from ray_messaging.transports.transport_values import Conclusion, Limits


async def test_a_late_takeover_does_not_fence_the_next_owner(valkey_config, opener):
    one, two = [(await opener(valkey_config)).engine.transport for _ in range(2)]
    record = MailboxRecord("box", [], ["news"], [])

    async def take(transport):
        version = (await transport.load_directory(-1)).version
        limits = Limits(1000, 2**20, 60.0, leased=False)
        return (await transport.listen(record, version, limits, owner="", epoch=None)).epoch

    first = await take(one)
    assert await take(one) == first  # like a repeated attempt without a waiting caller
    await one.commit(Conclusion("box", first, Cursor("1-1", 0), 0, 0))
    second = await take(two)
    assert second > first
    with pytest.raises(Fenced):
        await one.commit(Conclusion("box", first, Cursor("1-2", 0), 0, 0))
    assert await take(one) > second
