"""Cases in which senders, receivers, log writers and servers die or are stopped, and their successors."""

import json
import random
import time
from functools import partial

from faults import injector
from faults.case import Case
from faults.stage import Stage
from ray_messaging.eventlog.event_log import EventLog

BLOCKED = [[1002, 0]]  # a pair that a black list of the sender's rules stops


class Cast:
    """One of each role, by a name that its successor takes over."""

    def __init__(self, stage, **options):
        self.stage = stage
        self.number = 0
        self.options = {
            "sender": {"name": "town", "rate": 100, "per_call": 12, "from_ids": [1001, 1002], "to_ids": [0, 1]},
            "receiver": {"name": "group-0", "agents": [0, 1], "limit": 100},
        }
        self.options["sender"] |= options
        self.now = {role: self.enter(role) for role in ("receiver", "sender")}
        stage.more_received(300)

    def enter(self, role):
        """Start a process in a role; its successor appends to the same file."""
        stage, self.number = self.stage, self.number + 1
        known = {"sender": ("ledger", stage.ledgers), "receiver": ("inbox", stage.inboxes)}[role]
        file = {known[0]: str(known[1][0])} if known[1] else {}
        options = dict(self.options[role]) | file | {"label": f"{role}-{self.number}"}
        if role == "sender":
            return stage.sender(options.pop("from_ids"), options.pop("to_ids"), **options)
        return stage.receiver(options.pop("agents"), **options)

    def replace(self, role):
        """Kill the process in a role, and start a successor."""
        self.now[role].kill()
        self.now[role] = self.enter(role)


def everybody_dies(folder, *, rounds, seed, roles=("sender", "receiver", "server")):
    """Kill sender, receiver or server, at random; each is replaced."""
    chance = random.Random(seed)
    with Stage(folder, appendfsync="always") as stage:
        cast = Cast(stage)
        for _ in range(rounds):
            time.sleep(chance.random() * 0.2)  # any moment will do
            role = chance.choice(roles)
            if role == "server":
                stage.server.kill()
                stage.server.start()
            else:
                cast.replace(role)
            stage.healed()
            stage.more_received(100)
        stage.facts["kills"] = rounds
        return stage.finish()


def beside_its_successor(folder, *, role):
    """Let somebody stand still, let a successor take its name over, and let the old one go on."""
    with Stage(folder, appendfsync="always") as stage:
        cast = Cast(stage)
        old = cast.now[role]
        with injector.stopped(old.pid):
            if role == "sender":
                cast.now[role] = cast.enter(role)
            else:
                stage.more_sent(300)
                cast.now[role] = cast.enter(role)
            stage.more_received(500)
        stage.healed()
        said = old.hear("failed")
        old.kill()
        stage.facts["old_one_said"] = said["error"]
        stage.more_received(300)
        return stage.finish()


def logged(folder, *, rounds, seed=0):
    """Keep an event log, with rules that block, while its writer and all others die; ledger, inbox and log agree."""
    chance = random.Random(seed)
    with Stage(folder, appendfsync="always") as stage:
        log_dir = folder / "log"
        writer = stage.logger(log_dir)
        cast = Cast(stage, blocked=BLOCKED)
        for _ in range(rounds):
            time.sleep(chance.random() * 0.2)  # any moment will do
            role = chance.choice(["log", "sender", "receiver", "server"])
            if role == "log":
                writer.kill()
                writer = stage.logger(log_dir)
            elif role == "server":
                stage.server.kill()
                stage.server.start()
            else:
                cast.replace(role)
            stage.healed()
            stage.more_received(100)
        stage.facts["kills"] = rounds
        account = stage.finish(log=lambda: rows_of(writer, log_dir))
        assert account.blocked, "no rule was at work"
        return account


def rows_of(writer, log_dir):
    """Let the log be written to its end, and return its rows as the checker takes them."""
    writer.end()
    rows = EventLog.open(log_dir).query(subtopic="agent-chat").to_pylist()
    return [row | {"n": json.loads(row["payload"])["n"]} for row in rows]


CASES = [
    Case("sender, receiver, server killed", partial(everybody_dies, rounds=4, seed=3), replicas=True),
    Case(
        "sender, receiver, server killed 40 times", partial(everybody_dies, rounds=40, seed=4), long=True, replicas=True
    ),
    Case(
        "receiver stands still beside its successor",
        partial(beside_its_successor, role="receiver"),
        long=True,
        replicas=True,
    ),
    Case("sender stands still beside its successor", partial(beside_its_successor, role="sender"), replicas=True),
    Case("event log while all of them die", partial(logged, rounds=6, seed=7), long=True, replicas=True),
    Case("event log while all of them die 30 times", partial(logged, rounds=30, seed=8), long=True, replicas=True),
]
