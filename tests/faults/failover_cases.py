"""Cases of a primary that is lost while Sentinels watch; each counts what was acknowledged and is gone."""

import random
import time
from functools import partial

from support.replicated import ReplicatedService

from faults.case import Case, weaker
from faults.stage import Stage, until

_PATIENCE_S = 60  # of senders and receivers: more than a failover takes


def failover(folder, *, kills, wait_replicas, replicas=1, cut_off=(), seed=0):
    """Kill the primary again and again, each time with another one after it; it comes back as a replica.

    Args: `cut_off` are the kills before which replicas and Sentinels lose the primary, while its clients keep it.
    """
    chance = random.Random(seed)
    settings = {"wait_replicas": wait_replicas, "send_timeout_s": _PATIENCE_S}
    with (
        ReplicatedService(folder / "service", replicas=replicas) as service,
        Stage(folder, server=service, settings=settings) as stage,
    ):
        stage.talk()
        for kill in range(kills):
            time.sleep(chance.random() * 0.3)  # any moment will do
            old = service.primary
            if kill in cut_off:
                service.cut_off(old)
                service.failed_over()  # for so long the old one goes on
                time.sleep(chance.random())
                old.kill()
            else:
                old.kill()
                service.failed_over()
            service.join(old)
            service.settle()
            stage.healed()
            stage.more_received(200)
        stage.facts |= {"kills": kills, "cut_off_before": len(cut_off), "replicas": replicas}
        return stage.finish()


def replica_away(folder, *, times, seed=6):
    """Kill one of two replicas, or let it stand still, until a sender has been refused; then it comes back."""
    chance = random.Random(seed)
    settings = {"wait_replicas": 2, "send_timeout_s": _PATIENCE_S}
    with (
        ReplicatedService(folder / "service", replicas=2) as service,
        Stage(folder, server=service, settings=settings) as stage,
    ):
        stage.talk(settings={"send_timeout_s": 2})
        for at in range(times):
            away, refused = chance.choice(service.replicas), stage.errors("NotReplicated")
            leave, come = (away.pause, away.resume) if at % 2 else (away.kill, away.start)
            leave()
            until(lambda refused=refused: stage.errors("NotReplicated") > refused, "a refusal")
            come()
            service.settle()
            stage.healed()
            stage.more_received(200)
        stage.facts |= {"times": times, "refusals": stage.errors("NotReplicated")}
        return stage.finish()


NOT_WAITED_FOR = weaker("what no replica had is lost; senders go on, or end with an error", "lost")

# In the suite: they take seconds for each kill.
SHORT = Case(
    "primary lost 3 times, wait_replicas=1", partial(failover, kills=3, cut_off={1}, wait_replicas=1), long=True
)
CASES = [
    SHORT,
    Case("failover 20 times, wait_replicas=1", partial(failover, kills=20, wait_replicas=1, seed=1), long=True),
    Case(
        "failover 20 times, cut off before, wait_replicas=1",
        partial(failover, kills=20, cut_off=range(20), wait_replicas=1, seed=2),
        long=True,
    ),
    Case(
        "failover 20 times, two replicas, wait_replicas=2",
        partial(failover, kills=20, cut_off=range(0, 20, 2), replicas=2, wait_replicas=2, seed=3),
        long=True,
    ),
    Case("one of two replicas away 10 times, wait_replicas=2", partial(replica_away, times=10), long=True),
    Case(
        "failover 20 times, wait_replicas=0",
        partial(failover, kills=20, wait_replicas=0, seed=4),
        NOT_WAITED_FOR,
        long=True,
    ),
    Case(
        "failover 20 times, cut off before, wait_replicas=0",
        partial(failover, kills=20, cut_off=range(20), wait_replicas=0, seed=5),
        NOT_WAITED_FOR,
        long=True,
    ),
]
