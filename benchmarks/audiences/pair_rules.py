"""A black list on an audience: how long a change takes, and what it costs a broadcast."""

import time

import numpy as np

from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import spread
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import BlackList
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, nobody
from ray_messaging.model.extension import AudiencePairs, Extension
from ray_messaging.sending.bulk_input import within_pairs

_SENDERS, _HEARERS, _LISTED = 10_000, 100, 100_000


async def measure_rules() -> dict[str, float]:
    """Return seconds: of verdicts on a million pairs, of a change by 100,000 pairs, of the first verdicts after it."""
    rng = np.random.default_rng(1)
    hearers = np.argsort(rng.random((_SENDERS, 2 * _HEARERS)), axis=1)[:, :_HEARERS]
    pairs = np.stack((np.repeat(np.arange(_SENDERS), _HEARERS), hearers.ravel()), axis=1)
    edges, listed = build_edges([pairs]), rng.choice(pairs, _LISTED, replace=False)
    rule = BlackList()
    interceptor = Interceptor("benchmark", [rule])
    found = {"no pair listed": await _verdicts(interceptor, edges, 0)}
    wanted = [(int(a), int(b)) for a, b in listed]
    began = time.perf_counter()
    await interceptor.change(lambda: rule.set(wanted))
    found["change by 100,000 pairs"] = time.perf_counter() - began
    found["first broadcast of all after it"] = await _verdicts(interceptor, edges, 1)
    found["later broadcasts of all"] = await _verdicts(interceptor, edges, 2)
    await interceptor.close()
    return found


async def _verdicts(interceptor: Interceptor, edges: Edges, number: int) -> float:
    """Return how long the verdicts on one broadcast of each sender take."""
    whole = Batch(
        sender="benchmark",
        epoch=1,
        first=number * _SENDERS,
        from_ids=IdColumn(np.arange(_SENDERS)),
        to_ids=nobody(_SENDERS),
        rows=_SENDERS,
        topics=("agent-chat",),
        extension=Extension(audience=AudiencePairs("friends", 1)),
    )
    seconds = 0.0
    for part in within_pairs(whole, edges):
        part.numbers = np.arange(part.rows, dtype=np.uint32)
        spoken = spread(part, edges)
        began = time.perf_counter()
        await interceptor.judge(spoken)
        seconds += time.perf_counter() - began
    return seconds
