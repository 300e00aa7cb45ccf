"""Steady traffic of every kind: finds the growth of each process in the second half of an hour.

Everything here goes on at one pace: messages in bulk and one by one, handles, new plain channels, messagers that come
and go under new names, transactions, rules with state, changes of the rules. Nothing breaks.
"""

import argparse
import asyncio
import itertools
import json
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import ray
from rich.console import Console
from rich.table import Table

from benchmarks.soak.held import Held
from benchmarks.work import payload
from ray_messaging import Group, Messager, Messaging, MessagingConfig, rules

SIZE = 1_000  # agents of a group
GROUPS = ("east", "west")
AWAITED = 20  # messages awaited one by one, each time
LONG_EVERY = 97  # one message in so many is longer than the rules allow
ROUND_EVERY = 60  # changes of the rules to a round

Work = Callable[[int], Awaitable[None]]


def stateful_rules() -> list[rules.Rule]:
    """Return rules that remember: violations of agents and of pairs, contacts and counts of a round."""
    return [
        rules.BlackList([(1, SIZE + 1)]),
        rules.EdgeBan(rules.MaxLength(400, name="edge length"), after=20),
        rules.SenderBan(rules.MaxLength(600, name="length"), after=1_000_000),
        rules.RoundQuota(contacts=500),
        rules.RateLimit(per_round=1_000_000),
    ]


class Traffic:
    """Do each kind of work again and again; `done` counts it."""

    def __init__(self, messaging: Messaging, pace: float) -> None:
        self.done: Counter[str] = Counter()
        self._messaging = messaging
        self._groups = [messaging.group(name) for name in GROUPS]
        self._dice = np.random.default_rng(7)
        self._deadline = 0.0
        # (times a second at pace 1, the work)
        self._kinds: dict[str, tuple[float, Work]] = {
            "messages in bulk": (0.5, self._bulk),
            "messages awaited": (1.0, self._awaited),
            "new plain channels": (2.0, self._plain),
            "nameless messagers": (1.0, self._nameless),
            "named messagers": (0.5, self._named),
            "transactions": (1.0, self._transaction),
            "changes of the rules": (0.5, self._change),
        }
        self._pace = pace

    async def run(self, seconds: float) -> None:
        """Work for so long."""
        self._deadline = time.monotonic() + seconds
        async with self._messager() as self._talker, self._messager("bank") as self._bank:
            await self._bank.subscribe_and_start_listening(["bank"])
            async with asyncio.TaskGroup() as tasks:
                for rate, work in self._kinds.values():
                    tasks.create_task(self._again(rate * self._pace, work))

    async def _again(self, rate: float, work: Work) -> None:
        began = time.monotonic()
        for number in itertools.count():
            due = began + number / rate
            if due >= self._deadline:
                return
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() >= self._deadline:
                return
            await work(number)

    def _messager(self, name: str | None = None) -> Messager:
        messaging = self._messaging
        settings = MessagingConfig(log_list_messages=1_000)  # it grows up to its limit, for an hour or so
        return Messager(messaging.redis, messaging.exp_id, messaging.interceptor, name=name, settings=settings)

    # -- kinds of work --------------------------------------------------------------------------------------------

    async def _bulk(self, number: int) -> None:
        """Send from all agents of a group and fetch in the other, by handles of their own, as tasks would have."""
        handles = await asyncio.to_thread(_copies, self._groups)
        home = number % 2
        from_ids = np.arange(home * SIZE, (home + 1) * SIZE)
        to_ids = (1 - home) * SIZE + (from_ids + number % 100) % SIZE
        receipts = await asyncio.to_thread(
            handles[home].send_columns, from_ids, to_ids, [_text(n) for n in range(SIZE)]
        )
        self.done["messages in bulk"] += len(receipts)
        self.done["handles"] += 2
        self.done["fetched"] += await asyncio.to_thread(_fetch, handles[1 - home])

    async def _awaited(self, number: int) -> None:
        for from_id in range(AWAITED):
            channel = self._talker.get_agent_chat_channel(int(self._dice.integers(SIZE, 2 * SIZE)))
            await self._talker.send_message(channel, _text(number + from_id), from_id=from_id)
        self.done["messages awaited"] += AWAITED

    async def _plain(self, number: int) -> None:
        await self._talker.send_message(f"news-{number}", payload(number), from_id=number)
        self.done["new plain channels"] += 1

    async def _nameless(self, number: int) -> None:
        await self._visit(None, f"visitor-{number}")
        self.done["nameless messagers"] += 1

    async def _named(self, number: int) -> None:
        await self._visit(f"guest-{number}", f"guest-{number}")
        self.done["named messagers"] += 1

    async def _visit(self, name: str | None, channel: str) -> None:
        async with self._messager(name) as messager:
            await messager.subscribe_and_start_listening([channel])
            await messager.send_message(channel, payload(0), from_id=1)
            await self._talker.send_message(channel, payload(1), from_id=2)
            while not await messager.fetch_messages(timeout=10):
                pass

    async def _transaction(self, number: int) -> None:
        async with self._bank.transaction() as transaction:
            await transaction.fetch_messages()
            transaction.state = str(number).encode()
            transaction.send_message("bank", payload(number), from_id=1)
        self.done["transactions"] += 1

    async def _change(self, number: int) -> None:
        interceptor = self._messaging.interceptor
        if number % ROUND_EVERY == 0:
            await interceptor.new_round.remote()
        await interceptor.insert_rule.remote(rules.RateLimit(per_round=10**6, name=f"rule {number}"))
        await interceptor.add_to_black_set.remote((number % SIZE, SIZE + 2))
        await interceptor.remove_from_black_set.remote((number % SIZE, SIZE + 2))
        await interceptor.pop_rule.remote(f"rule {number}")
        self.done["changes of the rules"] += 4


def _text(number: int) -> dict[str, Any]:
    return payload(number) | ({"more": "x" * 500} if number % LONG_EVERY == 0 else {})


def _copies(groups: list[Group]) -> list[Group]:
    copies: list[Group] = ray.cloudpickle.loads(ray.cloudpickle.dumps(groups))
    return copies


def _fetch(handle: Group) -> int:
    """Fetch all that is there, and commit it."""
    fetched = 0
    while True:
        with handle.fetch_messages() as messages:
            if not len(messages):
                return fetched
            fetched += len(messages)


def steady(arguments: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run once; return the report."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Messaging.start(f"steady-{secrets.token_hex(4)}", rules=stateful_rules(), log_dir=f"{folder}/log") as messaging,
    ):
        for number, name in enumerate(GROUPS):
            messaging.create_group(name, range(number * SIZE, (number + 1) * SIZE))
        traffic = Traffic(messaging, arguments.pace)
        held = Held(messaging, traffic.done, 60.0 * arguments.minutes, console)
        held.start()
        try:
            asyncio.run(traffic.run(60.0 * arguments.minutes))
        finally:
            held.stop()
            held.join()
        health = messaging.health().to_dict()
        for name in messaging.closed_messagers():
            messaging.remove_messager(name)
        left = held.count()
    return held.report() | {"done": dict(traffic.done), "health": health, "keys_after_remedy": left}


def show(console: Console, report: dict[str, Any]) -> None:
    """Print each resource over time, its growth in the second half, and the result."""
    table = Table("what", *report["columns"], "an hour more", title="memory in MiB, keys, descriptors; time in minutes")
    for name, row in report["rows"].items():
        table.add_row(name, *(f"{value:,.0f}" for value in row["values"]), f"{row['per_hour']:+,.0f}")
    console.print(table)
    console.print("done: " + ", ".join(f"{count:,} {name}" for name, count in report["done"].items()))
    for finding in report["health"]["findings"]:
        if finding["level"] != "ok" or "kept" in finding["what"]:
            console.print(f"health: {finding['level']}: {finding['what']}: {finding['value']} -> {finding['remedy']}")
    console.print(f"{report['keys_after_remedy']:,} keys once the names of closed messagers were removed")
    for name in report["growing"]:
        console.print(f"grows: {name}, by {report['rows'][name]['per_hour']:,.0f} an hour")
    console.print("steady" if not report["growing"] else "NOT steady")


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Run and print; return 0 if everything was steady, else 1."""
    report = steady(arguments, console)
    show(console, report)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(bool(report["growing"]))
