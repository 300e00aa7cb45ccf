"""Tune an actor's process for messages: many small objects that live as long as a batch."""

import gc


def tune_collector() -> None:
    """Keep the garbage collector off what was there at the start, and let it look less often.

    It took half of the awaited path: each message waits as a future, a coroutine and a receipt, none of them garbage.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 1000)
