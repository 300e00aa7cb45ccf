"""Leases of others: expired after no change for their length, by the watching messager's clock."""

import pytest

from ray_messaging.errors import AlreadyExists
from ray_messaging.receiving import mailbox_lease as leases
from ray_messaging.receiving.mailbox_lease import LeaseWatch, outlast
from ray_messaging.transports.transport_values import HeldMailbox


class Server:
    """A server with a lease."""

    def __init__(self, name):
        self.kept, self.ended = {name: "1:30000:0"}, []

    async def leases(self, _mailboxes):
        return dict(self.kept)

    async def end_leases(self, over):
        self.ended += over


@pytest.mark.parametrize(
    ("name", "looks", "over"),
    [
        pytest.param("dead", (0, 10, 10), [], id="before its end"),
        pytest.param("dead", (0, 10, 10, 10), ["dead"], id="at its end"),
        pytest.param("alive", (0, 10, 10, "beat", 10, 10, 10), [], id="a beat begins the count anew"),
        pytest.param("alive", (0, 10, 3600), [], id="an outage: nobody could renew it, or see that it was"),
        pytest.param("alive", (0, 10, "beat", 10, 3600, 10), [], id="a standstill"),
        pytest.param("me", (0, 10, 10, 10, 10), [], id="its own"),
    ],
)
async def test_a_lease_that_stays_as_it_is_for_as_long_as_it_lasts_is_over(monkeypatch, name, looks, over):
    server, passed = Server(name), [100.0]
    watch = LeaseWatch(server, "me")
    monkeypatch.setattr(leases, "monotonic", lambda: sum(passed))
    for look in looks:
        if look == "beat":
            server.kept[name] = "2:30000:0"
        else:
            passed.append(look)
            await watch.look()
    assert server.ended == over


async def test_the_lease_of_an_owner_known_to_be_dead_is_not_awaited():
    async def gone(owner):
        return owner == "dead"

    server = Server("group")
    assert await outlast(server, "group", HeldMailbox("dead", "1:30000:0", overdue=False), gone) == "1:30000:0"
    with pytest.raises(AlreadyExists, match="'other', which was alive less than"):
        await outlast(server, "group", HeldMailbox("other", "1:30000:0", overdue=False), gone)
