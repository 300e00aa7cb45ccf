"""Tuning of a process for messages, which need many small objects that live as long as a batch, and large buffers."""

import ctypes
import gc
import os
from collections.abc import Mapping
from functools import cache

_OBJECTS = 50_000  # new objects between two garbage collections: each awaited message needs a few
# The defaults of Python 3.11 and later. If there are other values, the user has chosen them.
_UNTOUCHED = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
# Settings of glibc's malloc: mallopt's numbers, and the variables that it reads at a process's start. With them,
# buffers of up to 32 MiB come from memory that the process keeps, of which at most 256 MiB are unused. New memory from
# the system takes 0.5 ns per byte, a quarter of the time of bulk messages.
_KEPT = {-3: 32 * 2**20, -1: 256 * 2**20, -2: 16 * 2**20}
KEPT_VARIABLES: Mapping[str, str] = {
    name: str(_KEPT[number])
    for name, number in (("MALLOC_MMAP_THRESHOLD_", -3), ("MALLOC_TRIM_THRESHOLD_", -1), ("MALLOC_TOP_PAD_", -2))
}


def tune_process() -> None:
    """Tune the process of one of our actors: keep freed memory, and collect garbage less often.

    Objects that exist already are never collected.
    """
    # Otherwise collection takes half of the time of awaited messages: each is a future, a coroutine and a receipt, none
    # of which is garbage.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, 20, 1000)
    keep_memory()


@cache
def keep_memory() -> None:
    """Keep freed memory for the next batch, if malloc is glibc's and the environment does not configure it.

    This is safe in a user's process: only malloc's limits change, which other threads may read meanwhile.
    """
    if "GLIBC_TUNABLES" in os.environ or not KEPT_VARIABLES.keys().isdisjoint(os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for number, nbytes in _KEPT.items():
            mallopt(number, nbytes)


def relax_collector() -> None:
    """Collect garbage less often in a user's own process, unless the user has set the thresholds.

    Existing objects are not excluded, and all generations are still collected, because other objects of the process may
    become garbage.
    """
    if gc.isenabled() and gc.get_threshold() in _UNTOUCHED:
        gc.set_threshold(_OBJECTS, 20, 100)
