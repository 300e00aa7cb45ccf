"""Three hosts on this machine, joined by a network that a test delays, narrows and cuts.

Each host is a set of namespaces: its own network, processes, host name, boot id, /tmp, /dev/shm and home. The rest of
the file system is this machine's. The links are a program in user space, `switch.c`, as the kernel may have no netem.
All of it goes with the process that made it, however this one ends.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from itertools import permutations
from pathlib import Path

import pytest

from support.patience import wait_for

NAMES = ("a", "b", "c")
HEAD_PORT = 6380
ROOT = Path(__file__).parents[2]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The first process of a host: it collects dead orphans, as an init does, and ends when its input does, the pipe of the
# process that made the host.
INIT = """
set -e
hostname {name}
mount --make-rprivate /
mount --bind {home}/hosts /etc/hosts
mount --bind {home}/boot_id {boot_id}
mount -t tmpfs -o size=8g tmpfs /dev/shm
for kept in {kept}; do mkdir -p {home}$kept; mount --bind $kept {home}$kept; done
mount --rbind {home}/tmp /tmp
ip link set lo up
trap '' HUP INT TERM
echo ready
while read -r _; do :; done
"""


def missing():
    """Return why hosts cannot be made here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "three hosts on one machine need Linux and root"
    for program, package in (("ip", "iproute2"), ("gcc", "gcc"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"three hosts on one machine need {program}: apt-get install {package}"
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"three hosts on one machine need TUN devices: /dev/net/tun: {error.strerror}"
    device = ["ip", "tuntap", "add", "dev", "eth0", "mode", "tun"]
    made = subprocess.run(["unshare", "-n", "-m", "-u", "-p", "-i", "-f", *device], capture_output=True, check=False)
    if made.returncode:
        return f"three hosts on one machine need namespaces with TUN devices: {made.stderr.decode().strip()}"
    return None


class Hosts:
    """The hosts a, b and c at 10.77.0.1 to 10.77.0.3, which know each other by name.

    `congestion` is TCP's congestion control, such as "reno"; "": that of this machine's kernel.
    """

    def __init__(self, congestion=""):
        self._congestion = congestion
        self._folder = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))
        self._inits, self._switch, self._started = {}, None, []
        self.ended = set()

    def __enter__(self):
        if (reason := missing()) is not None:
            self._folder.rmdir()
            pytest.skip(reason)
        try:
            for name in NAMES:
                self._boot(name)
            self._join()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End all processes of the hosts, and the network."""
        for init in self._inits.values():
            if init.poll() is None:  # otherwise its process ids may be others' by now
                with suppress(ProcessLookupError):
                    # The kernel ends all others of the namespace. A host that does not start ends with its input.
                    os.kill(getattr(init, "child", init.pid), signal.SIGKILL)
            self._go_on()
            init.communicate()
        if self._switch is not None:
            self._switch.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- what runs on a host --------------------------------------------------------------------------------------

    def start(self, host, *command, env=None, cwd="/tmp", **options):
        """Start a command on a host, in the environment of the tests; return its subprocess.Popen."""
        inside = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": "/tmp/home",
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "RAY_USAGE_STATS_ENABLED": "0",
        } | (env or {})
        given = [f"{name}={value}" for name, value in inside.items()]
        there = ["nsenter", "-t", str(self._pid(self._inits[host])), "-m", "-u", "-p", "-i", "-n"]
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
        process = subprocess.Popen([*there, "env", "-i", "-C", cwd, *given, *map(str, command)], text=True, **options)
        self._started.append(process)
        return process

    def run(self, host, *command, timeout=120, fails=False, **options):
        """Run a command on a host to its end, and return what it printed; of one that `fails`, also to stderr."""
        process = self.start(host, *command, **options)
        try:
            printed, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert (process.returncode != 0) == fails, (command, process.returncode, printed[-5000:], errors[-5000:])
        return printed + errors if fails else printed

    def shell(self, host, line, **options):
        """Run a line of a shell on a host, and return what it printed."""
        return self.run(host, "bash", "-c", line, **options)

    def python(self, host, code, *arguments, **options):
        """Run Python on a host, and return what it printed."""
        return self.run(host, sys.executable, "-c", code, *arguments, **options)

    def start_ray(self, *, cpus=1, env=None):
        """Start Ray on all hosts, its head on a; the node of each host has the resource of its name."""
        # On a busy machine a node may take longer to start than the 30 s that Ray waits for it.
        env = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "100"} | (env or {})
        options = ["--object-store-memory=100000000", "--disable-usage-stats", f"--num-cpus={cpus}"]

        def start(host, *where):
            named = [f"--node-ip-address={self.ip(host)}", "--resources", f'{{"{host}": 1}}']
            return self.start(host, "ray", "start", *where, *named, *options, env=env)

        def end(process):
            printed, errors = process.communicate(timeout=120)
            assert process.returncode == 0, (printed, errors)

        end(start("a", "--head", f"--port={HEAD_PORT}", "--include-dashboard=false"))
        for process in [start(host, f"--address=a:{HEAD_PORT}") for host in NAMES[1:]]:
            end(process)

    def kill(self, host):
        """Cut a host off and end all of its processes at once, as the end of its power does."""
        self.cut(host)
        os.kill(self._pid(self._inits[host]), signal.SIGKILL)
        self._go_on()
        self._inits[host].wait()
        self.ended.add(host)

    def path(self, host, path):
        """Return where a host's file below /tmp lies on this machine."""
        return self._folder / host / Path(path).relative_to("/")

    # -- the network ----------------------------------------------------------------------------------------------

    def ip(self, host):
        return f"10.77.0.{NAMES.index(host) + 1}"

    def cut(self, host):
        """Lose all packets from and to a host."""
        self._links("cut", 1, at=host)

    def mend(self, host):
        self._links("cut", 0, at=host)

    def cut_one_way(self, sender, receiver, *, cut=True):
        """Lose all packets of one direction between two hosts; with cut=False, mend it."""
        self._link("cut", sender, receiver, int(cut))

    def set_round_trip(self, milliseconds):
        """Delay all packets by half a round trip."""
        self._links("delay", milliseconds / 2)

    def set_loss(self, share):
        """Lose a share of all packets, of which the kernel joins none from now on."""
        self._tell("offload 0")
        self._links("loss", share)

    def set_rate(self, host, megabits):
        """Limit each link of a host to so many megabits a second; 0: no limit."""
        self._links("rate", megabits, at=host)

    def heal(self):
        """Take all cuts, delays, losses and limits away."""
        for what in ("cut", "delay", "loss", "rate"):
            self._links(what, 0)
        self._tell("offload 1")

    def sent(self, sender, receiver):
        """Return how many packets and bytes a link has taken."""
        return tuple(map(int, self._ask(f"sent {NAMES.index(sender) + 1} {NAMES.index(receiver) + 1}").split()))

    def _links(self, what, value, at=None):
        for sender, receiver in permutations(NAMES, 2):
            if at is None or at in (sender, receiver):
                self._link(what, sender, receiver, value)

    def _link(self, what, sender, receiver, value):
        self._tell(f"{what} {NAMES.index(sender) + 1} {NAMES.index(receiver) + 1} {value}")

    def _tell(self, command):
        answer = self._ask(command)
        assert answer == "ok", answer

    def _ask(self, command):
        self._switch.stdin.write(f"{command}\n")
        self._switch.stdin.flush()
        return self._switch.stdout.readline().strip()

    # -- making them ----------------------------------------------------------------------------------------------

    def _boot(self, name):
        home = self._folder / name
        (home / "tmp/home").mkdir(parents=True)
        (home / "tmp").chmod(0o1777)
        lines = [f"{self.ip(host)} {host}\n" for host in NAMES]
        (home / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
        (home / "boot_id").write_text(f"{uuid.uuid4()}\n")
        kept = {str(path) for path in (ROOT, Path(sys.prefix)) if path.is_relative_to("/tmp")}
        log = (home / "log").open("w")  # unshare complains when it is killed
        script = INIT.format(name=name, home=home, boot_id=BOOT_ID, kept=shlex.join(sorted(kept)))
        self._inits[name] = subprocess.Popen(
            ["unshare", "-n", "-m", "-u", "-p", "-i", "-f", "--mount-proc", "bash", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests
        )
        log.close()
        assert self._inits[name].stdout.readline() == "ready\n", (home / "log").read_text()

    def _join(self):
        program = self._folder / "switch"
        subprocess.run(["gcc", "-O2", "-o", program, Path(__file__).with_name("switch.c")], check=True)
        pids = [str(self._pid(self._inits[name])) for name in NAMES]
        self._switch = subprocess.Popen(
            [program, *pids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._switch.stdout.readline() == "ok\n"
        for name in NAMES:
            # No route leads elsewhere, so that nothing waits for an answer from the world outside.
            self.shell(
                name, f"ip addr add {self.ip(name)}/24 dev eth0 && ip link set eth0 up mtu 1500 txqueuelen 10000"
            )
            if self._congestion:
                self.shell(name, f"echo {self._congestion} >/proc/sys/net/ipv4/tcp_congestion_control")

    def _go_on(self):
        """Have no `nsenter` stand still: one does so with its child, and a host ends once all are collected."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)

    def _pid(self, init):
        """Return the process that is the first one of a host: the child of `unshare`."""
        if not hasattr(init, "child"):
            children = Path(f"/proc/{init.pid}/task/{init.pid}/children")
            init.child = int(wait_for(children.read_text, "the start of a host").split()[0])
        return init.child
