"""Blocking queries of a server's state. They use separate connections, with a short timeout."""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from ray_messaging.addressing.key_tags import shard_keys
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.config import RedisConfig
from ray_messaging.errors import ServerRefused
from ray_messaging.transports.connection.connection_options import connection_options
from ray_messaging.transports.connection.connector import discovery_of
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.connection.rights import lacking_rights
from ray_messaging.transports.connection.scripts import script_text
from ray_messaging.transports.server_facts import Kept, Mailbox, ServerFacts, read_info
from ray_messaging.wire.notes import decode_service_note

ANSWER_S = 2.0  # the timeout of one command
_PINGS = 3
_MAILBOXES = 1_000  # the state of at most this many mailboxes is read
_LOOK_BYTES = 64 * 2**20
_NAMES, _CLOSED_S = 100_000, 10.0
_HEAD, _COLUMNS = 9, 16
_SETTINGS = ("appendfsync", "save")


def client_of(config: RedisConfig, keys: Keys, timeout_s: float = ANSWER_S) -> "redis.Redis":
    """Make a blocking client, with a short timeout, for the server that has an experiment's keys.

    Raises: redis-py's errors if no Sentinel, or no node of the cluster, names a server.
    """
    discovery = discovery_of(config, keys.prefix)
    if discovery is not None:
        with ThreadPoolExecutor(1) as thread:  # the caller's thread may have a running event loop
            server, port = thread.submit(asyncio.run, discovery.primary()).result()
        config = config.model_copy(update={"server": server, "port": port})
    options = connection_options(config) | {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    return redis.Redis(**options, retry=Retry(NoBackoff(), 0), max_connections=1)


def ask_server(config: RedisConfig, exp_id: str | None = None, *, space: str = "", shard: int = 0) -> ServerFacts:
    """Return the state of a server, and of an experiment on it. If the server gives no answer, `error` says why.

    In a cluster, the node that has the experiment's keys is asked. If `exp_id` is None, the state of an experiment is
    not returned, and `space` is the id of the experiment whose keys are used for checking rights.
    """
    keys = shard_keys(exp_id or space, shard, config.shards)
    link = RedisLink(config, 0.0)  # this link is never connected; it builds the error texts
    facts = ServerFacts(link.where, allow_eviction=config.allow_eviction, by_cluster=bool(config.cluster))
    try:
        with client_of(config, keys) as client:
            _ask(client, facts)
            if exp_id or space:  # rights can be checked only for the keys of an experiment
                facts.lacking = lacking_rights(client, keys)
            if exp_id is not None:
                facts.kept = _kept(client, keys, time.time() + facts.skew_s, cluster=facts.by_cluster)
    except (RedisError, OSError, EOFError) as error:
        why = link.translated(error)
        facts.error, facts.refused = str(why), isinstance(why, ServerRefused)
    return facts


def _ask(client: "redis.Redis", facts: ServerFacts) -> None:
    client.ping()  # the first call also connects, so its time is not measured
    facts.round_trip_ms = min(_took_ms(client.ping) for _ in range(_PINGS))
    began = time.time()
    seconds, micros = client.execute_command("TIME")
    now = int(seconds) + int(micros) / 1e6
    facts.skew_s = now - (began + time.time()) / 2
    # redis-py would parse the reply in another way than `read_info`, so its callbacks are removed.
    client.response_callbacks.clear()
    facts.info = read_info(client.execute_command("INFO"))
    facts.settings = _settings(client)


def _took_ms(call: Callable[[], object]) -> float:
    # timeit is not used, because it would switch off the garbage collection of the whole process.
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def _settings(client: "redis.Redis") -> dict[str, str]:
    """Return settings that are not in INFO. Return {} if the server does not let our user read them."""
    try:
        reply = client.execute_command("CONFIG GET", *_SETTINGS)
    except ResponseError:
        return {}
    texts = [part.decode(errors="replace") for part in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def closed_names(config: RedisConfig, exp_id: str) -> list[str]:
    """Return the mailboxes that closed messagers have left for later messagers of the same names.

    Mailboxes of groups are not included. At most 100,000 mailboxes are examined.

    Raises: ConnectionFailed if the server does not answer; ServerRefused if it refuses the password, user or db.
    """
    keys = Keys(exp_id, db=config.db)
    try:
        with client_of(config, keys, _CLOSED_S) as client:
            client.ping()
            client.response_callbacks.clear()
            kept = _kept(client, keys, time.time(), _NAMES, 0, cluster=bool(config.cluster))
    except (RedisError, OSError, EOFError) as error:
        raise RedisLink(config, 0.0).translated(error) from error
    return [mailbox.name for mailbox in kept.mailboxes if mailbox.waits_for_its_name]


def _kept(
    client: "redis.Redis",
    keys: Keys,
    now: float,
    most: int = _MAILBOXES,
    look_bytes: int = _LOOK_BYTES,
    *,
    cluster: bool,
) -> Kept:
    arguments = [keys.meta, keys.changes, keys.dead, keys.prefix, most, look_bytes]
    reply: list[Any] = client.execute_command("EVAL", script_text("read_health", cluster=cluster), 3, *arguments)
    epoch, logged, dead, dropped, noted, noted_bytes, max_noted, max_bytes, count = map(int, reply[:_HEAD])
    mailboxes = [_mailbox(reply[low : low + _COLUMNS], now) for low in range(_HEAD, len(reply), _COLUMNS)]
    return Kept(epoch, bool(logged), dead, dropped, noted, noted_bytes, max_noted, max_bytes, count, mailboxes)


def _mailbox(row: Sequence[Any], now: float) -> Mailbox:
    name, messages, nbytes, max_messages, max_bytes, oldest, lease_ms, leased, *rest = row
    unlogged, unlogged_bytes, hosts, owner, acked, since, service, failures = rest
    return Mailbox(
        name.decode(),
        # Each entry has at least one message. So if an entry waits, at least one message waits, even if the counters
        # say 0.
        max(int(messages), 1 if oldest else 0),
        int(nbytes),
        int(max_messages),
        int(max_bytes),
        max(0.0, now - int(oldest.partition(b"-")[0]) / 1000) if oldest else None,
        None if int(lease_ms) < 0 else int(lease_ms) / 1000,
        leased == b"1",
        int(unlogged),
        int(unlogged_bytes),
        hosts == b"1",
        owner.decode(),
        int(acked),
        since != b"",
        decode_service_note(service).ended,
        int(failures),
    )
