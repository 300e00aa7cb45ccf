"""How large a payload is: 100 bytes to 1 MB, beside frames of the same bytes by redis-py in the same run."""

from collections.abc import Iterator

from benchmarks.axes.bounds.raw import WINDOW, RawPair
from benchmarks.axes.bounds.samples import FRAME_ROWS
from benchmarks.axes.society.member import CALL_BYTES
from benchmarks.axes.society.society import cluster, experiment
from benchmarks.figures import LIMIT, OURS, Figure, Plan

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
QUICK = (100, 10_000, 1_000_000)
AGENTS = 2_000
RAW = f"{LIMIT}redis-py XADD"


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure each size, ours and redis-py's."""
    seconds = plan.seconds / 2
    with cluster(), experiment("payload", AGENTS) as (messaging, society):
        raw = RawPair(messaging.redis)
        for nbytes in QUICK if plan.quick else SIZES:
            society.aim(nbytes)
            at: dict[str, int | float | str] = {"bytes": nbytes}
            rows = max(1, min(FRAME_ROWS, CALL_BYTES // nbytes // 4))
            raw.rate(seconds / 2, rows * nbytes, WINDOW)
            bulk = society.rates("bulk", seconds, plan.repeats)
            frames = [raw.rate(seconds, rows * nbytes, WINDOW) for _ in range(plan.repeats)]
            limit, note = [rate * rows for rate in frames], f"frames of {rows:,} payloads"
            yield Figure("payload", "bulk", OURS, "messages/s", bulk, at)
            yield Figure("payload", "bulk", RAW, "messages/s", limit, at, note)
            yield Figure("payload", "volume", OURS, "MB/s", [rate * nbytes / 1e6 for rate in bulk], at)
            yield Figure("payload", "volume", RAW, "MB/s", [rate * nbytes / 1e6 for rate in limit], at, note)
            awaited = society.rates("awaited", seconds, plan.repeats)
            yield Figure("payload", "awaited", OURS, "messages/s", awaited, at)
        raw.close()
