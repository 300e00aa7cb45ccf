"""Cases of servers that die, are stopped, or run out of memory or disk; each returns its account."""

import random
import time
from functools import partial
from types import SimpleNamespace

from redis.exceptions import ResponseError
from support.cluster import stopped
from support.servers import HOST

from faults import injector
from faults.case import Case, weaker
from faults.stage import Stage, until
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.errors import ConfigError


def killed(folder, *, appendfsync, kills, seed=0, **server):
    """Kill the server at random moments; start it again on its data."""
    chance = random.Random(seed)
    with Stage(folder, appendfsync=appendfsync, **server) as stage:
        stage.talk()
        starts = []
        for _ in range(kills):
            time.sleep(chance.random() * 0.3)  # any moment will do
            stage.server.kill()
            begin = time.monotonic()
            stage.server.start()
            starts.append(time.monotonic() - begin)
            stage.healed()
            stage.more_received(200)
        stage.facts |= {"kills": kills, "longest_start_s": round(max(starts), 2)}
        return stage.finish()


def frozen(folder, *, stop_s, **sender):
    """Let the server stand still."""
    with Stage(folder, appendfsync="everysec") as stage:
        stage.talk(2, **sender)
        with stopped(stage.server.pid):
            time.sleep(stop_s)
        stage.healed()
        stage.more_received(500)
        return stage.finish()


def out_of_memory(folder):
    """Let the server's memory fill up behind a receiver that does not fetch, then drain it."""
    with Stage(folder, appendfsync="everysec") as stage:
        options = {"rate": None, "per_call": 200, "pad": 500, "settings": {"send_timeout_s": 0.5}}
        sender, [slow] = stage.talk(fetching=False, **options)
        stage.more_sent(1000)
        with injector.full_memory(stage.server, room=4 * 2**20):
            until(lambda: stage.errors("MailboxFull") >= 2, "senders are told")
            stage.memory(sender=sender.pid, receiver=slow.pid, server=stage.server.pid)
            slow.tell("go")
            stage.more_received(3000)  # commits and trims go on
        stage.healed()
        stage.more_sent(2000)
        return stage.finish()


def disk_full(folder, *, appendfsync):
    """Let the server's disk fill up, and free it again; one that syncs always ends then, and is started again."""
    with Stage(folder, appendfsync=appendfsync) as stage:
        stage.talk(settings={"send_timeout_s": 1.0})
        server = stage.server
        with injector.full_disk(server.pid, server.folder, room=20_000):
            if appendfsync == "always":
                server.process.wait()
            else:
                until(lambda: b"MISCONF" in server_says(server), "the server refuses writes")
                until(lambda: stage.errors() >= 1, "senders are told")
        if appendfsync == "always":
            server.kill()
            server.start()
        stage.healed()
        stage.more_received(500)
        return stage.finish()


def server_says(server):
    """Return the server's answer to a write."""
    with server.client() as client:
        try:
            client.set("probe", 1)
        except ResponseError as error:
            return str(error).encode()
        return b"OK"


def two_on_one_directory(folder):
    """Start a second embedded server on the data of one that runs: it must not, and the first one goes on."""
    data_dir = str(folder / "data")
    with EmbeddedServer(HOST, data_dir=data_dir) as first:
        running = SimpleNamespace(config=first.start(), pid=first.pid, process=first, kill=first.stop)
        with Stage(folder, server=running) as stage:
            stage.talk()
            try:
                EmbeddedServer(HOST, data_dir=data_dir).start()
            except ConfigError as error:
                stage.facts["second_one_said"] = str(error)
            assert "second_one_said" in stage.facts, "two servers run on one data directory"
            stage.more_received(300)
            return stage.finish()


# The server answers while it waits for a slow disk, and writes later: what it holds then dies with it.
KEEPS_UP = weaker("nothing lost while the disk keeps up (else up to 2 s), nothing twice, in order", "lost")

CASES = [
    Case("server killed, AOF always", partial(killed, appendfsync="always", kills=2)),
    Case("server killed, AOF everysec", partial(killed, appendfsync="everysec", kills=2), KEEPS_UP, quick=True),
    Case("server killed, AOF unsynced", partial(killed, appendfsync="no", kills=2)),
    Case("server killed 20 times, AOF always", partial(killed, appendfsync="always", kills=20, seed=1)),
    Case("server killed 20 times, AOF everysec", partial(killed, appendfsync="everysec", kills=20, seed=2), KEEPS_UP),
    Case(
        "Debian's redis-server killed 20 times",
        partial(killed, appendfsync="always", kills=20, seed=9, binary="redis-server"),
    ),
    Case("server stands still for 1 s", partial(frozen, stop_s=1)),
    Case("server stands still for 6 s", partial(frozen, stop_s=6)),
    Case("server stands still for 30 s", partial(frozen, stop_s=30)),
    Case("server out of memory, then drained", out_of_memory, quick=True),
    Case("disk full, then freed, AOF everysec", partial(disk_full, appendfsync="everysec"), quick=True),
    Case("disk full, then freed, AOF always", partial(disk_full, appendfsync="always")),
    Case("two embedded servers on one directory", two_on_one_directory),
]
