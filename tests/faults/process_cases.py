"""Cases in which senders, receivers, log writers and servers die or are stopped, and their successors."""

import json
import random
import time
from functools import partial

from support.cluster import stopped

from faults.case import Case
from faults.stage import Stage
from ray_messaging.eventlog.event_log import EventLog

BLOCKED = [[1002, 0]]  # a pair that a black list of the sender's rules stops


def talk(stage, **options):
    """Let a sender and a receiver talk; return them by their roles."""
    sender, [receiver] = stage.talk(name="town", **options)
    return {"sender": sender, "receiver": receiver}


def die(stage, cast, chance):
    """Kill the server, or one of the cast, at random; each is replaced."""
    time.sleep(chance.random() * 0.2)  # any moment will do
    role = chance.choice([*cast, "server"])
    if role == "server":
        stage.server.kill()
        stage.server.start()
    else:
        cast[role] = stage.replace(cast[role])
    stage.healed()
    stage.more_received(100)


def everybody_dies(folder, *, rounds, seed, on=None):
    """Kill sender, receiver or server, at random."""
    chance = random.Random(seed)
    with Stage(folder, on=on, appendfsync="always") as stage:
        cast = talk(stage)
        for _ in range(rounds):
            die(stage, cast, chance)
        stage.facts["kills"] = rounds
        return stage.finish()


def beside_its_successor(folder, *, role, on=None):
    """Let somebody stand still, let a successor take its name over, and let the old one go on."""
    with Stage(folder, on=on, appendfsync="always") as stage:
        old = talk(stage)[role]
        with stopped(old.pid):
            if role == "receiver":
                stage.more_sent(300)
            stage.successor(old)
            stage.more_received(500)
        stage.healed()
        said = old.hear("failed")
        old.kill()
        stage.facts["old_one_said"] = said["error"]
        stage.more_received(300)
        return stage.finish()


def logged(folder, *, rounds, seed, on=None):
    """Keep an event log, with rules that block, while its writer and all others die; ledger, inbox and log agree."""
    chance = random.Random(seed)
    with Stage(folder, on=on, appendfsync="always") as stage:
        log_dir = folder / "log"
        writer = stage.logger(log_dir)
        cast = talk(stage, blocked=BLOCKED) | {"log": writer}
        for _ in range(rounds):
            die(stage, cast, chance)
        stage.facts["kills"] = rounds
        account = stage.finish(log=lambda: rows_of(cast["log"], log_dir))
        assert account.blocked, "no rule was at work"
        return account


def rows_of(writer, log_dir):
    """Let the log be written to its end, and return its rows as the checker takes them."""
    writer.end()
    rows = EventLog.open(log_dir).query(subtopic="agent-chat").to_pylist()
    return [row | {"n": json.loads(row["payload"])["n"]} for row in rows]


CASES = [
    Case("sender, receiver, server killed", partial(everybody_dies, rounds=4, seed=3), quick=True, replicas=True),
    Case("sender, receiver, server killed 40 times", partial(everybody_dies, rounds=40, seed=4), replicas=True),
    Case("receiver stands still beside its successor", partial(beside_its_successor, role="receiver"), replicas=True),
    Case(
        "sender stands still beside its successor",
        partial(beside_its_successor, role="sender"),
        quick=True,
        replicas=True,
    ),
    Case("event log while all of them die", partial(logged, rounds=6, seed=7), replicas=True),
    Case("event log while all of them die 30 times", partial(logged, rounds=30, seed=8), replicas=True),
]
