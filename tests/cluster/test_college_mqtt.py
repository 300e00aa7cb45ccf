"""A real trace over MQTT with interceptor and log, while the broker is killed: every message is accounted for."""

import uuid
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
import ray
from support.cluster import PATIENCE_S, wait_for
from test_college_replay import check_log

from ray_messaging import Messaging, Outgoing, mqtt, rules
from ray_messaging.receipt import FATES
from ray_messaging.replay.traces.trace import read_trace

pytestmark = pytest.mark.long

CHUNK = 500
SOME, BANNED = 6000, 20


@ray.remote(num_cpus=0)
class Town:
    """Hold a messager as AgentSociety's actors do, and send many messages at a time."""

    def __init__(self, host, port, exp_id, name):
        self.exp_id = exp_id
        self.messager = mqtt.Messager(host, port, exp_id=exp_id, name=name)
        self.sent_fates = {}

    async def open(self, agents):
        await self.messager.connect()
        await self.messager.subscribe([f"exps/{self.exp_id}/agents/{agent}/#" for agent in agents], agents)
        await self.messager.start_listening()

    async def send(self, rows):
        """Send (number, sender, receiver); return each row's message id and fate."""
        for low in range(0, len(rows), CHUNK):
            chunk = rows[low : low + CHUNK]
            receipts = await self.messager.send_messages(
                [Outgoing(f"exps/{self.exp_id}/agents/{to}/agent-chat", {"n": n}, str(by)) for n, by, to in chunk]
            )
            for (n, _, _), message_id, code in zip(chunk, receipts.message_ids, receipts.codes, strict=True):
                self.sent_fates[n] = message_id, FATES[code]
        return self.sent_fates

    async def sent(self):
        return len(self.sent_fates)

    async def receive(self, count):
        """Fetch until so many have come; return them as (number, sender, receiver)."""
        found = []
        while len(found) < count:
            for delivery in await self.messager.fetch_messages(timeout=None):
                message = delivery.message
                assert delivery.topic.value == f"exps/{self.exp_id}/agents/{message.to_id}/agent-chat"
                found.append((message.payload["n"], message.from_id, message.to_id))
        return found

    async def more(self, agents):
        """Return the number of later arrivals, here and at a successor of this name."""
        found = len(await self.messager.fetch_messages(timeout=0.2))
        await self.messager.stop()
        await self.open(agents)
        found += len(await self.messager.fetch_messages(timeout=0.2))
        await self.messager.stop()
        return found


class Played:
    """A trace under way between four towns."""

    def __init__(self, broker, messaging, towns, rows, delivered):
        agents = list(dict.fromkeys(agent for _, *pair in rows for agent in pair))
        home = {agent: number % towns for number, agent in enumerate(agents)}
        self.agents = [agents[number::towns] for number in range(towns)]
        self.towns = [
            Town.remote(broker.config.server, broker.config.port, messaging.exp_id, f"town-{number}")
            for number in range(towns)
        ]
        self.on_all("open", self.agents)
        comes = Counter(home[to] for n, _, to in rows if n in delivered)
        self._receiving = [town.receive.remote(comes[number]) for number, town in enumerate(self.towns)]
        shares = [[row for row in rows if home[row[1]] == number] for number in range(towns)]
        self._sending = [town.send.remote(share) for town, share in zip(self.towns, shares, strict=True)]

    def on_all(self, method, args):
        calls = [getattr(town, method).remote(arg) for town, arg in zip(self.towns, args, strict=True)]
        return ray.get(calls, timeout=PATIENCE_S)

    def sent(self):
        return sum(ray.get([town.sent.remote() for town in self.towns], timeout=PATIENCE_S))

    def sent_fates(self):
        """Wait until all are sent; return each row's message id and fate."""
        return {n: fate for sent_fates in ray.get(self._sending, timeout=PATIENCE_S) for n, fate in sent_fates.items()}

    def received(self):
        """Wait until all have arrived; return them in the order of each town's inbox. Nothing arrives after them."""
        found = [row for town in ray.get(self._receiving, timeout=PATIENCE_S) for row in town]
        assert self.on_all("more", self.agents) == [0] * len(self.towns)
        return found

    def close(self):
        for town in self.towns:
            ray.kill(town)


@contextmanager
def played(*args):
    play = Played(*args)
    try:
        yield play
    finally:
        play.close()


def experiment(folder, pairs):
    return Messaging.start(f"college-{uuid.uuid4().hex[:8]}", rules=[rules.BlackList(pairs)], log_dir=folder / "log")


def rows_of(path):
    trace = read_trace(path)
    return list(zip(range(len(trace)), trace.senders, trace.receivers, strict=True))


def check_received(found, rows):
    """Compare the arrivals with the file: each row once, in order for each pair."""
    assert Counter(found).most_common(1)[0][1] == 1
    same = sorted(found) == rows
    assert same  # outside of the assert: pytest would print the rows
    last = {}
    for n, *pair in found:
        assert n > last.get(tuple(pair), -1)
        last[tuple(pair)] = n


def columns(rows):
    return np.array([sender for _, sender, _ in rows]), np.array([receiver for *_, receiver in rows])


def test_a_broker_killed_half_way_loses_nothing(ray_cluster, data, tmp_path, mosquitto):
    rows = rows_of(data("collegemsg/CollegeMsg.txt.gz"))
    assert len(rows) == 59_835
    with (
        experiment(tmp_path, [(-1, None)]) as messaging,
        played(mosquitto, messaging, 4, rows, range(len(rows))) as play,
    ):
        wait_for(lambda: play.sent() >= len(rows) / 2, "half of the trace")
        mosquitto.kill()
        assert play.sent() < len(rows)
        mosquitto.start()
        sent_fates = play.sent_fates()
        assert Counter(fate for _, fate in sent_fates.values()) == {"delivered": len(rows)}
        check_received(play.received(), rows)
        check_log(messaging.log, sent_fates, ["delivered"] * len(rows), *columns(rows))


def test_blocked_and_delivered_messages_add_up_to_the_sent_ones(ray_cluster, data, tmp_path, mosquitto):
    rows = rows_of(data("collegemsg/CollegeMsg.txt.gz"))[:SOME]
    banned = {sender for sender, _ in Counter(sender for _, sender, _ in rows).most_common(BANNED)}
    expected = ["blocked" if sender in banned else "delivered" for _, sender, _ in rows]
    passing = [row for row, fate in zip(rows, expected, strict=True) if fate == "delivered"]
    with (
        experiment(tmp_path, [(agent, None) for agent in banned]) as messaging,
        played(mosquitto, messaging, 2, rows, {n for n, *_ in passing}) as play,
    ):
        sent_fates = play.sent_fates()
        assert [sent_fates[n][1] for n in range(SOME)] == expected
        check_received(play.received(), passing)
        check_log(messaging.log, sent_fates, expected, *columns(rows))
        blocked = messaging.log.query(fate="blocked")
        assert set(blocked["rule"].to_pylist()) == {"black_list"}
        assert set(blocked["from_id"].to_pylist()) == banned
