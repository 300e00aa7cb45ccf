"""Cases of a cluster: primaries are lost, slots move under load; each counts what was acknowledged and is gone."""

import random
import time
from functools import partial

from support.slots import ClusterService, Resharding

from faults.case import Case, weaker
from faults.stage import Stage

_PATIENCE_S = 60  # of senders and receivers: more than a failover takes


def failover(folder, *, kills, wait_replicas, cut_off=(), seed=0):
    """Kill the experiment's primary again and again, each time with another one after it; it comes back as a replica.

    `cut_off` are the kills before which all other nodes lose the primary, while its clients keep it.
    """
    chance = random.Random(seed)
    settings = {"wait_replicas": wait_replicas, "send_timeout_s": _PATIENCE_S}
    service = ClusterService(folder / "service")
    with service, Stage(folder, server=service, settings=settings) as stage:
        service.serve(stage.exp_id)
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
            stage.healed()
            stage.more_received(200)
        stage.facts |= {"kills": kills, "cut_off_before": len(cut_off)}
        return stage.finish()


def resharded(folder, *, moves, ways=("move_by_key", "move_atomically"), wait_replicas=0):
    """Move the experiment's slot from primary to primary, in both ways by turns."""
    settings = {"wait_replicas": wait_replicas, "send_timeout_s": _PATIENCE_S}
    service = ClusterService(folder / "service")
    with service, Stage(folder, server=service, settings=settings) as stage:
        service.serve(stage.exp_id)
        stage.talk()
        resharding = Resharding(service, *(getattr(service, way) for way in ways))
        resharding.start()
        while resharding.moves < moves and resharding.is_alive():
            stage.more_received(50)
        resharding.stop()
        stage.healed()
        stage.more_received(200)
        stage.facts |= {"moves": resharding.moves}
        return stage.finish()


NOT_WAITED_FOR = weaker("what no replica had is lost; senders go on, or end with an error", "lost")

# In the suite: it takes seconds for each kill.
SHORT = Case(
    "a cluster's primary lost 3 times, wait_replicas=1",
    partial(failover, kills=3, cut_off={1}, wait_replicas=1),
    long=True,
)
SHORT_RESHARDED = Case("a slot moved 10 times under load", partial(resharded, moves=10), long=True)

CASES = [
    SHORT,
    SHORT_RESHARDED,
    Case(
        "a cluster's primary lost 20 times, wait_replicas=1",
        partial(failover, kills=20, wait_replicas=1, seed=1),
        long=True,
    ),
    Case(
        "a cluster's primary lost 20 times, cut off before, wait_replicas=1",
        partial(failover, kills=20, cut_off=range(20), wait_replicas=1, seed=2),
        long=True,
    ),
    Case(
        "a cluster's primary lost 20 times, wait_replicas=0",
        partial(failover, kills=20, wait_replicas=0, seed=4),
        NOT_WAITED_FOR,
        long=True,
    ),
    Case(
        "a cluster's primary lost 20 times, cut off before, wait_replicas=0",
        partial(failover, kills=20, cut_off=range(20), wait_replicas=0, seed=5),
        NOT_WAITED_FOR,
        long=True,
    ),
    Case(
        "a slot moved 100 times under load, key by key", partial(resharded, moves=100, ways=["move_by_key"]), long=True
    ),
    Case(
        "a slot moved 100 times under load, in one step",
        partial(resharded, moves=100, ways=["move_atomically"]),
        long=True,
    ),
    Case(
        "a slot moved 100 times under load, both ways, wait_replicas=1",
        partial(resharded, moves=100, wait_replicas=1),
        long=True,
    ),
]
