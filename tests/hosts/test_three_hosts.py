"""The hosts on which the other tests of this folder run: three of them, with a network that can be cut."""

import os
from pathlib import Path

import pytest
from support import hosts as hosts_module
from support.hosts import NAMES, Hosts
from support.patience import wait_for


@pytest.fixture(scope="module")
def hosts():
    with Hosts() as made:
        yield made


def reaches(hosts, sender, receiver):
    """Tell whether a host refuses another one's connection, which it does at once, as nobody listens."""
    code = (
        "import socket, sys\n"
        "try: socket.create_connection((sys.argv[1], 22), 0.5)\n"
        "except ConnectionRefusedError: print(True)\n"
        "except TimeoutError: print(False)"
    )
    return hosts.python(sender, code, receiver) == "True\n"


def test_each_host_is_a_machine_of_its_own(hosts):
    for host in NAMES:
        hosts.shell(host, f"echo {host} >/tmp/mine; echo {host} >/dev/shm/mine; echo {host} >~/mine")
    told = "hostname; cat /tmp/mine /dev/shm/mine ~/mine /proc/sys/kernel/random/boot_id; ps -e | wc -l; hostname -i"
    seen = {host: hosts.shell(host, told).split() for host in NAMES}
    assert {host: lines[:4] for host, lines in seen.items()} == {host: [host] * 4 for host in NAMES}
    assert len({lines[4] for lines in seen.values()}) == 3
    assert all(int(lines[5]) < 9 for lines in seen.values())
    assert [lines[6] for lines in seen.values()] == [hosts.ip(host) for host in NAMES]
    assert hosts.path("b", "/tmp/mine").read_text() == "b\n"


def test_a_cut_is_one_hosts_or_one_directions(hosts):
    assert reaches(hosts, "a", "b")
    hosts.cut("b")
    assert [reaches(hosts, *pair) for pair in ("ab", "bc", "ac")] == [False, False, True]
    hosts.mend("b")
    hosts.cut_one_way("a", "b")
    assert [reaches(hosts, *pair) for pair in ("ab", "bc")] == [False, True]
    hosts.heal()
    assert reaches(hosts, "a", "b")
    packets, size = hosts.sent("a", "b")
    assert size > packets > 0


def test_a_delay_is_a_round_trips(hosts):
    code = (
        "import socket, sys, time\n"
        "begin = time.monotonic()\n"
        "try: socket.create_connection((sys.argv[1], 22), 20)\n"
        "except ConnectionRefusedError: print(time.monotonic() - begin)"
    )
    hosts.set_round_trip(300)
    assert float(hosts.python("a", code, "c")) >= 0.3
    hosts.heal()


def test_a_host_without_power_takes_all_of_its_processes_with_it():
    with Hosts() as hosts:
        process = hosts.start("c", "sleep", "600")
        hosts.kill("c")
        process.communicate(timeout=20)
        assert not reaches(hosts, "a", "c")
        assert reaches(hosts, "a", "b")


def test_a_host_that_does_not_start_says_why_and_leaves_nothing(monkeypatch):
    refusal = "if [ {name} = b ]; then echo no power >&2; exit 3; fi"
    monkeypatch.setattr(hosts_module, "INIT", f"{refusal}\n{hosts_module.INIT}")
    made = Hosts()
    with pytest.raises(AssertionError, match="no power"):
        made.__enter__()
    assert [init.poll() is None for init in made._inits.values()] == [False, False]
    assert not made.path("a", "/").parent.exists()


def test_the_end_kills_no_process_that_has_the_number_of_a_dead_host(monkeypatch):
    with Hosts() as hosts:
        hosts.kill("c")
        dead, kill, killed = hosts._inits["c"].child, os.kill, []
        monkeypatch.setattr(os, "kill", lambda pid, number: killed.append(pid) or kill(pid, number))
    assert (dead in killed, len(killed)) == (False, 2)


@pytest.mark.timeout(60)
def test_a_process_that_stands_still_holds_up_no_end():
    with Hosts() as hosts:
        stopped = {host: hosts.start(host, "sleep", "600") for host in "bc"}
        for host, process in stopped.items():
            hosts.shell(host, "kill -STOP $(pgrep -x sleep)")
            stat = Path(f"/proc/{process.pid}/stat")  # nsenter, outside of the host, stops with its child
            wait_for(lambda stat=stat: ") T " in stat.read_text(), "the stop")
        hosts.kill("b")
    for process in stopped.values():
        process.communicate(timeout=20)
