"""The embedded server's driver dies, or its experiment ends without it: nothing is left."""

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import ray
from support.cluster import alive, wait_for

from faults.embedded_cases import guard_of, stats_of
from ray_messaging import Messaging

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

DRIVER = """
import sys, time
import ray
from ray_messaging import Messaging
ray.init(address=sys.argv[1], log_to_driver=False)
messaging = Messaging.start(sys.argv[2])
group = messaging.create_group("all", range(4))
assert group.send(1, 2, {})
print("ready", flush=True)
time.sleep(1000)
"""


def test_an_experiment_can_end_while_its_server_is_dead():
    with Messaging.start(f"ends-{uuid.uuid4().hex[:8]}") as messaging:
        messaging.create_group("all", [1, 2]).send(1, 2, {})
        stats, guard = stats_of(messaging), guard_of(messaging)
        os.kill(stats["pid"], signal.SIGKILL)
    wait_for(lambda: not alive(guard), "the end of the guard")
    assert not Path(stats["data_dir"]).exists()


def test_a_driver_that_is_killed_leaves_nothing_in_a_cluster_that_lives_on():
    exp_id = f"killed-{uuid.uuid4().hex[:8]}"
    address = ray.get_runtime_context().gcs_address
    with subprocess.Popen([sys.executable, "-c", DRIVER, address, exp_id], stdout=subprocess.PIPE, text=True) as driver:
        try:
            assert driver.stdout.readline() == "ready\n"
            stats, guard = stats_of(Messaging.connect(exp_id)), guard_of(Messaging.connect(exp_id))
        finally:
            driver.kill()
    wait_for(lambda: not Path(stats["data_dir"]).exists(), "the removal of the data")
    wait_for(lambda: not alive(stats["pid"]) and not alive(guard), "the end of server and guard")
    with Messaging.start(exp_id) as messaging:  # nobody holds its name, either
        assert stats_of(messaging)["data_dir"] != stats["data_dir"]
        assert len(messaging.create_group("all", [1, 2]).fetch_messages()) == 0
