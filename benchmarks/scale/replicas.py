"""Lone messages and bulk without a replica, with one, and with one that is waited for: three experiments by turns."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.axes.cost.processes import client
from benchmarks.axes.society.society import BLACK_LIST, Society
from benchmarks.reports.lines import Line, ratios
from ray_messaging import Messaging, MessagingConfig, RedisConfig
from ray_messaging.embedded.redis_server import EmbeddedServer

HOST = "127.0.0.1"
AGENTS, PINGS = 2_000, 500
CAUGHT_UP_S = 60
WITHOUT, UNAWAITED, AWAITED = "no replica", "one replica, wait_replicas=0", "one replica, wait_replicas=1"
MOST = 3.0  # times a lone message without a replica


@contextmanager
def replicated() -> Iterator[tuple[RedisConfig, Callable[[], None]]]:
    """Run a server with a replica; give its config, and a function that waits until the replica has all."""
    with EmbeddedServer(HOST) as server, EmbeddedServer(HOST) as follower:
        config, followers = server.start(), follower.start()
        with client(config) as primary, client(followers) as replica:

            def caught_up() -> None:
                primary.set("benchmark", 1)
                if primary.wait(1, 1000 * CAUGHT_UP_S) != 1:
                    raise RuntimeError(f"the replica has not all within {CAUGHT_UP_S} s")

            replica.config_set("masterauth", config.password or "")
            replica.execute_command("REPLICAOF", HOST, config.port)
            caught_up()
            yield config, caught_up


def measure(seconds: float, rounds: int) -> list[Line]:
    """Measure all sides by turns, after a turn of each to warm up."""
    with ExitStack() as stack:
        alone = stack.enter_context(EmbeddedServer(HOST)).start()
        config, caught_up = stack.enter_context(replicated())
        societies = {}
        for number, (name, where, waited) in enumerate(
            ((WITHOUT, alone, 0), (UNAWAITED, config, 0), (AWAITED, config, 1))
        ):
            settings = MessagingConfig(wait_replicas=waited)
            started = Messaging.start(f"replicas-{number}", redis=where, rules=[BLACK_LIST], settings=settings)
            societies[name] = stack.enter_context(Society(stack.enter_context(started), AGENTS))
        lone: dict[str, list[float]] = {name: [] for name in societies}
        bulk: dict[str, list[float]] = {name: [] for name in societies}
        for number in range(1 + rounds):
            for name in list(societies) if number % 2 == 0 else reversed(list(societies)):
                lone[name].append(statistics.median(societies[name].lone(PINGS)))
                bulk[name].append(societies[name].rate("bulk", seconds) / 1e6)
                caught_up()  # or its work would be another side's load
        for values in (*lone.values(), *bulk.values()):
            values.pop(0)
    return [*_lines("a lone message, p50", "ms", lone, MOST), *_lines("in bulk", "million/s", bulk, None)]


def _lines(part: str, unit: str, values: dict[str, list[float]], most: float | None) -> Iterator[Line]:
    for name, found in values.items():
        yield Line(part, name, unit, found)
    for name in (UNAWAITED, AWAITED):
        times = ratios(values[name], values[WITHOUT])
        yield Line(part, f"{name} / {WITHOUT}", "x", times, most=most if name == AWAITED else None)
