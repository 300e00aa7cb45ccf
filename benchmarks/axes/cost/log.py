"""Cost of the event log, and its completeness after it fell behind."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.axes.cost.processes import pid_of
from benchmarks.axes.society.society import Society, cluster, experiment
from benchmarks.figures import OURS, Figure, Plan
from ray_messaging import Messaging

AGENTS = 2_000
STANDS_STILL_S = 1.0


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure without the log, then with it."""
    with cluster(), tempfile.TemporaryDirectory(prefix="ray-messaging-bench-") as folder:
        with experiment("log-off", AGENTS) as (_, society):
            for kind in ("bulk", "awaited"):
                rates = society.rates(kind, plan.seconds, plan.repeats)
                yield Figure("log", kind, OURS, "messages/s", rates, {"log": "off"})
            yield from society.lone_figures("log", plan.repeats, {"log": "off"})
        with experiment("log-on", AGENTS, log_dir=Path(folder) / "log") as (messaging, society):
            for kind in ("bulk", "awaited"):
                yield from _logged(plan, messaging, society, kind)
            yield from society.lone_figures("log", plan.repeats, {"log": "on"})
            yield _lost(plan, messaging, society)


def _logged(plan: Plan, messaging: Messaging, society: Society, kind: str) -> Iterator[Figure]:
    """Measure until the last message has arrived, and until the log has it as well."""
    society.rate(kind, plan.seconds / 2)
    arrived, logged = [], []
    for _ in range(plan.repeats):
        _rows(messaging)
        begun = time.time()
        sent, end = society.begin(kind, plan.seconds)()
        _rows(messaging)
        arrived.append(sent / (end - begun))
        logged.append(sent / (time.time() - begun))
    yield Figure("log", kind, OURS, "messages/s", arrived, {"log": "on"}, "until the last has arrived")
    yield Figure("log", f"{kind}, until logged", OURS, "messages/s", logged, {"log": "on"}, "until the log has it, too")


def _rows(messaging: Messaging) -> int:
    """Wait until the log has all that was sent; return how many rows it has (to count them would be a query's time)."""
    return messaging.log.end + 1


def _lost(plan: Plan, messaging: Messaging, society: Society) -> Figure:
    """Stop the log's process while all send; count the messages that are missing from the log in the end."""
    before, pid = _rows(messaging), pid_of(messaging.log_actor)
    os.kill(pid, signal.SIGSTOP)
    try:
        finish = society.begin("bulk", plan.seconds)
        time.sleep(plan.seconds + STANDS_STILL_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    sent, _ = finish()
    lost = sent - (_rows(messaging) - before)
    messaging.log.balance()  # it raises where a send has no fate, or two
    return Figure("log", "lost when the log lags", OURS, "messages", [float(lost)], {"log": "on"}, f"of {sent:,}")
