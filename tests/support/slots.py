"""A Redis or Valkey Cluster for tests: nodes can be killed and cut off, and slots moved in both ways."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import redis
from redis.crc import key_slot

from ray_messaging.addressing.key_tags import shard_keys
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.config import RedisConfig
from support.patience import Busy
from support.replicated import SECRET, USER, Servers, until
from support.servers import HOST, PASSWORD, RedisProcess, free_port

SLOTS = 16384
NODE_TIMEOUT_MS = 1_000
_ALL_PACKETS = -2  # of the cluster's, that a node of Valkey can drop
_KEYS_AT_ONCE = 20
_REST_S = 0.2
_HANDSHAKE_S = 0.2
_ELECTION_S = 6.0  # a replica gives up a failover that it was asked for after 5 s


def slot_of(exp_id):
    return key_slot(Keys(exp_id).prefix.encode())


def owner_of(config, keys):
    """Return the host and port of the node that has the keys of an experiment, or of one of its shards."""
    slot = key_slot(keys.prefix.encode())
    host, port = config.cluster_addresses()[0]
    with redis.Redis(host=host, port=port, password=config.password, protocol=2) as client:
        for first, last, (owner, owned_at, *_), *_ in raw(client, "CLUSTER SLOTS"):
            if first <= slot <= last:
                return owner.decode(), owned_at
    raise AssertionError(f"no node has slot {slot}")


class ClusterService(Servers):
    """A cluster of primaries with replicas each; its slots are spread evenly.

    `primary` is the one that has the slot of `exp_id`, or of one of its `shards`. `env` goes into the environment of
    nodes, by their place.
    """

    def __init__(
        self, folder, *, binary="valkey", primaries=3, replicas=1, exp_id="town", shards=1, env=None, **options
    ):
        self.exp_id, self.shards, self.shard, self.primaries = exp_id, shards, 0, primaries
        shared = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-replica-validity-factor": "0",
            "cluster-allow-replica-migration": "no",
            "enable-debug-command": "local",
        }
        super().__init__(folder, primaries * (1 + replicas), binary, shared | options, env)
        self._ports = {server: free_port() for server in self.servers}
        for server, port in self._ports.items():
            server.set("cluster-port", port)
        self._ids = {}

    @property
    def config(self):
        """Return the config that leads to the cluster by some of its nodes."""
        seeds = tuple(f"{HOST}:{server.config.port}" for server in self.servers[:: max(1, len(self.servers) // 3)])
        return RedisConfig(cluster=seeds, password=PASSWORD, timeout=10, shards=self.shards)

    @property
    def slot(self):
        return key_slot(shard_keys(self.exp_id, self.shard, self.shards).prefix.encode())

    # -- life -----------------------------------------------------------------------------------------------------

    def start(self):
        with ThreadPoolExecutor(len(self.servers)) as threads:
            list(threads.map(RedisProcess.start, self.servers))
        with ExitStack() as stack:
            clients = [stack.enter_context(server.client()) for server in self.servers]
            self._ids = {
                client.execute_command("CLUSTER MYID").decode(): server
                for client, server in zip(clients, self.servers, strict=True)
            }
            for at, client in enumerate(clients):
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", at + 1)
                if at < self.primaries:
                    first, last = (each * SLOTS // self.primaries for each in (at, at + 1))
                    client.execute_command("CLUSTER ADDSLOTSRANGE", first, last - 1)
            until(lambda: self._met(clients), "nodes that know each other")
            names = list(self._ids)
            for at, client in enumerate(clients[self.primaries :]):
                leader = names[at % self.primaries]
                until(lambda client=client, leader=leader: replicate(client, leader), "a node that is known")
        self.settle()
        return self

    def _met(self, clients):
        """Return whether all nodes know each other; a handshake that takes too long is forgotten, so begin it again."""
        strangers = False
        for at, client in enumerate(clients):
            known = {port for port, flags, _, _ in self._view(client).values() if "handshake" not in flags}
            for other in self.servers[:at]:
                if f"{HOST}:{other.config.port}" not in known:
                    strangers = True
                    client.execute_command("CLUSTER MEET", HOST, other.config.port, self._ports[other])
        if strangers:
            time.sleep(_HANDSHAKE_S)
        return not strangers

    def settle(self):
        """Return when all living nodes agree on all others, and the replicas have all."""
        until(self._agree, "nodes that agree")

    def _agree(self):
        with ExitStack() as stack:
            alive = [server for server in self.servers if server.process is not None]
            clients = [stack.enter_context(server.client(socket_timeout=2)) for server in alive]
            views = [self._view(client) for client in clients]
            if any(view != views[0] for view in views):
                return False
            well = all(b"cluster_state:ok" in raw(client, "CLUSTER INFO") for client in clients)
            if not well or not all(in_step(client) for client in clients):
                return False
        nodes = views[0]
        if any(not {"fail", "fail?", "handshake"}.isdisjoint(flags) for _, flags, _, _ in nodes.values()):
            return False
        if sum("slave" in flags for _, flags, _, _ in nodes.values()) != len(self.servers) - self.primaries:
            return False
        self._find_primary(nodes)
        return True

    def _view(self, client):
        """Return the nodes that a node knows: port, flags, primary and slots, by name."""
        found = {}
        for line in raw(client, "CLUSTER NODES").decode().splitlines():
            name, address, flags, leader, _, _, _, _, *slots = line.split()
            kept = frozenset(flags.split(",")) - {"myself"}
            found[name] = (address.partition("@")[0], kept, leader, tuple(slots))
        return found

    def _find_primary(self, nodes):
        name = next(name for name, (_, _, _, slots) in nodes.items() if any(holds(part, self.slot) for part in slots))
        self.primary = self._ids[name]
        self.process = self.primary.process

    def serve(self, exp_id, shard=0):
        """Let `primary` be the one of another experiment, or of a shard of it."""
        self.exp_id, self.shard = exp_id, shard
        self.settle()

    # -- failover -------------------------------------------------------------------------------------------------

    @property
    def replicas(self):
        """Return the replicas of the experiment's primary."""
        with self.primary.client() as client:
            me = client.execute_command("CLUSTER MYID").decode()
            return [self._ids[name] for name, (_, _, leader, _) in self._view(client).items() if leader == me]

    def cut_off(self, server):
        super().cut_off(server)
        with server.client() as client:  # of Valkey
            client.execute_command("DEBUG", "DROP-CLUSTER-PACKET-FILTER", _ALL_PACKETS)

    def failed_over(self):
        """Return when a replica has taken the place of the experiment's primary."""
        old = self.primary
        until(lambda: self._succeeded(old), "another primary")

    def _succeeded(self, old):
        """Return whether a replica has taken the place of a primary."""
        for server in self.servers:
            if server is old or server.process is None:
                continue
            with server.client(socket_timeout=2) as client:
                self._find_primary(self._view(client))
            if self.primary is not old:
                return True
        return False

    def hand_over(self):
        """Let a replica take the place of the experiment's primary, which lives on as a replica."""
        old, [replica], asked_at = self.primary, self.replicas, -math.inf

        def handed_over():
            nonlocal asked_at
            if time.monotonic() > asked_at + _ELECTION_S:  # the replica says nothing when it gives up
                asked_at = time.monotonic()
                with replica.client() as client:
                    client.execute_command("CLUSTER FAILOVER")
            return self._succeeded(old)

        until(handed_over, "another primary")

    def join(self, server):
        """Start a node that was killed; return when it has all."""
        server.start()
        self.settle()

    # -- resharding -----------------------------------------------------------------------------------------------

    def others(self):
        """Return the primaries that do not have the experiment's slot."""
        with self.primary.client() as client:
            nodes = self._view(client)
        owners = [self._ids[name] for name, (_, flags, _, _) in nodes.items() if "master" in flags]
        return [server for server in owners if server is not self.primary]

    def name_of(self, server):
        return next(name for name, each in self._ids.items() if each is server)

    def move_atomically(self, to, slots=None):
        """Move slots to another primary by CLUSTER MIGRATESLOTS, in one step."""
        first, last = slots or (self.slot, self.slot)
        with self.primary.client() as client:
            client.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", self.name_of(to))
        self._moved(to)

    def move_by_key(self, to, between=lambda: None):
        """Move the experiment's slot to another primary key by key; `between` is called when each part has gone."""
        move = KeyByKey(self, to)
        move.begin()
        while move.some():
            between()
        move.finish()

    def _moved(self, to):
        def owned():
            with to.client() as client:
                nodes = self._view(client)
            return any(holds(part, self.slot) for part in nodes[self.name_of(to)][3])

        until(owned, "a slot that has moved")
        self.primary = to
        self.process = to.process


class KeyByKey:
    """A move of a slot in Redis's way: the slot opens at both ends, its keys go one by one, then the owner changes."""

    def __init__(self, service, to):
        self.service, self.source, self.to = service, service.primary, to

    def begin(self):
        slot = self.service.slot
        with self.source.client() as source, self.to.client() as target:
            target.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", self.service.name_of(self.source))
            source.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", self.service.name_of(self.to))

    def keys(self, count=_KEYS_AT_ONCE):
        with self.source.client() as client:
            return client.execute_command("CLUSTER GETKEYSINSLOT", self.service.slot, count)

    def migrate(self, *keys):
        port = self.to.config.port
        with self.source.client() as client:
            client.execute_command("MIGRATE", HOST, port, "", 0, 10_000, "AUTH2", USER, SECRET, "KEYS", *keys)

    def some(self):
        """Move some keys; return whether there were any."""
        if keys := self.keys():
            self.migrate(*keys)
        return bool(keys)

    def finish(self):
        """Move what is left, and make the target the owner."""
        while self.some():
            pass
        for server in (self.to, self.source, *self.service.servers):
            if server.process is not None:
                with server.client() as client, suppress(redis.ResponseError):  # replicas are told by gossip
                    client.execute_command("CLUSTER SETSLOT", self.service.slot, "NODE", self.service.name_of(self.to))
        self.service._moved(self.to)


class Resharding(Busy):
    """A thread that moves an experiment's slot back and forth until it is stopped, with a short rest after each move.

    Without it, clients that come back after a pause would find the slot on its way each time.
    """

    def __init__(self, service, *ways):
        super().__init__()
        self._service, self._ways, self.moves = service, ways, 0

    def work(self):
        while not self.enough.is_set():
            to = self._service.others()[self.moves % 2]
            self._ways[self.moves % len(self._ways)](to)
            self.moves += 1
            self.enough.wait(_REST_S)


def replicate(client, leader):
    try:
        client.execute_command("CLUSTER REPLICATE", leader)
    except redis.ResponseError:
        return False
    return True


def raw(client, command):
    client.response_callbacks.clear()  # redis-py would take it apart
    return client.execute_command(command)


def in_step(client):
    info = raw(client, "INFO replication")
    return b"role:master" in info or b"master_link_status:up" in info


def holds(part, slot):
    if part.startswith("["):
        return False
    first, _, last = part.partition("-")
    return int(first) <= slot <= int(last or first)
