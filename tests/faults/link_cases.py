"""Cases of links that cut, go silent, or hold back; each returns its account."""

import time
from functools import partial

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


def clients_killed(folder, *, times, on=None):
    """Cut all connections by the server, again and again."""
    with Stage(folder, on=on, appendfsync="everysec") as stage, stage.server.client() as client:
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
    Case("replies cut, 30%", partial(replies_cut, messages=300)),
    Case("replies cut, 30%, for longer", replies_cut),
    Case("replies cut, 30%, one call per message", partial(replies_cut, way="one")),
    Case("half-open link, 3 times", partial(half_open, times=3)),
    Case("nobody answers for 6 s", partial(black_hole, hold_s=6)),
    Case("connections killed 20 times", partial(clients_killed, times=20), quick=True),
    Case("connections killed 100 times", partial(clients_killed, times=100), replicas=True),
    Case("slow link, cut 20 times", slow_link),
]
