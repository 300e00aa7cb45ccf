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
        self.step = 0.0  # that each look takes
        monkeypatch.setattr(leases, "monotonic", lambda: self.now)

    async def leases_of(self, _mailboxes):
        self.now += self.step
        return dict(self.leases)

    async def end_leases(self, over):
        self.ended += over

    def beat(self, name, beat, lease_ms=30_000):
        self.leases[name] = f"{beat}:{lease_ms}:0"


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


async def test_a_lease_that_is_over_by_the_servers_clock_is_watched_by_ours(server):
    server.beat("group", 1, lease_ms=30)
    server.step = 0.01
    assert await outlast(Transport(server), "group", Held("one", "1:30:0", overdue=True), None) == "1:30:0"
    assert server.now >= 100.03
    with pytest.raises(AlreadyExists, match="'one', which is alive"):
        await outlast(Transport(server), "group", Held("one", "0:30:0", overdue=True), None)
