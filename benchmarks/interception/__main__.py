"""Cost of rules, delay by a slow rule, and lag of the log's tail.

python -m benchmarks.interception [--seconds 5] [--json FILE]
"""

import argparse
import asyncio
import json
import logging
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

from ray_messaging import Messaging, rules
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn
from ray_messaging.wire.frames import encode

ROWS = 4096
WAITING = 500
LIMITS = {
    "black list of 100,000 pairs, us a message": 0.5,
    "others' p99 while 500 wait for a moderator of 1 s, ms": 20.0,
    "tail() behind the receipt, p99, ms": 100.0,
}


def black_list(entries: int, rounds: int = 200) -> float:
    """Return the cost of an id-only black list in the interceptor, decoding and answer included, in us a message."""
    rng = np.random.default_rng(3)
    pairs = [(int(a), int(b)) for a, b in rng.integers(0, 2_000_000, (entries, 2))]
    bare, listed = Interceptor("x"), Interceptor("x", [rules.BlackList(pairs)])
    spent: dict[str, list[float]] = {"bare": [], "listed": []}
    for number in range(rounds):
        ids = rng.integers(0, 1_000_000, (2, ROWS))
        batch = Batch(
            sender="s",
            epoch=1,
            first=number * ROWS,
            from_ids=IdColumn(ids[0]),
            rows=len(ids[0]),
            to_ids=IdColumn(ids[1]),
            topics=("agent-chat",),
        )
        request = encode(batch)
        for name, interceptor in (("bare", bare), ("listed", listed)):
            began = time.perf_counter()
            interceptor.answer(request)
            spent[name].append(time.perf_counter() - began)
    return 1e6 * (statistics.median(spent["listed"]) - statistics.median(spent["bare"])) / ROWS


class Slow(rules.SlowRule):
    """A rule that takes a second for messages marked as slow."""

    needs_payload = True

    def at_once(self, message: Any) -> Any:
        return None if message.payload.get("slow") else rules.ALLOW

    async def judge(self, message: Any) -> Any:  # noqa: ARG002 - a SlowRule's
        await asyncio.sleep(1.0)
        return rules.ALLOW


def waiting(folder: Path) -> dict[str, float]:
    """Hold 500 messages with a slow rule; return how long lone messages of other pairs take meanwhile, in ms."""

    async def run(messaging: Messaging) -> dict[str, float]:
        west = await messaging.open_messager("west", range(1000))
        others = await messaging.open_messager("others", range(1000, 1010))
        east = await messaging.open_messager("east", range(2000, 3000))
        channel = others.get_agent_chat_channel(2999)

        async def lone(count: int) -> list[float]:
            found = []
            for _ in range(count):
                began = time.perf_counter()
                await others.send_message(channel, {"text": "hello"}, 1000)
                found.append(1000 * (time.perf_counter() - began))
                await asyncio.sleep(0.002)
            return sorted(found)

        def p99(found: list[float]) -> float:
            return found[len(found) * 99 // 100]

        await lone(50)
        idle = await lone(300)
        held = asyncio.gather(
            *(west.send_message(west.get_agent_chat_channel(2000 + n), {"slow": True}, n) for n in range(WAITING))
        )
        await asyncio.sleep(0)
        meanwhile: list[float] = []
        while not held.done():
            meanwhile += await lone(20)
        receipts = await held
        assert all(receipt.sent for receipt in receipts)
        for messager in (west, others, east):
            await messager.close()
        return {"idle p99": p99(idle), "p99": p99(sorted(meanwhile)), "messages": len(meanwhile)}

    with Messaging.start("bench-waiting", rules=[Slow()], log_dir=folder / "waiting") as messaging:
        return asyncio.run(run(messaging))


def tail(folder: Path, count: int = 300) -> dict[str, float]:
    """Follow the log while messages are sent; return how long after its receipt each was seen, in ms."""
    seen: dict[str, float] = {}
    with Messaging.start("bench-tail", log_dir=folder / "tail") as messaging:
        west, east = messaging.create_group("west", range(10)), messaging.create_group("east", range(10, 20))
        follower = messaging.log.tail(timeout_s=10)

        def follow() -> None:
            for row in follower:
                seen[row.message_id] = time.perf_counter()
                if len(seen) == count:
                    return

        thread = threading.Thread(target=follow)
        thread.start()
        told: dict[str, float] = {}
        for _ in range(count):
            told[west.send(1, 11, {"text": "hello"}).message_id] = time.perf_counter()
            time.sleep(0.01)
        thread.join()
        assert east.fetch_messages(timeout=1)
    lags = sorted(max(0.0, 1000 * (seen[key] - at)) for key, at in told.items())
    return {"p50": lags[len(lags) // 2], "p99": lags[len(lags) * 99 // 100]}


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 130)
    cost = {entries: black_list(entries) for entries in (100, 10_000, 100_000)}
    ray.init(include_dashboard=False, logging_level=logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="ray-messaging-bench-") as folder:
        wait, follow = waiting(Path(folder)), tail(Path(folder))
    figures = dict(zip(LIMITS, (cost[100_000], wait["p99"], follow["p99"]), strict=True))
    table = Table(title="rules and the log, seen from a message")
    for column in ("", "measured", "limit", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3f}", f"{LIMITS[name]:g}", f"{value / LIMITS[name]:.2f}")
    console.print(table)
    console.print({"black list, us a message, by entries": cost, "waiting": wait, "tail": follow})
    if args.json:
        args.json.write_text(json.dumps({"black_list_us": cost, "waiting_ms": wait, "tail_ms": follow}, indent=2))
    ray.shutdown()


if __name__ == "__main__":
    main()
