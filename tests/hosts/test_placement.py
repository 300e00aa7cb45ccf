"""Where the actors of an experiment lie, on three hosts."""

import pytest
from support.hosts import Hosts

pytestmark = pytest.mark.long  # Ray on three hosts

WITHOUT_TOKEN = {"RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="module")
def hosts():
    with Hosts() as made:
        made.start_ray()
        yield made


TOWN = """
import ray
from ray_messaging import Messaging, Steps
from ray_messaging.cluster.ray_internals import actor_facts


def where(me, inbox):
    import ray
    me.state["host"] = ray.util.get_node_ip_address()[-1]


def hosts_of(result):
    return "".join("?abc"[int(result.states[agent]["host"])] for agent in sorted(result.states))
"""

RUNS = """
with Messaging.start("town", log_dir="/tmp/town", steps=Steps(seed=1)) as messaging:
    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    print(*(hosts[actor_facts(actor)[2]] for actor in (messaging.interceptor, messaging.log_actor)))
    run = lambda until, **options: messaging.run(
        where, agents=6, groups=6, until=until, progress=False, **options
    )
    print("".join(sorted(hosts_of(run(1)))))
    print(hosts_of(run(2, placement="pack")))
    node = next(node for node, host in hosts.items() if host == "a")
    by_group = {"group0": "c", "group1": node, "group2": {"b": 0.1}}
    print(hosts_of(run(3, placement=by_group))[:3])
    print(hosts_of(run(4, actor_options={"group0": {"resources": {"a": 0.1}}, "group5": {"resources": {"c": 0.1}}})))
"""


@pytest.mark.parametrize("host", ["b"])
def test_a_run_lies_where_the_user_says(hosts, host):
    told = hosts.python(host, TOWN + RUNS, env=WITHOUT_TOKEN | {"RAY_ADDRESS": "a:6380"}).splitlines()
    central, spread, packed, by_group, by_options = told
    assert central == f"{host} {host}"
    assert spread == "aabbcc"
    assert packed == host * 6
    assert by_group == "cab"
    assert (by_options[0], by_options[-1]) == ("a", "c")
