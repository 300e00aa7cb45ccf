"""Memory per agent and per waiting message."""

import time
from collections.abc import Iterator

import ray

from benchmarks.axes.cost.processes import client, held_bytes, pid_of, pss_bytes
from benchmarks.axes.society.society import cluster, experiment
from benchmarks.figures import LIMIT, OURS, Figure, Plan
from benchmarks.work import payload
from ray_messaging import MessagingConfig
from ray_messaging.model.columns import encode_payload

FEW, MANY = 1_000, 200_000
WAITING = 900_000  # messages; a mailbox holds a million
ROOMY = MessagingConfig(inbox_messages=2 * WAITING, send_timeout_s=120.0)


def measure(plan: Plan) -> Iterator[Figure]:
    """Compare two societies; then have messages wait."""
    repeats = 1 if plan.quick else min(2, plan.repeats)
    with cluster():
        found = [(_held(f"few-{n}", FEW), _held(f"many-{n}", MANY)) for n in range(repeats)]
        for part in ("groups", "interceptor", "server"):
            grew = [(many[part] - few[part]) / (MANY - FEW) for few, many in found]
            yield Figure("memory", f"per agent: {part}", OURS, "bytes/agent", grew, note=f"{FEW:,} to {MANY:,} agents")
        sums = [(sum(many.values()) - sum(few.values())) / (MANY - FEW) for few, many in found]
        yield Figure("memory", "per agent: all", OURS, "bytes/agent", sums, note="the driver, too")
        yield from _waiting(repeats)


def _held(exp_id: str, agents: int) -> dict[str, int]:
    """Return the memory of each part of an experiment of two groups, after each agent has got a message."""
    with experiment(exp_id, agents) as (messaging, society):
        society.rate("step", 1)
        return held_bytes(messaging, society.members)


def _waiting(repeats: int) -> Iterator[Figure]:
    """Have messages wait for a receiver that fetches nothing: all of them in its inbox, and so in its mailbox."""
    inbox, mailbox = [], []
    for number in range(repeats):
        with (
            experiment(f"waiting-{number}", 2_000, settings=ROOMY) as (messaging, society),
            client(messaging.redis) as server,
        ):
            west, east = society.members
            society.rate("bulk", 0.3)  # so that one-time allocations are made
            ray.get(east.fetch_no_more.remote())
            ray.get(west.step.remote(0))  # the message that it was waiting for
            pid = pid_of(east)
            before = pss_bytes(pid), server.info("memory")["used_memory"]
            sent = ray.get(west.send_rows.remote(WAITING))
            while ray.get(east.inbox.remote()) < sent:
                time.sleep(0.05)
            inbox.append((pss_bytes(pid) - before[0]) / sent)
            mailbox.append((server.info("memory")["used_memory"] - before[1]) / sent)
    note = f"{WAITING:,} messages"
    yield Figure("memory", "waiting: the receiver's inbox", OURS, "bytes/message", inbox, note=note)
    yield Figure("memory", "waiting: the server's mailbox", OURS, "bytes/message", mailbox, note=note)
    text = [float(len(encode_payload(payload(10_000), 1_000)))]
    for where in ("the receiver's inbox", "the server's mailbox"):
        yield Figure("memory", f"waiting: {where}", f"{LIMIT}its JSON text", "bytes/message", text)
