"""Tune a process for messages: many small objects that live as long as a batch, and large buffers by turns."""

import ctypes
import gc
import os
from collections.abc import Mapping

_OBJECTS = 50_000  # new ones between two looks: each message that is awaited has a few
# As Python 3.11 and 3.12, and later ones, begin: with other values somebody has chosen.
_UNTOUCHED = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}
# Of glibc's malloc, by mallopt's numbers and by the variables that it reads at a process's start. Buffers of up to 32
# MiB come from memory that the process keeps, of which 256 MiB may lie idle. Memory that comes fresh from the system
# costs half a nanosecond a byte, which was a quarter of the time that messages took in bulk.
_KEPT = {-3: 32 * 2**20, -1: 256 * 2**20, -2: 16 * 2**20}
KEPT_VARIABLES: Mapping[str, str] = {
    name: str(_KEPT[number])
    for name, number in (("MALLOC_MMAP_THRESHOLD_", -3), ("MALLOC_TRIM_THRESHOLD_", -1), ("MALLOC_TOP_PAD_", -2))
}


def tune_process() -> None:
    """Tune an actor of ours: look for garbage less often, never at what was there at the start; keep freed memory."""
    _tune_collector()
    keep_memory()


def relax_process() -> None:
    """Tune a process of the user's, as far as the user has not: look for garbage less often, keep freed memory."""
    relax_collector()
    keep_memory()


def keep_memory() -> None:
    """Keep freed memory for the next batch, where malloc is glibc's and nobody has set it up by environment."""
    if "GLIBC_TUNABLES" in os.environ or not KEPT_VARIABLES.keys().isdisjoint(os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for number, nbytes in _KEPT.items():
            mallopt(number, nbytes)


def _tune_collector() -> None:
    """Keep the garbage collector off what was there at the start, and let it look less often.

    It took half of the awaited path: each message waits as a future, a coroutine and a receipt, none of them garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, 20, 1000)


def relax_collector() -> None:
    """Let the garbage collector look less often in a user's own process, unless the user has chosen how often.

    Nothing is frozen, and all generations go on being looked at: what there is beside the messaging may become garbage.
    """
    if gc.isenabled() and gc.get_threshold() in _UNTOUCHED:
        gc.set_threshold(_OBJECTS, 20, 100)
