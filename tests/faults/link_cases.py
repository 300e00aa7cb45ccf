"""Cases of links that cut, go silent, or hold back; each returns its account."""

import time

from faults import injector
from faults.case import Case
from faults.proxy import Proxy
from faults.stage import Stage, until

# A command on a link that has gone silent is given up after `timeout`, and repeated.
SHORT_S = 1.0


def replies_cut(folder, *, way="many", messages=1000):
    """Lose 30% of all replies, and the connection with each."""
    with Stage(folder, appendfsync="everysec") as stage, Proxy(stage.server.config, seed=5) as proxy:
        stage.talk(config=proxy.config, way=way)
        proxy.cut_replies = 0.3
        stage.more_received(messages)
        proxy.cut_replies = 0.0
        stage.healed()
        stage.more_received(300)
        stage.facts["cuts"] = proxy.cuts
        return stage.finish()


def half_open(folder, *, times):
    """Let the connections go silent in both directions without a close: the clients must give up by themselves."""
    with Stage(folder, appendfsync="everysec") as stage, Proxy(stage.server.config) as proxy:
        stage.talk(config=proxy.config.model_copy(update={"timeout": SHORT_S}))
        for _ in range(times):
            proxy.swallow()
            stage.more_received(300)
            stage.healed()
        return stage.finish()


def black_hole(folder, *, hold_s):
    """Cut all connections, and let new ones connect to nobody."""
    with Stage(folder, appendfsync="everysec") as stage, Proxy(stage.server.config) as proxy:
        stage.talk(config=proxy.config.model_copy(update={"timeout": SHORT_S}))
        proxy.black_hole = True
        proxy.cut()
        time.sleep(hold_s)
        proxy.black_hole = False
        proxy.cut()
        stage.healed()
        stage.more_received(300)
        return stage.finish()


def clients_killed(folder, *, times):
    """Cut all connections by the server, again and again."""
    with Stage(folder, appendfsync="everysec") as stage, stage.server.client() as client:
        stage.talk()
        killed = 0
        for _ in range(times):
            killed += injector.kill_clients(client, "normal") + injector.kill_clients(client, "pubsub")
            stage.more_received(50)
        stage.healed()
        stage.facts["connections_killed"] = killed
        return stage.finish()


def slow_link(folder):
    """Hold each piece back for a moment, and cut some in the middle of that."""
    with Stage(folder, appendfsync="everysec") as stage, Proxy(stage.server.config, seed=6) as proxy:
        stage.talk(config=proxy.config, settings={"send_timeout_s": 5.0})
        proxy.delay_s = 0.05
        for _ in range(20):
            before = stage.sent()
            until(lambda before=before: stage.sent() > before, "a receipt over a slow link")
            proxy.cut()
        proxy.delay_s = 0.0
        stage.healed()
        stage.more_received(300)
        return stage.finish()


CASES = [
    Case("replies cut, 30%", lambda folder: replies_cut(folder, messages=300), long=True),
    Case("replies cut, 30%, for longer", replies_cut, long=True),
    Case(
        "replies cut, 30%, one call per message",
        lambda folder: replies_cut(folder, way="one", messages=1000),
        long=True,
    ),
    Case("half-open link, 3 times", lambda folder: half_open(folder, times=3), long=True),
    Case("nobody answers for 6 s", lambda folder: black_hole(folder, hold_s=6), long=True),
    Case("connections killed 20 times", lambda folder: clients_killed(folder, times=20)),
    Case("connections killed 100 times", lambda folder: clients_killed(folder, times=100), long=True, replicas=True),
    Case("slow link, cut 20 times", slow_link, long=True),
]
