"""The case in which an actor that serves is killed again and again."""

import asyncio
import os
import signal
import sys
import time
import uuid
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import ray
from support.patience import Busy, wait_for

from faults.case import Case, weaker
from faults.checker import Account
from faults.ledger import Inbox, read_lines
from faults.ray_support import by_value
from ray_messaging import Messaging, MessagingConfig

AGENTS, SENDER = range(100), 1_000
CONCURRENCY, KILLS = 1_000, 10
BEFORE_A_KILL, PER_CALL = 1_200, 250
PATIENCE_S = 90.0
SETTINGS = MessagingConfig(mailbox_messages=4_000, send_timeout_s=PATIENCE_S)  # some thousands wait at any time


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Server:
    """An actor that serves; after its death Ray starts it again, and repeats the call."""

    async def serve(self, messaging, folder):
        """Serve until it is killed; note in a file of this life when a handler begins, and when it ends."""
        life = Inbox(Path(folder) / f"life-{time.time_ns()}-{os.getpid()}")

        async def handle(message):
            n = message.payload["n"]
            life.write("begun", n, time.time())
            await asyncio.sleep(0.001 + 0.05 * (n * 7919 % 1000) / 1000)  # a model, which takes its time
            life.write("ended", n, time.time())

        messager = await messaging.open_messager("server", AGENTS)
        await messager.serve(handle, concurrency=CONCURRENCY)


def lives(folder):
    """Return the files of all processes of the actor, the oldest first."""
    return sorted(folder.glob("life-*"))


def noted(path, what):
    """Return the messages whose handlers a process has begun or ended, and when."""
    return [(line[1], line[2]) for line in read_lines(path) if line[0] == what]


def at_work(folder, number):
    """Return the pid of a life that has handled so many messages that it may be killed; None: it has not yet."""
    found = lives(folder)[number : number + 1]
    if found and len(noted(found[0], "ended")) >= BEFORE_A_KILL:
        return int(found[0].name.rpartition("-")[2])
    return None


def handled(folder):
    return {n for path in lives(folder) for n, _ in noted(path, "ended")}


class Load(Busy):
    """A thread that sends messages as fast as the mailbox takes them."""

    def __init__(self, group):
        super().__init__()
        self.group, self.sent, self.delivered = group, 0, 0

    def work(self):
        while not self.enough.is_set():
            numbers = range(self.sent, self.sent + PER_CALL)
            to_ids = [n % len(AGENTS) for n in numbers]
            receipts = self.group.send_columns(SENDER, to_ids, [{"n": n} for n in numbers])
            self.sent, self.delivered = numbers.stop, self.delivered + receipts.counts()["delivered"]


def killed_while_it_serves(folder):
    """Kill the actor's process under load, and count the messages that come again."""
    by_value()
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Messaging.start(f"serving-{uuid.uuid4().hex[:8]}", settings=SETTINGS) as messaging:
        load = Load(messaging.create_group("senders", [SENDER]))
        server = Server.remote()
        server.serve.remote(messaging, str(folder))
        wait_for(lambda: "server" in messaging.stats()["waiting"], "the first life", PATIENCE_S)
        load.start()
        try:
            for number in range(KILLS):
                pid = wait_for(lambda n=number: at_work(folder, n), "a life that handles messages", PATIENCE_S)
                os.kill(pid, signal.SIGKILL)
            healed_at, sent = time.time(), load.sent
            wait_for(lambda: at_work(folder, KILLS), "the last life", PATIENCE_S)
        finally:
            load.stop()
        wait_for(lambda: len(handled(folder)) >= load.delivered, "all messages", PATIENCE_S)
        wait_for(lambda: not messaging.stats()["waiting"]["server"], "the last commit", PATIENCE_S)
        ray.kill(server)
    return account_of(folder, load, healed_at, sent)


def account_of(folder, load, healed_at, sent):
    """Count. Of the messages that come again, those above the number that can have been in hand are too many."""
    begun = [noted(path, "begun") for path in lives(folder)]
    assert len(begun) == KILLS + 1
    numbers = [[n for n, _ in life] for life in begun]
    counted = Counter(chain.from_iterable(numbers))
    again = [len({*life}.intersection(chain.from_iterable(numbers[at + 1 :]))) for at, life in enumerate(numbers)]
    twice = sum(len(life) - len({*life}) for life in numbers)
    times = sorted(at for life in begun for _, at in life)
    return Account(
        sent=load.sent,
        acknowledged=load.delivered,
        received=counted.total(),
        lost=load.delivered - len(handled(folder)),
        duplicates=twice + sum(max(0, count - CONCURRENCY) for count in again),
        phantoms=len(counted.keys() - set(range(load.sent))),
        longest_gap_s=max(later - at for at, later in pairwise(times)),
        drain_s=max(at for life in begun for n, at in life if n < sent) - healed_at,
        facts={"kills": KILLS, "came_again": sum(again), "most_of_a_kill": max(again)},
    )


CASES = [
    Case(
        f"serving actor killed {KILLS} times, {CONCURRENCY:,} handlers",
        killed_while_it_serves,
        weaker("nothing lost; what was in hand comes again", "order_breaks"),
    )
]
