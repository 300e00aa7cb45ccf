"""What placement= and actor_options= refuse, and what they say; tests/hosts sees the nodes."""

import threading

import pytest
import ray
from support.cluster import PATIENCE_S, wait_for

from ray_messaging import Messaging
from ray_messaging.cluster.handles import connection
from ray_messaging.errors import Closed, ConfigError


def here(me, inbox):
    me.state["node"] = ray.get_runtime_context().get_node_id()


@pytest.fixture(scope="module")
def messaging(ray_cluster):
    with Messaging.start("placed") as started:
        yield started


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"placement": "spred"}, r"placement='spred' is unknown: write 'spread', 'pack', or \{"),
        ({"placement": 3}, "placement=3 is unknown"),
        ({"placement": {"wst": "b"}}, "placement= has 'wst', but no group has this name: write .* such as east, west"),
        ({"placement": {"west": 1}}, "placement= has 1 for group 'west'"),
        (
            {"placement": {"west": "moon"}},
            "has 'moon' for group 'west', which names no node of the cluster.* The nodes are: .*\\w+ \\(",
        ),
        ({"actor_options": {"num_cpu": 1}}, "for group 'west', which Ray does not accept: .*num_cpu"),
        ({"actor_options": {"east": {"num_cpu": 1}}}, "for group 'east', which Ray does not accept: .*num_cpu"),
        ({"actor_options": 7}, "actor_options=7 must be a dict of Ray's options"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(messaging, options, told):
    with pytest.raises(ConfigError, match=told):
        messaging.create_groups({"west": [1], "east": [2]}, **options)
    assert messaging.groups() == []


def test_groups_of_a_cluster_of_one_node_are_on_it(messaging):
    node = ray.get_runtime_context().get_node_id()
    address = ray.nodes()[0]["NodeManagerAddress"]
    places = ["spread", "pack", {"0": node}, {"0": address}, {"0": {"CPU": 0.1}}]
    for number, placement in enumerate(places):
        made = messaging.create_groups({"0": [number]}, placement=placement, actor_options={"0": {"num_gpus": 0}})
        assert made["0"].agents == [number]
        messaging.remove_group("0")


def test_resources_that_no_node_has_are_told(messaging, monkeypatch, caplog):
    monkeypatch.setattr(connection, "_LATE_S", 0.1)
    ended = []

    def create():
        try:
            messaging.create_groups({"west": [1], "east": [2]}, placement={"east": {"moon": 0.5}})
        except Closed as error:
            ended.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    told = wait_for(lambda: [line for line in caplog.messages if "moon" in line], "the warning")
    assert told[0].startswith("group 'east' waits for a node with moon=0.5, but no node of the cluster has that")
    assert not [line for line in caplog.messages if "'west'" in line]
    ray.kill(ray.get_actor("placed/group/east", namespace="ray_messaging"))
    thread.join(PATIENCE_S)
    assert len(ended) == 1
    assert messaging.groups() == []
