"""Leases of others: expired after no change for their length, by the watching messager's clock."""

import pytest

from ray_messaging.errors import AlreadyExists
from ray_messaging.receiving import mailbox_lease as leases
from ray_messaging.receiving.mailbox_lease import LeaseWatch, outlast
from ray_messaging.transports.values import Held


class Server:
    """A server's leases, and a clock for their watcher."""

    def __init__(self, monkeypatch):
        self.leases = {}
        self.ended = []
        self.now = 100.0
        monkeypatch.setattr(leases, "monotonic", lambda: self.now)

    async def leases_of(self, _mailboxes):
        return dict(self.leases)

    async def end_leases(self, over):
        self.ended += over

    def beat(self, name, beat):
        self.leases[name] = f"{beat}:30000:0"


@pytest.fixture
def server(monkeypatch):
    return Server(monkeypatch)


class Transport:
    def __init__(self, server):
        self.leases, self.end_leases = server.leases_of, server.end_leases


@pytest.fixture
def watch(server):
    return LeaseWatch(Transport(server), "me")


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
async def test_a_lease_that_stays_as_it_is_for_as_long_as_it_lasts_is_over(server, watch, name, looks, over):
    server.beat(name, 1)
    for passed in looks:
        if passed == "beat":
            server.beat(name, 2)
        else:
            server.now += passed
            await watch.look()
    assert server.ended == over


async def test_the_lease_of_an_owner_known_to_be_dead_is_not_awaited(server):
    async def gone(owner):
        return owner == "dead"

    server.beat("group", 1)
    transport = Transport(server)
    assert await outlast(transport, "group", Held("dead", "1:30000:0", overdue=False), gone) == "1:30000:0"
    with pytest.raises(AlreadyExists, match="'other', which is alive"):
        await outlast(transport, "group", Held("other", "1:30000:0", overdue=False), gone)
