"""The case in which an actor that serves is killed again and again."""

import asyncio
import os
import signal
import sys
import time
import uuid
from collections import Counter
from itertools import pairwise
from pathlib import Path

import ray
from support.patience import Busy, wait_for

from faults.case import Case, weaker
from faults.checker import Account
from ray_messaging import Messaging

AGENTS, SENDER = range(100), 1_000
CONCURRENCY, KILLS = 1_000, 10
BEFORE_A_KILL, WAITING, PER_CALL = 1_200, 3_000, 250
PATIENCE_S = 90.0


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Server:
    """An actor that serves; after its death Ray starts it again, and repeats the call."""

    async def serve(self, messaging, folder):
        """Serve until it is killed; write to a ledger of this life when a handler begins, and when it ends."""
        path = Path(folder) / f"ledger-{time.time_ns()}-{os.getpid()}"
        ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        async def handle(message):
            n = message.payload["n"]
            os.write(ledger, b"begun %d %f\n" % (n, time.time()))
            await asyncio.sleep(0.001 + 0.05 * (n * 7919 % 1000) / 1000)  # a model, which takes its time
            os.write(ledger, b"ended %d %f\n" % (n, time.time()))

        messager = await messaging.open_messager("server", AGENTS)
        await messager.serve(handle, concurrency=CONCURRENCY)


class Life:
    """One process of the actor: the messages whose handlers it has begun and ended, and when it has begun each."""

    def __init__(self, path):
        self.pid = int(path.name.rpartition("-")[2])
        self.begun, self.began_at, self.ended = [], [], []
        self._path, self._read_to = path, 0

    def read(self):
        """Read on; a line that is not whole, or that a kill has cut off, is left out."""
        with self._path.open("rb") as ledger:
            ledger.seek(self._read_to)
            whole = ledger.read().rpartition(b"\n")[0]
        self._read_to += len(whole) + bool(whole)
        for line in whole.split(b"\n") if whole else []:
            what, n, at = line.split()
            if what == b"begun":
                self.begun.append(int(n))
                self.began_at.append(float(at))
            else:
                self.ended.append(int(n))


class Lives:
    """All processes of the actor, the oldest first."""

    def __init__(self, folder):
        self.handled = set()  # messages whose handlers have ended
        self._folder, self._lives = folder, {}

    def read(self):
        """Read the ledgers on; return the lives."""
        for path in sorted(self._folder.glob("ledger-*")):
            life = self._lives.setdefault(path, Life(path))
            known = len(life.ended)
            life.read()
            self.handled.update(life.ended[known:])
        return [*self._lives.values()]

    def at_work(self, number):
        """Return a life that has handled so many messages that it may be killed; None: it has not yet."""
        lives = self.read()
        return lives[number] if len(lives) > number and len(lives[number].ended) >= BEFORE_A_KILL else None

    def have_handled(self, count):
        """Tell whether so many messages are handled."""
        self.read()
        return len(self.handled) >= count


class Load(Busy):
    """A thread that sends messages, so that some thousands wait at any time."""

    def __init__(self, group, lives):
        super().__init__()
        self.group, self.lives, self.sent, self.delivered = group, lives, 0, 0

    def work(self):
        while not self.enough.is_set():
            if self.sent - len(self.lives.handled) > WAITING:
                self.enough.wait(0.02)
                continue
            numbers = range(self.sent, self.sent + PER_CALL)
            to_ids = [n % len(AGENTS) for n in numbers]
            receipts = self.group.send_columns(SENDER, to_ids, [{"n": n} for n in numbers])
            self.sent, self.delivered = numbers.stop, self.delivered + receipts.counts()["delivered"]


def killed_while_it_serves(folder):
    """Kill the actor's process under load, and count the messages that come again."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    lives = Lives(folder)
    with Messaging.start(f"serving-{uuid.uuid4().hex[:8]}") as messaging:
        load = Load(messaging.create_group("senders", [SENDER]), lives)
        server = Server.remote()
        server.serve.remote(messaging, str(folder))
        wait_for(lambda: "server" in messaging.stats()["waiting"], "the first life", PATIENCE_S)
        load.start()
        try:
            for number in range(KILLS):
                life = wait_for(lambda n=number: lives.at_work(n), "a life that handles messages", PATIENCE_S)
                os.kill(life.pid, signal.SIGKILL)
            healed_at, sent = time.time(), load.sent
            wait_for(lambda: lives.at_work(KILLS), "the last life", PATIENCE_S)
        finally:
            load.stop()
        wait_for(lambda: lives.have_handled(load.delivered), "all messages", PATIENCE_S)
        wait_for(lambda: not messaging.stats()["waiting"]["server"], "the last commit", PATIENCE_S)
        ray.kill(server)
    return account_of(lives, load, healed_at, sent)


def account_of(lives, load, healed_at, sent):
    """Count. Of the messages that come again, those above the number that can have been in hand are too many."""
    listed = lives.read()
    assert len(listed) == KILLS + 1
    begun = Counter(n for life in listed for n in life.begun)
    twice = sum(len(life.begun) - len({*life.begun}) for life in listed)
    again = []
    for number, life in enumerate(listed):
        later = {n for other in listed[number + 1 :] for n in other.begun}
        again.append(len(later.intersection(life.begun)))
    times = sorted(at for life in listed for at in life.began_at)
    earlier = [at for life in listed for n, at in zip(life.begun, life.began_at, strict=True) if n < sent]
    return Account(
        sent=load.sent,
        acknowledged=load.delivered,
        received=begun.total(),
        lost=load.delivered - len(lives.handled),
        duplicates=twice + sum(max(0, count - CONCURRENCY) for count in again),
        phantoms=len(begun.keys() - set(range(load.sent))),
        longest_gap_s=max(later - at for at, later in pairwise(times)),
        drain_s=max(earlier) - healed_at,
        facts={
            "kills": len(listed) - 1,
            "cut_off": sum(len({*life.begun} - {*life.ended}) for life in listed),
            "came_again": sum(again),
            "most_of_a_kill": max(again),
        },
    )


CASES = [
    Case(
        f"serving actor killed {KILLS} times, {CONCURRENCY:,} handlers",
        killed_while_it_serves,
        weaker("nothing lost; what was in hand comes again", "order_breaks"),
        long=True,
    )
]
