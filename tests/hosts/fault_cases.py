"""The faults of a network of three hosts: what a run on them loses, and how long it stands still.

In each case the driver, the interceptor and the server are on host a, unless the case says otherwise, and groups are on
all three.
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hosts.society import AGENTS, digest_of, person
from support.hosts import NAMES, Hosts
from support.patience import wait_for

from ray_messaging.testing import run

HERE = Path(__file__).parent
START_S, END_S = 120, 300  # until a run has begun, and until it has ended after its fault
STEPS = 60
PASSWORD = "hosts"  # of a server that lives for seconds


def digest_of_one_process():
    """Return the digest of the society without Ray, hosts and faults."""
    result = run(person, agents=range(AGENTS), until=STEPS, shared={"pause_s": 0.0})
    return digest_of(result)


SERVER_OPTIONS = ["--protected-mode", "no", "--appendonly", "yes", "--daemonize", "yes", "--dir", "/tmp/home"]
SENTINEL = """\
port 26379
protected-mode no
daemonize yes
dir /tmp/home
sentinel monitor town {primary} 6390 2
sentinel auth-pass town {password}
sentinel down-after-milliseconds town 3000
sentinel failover-timeout town 10000
"""


@dataclass
class Outcome:
    """What a run on the hosts has said."""

    case: str
    begun: dict[str, list[str]] = field(default_factory=dict)
    health: list[dict] = field(default_factory=list)
    result: dict = field(default_factory=dict)
    error: str = ""
    printed: str = ""

    def broken(self, digest, *, fails):
        """Return the promises that the run broke; `digest` is that of a run without faults."""
        if fails:
            return [part for part in ("group", "host", "cut_timeout_s", "resume") if part not in self.error]
        found = [self.error] if self.error else []
        found += [what for what in ("lost", "twice", "disorder") if self.result.get(what)]
        return found if self.result.get("digest") in {None, digest} else [*found, "another digest"]


class RunningSociety:
    """The program of society.py, or another one, on a host. `lines` has what it has said."""

    def __init__(self, hosts, host, options, program="society.py"):
        self.options = options
        self._process = hosts.start(
            host, "python", HERE / program, json.dumps(options), env={"RAY_AUTH_MODE": "disabled"},
            stdin=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.lines = []
        self.printed = []
        self.ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self.printed.append(line)
            if line.startswith("{"):
                self.lines.append(json.loads(line))
        self.ended = True

    def said(self, *keys):
        """Return the lines with any of some keys; fail if the program has ended without one."""
        found = [line for line in self.lines if any(key in line for key in keys)]
        assert found or not self.ended, "".join(self.printed)[-5000:]
        return found

    def ask_health(self):
        before = len(self.said("health")) if any("health" in line for line in self.lines) else 0
        self.tell("")
        wait_for(lambda: len([line for line in self.lines if "health" in line]) > before, "a health check")

    def tell(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def end(self):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._reader.join()
        self._process.stdout.close()


@dataclass
class Case:
    """A fault: `work` makes it, and mends it, while the run goes on."""

    name: str
    work: Callable
    settings: dict = field(default_factory=dict)
    pace_s: float = 0.05
    driver: str = "a"
    own_server: str = ""  # the host of a Redis of one's own; "": an embedded one
    sentinels: bool = False  # its replicas and Sentinels are on all hosts
    told: str = ""  # what each health check during the fault names
    shifted: str = ""  # the host whose clock is 2 h ahead
    fails: bool = False  # the run ends with an error

    def run(self):
        """Make the hosts, run the society on them with the fault; return the outcome."""
        outcome = Outcome(self.name)
        with Hosts() as hosts:
            self._start_ray(hosts)
            redis = self._start_server(hosts)
            options = {"ray": "a:6380", "exp_id": "town", "on_existing": "error", "steps": STEPS}
            options |= {"pause_s": self.pace_s, "settings": self.settings, "redis": redis}
            society = RunningSociety(hosts, self.driver, options)
            try:
                [begun] = wait_for(lambda: society.said("begun"), "the begin of the run", START_S)
                outcome.begun = begun["begun"]
                society = self.work(hosts, society) or society
                [ended] = wait_for(lambda: society.said("digest", "error"), "the end of the run", END_S)
                outcome.result, outcome.error = ended, ended.get("error", "")
            finally:
                society.end()
                outcome.health = [line for line in society.lines if "health" in line]
                outcome.printed = "".join(society.printed)
        return outcome

    def _start_ray(self, hosts):
        if not self.shifted:
            hosts.start_ray()
            return
        library = hosts.path(self.shifted, "/tmp/clock.so")
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, HERE / "clock.c"], check=True)
        start = hosts.start

        def shifted(host, *command, env=None, **more):
            ahead = {"LD_PRELOAD": "/tmp/clock.so", "SHIFT_S": "7200"} if host == self.shifted else {}
            return start(host, *command, env=(env or {}) | ahead, **more)

        hosts.start = shifted
        hosts.start_ray()

    def _start_server(self, hosts):
        if not self.own_server:
            return None
        primary, password = hosts.ip(self.own_server), ["--requirepass", PASSWORD, "--masterauth", PASSWORD]
        options = [*password, *SERVER_OPTIONS]
        hosts.run(self.own_server, "redis-server", "--port", "6390", *options)
        if not self.sentinels:
            return f"redis://:{PASSWORD}@{primary}:6390"
        for host in sorted({*NAMES} - {self.own_server}):
            hosts.run(host, "redis-server", "--port", "6390", *options, "--replicaof", primary, "6390")
        ask = ["redis-cli", "--no-auth-warning", "-a", PASSWORD, "-p", "6390", "info", "replication"]
        wait_for(lambda: hosts.run(self.own_server, *ask).count("state=online") == 2, "two replicas")
        for host in NAMES:
            hosts.path(host, "/tmp/home/sentinel.conf").write_text(SENTINEL.format(primary=primary, password=PASSWORD))
            hosts.run(host, "redis-server", "/tmp/home/sentinel.conf", "--sentinel")
        return f"redis+sentinel://:{PASSWORD}@a:26379,b:26379,c:26379/town"


def cut(host, seconds, *, health_after_s=None):
    """Return the work of a cut of one host for some time; None: for ever."""
    return lambda hosts, society: _cut(
        partial(hosts.cut, host), partial(hosts.mend, host), society, seconds, health_after_s
    )


def one_way(sender, receivers, seconds, *, health_after_s=None):
    """Return the work of a cut of the packets from a host for some time; None: for ever."""

    def work(hosts, society):
        def set_cut(cut):
            for receiver in receivers:
                hosts.cut_one_way(sender, receiver, cut=cut)

        _cut(partial(set_cut, True), partial(set_cut, False), society, seconds, health_after_s)

    return work


def _cut(begin, mend, society, seconds, health_after_s):
    began = time.monotonic()
    begin()
    if health_after_s is not None:
        time.sleep(health_after_s)  # the fault must have lasted so long
        society.ask_health()
    if seconds is not None:
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        mend()


def kill(host):
    return lambda hosts, _society: hosts.kill(host)


def resume_elsewhere(hosts, society):
    """Kill the machine of the driver and of Ray's head; start Ray on the others, and resume the run there."""
    hosts.kill("a")
    society.end()
    for host, where in (("b", ("--head", "--port=6380", "--include-dashboard=false")), ("c", ("--address=b:6380",))):
        hosts.run(host, "ray", "stop", "--force")
        options = [f"--node-ip-address={hosts.ip(host)}", "--object-store-memory=100000000", "--num-cpus=1"]
        hosts.run(host, "ray", "start", *where, *options, env={"RAY_AUTH_MODE": "disabled"})
    return RunningSociety(hosts, "b", society.options | {"ray": "b:6380", "on_existing": "resume"})


def slow(hosts, _society):
    """Make the links of a host slow, to the end of the run."""
    hosts.set_round_trip(40)
    hosts.set_rate("b", 5)


def nothing(_hosts, _society):
    """Make no fault."""


CASES = [
    Case("none", nothing),
    Case("B cut for 5 s", cut("b", 5)),
    Case("B cut for 20 s", cut("b", 20, health_after_s=12), told="10.77.0.2"),
    Case("B cut for 36 s", cut("b", 36, health_after_s=20), told="10.77.0.2"),
    Case("B cut for 40 s", cut("b", 40)),
    Case("B cut for 60 s", cut("b", 60)),
    Case("B cut for ever", cut("b", None, health_after_s=20), told="10.77.0.2"),
    Case("nothing from B to the others for 20 s", one_way("b", "ac", 20)),
    Case("nothing from B to the others for 40 s", one_way("b", "ac", 40)),
    Case("nothing from B to the others for 60 s", one_way("b", "ac", 60)),
    Case("nothing from B to the others for ever", one_way("b", "ac", None, health_after_s=20), told="10.77.0.2"),
    Case("nothing from A to B for 20 s", one_way("a", "b", 20)),
    Case("nothing from A to B for 40 s", one_way("a", "b", 40)),
    Case("nothing from A to B for 60 s", one_way("a", "b", 60)),
    Case("nothing from A to B for ever", one_way("a", "b", None, health_after_s=20), told="10.77.0.2"),
    Case("the head cut for 20 s", cut("a", 20)),
    Case("the head cut for ever", cut("a", None)),
    Case("C killed", kill("c")),
    Case("C with the server cut for 36 s", cut("c", 36), own_server="c"),
    Case(
        "C with the server cut for ever", cut("c", None), own_server="c", settings={"cut_timeout_s": 30.0}, fails=True
    ),
    Case("C with the server killed", kill("c"), own_server="c", settings={"cut_timeout_s": 30.0}, fails=True),
    Case(
        "C with the primary killed, and failover by Sentinels",
        kill("c"),
        own_server="c",
        sentinels=True,
        settings={"wait_replicas": 1, "send_timeout_s": 60.0},
    ),
    Case("the head killed, and the run resumed elsewhere", resume_elsewhere, own_server="c"),
    Case("B's links at 5 Mbit/s and 40 ms", slow),
    Case("C's clock 2 h ahead", nothing, shifted="c"),
]
