"""A primary with replicas, and Sentinels that watch over them, for tests: servers can be killed, and cut off."""

import subprocess
from contextlib import suppress
from pathlib import Path

import redis

from ray_messaging.config import RedisConfig
from support.patience import wait_for
from support.servers import HOST, PASSWORD, RedisProcess, find_binary, free_port, redis_or_valkey

SERVICE = "town"
USER, SECRET = "replicator", "a-secret-between-servers"  # of replicas, Sentinels and MIGRATE: clients have another user
_DOWN_AFTER_MS = 1_500


def until(condition, what):
    """Wait until a condition holds that has no event; neither an error of the server nor a missing fact fulfils it."""

    def holds():
        with suppress(redis.RedisError, KeyError):
            return condition()

    return wait_for(holds, what)


def primary_of(config):
    """Return the host and port of the primary that a Sentinel names."""
    host, port = config.sentinel_addresses()[0]
    with redis.Redis(host=host, port=port, protocol=2) as client:
        named, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", config.service)
        return named.decode(), int(port)


class SentinelProcess:
    """A Sentinel on a free port that watches over one primary."""

    def __init__(self, folder, binary, primary_port, quorum, down_after_ms):
        self.port = free_port()
        path = Path(folder) / f"sentinel-{self.port}.conf"
        watched = [
            f"monitor {SERVICE} {HOST} {primary_port} {quorum}",
            f"auth-user {SERVICE} {USER}",
            f"auth-pass {SERVICE} {SECRET}",
            f"down-after-milliseconds {SERVICE} {down_after_ms}",
            f"failover-timeout {SERVICE} 3000",
        ]
        lines = [f"bind {HOST}", f"port {self.port}", f"dir {folder}", *(f"sentinel {line}" for line in watched)]
        path.write_text("\n".join([*lines, ""]))
        self.process = subprocess.Popen(
            [binary, str(path), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.client = redis.Redis(host=HOST, port=self.port, protocol=2, socket_timeout=5)
        until(self.client.ping, "a Sentinel that answers")
        # It asks for news once in ten seconds by default, which each failover of a test would wait for.
        self.client.execute_command("SENTINEL", "DEBUG", "INFO-PERIOD", "200")

    def kill(self):
        self.client.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Servers:
    """A primary, its replicas and others; as a context manager they leave no process behind.

    They can take the place of a RedisProcess on a fault's stage: then `primary` is the one that serves.
    """

    primary = process = None  # as that of a RedisProcess: None until it is started

    def __init__(self, folder, count, binary, options, env=None):
        self.folder = Path(folder)
        shared = {
            "user": f"{USER} on >{SECRET} ~* &* +@all",
            "masteruser": USER,
            "masterauth": SECRET,
            "repl-diskless-sync-delay": "0",
            "repl-ping-replica-period": "1",
        }
        self.servers = []
        for at in range(count):
            own, clock = self.folder / f"server-{at}", (env or {}).get(at)
            self.servers.append(RedisProcess(own, binary=binary, env=clock, **shared | options))

    def __enter__(self):
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_):
        self.kill()

    def cut_off(self, server):
        """Cut a server off from the others; clients still reach it."""
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", USER, "off")
            client.execute_command("CLIENT", "KILL", "USER", USER)

    def kill(self):
        for server in self.servers:
            server.kill()
        self.process = None


class ReplicatedService(Servers):
    """A primary, its replicas and Sentinels; the first server is the primary at first.

    Where no test kills the primary, a long `down_after_ms` lets none take its place that is only slow.
    """

    def __init__(self, folder, *, binary=None, replicas=1, sentinels=3, down_after_ms=_DOWN_AFTER_MS, **options):
        self.binary = binary or redis_or_valkey()
        super().__init__(folder, 1 + replicas, self.binary, options)
        self.sentinels = []
        self._count, self._down_after_ms = sentinels, down_after_ms
        self.primary = self.servers[0]

    @property
    def replicas(self):
        return [server for server in self.servers if server is not self.primary]

    @property
    def config(self):
        """Return the config that leads to the primary, by the Sentinels if there are any."""
        if not self.sentinels:
            return self.primary.config
        addresses = tuple(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return RedisConfig(sentinels=addresses, service=SERVICE, password=PASSWORD, timeout=10)

    def start(self):
        self.process = self.primary.start().process
        for replica in self.replicas:
            self.join(replica)
        if self._count:
            self._start_sentinels()
        return self

    def _start_sentinels(self):
        binary, quorum = find_binary(self.binary), self._count // 2 + 1
        for _ in range(self._count):
            self.sentinels.append(
                SentinelProcess(self.folder, binary, self.primary.config.port, quorum, self._down_after_ms)
            )
        self.settle()

    def join(self, server):
        """Start a server as a replica of the primary; return when it has all."""
        server.set("replicaof", f"{HOST} {self.primary.config.port}")
        server.start()
        if self.sentinels:
            self.settle()
            return
        with self.primary.client() as client:
            until(lambda: _is_online(client, server), "a replica that is in step")

    def settle(self):
        """Return when all Sentinels agree on a primary, its living replicas and each other.

        On a busy machine they may take one for dead that is only slow, and make another one the primary.
        """
        until(self._agree, "Sentinels that agree")

    def _agree(self):
        port = self._named()
        primary = next((server for server in self.servers if server.config.port == port and server.process), None)
        alive = sum(server.process is not None for server in self.servers) - 1
        if primary is None or not all(self._knows(sentinel.client, alive) for sentinel in self.sentinels):
            return False
        self.primary, self.process = primary, primary.process
        return True

    def _knows(self, sentinel, alive):
        primary, replicas = (sentinel.execute_command(f"SENTINEL {what}", SERVICE) for what in ("MASTER", "SLAVES"))
        well = [each for each in replicas if each["flags"] == "slave" and each["master-link-status"] == "ok"]
        return (
            (primary["flags"], primary["role-reported"]) == ("master", "master")
            and primary["num-other-sentinels"] == len(self.sentinels) - 1
            and len(well) == alive
            and all(each["master-port"] == primary["port"] for each in well)
        )

    def failed_over(self):
        """Return when the Sentinels have made another server the primary."""
        old = self.primary.config.port
        named = until(lambda: self._named() not in {None, old} and self._named(), "another primary")
        self.primary = next(server for server in self.servers if server.config.port == named)
        with self.primary.client() as client:
            until(lambda: client.info("replication")["role"] == "master", "a replica that was promoted")
        self.process = self.primary.process

    def _named(self):
        """Return the port that all Sentinels name, if they agree."""
        ports = {sentinel.client.execute_command("SENTINEL MASTER", SERVICE)["port"] for sentinel in self.sentinels}
        return ports.pop() if len(ports) == 1 else None

    def kill(self):
        for sentinel in self.sentinels:
            sentinel.kill()
        super().kill()


def _is_online(primary, replica):
    """Return whether a primary has a replica that confirms its writes."""
    found = [each for each in primary.info("replication").values() if isinstance(each, dict)]
    return any((each["port"], each["state"]) == (replica.config.port, "online") for each in found)
