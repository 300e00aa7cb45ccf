"""Health checks of a Redis server, made from facts that the server reports about itself."""

from collections.abc import Iterator

from ray_messaging.observability.health.findings import (
    CRITICAL_SHARE,
    WARNING_SHARE,
    Finding,
    critical,
    in_bytes,
    ok,
    usage_of_limit,
    warning,
)
from ray_messaging.transports.server_facts import (
    Info,
    ServerFacts,
    evicts,
    is_old,
    is_replica,
    keeps_data,
    kind_and_version,
    number,
    replicas_in_step,
    replicas_of,
)

SLOW_MS = 20.0
SKEW_S = 1.0
_RAISE_MAXMEMORY = "raise the server's maxmemory, or fetch the messages that wait: a full server accepts no messages"


def check_server(
    facts: ServerFacts, *, allow_eviction: bool = False, embedded: bool = False, wait_replicas: int = 0
) -> list[Finding]:
    """Return the findings about a server. If the server has not answered, a finding says so.

    Args: `allow_eviction` and `wait_replicas` are the experiment's settings; `embedded` says whether this is an
    embedded server.
    """
    if facts.refused:
        remedy = "pass another user, or give this user the missing rights: docs/security.md lists them"
        return [critical("server", facts.error, remedy), *_rights(facts)]
    if facts.error:
        remedy = (
            "read the log of its actor. If an embedded server dies, it is started again with the same data"
            if embedded
            else (
                "start the server, or check the network to it. Senders wait for it up to MessagingConfig.send_timeout_s"
            )
        )
        return [critical("server", facts.error, remedy)]
    info = facts.info
    return [
        *_kind(facts),
        *_rights(facts),
        *_replicas(facts.where, info, wait_replicas),
        _round_trip(facts),
        check_clock("server clock", facts.skew_s, 0.0),
        *_persistence(info, facts.settings, embedded=embedded),
        *_eviction(info, allow_eviction=allow_eviction),
        _memory(info),
        _clients(info),
    ]


def _kind(facts: ServerFacts) -> Iterator[Finding]:
    kind = f"{kind_and_version(facts.info)} at {facts.where}"
    if is_old(facts.info):
        yield critical("server", kind, "install Redis 7.0, Valkey 7.2 or newer")
    else:
        yield ok("server", kind)
    if is_replica(facts.info):
        primary = f"{facts.info.get('master_host')}:{facts.info.get('master_port')}"
        yield critical(
            "server role", "this server is a replica, which accepts no writes", f"pass its primary, {primary}"
        )
    if facts.info.get("cluster_enabled") == "1" and not facts.by_cluster:
        yield warning(
            "server role",
            "this server is a node of a Redis cluster",
            "a connection to one node does not follow the cluster's redirections: pass "
            "redis+cluster://host:port,host:port, or RedisConfig(cluster=[...])",
        )


def _rights(facts: ServerFacts) -> Iterator[Finding]:
    if facts.lacking is None:
        yield ok(
            "server rights",
            "not examined, because that needs the command MULTI, which the user may not use: docs/security.md lists "
            "the rights that are needed",
        )
    elif facts.lacking:
        yield critical(
            "server rights",
            f"the server's user lacks the rights {' '.join(facts.lacking)}",
            "give the user these rights by ACL SETUSER; docs/security.md lists all rights that are needed",
        )


def _replicas(where: str, info: Info, wanted: int) -> Iterator[Finding]:
    found = replicas_in_step(info)
    if found < wanted:
        yield critical(
            "server replicas",
            f"{found} of {wanted} replicas are connected (MessagingConfig.wait_replicas is {wanted})",
            "start the missing replicas, read their logs, and check the network to the primary. Sends and fetches "
            "wait for them up to MessagingConfig.send_timeout_s",
        )
    elif wanted:
        listed = ", ".join(f"{where} ({lag:,} bytes behind)" for where, lag in replicas_of(info))
        yield ok(
            "server replicas",
            f"{found} are connected to the primary, {_primary(where, info)}: {listed}; wait_replicas is {wanted}",
        )


def _primary(where: str, info: Info) -> str:
    port = info.get("tcp_port", "")
    return f"port {port} of {where}" if port and not where.endswith(f":{port}") else where


def _round_trip(facts: ServerFacts) -> Finding:
    took = f"{facts.round_trip_ms:.2f} ms"
    if facts.round_trip_ms > SLOW_MS:
        return warning(
            "server round trip",
            took,
            "each awaited send takes at least this time: run the server nearer to its clients, or send messages in "
            "bulk",
        )
    return ok("server round trip", took)


def check_clock(what: str, skew_s: float, margin_s: float) -> Finding:
    """Return a finding about how far, in seconds, a clock is ahead of this process's clock.

    Args: The difference `skew_s` is exact to within `margin_s`.
    """
    if abs(skew_s) - margin_s > SKEW_S:
        return warning(
            what,
            f"{abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} this process's clock",
            "run NTP (chrony) on all machines, because times of messages from different machines are compared",
        )
    return ok(what, f"within {SKEW_S:g} s of this process's clock")


def _persistence(info: Info, settings: dict[str, str], *, embedded: bool) -> Iterator[Finding]:
    if not keeps_data(info):
        yield warning(
            "server persistence",
            "snapshots only" if settings.get("save") else "none",
            "acknowledged messages are lost when the server's process dies: CONFIG SET appendonly yes, and set this "
            "in the server's configuration file, too",
        )
        return
    fsync = settings.get("appendfsync", "unknown, because CONFIG is forbidden")
    if fsync == "no" and not embedded:  # the guard process of an embedded server calls fsync
        yield warning(
            "server persistence",
            "appendonly, appendfsync no",
            "in a power cut, the messages of up to half a minute are lost: CONFIG SET appendfsync everysec (then at "
            "most a second is lost) or always (then none)",
        )
    else:
        yield ok("server persistence", f"appendonly, appendfsync {fsync}")
    where = "data directory of the embedded server" if embedded else "server's data directory"
    for name, what in (
        ("aof_last_write_status", "the last write"),
        ("aof_last_bgrewrite_status", "the last rewrite of the AOF"),
        ("rdb_last_bgsave_status", "the last snapshot"),
    ):
        if info.get(name, "ok") != "ok":
            yield critical(
                "server disk",
                f"{what} failed",
                f"free disk space in the {where}, and read the server's log for other causes",
            )


def _eviction(info: Info, *, allow_eviction: bool) -> Iterator[Finding]:
    policy = info.get("maxmemory_policy", "unknown")
    how = "CONFIG SET maxmemory-policy noeviction, and set this in the server's configuration file, too"
    if number(info, "evicted_keys"):
        yield critical(
            "server eviction",
            f"{number(info, 'evicted_keys'):,} keys were evicted since the server started",
            f"messages may be among them: {how}",
        )
    elif evicts(info) and allow_eviction:
        yield warning(
            "server eviction",
            f"the policy is {policy}, which RedisConfig(allow_eviction=True) permits",
            f"messages may vanish: {how}",
        )
    elif evicts(info):
        yield critical("server eviction", policy, f"unread messages are deleted when memory is full: {how}")
    elif policy not in {"noeviction", "unknown"}:
        yield warning("server eviction", f"the policy is {policy}, which has no effect while maxmemory is 0", how)
    else:
        yield ok("server eviction", policy)


def _memory(info: Info) -> Finding:
    used, most = number(info, "used_memory"), number(info, "maxmemory")
    if most:
        return usage_of_limit("server memory", used, most, in_bytes, _RAISE_MAXMEMORY)
    machine = number(info, "total_system_memory")
    text = f"{in_bytes(used)}, maxmemory is not set"
    if machine and used > WARNING_SHARE * machine:
        level = critical if used > CRITICAL_SHARE * machine else warning
        return level(
            "server memory",
            f"{text}, and the machine has {in_bytes(machine)}",
            "set the server's maxmemory, and fetch the messages that wait",
        )
    return ok("server memory", text)


def _clients(info: Info) -> Finding:
    clients, most = number(info, "connected_clients"), number(info, "maxclients")
    if most:
        return usage_of_limit(
            "server connections",
            clients,
            most,
            "{:,}".format,
            "raise the server's maxclients and its ulimit -n: each messager takes up to 4 connections",
        )
    return ok("server connections", f"{clients:,}")
