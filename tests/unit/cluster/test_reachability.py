"""Which addresses the network reaches, and where groups are."""

import socket

from ray_messaging.cluster import reachability
from ray_messaging.cluster.reachability import measure, place_groups
from ray_messaging.observability.health.node_checks import NodeFacts


async def test_an_address_is_reached_where_somebody_listens(unused_tcp_port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        reached, refused = await measure([server.getsockname(), ("127.0.0.1", unused_tcp_port)])
    assert reached is not None
    assert reached >= 0
    assert refused is None


async def test_an_address_that_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(reachability, "_CONNECT_S", 0.1)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]  # the queue of connections is full
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        assert await measure([full.getsockname()]) == [None]
        for each in waiting:
            each.close()


def test_groups_are_placed_by_the_owners_of_their_mailboxes(monkeypatch):
    nodes = [NodeFacts("n1", "a", "10.0.0.1"), NodeFacts("n2", "b", "10.0.0.2")]
    monkeypatch.setattr(reachability, "node_of_owner", {"actor1": "n1", "actor2": "n2", "gone": ""}.get)
    owners = {"east": "run/actor2", "west": "run/actor1", "north": "run/actor2", "old": "run/gone"}
    place_groups(nodes, owners, float("inf"))
    assert [node.groups for node in nodes] == [["west"], ["east", "north"]]
    place_groups(nodes, {"late": "run/actor1"}, 0.0)
    assert nodes[0].groups == ["west"]
