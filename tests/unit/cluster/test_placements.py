"""What a placement asks of Ray, on a cluster that is only told."""

import pytest
import ray
from ray.runtime_env import RuntimeEnv

from ray_messaging.cluster.placement import Placement
from ray_messaging.errors import ConfigError

NODES = [
    {"NodeID": each * 56, "NodeName": f"10.0.0.{each}", "NodeManagerHostname": f"host{each}", "Alive": True}
    | {"NodeManagerAddress": f"10.0.0.{each}", "Resources": {"memory": 1e9}}
    for each in "12"
]


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    monkeypatch.setattr(ray, "nodes", lambda: NODES)
    monkeypatch.setattr(ray.util, "get_current_placement_group", lambda: None)


@pytest.mark.parametrize("wanted", [{"GPU": 1.5}, {"moon": -1}, {"moon": "much"}, {"memory": "1 GB"}], ids=repr)
def test_amounts_that_ray_does_not_take_are_no_placement(wanted):
    with pytest.raises(ConfigError, match=r"placement= has .* for group 'west', which Ray does not accept: "):
        Placement({"west": wanted}, None, ["west", "east"])


def test_a_group_has_a_node_or_resources():
    with pytest.raises(
        ConfigError, match="placement= has 1 for group 'west': write the name of a node, such as 'host2'"
    ):
        Placement({"west": 1}, None, ["west"])


def test_amounts_in_options_are_those_that_ray_takes():
    with pytest.raises(ConfigError, match=r"for group 'west', which Ray does not accept: num_gpus=1\.5 is above 1"):
        Placement("spread", {"num_gpus": 1.5}, ["west"])
    options = {"num_cpus": 1.5, "num_gpus": 2.0, "memory": 1e6 + 0.5, "resources": {"moon": 1.5}}
    assert Placement("spread", options, ["west"]).of("west").items() >= options.items()


@pytest.mark.parametrize("option", [{"scheduling_strategy": "SPREAD"}, {"label_selector": {"zone": "moon"}}], ids=repr)
def test_a_group_is_placed_in_one_way_only(option):
    with pytest.raises(ConfigError, match=f"group 'west' has node 'host2' by placement=, and {next(iter(option))} by"):
        Placement({"west": "host2"}, option, ["west"])
    assert Placement("spread", option, ["west"]).of("west") == option


@pytest.mark.parametrize("kind", [dict, RuntimeEnv], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("other", ["another object", "the same object, changed"])
def test_actors_of_another_environment_are_not_used_again(kind, other):
    environment = kind(env_vars={"MOOD": "1"})
    before = Placement("spread", {"runtime_env": environment}, ["west"]).key("west")
    assert Placement("spread", {"runtime_env": kind(env_vars={"MOOD": "1"})}, ["west"]).key("west") == before
    if other == "another object":
        environment = kind(env_vars={"MOOD": "2"})
    else:
        environment["env_vars"]["MOOD"] = "2"
    assert Placement("spread", {"runtime_env": environment}, ["west"]).key("west") != before
