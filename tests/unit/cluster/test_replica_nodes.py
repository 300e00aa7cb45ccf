"""The nodes of replicas of embedded servers."""

import pytest

from ray_messaging.cluster.servers.replicas import replica_nodes


@pytest.mark.parametrize(
    ("homes", "living", "wanted"),
    [
        (["a"], ["a"], ["a"]),
        (["a"], ["a", "b", "c"], ["b"]),
        (["b"], ["head", "a", "b"], ["head"]),
        (["a"] * 3, ["a"], ["a"] * 3),
        (["b"] * 4, ["head", "a", "b"], ["head", "a", "head", "a"]),
        (["a", "b"], ["a", "b"], ["b", "a"]),
        (["a", "b", "c"], ["a", "b", "c"], ["b", "c", "a"]),
        (["c", "a", "b", "head"], ["head", "a", "b", "c"], ["a", "b", "head", "c"]),
        (["a", "b"], ["a", "b", "late"], ["b", "late"]),
    ],
    ids=str,
)
def test_a_replica_is_on_another_node_than_its_primary_and_the_next_one_in_turn(homes, living, wanted):
    assert replica_nodes(homes, living) == wanted
