"""Collector and memory of a process that opens a messager: tuned, unless its owner has chosen otherwise."""

import gc
import os
import resource
import subprocess
import sys

import pytest

from ray_messaging.common.process_tuning import relax_collector


@pytest.fixture(autouse=True)
def _as_before():
    enabled, thresholds = gc.isenabled(), gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize(
    ("on", "thresholds", "relaxed"),
    [
        (True, (700, 10, 10), (50_000, 20, 100)),
        (True, (5_000, 5, 5), (5_000, 5, 5)),
        (False, (700, 10, 10), (700, 10, 10)),
    ],
    ids=["untouched", "with chosen thresholds", "switched off"],
)
def test_only_an_untouched_collector_runs_less_often(on, thresholds, relaxed):
    gc.set_threshold(*thresholds)
    (gc.enable if on else gc.disable)()
    frozen = gc.get_freeze_count()
    relax_collector()
    assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()) == (on, relaxed, frozen)


FAULTS = """
import asyncio
import resource
from ray_messaging import LocalServer, Messager

async def open_one():
    async with Messager(LocalServer(), "town"):
        pass

def take():
    return [bytearray(b"x") * (8 * 2**20) for _ in range(4)]  # together more than glibc keeps on its own

asyncio.run(open_one())
take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(**environment):
    """Count the pages that 20 buffers of 8 MiB, four at a time, take fresh from the system."""
    run = subprocess.run(
        [sys.executable, "-c", FAULTS], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return int(run.stdout)


def test_a_process_that_opened_a_messager_keeps_freed_memory_for_the_next_buffer():
    pages = 8 * 2**20 // resource.getpagesize()
    assert faults() < 2 * pages


def test_a_chosen_malloc_setting_stays():
    pages = 8 * 2**20 // resource.getpagesize()
    assert faults(MALLOC_MMAP_THRESHOLD_="131072", MALLOC_TRIM_THRESHOLD_="131072") > 10 * pages


def test_a_messager_leaves_the_collector_of_a_users_process_alone():
    facts = "gc.get_threshold(), gc.get_freeze_count()"  # Python 3.12 begins with some frozen objects
    code = f"import gc\nfirst = {facts}\n{FAULTS}\nprint(({facts}) == first)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split()[1:] == ["True"]
