"""Cases in which the embedded server, its guard, or its owner actor dies."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import ray
from support.cluster import PATIENCE_S, kill, stopped, wait_for

from faults.case import Case, weaker
from faults.injector import full_disk
from faults.ray_support import a_town
from faults.ray_traffic import traffic_in
from ray_messaging.cluster.handles.connection import NAMESPACE


def server_of(messaging):
    """Return the actor of the server."""
    return ray.get_actor(f"{messaging.exp_id}/server", namespace=NAMESPACE)


def stats_of(messaging):
    return ray.get(server_of(messaging).stats.remote(), timeout=PATIENCE_S)


def guard_of(messaging):
    return int(Path(stats_of(messaging)["data_dir"], ".ray_messaging.lock").read_text().removeprefix("process "))


def back(messaging, restarts):
    """Wait until the server has come back so many times; return how long it took, in seconds."""
    began = time.monotonic()
    wait_for(
        lambda: stats_of(messaging)["restarts"] == restarts and stats_of(messaging)["alive"], "the server's return"
    )
    return time.monotonic() - began


def dies(folder, victim, times):
    """Kill the server, or its guard and the server with it, while both groups send and fetch."""
    with a_town() as town:
        took = []
        with traffic_in(town, folder) as traffic:
            for number in range(1, times + 1):
                pid = stats_of(town.messaging)["pid"] if victim == "server" else guard_of(town.messaging)
                os.kill(pid, signal.SIGKILL)
                took.append(back(town.messaging, number))
                traffic.goes_on()
        return traffic.account(kills=times, back_s=round(max(took), 2))


def owner_dies(folder, times):
    """Kill the actor that owns the server; the one that Ray starts takes the server over."""
    with a_town() as town:
        with traffic_in(town, folder) as traffic:
            for _ in range(times):
                before = stats_of(town.messaging)
                kill(server_of(town.messaging))
                wait_for(lambda before=before: stats_of(town.messaging)["pid"] != before["pid"], "the server's return")
                assert stats_of(town.messaging)["data_dir"] == before["data_dir"]
                traffic.goes_on()
        return traffic.account(kills=times)


def stands_still(folder, seconds):
    """Have the server stand still."""
    with a_town() as town:
        with traffic_in(town, folder) as traffic, stopped(stats_of(town.messaging)["pid"]):
            time.sleep(seconds)  # the fault itself
        return traffic.account(restarts=stats_of(town.messaging)["restarts"])


def disk_is_full(folder, seconds, *, dies):
    """Give the server's files no room, and then, or after the server's death, room again."""
    with a_town() as town:
        with traffic_in(town, folder) as traffic:
            stats = stats_of(town.messaging)
            with full_disk(stats["pid"], stats["data_dir"]):
                time.sleep(seconds)  # the fault itself
                if dies:
                    os.kill(stats["pid"], signal.SIGKILL)
                    back(town.messaging, 1)
            traffic.goes_on()
        met = {f"{type(error).__name__}: {error}"[:200] for sender in traffic.senders for error in sender.met}
        return traffic.account(restarts=stats_of(town.messaging)["restarts"], met=sorted(met)[:3])


CASES = [
    Case("embedded server: kill -9", partial(dies, victim="server", times=1)),
    Case("embedded server: kill -9, 3 times", partial(dies, victim="server", times=3)),
    Case("embedded server: its guard, kill -9", partial(dies, victim="guard", times=2)),
    Case("embedded server: its actor, kill -9", partial(owner_dies, times=2)),
    Case("embedded server: SIGSTOP for 2 s", partial(stands_still, seconds=2.0)),
    Case("embedded server: disk full for 3 s", partial(disk_is_full, seconds=3.0, dies=False)),
    Case(
        "embedded server: disk full, and kill -9 meanwhile",
        partial(disk_is_full, seconds=1.0, dies=True),
        weaker("what was acknowledged in the instant at which the disk was full may be lost", "lost"),
    ),
]
