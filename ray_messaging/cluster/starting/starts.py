"""Starts of many actors, some at a time."""

from collections.abc import Callable, Iterable
from typing import Any

import ray

_LEAST, _PER_PROCESSOR = 8, 2


def start_in_turn(starts: Iterable[Callable[[], Any]], check: Callable[[Any], object]) -> None:
    """Start processes, twice as many at a time as the cluster has processors; `check` raises a start's error.

    More would starve each other of the processor, until the first ones take the server for dead. The first error ends
    it. Args: each start returns an ObjectRef, which is ready when the process is.
    """
    at_once = max(_LEAST, _PER_PROCESSOR * int(ray.cluster_resources().get("CPU", 0)))
    under_way: list[Any] = []
    for start in starts:
        if len(under_way) >= at_once:
            under_way = _one_less(under_way, check)
        under_way.append(start())
    while under_way:
        under_way = _one_less(under_way, check)


def _one_less(under_way: list[Any], check: Callable[[Any], object]) -> list[Any]:
    """Wait for one start, and return the others."""
    [done], left = ray.wait(under_way, num_returns=1)
    check(done)
    return left
