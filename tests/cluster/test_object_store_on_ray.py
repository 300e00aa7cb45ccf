"""A run whose log is on an object store: it is read, forked and continued from there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.object_store import BUCKET, ObjectStore

# The processes of Ray must have the store's address, so this is a program with a Ray of its own.
PROGRAM = """
import json
import sys
from ray_messaging import EventLog, Messaging, Steps
from ray_messaging.errors import ConfigError
from support.bare_ray import start_ray

uri, data_dir = sys.argv[1:]
STEPS = {"steps": Steps(seed=1, digest=True, checkpoint=2)}
OLD = {"data_dir": data_dir, "log_dir": f"{uri}/town", **STEPS}

async def told(text):
    return len(text)

async def person(me, inbox):
    me.state["heard"] = me.state.get("heard", 0) + len(inbox)
    me.send((me.id + 1) % 10, {"n": await me.remember(told, f"{me.id}")})
    if me.id == 3:
        me.broadcast("street", {"n": me.step})

def ran(messaging, until):
    heard = lambda me: {"heard": me.state["heard"]}
    return messaging.run(person, agents=10, groups=2, until=until, progress=False, collect=heard)

def facts(name):
    log = EventLog.open(f"{uri}/{name}")
    found = len(log.query()), log.balance(expand=True).fates["delivered"], len(log.series()), len(log.calls())
    return [*found, log.unended]

start_ray()
found = {}
with Messaging.start("town", **OLD) as messaging:
    messaging.create_audience("street", members=range(5))
    ran(messaging, 3)
    messaging.broadcast("*", {"n": 0})
    found["town"] = ran(messaging, 6).digests
    found["live"] = len(messaging.log.query())
found["facts"] = facts("town")
with Messaging.fork(f"{uri}/town", "twin", at_step=4, log_dir=f"{uri}/twin") as messaging:
    found["twin"] = ran(messaging, 6).digests
found["same"] = EventLog.open(f"{uri}/twin").diff(EventLog.open(f"{uri}/town")) is None
found["facts of the twin"] = facts("twin")
with Messaging.start("town", on_existing="resume", **OLD) as messaging:
    found["resumed"] = ran(messaging, 8).digests
found["facts at the end"] = facts("town")
try:
    Messaging.start("town", on_existing="resume", log_dir=OLD["log_dir"], **STEPS)
except ConfigError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_is_read_forked_and_continued_from_a_store(tmp_path):
    with ObjectStore() as store:
        path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY")}
        environment = own | store.environment | {"PYTHONPATH": path}
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, f"s3://{BUCKET}/runs", str(tmp_path / "data")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=550,
        )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert len(found["town"]) == 6
    assert found["twin"] == found["town"]
    assert found["same"]
    rows, delivered, series, calls, unended = found["facts"]
    assert found["live"] == rows
    assert delivered == 6 * 10 + 10 + 6 * 4  # to the next agent, of the user to all, of agent 3 to the street
    assert (series, calls, unended) == (60, 60, None)
    assert found["facts of the twin"] == found["facts"]
    assert {step: found["resumed"][step] for step in found["town"]} == found["town"]
    assert found["facts at the end"][1:] == [delivered + 2 * 14, 80, 80, None]
    assert "has the steps of 'town' up to 7, but the server of this start has none of them" in found["refused"]
    assert "Messaging.fork(" in found["refused"]
