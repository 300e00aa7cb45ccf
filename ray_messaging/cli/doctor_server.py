"""Health check of a server before use: its settings, and a trial of the commands that this library needs."""

import asyncio
import secrets
import time
from collections.abc import Iterator

from redis.exceptions import RedisError

from ray_messaging.addressing.channels import Keys
from ray_messaging.addressing.key_tags import shard_keys
from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.errors import MessagingError
from ray_messaging.limits_and_timeouts import SCAN_COUNT
from ray_messaging.messager import Messager
from ray_messaging.observability.health.findings import Finding, Health, critical, in_bytes, ok, warning
from ray_messaging.observability.health.server_checks import check_server
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.server_facts import ServerFacts
from ray_messaging.transports.server_probe import COPY_FROM, ask_server, client_of

TRY_S = 10.0
FEW_CLIENTS = 1_000  # a group has up to 4 connections
NEVER_SHARED = 2**30  # bytes: longer than any string of ours
LITTLE_BUFFER = 8 * 2**20  # bytes: with less, a subscriber that pauses for a moment is disconnected
_RIGHTS = "give this user the rights in docs/operations.md, or use another user"


def examine_server(config: RedisConfig, exp_id: str | None = None) -> Health:
    """Return whether a server is suitable, by a trial in the key space of `exp_id`, None: in one of its own."""
    space = exp_id or f"doctor-{secrets.token_hex(8)}"
    facts = ask_server(config, space=space)
    findings = check_server(facts, allow_eviction=config.allow_eviction)
    if not facts.error:
        findings += [*_limits(facts), *_trial(config, space)]
    return Health(f"the server at {facts.where}", findings)


def _limits(facts: ServerFacts) -> Iterator[Finding]:
    clients = facts.info.get("maxclients", "")
    if clients.isdecimal() and int(clients) < FEW_CLIENTS:
        yield warning("server maxclients", clients, "CONFIG SET maxclients 10000: a group takes up to 4 connections")
    for kind, hard, *_ in _buffers(facts.settings.get("client-output-buffer-limit", "")):
        if kind == "pubsub" and 0 < hard < LITTLE_BUFFER:
            yield warning(
                "server buffer of subscribers",
                in_bytes(hard),
                "CONFIG SET client-output-buffer-limit 'pubsub 32mb 8mb 60': slower subscribers lose foreign messages",
            )
    copied = facts.settings.get(COPY_FROM, "")
    if copied.isdecimal() and int(copied) < NEVER_SHARED:
        yield warning(
            "server buffer of subscribers",
            f"does not count what is sent without a copy ({COPY_FROM} {copied})",
            f"CONFIG SET {COPY_FROM} {NEVER_SHARED}: else a slow subscriber may use all the memory",
        )
    if not facts.settings:
        yield ok("server settings", "CONFIG is forbidden to this user; INFO says enough")


def _buffers(text: str) -> Iterator[tuple[str, int, int, int]]:
    words = text.split()
    for start in range(0, len(words) - 3, 4):
        kind, *numbers = words[start : start + 4]
        hard, soft, seconds = map(int, numbers)
        yield kind, hard, soft, seconds


def _trial(config: RedisConfig, space: str) -> list[Finding]:
    """Send a message through a key space that is used for this only, and remove the key space."""
    tolerant = config.model_copy(update={"allow_eviction": True})  # eviction is reported already
    try:
        taken = any(_found(tolerant, keys) for keys in _keys(tolerant, space))
    except (RedisError, OSError) as error:
        return [critical("server trial", f"its keys cannot be listed: {error}", _RIGHTS)]
    if taken:
        return [ok("server trial", f"not made: experiment {space!r} has data there")]
    try:
        tried = asyncio.run(_try(tolerant, space))
    finally:  # after Ctrl-C, too
        erased = _erase(tolerant, space)
    return tried + erased


async def _try(config: RedisConfig, exp_id: str) -> list[Finding]:
    try:
        async with asyncio.timeout(TRY_S):
            took_ms = await _send_one(config, exp_id)
            await asyncio.to_thread(_try_commands, config, exp_id)
    except (MessagingError, RedisError, OSError) as error:
        why = error if isinstance(error, MessagingError) else RedisLink(config, 0.0).translated(error)
        return [critical("server trial", str(why), _RIGHTS)]
    except TimeoutError:
        return [critical("server trial", f"no message came through within {TRY_S:g} s", _RIGHTS)]
    return [
        ok("server trial", f"a message was there after {took_ms:.1f} ms, and all commands that we need are allowed")
    ]


async def _send_one(config: RedisConfig, exp_id: str) -> float:
    settings = MessagingConfig(send_timeout_s=TRY_S / 2)
    async with Messager(config, exp_id, name="receiver", settings=settings) as receiver:
        await receiver.host_agents([1], ["agent-chat"])
        async with Messager(config, exp_id, settings=settings) as sender:
            began = time.perf_counter()
            await sender.send_message(sender.get_agent_chat_channel(1), {"trial": 1})
            while not await receiver.fetch_messages(timeout=TRY_S):
                pass
            took_ms = (time.perf_counter() - began) * 1000
        await receiver.ack()
    return took_ms


def _try_commands(config: RedisConfig, exp_id: str) -> None:
    """Run the commands that are used in addition to scripts; raise the server's errors."""
    for keys in _keys(config, exp_id):
        with client_of(config, keys) as client:
            table, stream = keys.table("trial"), keys.stream("trial:0")
            client.hsetnx(table, "a", 1)
            client.hset(table, "b", 2)
            client.hincrby(table, "a", 1)
            client.hmget(table, "a", "b")
            client.hgetall(table)
            client.hkeys(table)
            client.xadd(stream, {"f": b"x"})
            client.xrange(stream)
            client.xrevrange(stream)
            client.xlen(stream)
            client.publish(keys.own, b"(")


def _keys(config: RedisConfig, exp_id: str) -> list[Keys]:
    """Return the keys of each server."""
    return [shard_keys(exp_id, shard, config.shards) for shard in range(config.shards)]


def _found(config: RedisConfig, keys: Keys) -> list[bytes]:
    with client_of(config, keys) as client:
        return list(client.scan_iter(keys.prefix + "*", count=SCAN_COUNT))


def _erase(config: RedisConfig, exp_id: str) -> list[Finding]:
    for keys in _keys(config, exp_id):
        try:
            left = _found(config, keys)
            with client_of(config, keys) as client:
                if left:
                    client.unlink(*left)
        except (RedisError, OSError) as error:
            remedy = f"allow this user SCAN and UNLINK: on_existing='reset' needs them; {keys.prefix}* are left behind"
            return [critical("server trial", f"its keys cannot be removed: {error}", remedy)]
    return []
