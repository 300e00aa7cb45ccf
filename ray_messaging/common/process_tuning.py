"""Tuning of a process's memory. Messages need many small objects, which live as long as a batch, and large buffers."""

import ctypes
import gc
import os
from collections.abc import Mapping
from functools import cache

_OBJECTS = 50_000  # the number of new objects between two garbage collections; an awaited message needs a few
# The default thresholds of Python 3.11 and later. Other thresholds were set by the user.
_UNTOUCHED = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
# Settings of glibc's malloc: the numbers for mallopt, and the environment variables with the same meaning. With these
# settings, buffers of up to 32 MiB come from memory that the process keeps, of which at most 256 MiB are unused. New
# memory from the system would take 0.5 ns per byte, a quarter of the time of bulk messages.
_KEPT = {-3: 32 * 2**20, -1: 256 * 2**20, -2: 16 * 2**20}
KEPT_VARIABLES: Mapping[str, str] = {
    name: str(_KEPT[number])
    for name, number in (("MALLOC_MMAP_THRESHOLD_", -3), ("MALLOC_TRIM_THRESHOLD_", -1), ("MALLOC_TOP_PAD_", -2))
}


def tune_process() -> None:
    """Tune the process of one of our actors: keep freed memory, and collect garbage less often.

    From now on, the garbage collector ignores all objects that exist when this function is called.
    """
    # With Python's settings, half of the time of awaited messages would be garbage collection. Each message has a
    # future, a coroutine and a receipt, none of which is garbage.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, 20, 1000)
    keep_memory()


@cache
def keep_memory() -> None:
    """Keep freed memory for the next batch, if malloc is glibc's and the environment does not configure it.

    This is safe in a user's process, even while other threads run: it changes only limits of malloc.
    """
    if "GLIBC_TUNABLES" in os.environ or not KEPT_VARIABLES.keys().isdisjoint(os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for number, nbytes in _KEPT.items():
            mallopt(number, nbytes)


def relax_collector() -> None:
    """Collect garbage less often in a user's own process, unless the user has set the thresholds.

    Unlike `tune_process`, this leaves existing objects to the collector, because a user's objects may become garbage.
    """
    if gc.isenabled() and gc.get_threshold() in _UNTOUCHED:
        gc.set_threshold(_OBJECTS, 20, 100)
