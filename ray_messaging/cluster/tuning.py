"""Tune an actor's process for messages: many small objects that live as long as a batch."""

import gc

_OBJECTS = 50_000  # new ones between two looks: each message that is awaited has a few
# As Python 3.11 and 3.12, and later ones, begin: with other values somebody has chosen.
_UNTOUCHED = {(700, 10, 10), (2000, 10, 10), (2000, 10, 0)}


def tune_collector() -> None:
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
