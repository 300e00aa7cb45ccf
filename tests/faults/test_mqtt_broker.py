"""A real trace over an MQTT broker that is ended, or killed, and started again: what the broker promises."""

import asyncio
import gzip
import itertools
import json
from collections import defaultdict

import pytest

from ray_messaging.compat.mqtt import Messager
from ray_messaging.compat.mqtt.mqtt_connection import AT_ONCE
from ray_messaging.errors import OutcomeUnknown

pytestmark = [pytest.mark.faults, pytest.mark.long]

HALVES, ENDS, MESSAGES, CHUNK = 2, 5, 3_000, 100
WAIT_S = 120


class Half:
    """One of the two halves of the students: it sends what its students do, and takes what is for them."""

    def __init__(self, broker, rows, number):
        config = broker.config.model_copy(update={"timeout": WAIT_S})
        self.messager = Messager(config, name=f"half-{number}")
        self.mine = [(n, *pair) for n, pair in enumerate(rows) if int(pair[0]) % HALVES == number]
        self.agents = sorted({receiver for _, receiver in rows if int(receiver) % HALVES == number})
        self.sent, self.unknown, self.came = 0, set(), []
        self.on_sent = lambda: None

    async def open(self):
        await self.messager.connect()
        await self.messager.start_listening()
        await self.messager.subscribe([(f"exps/college/agents/{agent}/#", 1) for agent in self.agents], None)

    async def send(self):
        for low in range(0, len(self.mine), CHUNK):
            chunk = self.mine[low : low + CHUNK]
            results = await asyncio.gather(*itertools.starmap(self._send, chunk), return_exceptions=True)
            for (n, *_), result in zip(chunk, results, strict=True):
                if isinstance(result, OutcomeUnknown):
                    self.unknown.add(n)
                else:
                    assert result.sent, result
            self.sent += len(chunk)
            self.on_sent()

    async def _send(self, n, by, to):
        return await self.messager.send_message(f"exps/college/agents/{to}/agent-chat", {"n": n}, by, to)

    async def receive(self):
        """Take all that comes, until the messager stops."""
        while found := await self.messager.fetch_messages(timeout=None):
            self.came += [json.loads(message.payload)["n"] for message in found]


async def play(broker, rows, end):
    """Send the trace between the halves, and end the broker meanwhile, and start it again; return the account."""
    halves = [Half(broker, rows, number) for number in range(HALVES)]
    for half in halves:
        await half.open()
    progress = asyncio.Event()
    receiving = [asyncio.create_task(half.receive()) for half in halves]
    for half in halves:
        half.on_sent = progress.set
    sending = asyncio.gather(*(half.send() for half in halves))
    for at in range(1, ENDS + 1):
        while sum(half.sent for half in halves) < at * len(rows) // (ENDS + 1):
            progress.clear()
            await progress.wait()
        end()
        broker.start()
    await sending
    for half in halves:  # what is acknowledged comes before what is published later on each topic
        for agent in half.agents:
            await half.messager.send_message(f"exps/college/agents/{agent}/end", {"n": -1})
    async with asyncio.timeout(WAIT_S):
        while any(half.came.count(-1) < len(half.agents) for half in halves):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.1)
    for half in halves:
        await half.messager.stop()
    await asyncio.gather(*receiving)
    return account(halves, rows)


def account(halves, rows):
    """Count what was acknowledged and did not come, what came twice, and breaks of the order of a pair."""
    came = [n for half in halves for n in half.came if n >= 0]
    unknown = set().union(*(half.unknown for half in halves))
    breaks, last = 0, defaultdict(lambda: -1)
    for n in came:
        breaks += n < last[rows[n]]
        last[rows[n]] = max(n, last[rows[n]])
    lost = set(range(len(rows))) - set(came) - unknown
    return {"lost": len(lost), "twice": len(came) - len(set(came)), "breaks": breaks, "unknown": len(unknown)}


@pytest.fixture
def rows(data):
    """Return (sender, receiver) of the trace's first messages."""
    with gzip.open(data("collegemsg/CollegeMsg.txt.gz"), "rt") as lines:
        return [tuple(line.split()[:2]) for line in itertools.islice(lines, MESSAGES)]


async def test_a_broker_that_is_ended_and_comes_back_keeps_everything(mosquittos, rows):
    broker = mosquittos(durable=True)
    assert await play(broker, rows, broker.stop) == {"lost": 0, "twice": 0, "breaks": 0, "unknown": 0}


async def test_a_broker_that_is_killed_breaks_no_more_than_what_was_under_way(mosquittos, rows):
    """A kill may lose or repeat what the broker had not on disk; docs/mqtt.md says so."""
    broker = mosquittos(durable=True)
    counted = await play(broker, rows, broker.kill)
    assert sum(counted.values()) <= ENDS * 2 * HALVES * AT_ONCE, counted
