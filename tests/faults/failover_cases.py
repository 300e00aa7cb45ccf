"""Cases of a lost primary, with Sentinels and in a cluster, and of slots that move under load."""

import random
import time
from functools import partial

from support.slots import Resharding

from faults.case import Case, Promise, weaker
from faults.stage import Stage, until

_PATIENCE_S = 60  # of senders and receivers: more than a failover takes


def failover(folder, *, on, kills, wait_replicas, cut_off=(), seed=0, **service):
    """Kill the primary again and again, each time with another one after it; it comes back as a replica.

    `cut_off` are the kills before which all others lose the primary, while its clients keep it.
    """
    chance = random.Random(seed)
    settings = {"wait_replicas": wait_replicas, "send_timeout_s": _PATIENCE_S}
    with Stage(folder, on=on, settings=settings, **service) as stage:
        stage.talk()
        for kill in range(kills):
            time.sleep(chance.random() * 0.3)  # any moment will do
            if kill in cut_off:
                stage.server.cut_off_and_kill(after_s=chance.random())
            else:
                stage.server.kill()
            stage.server.start()
            stage.healed()
            stage.more_received(200)
        stage.facts |= {"kills": kills, "cut_off_before": len(cut_off)} | service
        return stage.finish()


def replica_away(folder, *, times, seed=6):
    """Kill one of two replicas, or let it stand still, until a sender has been refused; then it comes back."""
    chance = random.Random(seed)
    settings = {"wait_replicas": 2, "send_timeout_s": _PATIENCE_S}
    with Stage(folder, on="Sentinel", settings=settings, binary=None, replicas=2) as stage:
        service = stage.server.service
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


def resharded(folder, *, moves, ways=("move_by_key", "move_atomically"), wait_replicas=0):
    """Move the experiment's slot from primary to primary, in both ways by turns."""
    settings = {"wait_replicas": wait_replicas, "send_timeout_s": _PATIENCE_S}
    with Stage(folder, on="cluster", settings=settings) as stage:
        stage.talk()
        resharding = Resharding(stage.server.service, *(getattr(stage.server.service, way) for way in ways))
        resharding.start()
        while resharding.moves < moves and resharding.is_alive():
            stage.more_received(50)
        resharding.stop()
        stage.healed()
        stage.more_received(200)
        stage.facts |= {"moves": resharding.moves}
        return stage.finish()


def lost(times, **how):
    """Return cases of a primary that is lost so many times, with Sentinels and in a cluster."""
    waited_for = how["wait_replicas"]
    name = ", cut off before" * (len(how.get("cut_off", ())) == times) + f", wait_replicas={waited_for}"
    promise = (
        Promise() if waited_for else weaker("what no replica had is lost; senders go on, or end with an error", "lost")
    )
    return [
        Case(f"{whose} lost {times} times{name}", partial(failover, kills=times, **on, **how), promise)
        for whose, on in (
            ("primary", {"on": "Sentinel", "binary": None}),  # redis-server where it is here
            ("a cluster's primary", {"on": "cluster"}),
        )
    ]


# In the suite: they take seconds for each kill.
SHORT = [
    *lost(3, cut_off={1}, wait_replicas=1),
    Case("a slot moved 10 times under load", partial(resharded, moves=10)),
]
CASES = [
    *SHORT,
    *lost(20, wait_replicas=1, seed=1),
    *lost(20, cut_off=range(20), wait_replicas=1, seed=2),
    Case(
        "primary lost 20 times, two replicas, wait_replicas=2",
        partial(
            failover, on="Sentinel", binary=None, kills=20, cut_off=range(0, 20, 2), replicas=2, wait_replicas=2, seed=3
        ),
    ),
    Case("one of two replicas away 10 times, wait_replicas=2", partial(replica_away, times=10)),
    *lost(20, wait_replicas=0, seed=4),
    *lost(20, cut_off=range(20), wait_replicas=0, seed=5),
    Case("a slot moved 100 times under load, key by key", partial(resharded, moves=100, ways=["move_by_key"])),
    Case("a slot moved 100 times under load, in one step", partial(resharded, moves=100, ways=["move_atomically"])),
    Case(
        "a slot moved 100 times under load, both ways, wait_replicas=1", partial(resharded, moves=100, wait_replicas=1)
    ),
]
