"""Facts in a server's INFO reply, and whether the server is suitable."""

from collections.abc import Mapping

from ray_messaging.config import RedisConfig

OLDEST_SERVER = (7, 0)  # scripts with flags: trimming must go on while the server's memory is full

Info = Mapping[str, str]


def read_info(reply: bytes) -> dict[str, str]:
    """Return the fields of a reply to INFO."""
    lines = reply.decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon and name[:1] != "#"}


def kind_and_version(info: Info) -> str:
    """Return the kind and version of a server; Valkey also reports a version of Redis."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version') or 'of an unknown version'}"


def is_old(info: Info) -> bool:
    """Return whether a server is too old, or hides its version."""
    numbers = info.get("redis_version", "").split(".")[:2]
    return len(numbers) < 2 or not all(map(str.isdecimal, numbers)) or tuple(map(int, numbers)) < OLDEST_SERVER


def number(info: Info, name: str) -> int:
    """Return a field that is a number; 0 where the server does not tell it."""
    value = info.get(name, "")
    return int(value) if value.isdecimal() else 0


def evicts(info: Info) -> bool:
    """Return whether a server deletes data when its memory is full; without a limit it never is."""
    return number(info, "maxmemory") > 0 and info.get("maxmemory_policy", "noeviction") != "noeviction"


def is_replica(info: Info) -> bool:
    """Return whether a server is a replica that takes no writes."""
    return info.get("role") == "slave" and info.get("slave_read_only", "1") == "1"


def replicas_in_step(info: Info) -> int:
    """Return how many replicas are connected, and past their first copy of the data."""
    told = (value for name, value in info.items() if name.startswith("slave") and name[5:].isdecimal())
    return sum("state=online" in value.split(",") for value in told)


def replicas_of(info: Info) -> list[tuple[str, int]]:
    """Return the address of each connected replica, and by how many bytes it is behind."""
    found = []
    for name, value in info.items():
        if name.startswith("slave") and name[5:].isdecimal():
            facts = dict(part.partition("=")[::2] for part in value.split(","))
            behind = number(info, "master_repl_offset") - number(facts, "offset")
            found.append((f"{facts.get('ip')}:{facts.get('port')}", max(0, behind)))
    return found


def keeps_data(info: Info) -> bool:
    """Return whether a server appends each change to a file."""
    return info.get("aof_enabled") == "1"


def refusal(info: Info, config: RedisConfig, where: str) -> str | None:
    """Return why a server is unsuitable, with the remedy; None: it is suitable."""
    if "sentinel" in {info.get("redis_mode"), info.get("server_mode")}:
        return (
            f"the server at {where} is a Sentinel, which keeps no data: pass RedisConfig(sentinels=[{where!r}, ...], "
            "service=...) with the name of its service"
        )
    if is_old(info):
        return f"the server at {where} is {kind_and_version(info)}: install Redis 7.0, Valkey 7.2 or newer"
    if is_replica(info):
        primary = f"{info.get('master_host', 'its primary')}:{info.get('master_port', '')}".rstrip(":")
        return f"the server at {where} is a replica that takes no writes: give its primary, {primary}"
    if evicts(info) and not config.allow_eviction:
        return (
            f"the server at {where} deletes data when its memory of {number(info, 'maxmemory'):,} bytes is full "
            f"(maxmemory-policy {info['maxmemory_policy']}), unread messages among them: CONFIG SET maxmemory-policy "
            "noeviction, or pass allow_eviction=True (in a URL ?allow_eviction=1) if messages may vanish"
        )
    return None
