"""Cases in which a node of Ray, a driver, or a task dies."""

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import ray
from support.cluster import run_apart, wait_for
from support.servers import RedisProcess

from faults.case import Case, weaker
from faults.checker import Account, check
from faults.ledger import Inbox, read_ledger
from faults.ray_support import a_town
from faults.ray_traffic import PAIRS, traffic_in

HELD_FOR_S = 1.0


def node_is_lost(folder):
    """Kill the raylet of the node on which both groups live; a worker that stood still lives on for a while."""
    run_apart("-m", "faults.node_loss", folder)
    return Account(**json.loads((folder / "account.json").read_text()))


DRIVER = """
import threading
from pathlib import Path
from support.bare_ray import start_ray
from faults.ray_support import a_town
from faults.ray_traffic import traffic_in

start_ray()
with a_town(exp_id={exp_id!r}, redis={url!r}, lease_s=2) as town, traffic_in(town, Path({folder!r})):
    threading.Event().wait()
"""


def driver_is_killed(folder):
    """Kill a driver in the middle of its sends, and go on with its experiment from another one."""
    with RedisProcess(folder) as server:
        redis, exp_id = server.config, f"driver-{uuid.uuid4().hex[:8]}"
        url = f"redis://:{redis.password.replace(' ', '%20')}@{redis.server}:{redis.port}"
        script = DRIVER.format(exp_id=exp_id, url=url, folder=str(folder))
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        with subprocess.Popen([sys.executable, "-c", script], env=environment, start_new_session=True) as driver:
            ledgers = [folder / f"ledger-{a}-{b}" for a, b in PAIRS]
            wait_for(lambda: all(len(read_ledger(path)) > 500 for path in ledgers), "many sends", 300)
            os.killpg(driver.pid, signal.SIGKILL)
        acknowledged = sum(send.fate == "delivered" for path in ledgers for send in read_ledger(path))
        with a_town(exp_id=exp_id, redis=redis, on_existing="resume", lease_s=2) as town:
            with traffic_in(town, folder) as traffic:
                traffic.goes_on()
            return traffic.account(acknowledged_before=acknowledged)


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
    Case("Ray node lost, its groups come back elsewhere", node_is_lost),
    Case("driver killed, another one resumes", driver_is_killed),
    Case("each Group call made twice", calls_are_repeated),
    Case(
        "tasks die with a fetched batch",
        tasks_die_with_batches,
        weaker("nothing lost, nothing handled twice; what a dead task held comes after newer messages", "order_breaks"),
    ),
]
