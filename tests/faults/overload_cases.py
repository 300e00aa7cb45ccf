"""Too much of everything: receivers that do not fetch, senders that give up, floods from outside."""

import subprocess
import sys
import time
from functools import partial

from faults.case import Case, weaker
from faults.stage import Stage, until

FLOOD = """
import sys, redis
host, port, password, channel, size = sys.argv[1:]
client = redis.Redis(host, int(port), password=password)
data = b'{"f":"' + b"x" * int(size) + b'"}'
pipe = client.pipeline(transaction=False)
while True:
    for _ in range(200):
        pipe.publish(channel, data)
    pipe.execute()
"""


def never_fetches(folder, *, mailbox_bytes, pad, senders):
    """Send as fast as it goes to a receiver that never fetches, until it does."""
    limits = {"mailbox_bytes": mailbox_bytes, "send_timeout_s": 1.0, "log_list_messages": 1000}
    with Stage(folder, appendfsync="everysec") as stage:
        slow = stage.receiver([0], go=False, settings=limits)
        working = [stage.sender([1000 + at], [0], per_call=500, pad=pad, settings=limits) for at in range(senders)]
        until(lambda: stage.errors("MailboxFull") >= 4 * senders, "senders are told")
        pids = {"receiver": slow.pid, "server": stage.server.pid}
        stage.memory(**pids, **{f"sender{at}": worker.pid for at, worker in enumerate(working)})
        stage.facts["waiting_mib"] = round(stage.sent() * (pad + 60) / 2**20)
        slow.tell("go")
        stage.more_received(2000)
        stage.healed()
        # Who reads ahead has a mailbox twice, as frames and as payloads; the rest is Python.
        assert stage.facts["receiver_mib"] < 250 + 3 * mailbox_bytes / 2**20, stage.facts
        assert max(stage.facts[f"sender{at}_mib"] for at in range(senders)) < 250, stage.facts
        return stage.finish()


def cancelled(folder, *, way, calls, on=None):
    """Cancel sends and fetches at random points."""
    with Stage(folder, on=on, appendfsync="everysec") as stage:
        stage.receiver([0, 1], cancel_s=0.004, limit=50)
        sender = stage.sender([1001, 1002], [0, 1], way=way, per_call=20, cancel_s=0.004, calls=calls)
        stage.facts["calls"] = sender.end(stop=False)["calls"]
        return stage.finish()


# Valkey 9.1 does not count what it sends without a copy: a slow subscriber's backlog would grow without end.
COPIED = {"min_string_size_avoid_copy_reply": 2**30}


def flood(folder, *, size, flood_s, inbox_messages, work_s=0.05):
    """Let a foreign client publish to an agent's channel as fast as it goes."""
    with Stage(folder, appendfsync="everysec", **COPIED) as stage:
        receiver = stage.receiver([0], settings={"inbox_messages": inbox_messages}, work_s=work_s)
        sender = stage.sender([1001], [0], rate=50, per_call=10)
        stage.more_received(100)
        config = stage.server.config
        channel = f"exps:{stage.exp_id}:agents:0:user-chat"
        where = [config.server, str(config.port), config.password, channel, str(size)]
        flooding = subprocess.Popen([sys.executable, "-c", FLOOD, *where])
        try:
            end = time.monotonic() + flood_s
            while time.monotonic() < end:
                stage.more_received(20)
                stage.memory(receiver=receiver.pid, sender=sender.pid, server=stage.server.pid)
        finally:
            flooding.kill()
            flooding.wait()
        stage.healed()
        # Foreign messages are bounded as the mailbox is, and the server cuts whoever does not take them.
        assert stage.facts["receiver_mib"] < 1000, stage.facts
        assert stage.facts["server_mib"] < 500, stage.facts
        return stage.finish()


FOREIGN = weaker("ours as ever; what foreign clients publish comes at most once, and drops are counted")
CASES = [
    Case("a receiver that never fetches", partial(never_fetches, mailbox_bytes=4 * 2**20, pad=1000, senders=1)),
    Case(
        "a receiver that never fetches, 256 MiB, 2 senders",
        partial(never_fetches, mailbox_bytes=256 * 2**20, pad=4000, senders=2),
    ),
    Case("sends and fetches cancelled", partial(cancelled, way="many", calls=400), quick=True, replicas=True),
    Case("sends and fetches cancelled, columns", partial(cancelled, way="columns", calls=4000)),
    Case("sends and fetches cancelled, one call per message", partial(cancelled, way="one", calls=4000)),
    Case("foreign flood on a channel", partial(flood, size=50, flood_s=2, inbox_messages=1000), FOREIGN),
    Case(
        "foreign flood of 64 KiB each",
        partial(flood, size=65_536, flood_s=12, inbox_messages=100_000, work_s=4),
        FOREIGN,
    ),
]
