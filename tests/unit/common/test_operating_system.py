"""What is Linux's own has a replacement, which can be run on Linux, too."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import ray_messaging
from ray_messaging.common import operating_system

PACKAGE = Path(ray_messaging.__file__).parent


@pytest.fixture(params=["linux", "elsewhere"])
def system(request, monkeypatch):
    """Give Linux, and a system that lacks what only Linux has."""
    if request.param == "elsewhere":
        monkeypatch.setattr(operating_system, "LINUX", False)
        monkeypatch.setattr(operating_system, "PROCESSES", Path("/no such folder"))
        monkeypatch.setattr(sys, "platform", "darwin")
        for module, names in (
            (os, ("waitid", "pidfd_open", "pipe2", "fdatasync", "sched_getaffinity")),
            (signal, ("sigtimedwait",)),
        ):
            for name in names:
                monkeypatch.delattr(module, name)
    return request.param


@pytest.mark.parametrize(
    ("code", "ended"), [("raise SystemExit(3)", "exit code 3"), ("import os; os.kill(os.getpid(), 9)", "SIGKILL")]
)
def test_the_end_of_a_child_is_told_again_and_again(system, code, ended):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-S", "-c", code])
        while operating_system.how_ended(pid) is None:
            operating_system.wait_for_child(10)
        assert [operating_system.how_ended(pid) for _ in range(2)] == [ended] * 2
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_facts_are_given_or_are_said_to_be_unknown(system, tmp_path):
    ours = os.getpid()
    linux = system == "linux"
    assert operating_system.is_alive(ours)
    assert (operating_system.processor_ticks(ours) is not None) == linux
    assert (operating_system.available_memory() is not None) == linux
    assert bool([*operating_system.own_processes()]) == linux
    assert operating_system.listens(ours, 1) != linux  # elsewhere the password decides
    assert operating_system.usable_cores() >= 1
    assert 1 <= operating_system.longest_backlog(511) <= 511
    (found := operating_system.pidfd(ours)) is None or os.close(found)
    assert (found is not None) == linux
    with (tmp_path / "file").open("wb") as file:
        operating_system.write_to_disk(file)


def test_a_process_that_is_gone_is_not_alive():
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    assert not operating_system.is_alive(process.pid)


def test_a_pipe_neither_blocks_nor_is_inherited(system):
    ends = operating_system.open_pipe()
    for end in ends:
        assert not os.get_blocking(end)
        assert not os.get_inheritable(end)
        os.close(end)


def test_elsewhere_than_on_linux_no_process_is_asked_to_die(monkeypatch):
    monkeypatch.setattr(operating_system, "LINUX", False)
    monkeypatch.setattr(operating_system, "_prctl", lambda *_: pytest.fail("there is no prctl"))
    operating_system.die_with_parent()
    operating_system.adopt_orphans()


def test_no_other_module_has_something_of_linux_alone():
    linux = re.compile(r"/proc/|prctl\(|pidfd_open|pipe2\(|sched_getaffinity|sigtimedwait|fdatasync|os\.waitid")
    found = [path.name for path in PACKAGE.rglob("*.py") if linux.search(path.read_text())]
    assert found == ["operating_system.py"]
