"""Where the actors of an experiment lie, on three hosts."""

import subprocess
import sys

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


FORKS = """
import subprocess, sys, urllib.request
from ray_messaging import EventLog, Messaging, Steps

TOWN, TWIN, COPY = (f"/tmp/{name}-{sys.argv[1]}" for name in ("town", "twin", "copy"))
STEPS = Steps(seed=1, checkpoint=3)


def talk(me, inbox):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.send((me.id + 1) % 6, {"n": me.step})


def run(messaging, until):
    return messaging.run(talk, agents=6, groups=3, until=until, progress=False)


with Messaging.start("parent", log_dir=TOWN, steps=STEPS) as messaging:
    run(messaging, 5)
with Messaging.start("parent", log_dir=TOWN, steps=STEPS, on_existing="resume") as messaging:
    whole = run(messaging, 8)
with Messaging.fork(TOWN, "twin", log_dir=TWIN, at_step=4) as fork:
    assert run(fork, 8).states == whole.states
    assert fork.log.query().num_rows == 48
    assert fork.log.export(f"{COPY}.parquet") == 48
    lines = ["log", "query", "twin", "--json"], ["log", "export", TOWN, f"{COPY}.csv"]
    for asked in (["doctor", "twin"], ["log", "stats", TOWN], *lines):
        subprocess.run([sys.executable, "-m", "ray_messaging.cli", *asked], check=True)
    assert len(open(f"{COPY}.csv").readlines()) == 1 + 48
    with fork.ui(port=0) as inspector:
        assert urllib.request.urlopen(inspector.url, timeout=60).status == 200
    print("look at it from elsewhere", flush=True)
    sys.stdin.readline()
assert EventLog.open(TWIN).digest(7) == EventLog.open(TOWN).digest(7)
print("all is well")
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("host", ["a", "b", "c"])
def test_a_driver_on_each_host_resumes_forks_and_asks(hosts, host):
    env = WITHOUT_TOKEN | {"RAY_ADDRESS": "a:6380"}
    driver = hosts.start(host, sys.executable, "-c", FORKS, host, env=env, stdin=subprocess.PIPE)
    said = next((line for line in driver.stdout if line.startswith("look at it")), None)
    assert said is not None, driver.communicate()[1]
    elsewhere = "a" if host != "a" else "b"
    assert '"level": "ok"' in hosts.run(elsewhere, "ray-messaging", "doctor", "twin", "--json", env=env)
    rows = hosts.run(elsewhere, "ray-messaging", "log", "query", "twin", "--json", env=env)
    assert len(rows.splitlines()) == 48
    told, errors = driver.communicate("\n", timeout=120)
    assert told.splitlines()[-1:] == ["all is well"], errors


BODIES = """
import time
from ray_messaging import Messaging, Steps
from ray_messaging.errors import Closed

TEXT = "word " * 5000


def talk(me, inbox):
    me.send((me.id + 1) % 6, {"text": TEXT})


with Messaging.start("bodies", shards="per-node", steps=Steps()) as messaging:
    with messaging.start_run(talk, agents=6, groups=6) as run:
        run.advance(2)
        print("ready", flush=True)
        try:
            run.advance(100_000)
        except Closed as error:
            print(error, flush=True)
"""


def test_a_machine_that_is_lost_with_its_bodies_is_named():
    with Hosts() as hosts:
        hosts.start_ray()
        env = WITHOUT_TOKEN | {"RAY_ADDRESS": "a:6380"}
        driver = hosts.start("a", sys.executable, "-c", BODIES, env=env)
        assert driver.stdout.readline() == "ready\n", driver.stderr.read()
        hosts.kill("c")
        told, errors = driver.communicate(timeout=120)
    assert "has lost the embedded server of shard" in told, (told, errors)
    assert f"(c, {hosts.ip('c')})" in told
