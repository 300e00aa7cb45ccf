"""Cost of the interceptor: without rules, with rules on ids, and with rules that read payloads."""

from collections.abc import Iterator
from typing import Any

from benchmarks.axes.bounds.raw import WINDOW, RawPair
from benchmarks.axes.bounds.samples import FRAME_ROWS, batch_of
from benchmarks.axes.society.society import BLACK_LIST, Society, cluster, experiment
from benchmarks.figures import LIMIT, OURS, Figure, Plan
from ray_messaging import MessagingConfig, rules
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.wire.frames import encode

AGENTS = 2_000
RULES: dict[str, dict[str, Any]] = {
    "ids": {"rules": [BLACK_LIST]},
    "ids, each batch asked": {"rules": [BLACK_LIST], "settings": MessagingConfig(delegate_rules=False)},
    "payload": {"rules": [BLACK_LIST, rules.MaxLength(10_000)]},
    "payload, by pattern": {"rules": [BLACK_LIST, rules.Pattern(["forbidden", "secret word"])]},
}
QUICK = ("ids", "payload")
FRAMES = f"{LIMIT}redis-py frames"


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure each set of rules in an experiment of its own."""
    with cluster():
        yield from _without(plan)
        for name in QUICK if plan.quick else RULES:
            exp_id = f"interceptor-{list(RULES).index(name)}"
            with experiment(exp_id, AGENTS, **RULES[name]) as (_, society):
                yield from _figures(plan, society, name)


def _without(plan: Plan) -> Iterator[Figure]:
    """Measure messagers on a server of their own, without an interceptor, and redis-py's frames of the same size."""
    with EmbeddedServer("127.0.0.1") as server:
        config = server.start()
        with Society(config, AGENTS) as society:
            yield from _figures(plan, society, "off")
        raw, nbytes = RawPair(config), len(encode(batch_of(FRAME_ROWS)))
        raw.rate(plan.seconds / 2, nbytes, WINDOW)
        rates = [FRAME_ROWS * raw.rate(plan.seconds, nbytes, WINDOW) for _ in range(plan.repeats)]
        raw.close()
    note = f"frames of {FRAME_ROWS:,} messages, {nbytes:,} bytes, made beforehand and never opened"
    yield Figure("interceptor", "bulk", FRAMES, "messages/s", rates, {"rules": "off"}, note)


def _figures(plan: Plan, society: Society, name: str) -> Iterator[Figure]:
    at: dict[str, int | float | str] = {"rules": name}
    for kind in ("bulk", "awaited"):
        rates = society.rates(kind, plan.seconds / 2, plan.repeats)
        yield Figure("interceptor", kind, OURS, "messages/s", rates, at, f"{AGENTS:,} agents")
    yield from society.lone_figures("interceptor", plan.repeats, at)
