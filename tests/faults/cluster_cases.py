"""Cases in which a node of Ray, a driver, or a task dies."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import ray
from support.cluster import wait_for
from support.servers import RedisProcess

from faults.case import Case, weaker
from faults.checker import Account, check
from faults.ledger import Inbox, read_ledger
from faults.ray_support import a_town
from faults.ray_traffic import PAIRS, traffic_in

HELD_FOR_S = 1.0


def process(module, *arguments):
    """Start a driver with a Ray of its own."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join([str(Path(__file__).parent.parent), environment.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        env=environment | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def node_is_lost(folder):
    """Kill the raylet of the node on which both groups live; a worker that stood still lives on for a while."""
    with process("faults.node_loss", folder) as driver:
        said, _ = driver.communicate(timeout=500)
    assert driver.returncode == 0, said[-5000:]
    return Account(**json.loads((folder / "account.json").read_text()))


def driver_is_killed(folder):
    """Kill a driver in the middle of its sends, and go on with its experiment from another one."""
    server = RedisProcess(folder)
    try:
        redis, exp_id = server.start().config, f"driver-{uuid.uuid4().hex[:8]}"
        driver = process("faults.driver", folder, _url(redis), exp_id)
        with driver:
            ledgers = [folder / f"ledger-{a}-{b}" for a, b in PAIRS]
            wait_for(lambda: all(len(read_ledger(path)) > 500 for path in ledgers), "many sends", 300)
            os.killpg(driver.pid, signal.SIGKILL)
        acknowledged = sum(send.fate == "delivered" for path in ledgers for send in read_ledger(path))
        with a_town(exp_id=exp_id, redis=redis, on_existing="resume", lease_s=2) as town:
            with traffic_in(town, folder) as traffic:
                traffic.goes_on()
            return traffic.account(acknowledged_before=acknowledged)
    finally:
        server.kill()


def _url(config):
    return f"redis://:{config.password.replace(' ', '%20')}@{config.server}:{config.port}"


@ray.remote(num_cpus=0, max_retries=0)
def _hold(group, path):
    """Fetch, and die with the fetched messages."""
    while not (messages := group.fetch_messages(timeout=5)):
        pass
    Inbox(path).take(messages)
    os.kill(os.getpid(), signal.SIGKILL)


def tasks_die_with_batches(folder, times=5):
    """Have tasks die that hold a fetched batch, while another caller fetches from the same group."""
    with a_town(loan_s=HELD_FOR_S) as town:
        paths = [folder / f"inbox-task-{n}" for n in range(times)]
        with traffic_in(town, folder) as traffic:
            for path in paths:
                ref = _hold.remote(town.east, path)
                wait_for(lambda ref=ref: ray.wait([ref], timeout=0)[0], "the end of a task")
                assert path.exists()
                traffic.goes_on()
        ledgers, inboxes = traffic.files
        return check(ledgers, [*inboxes, *paths], healed_at=traffic.healed_at)


def calls_are_repeated(folder):
    """Lose the answer to each send over the lane, so that the call is made again, by Ray."""
    with a_town() as town:
        with traffic_in(town, folder, repeated=True) as traffic:
            traffic.goes_on(500)
        return traffic.account()


CASES = [
    Case("Ray node lost, its groups come back elsewhere", node_is_lost, long=True),
    Case("driver killed, another one resumes", driver_is_killed, long=True),
    Case("each Group call made twice", calls_are_repeated, long=True),
    Case(
        "tasks die with a fetched batch",
        tasks_die_with_batches,
        weaker("nothing lost, nothing handled twice; what a dead task held comes after newer messages", "order_breaks"),
        long=True,
    ),
]
