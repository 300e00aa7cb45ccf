"""State of a server, and of an experiment on it, for health checks; and functions that read the reply to INFO."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ray_messaging.addressing.channels import is_survey_mailbox
from ray_messaging.config import RedisConfig

# The first version in which scripts have flags. Without a flag, no script could free memory while the memory is full.
OLDEST_SERVER = (7, 0)

Info = Mapping[str, str]


def read_info(reply: bytes) -> dict[str, str]:
    """Return the fields of a reply to INFO, by name."""
    lines = reply.decode(errors="replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon and name[:1] != "#"}


def kind_and_version(info: Info) -> str:
    """Return the kind and version of a server. Valkey also reports a version of Redis, which is ignored."""
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info.get('redis_version') or 'of an unknown version'}"


def is_old(info: Info) -> bool:
    """Return whether a server is too old.

    A server that does not report its version is taken for one that is too old.
    """
    numbers = info.get("redis_version", "").split(".")[:2]
    return len(numbers) < 2 or not all(map(str.isdecimal, numbers)) or tuple(map(int, numbers)) < OLDEST_SERVER


def number(info: Info, name: str) -> int:
    """Return the value of a numeric field, or 0 if the server does not report the field."""
    value = info.get(name, "")
    return int(value) if value.isdecimal() else 0


def evicts(info: Info) -> bool:
    """Return whether a server deletes data when its memory is full. A server without a memory limit never does."""
    return number(info, "maxmemory") > 0 and info.get("maxmemory_policy", "noeviction") != "noeviction"


def is_replica(info: Info) -> bool:
    """Return whether a server is a replica that refuses writes."""
    return info.get("role") == "slave" and info.get("slave_read_only", "1") == "1"


def replicas_in_step(info: Info) -> int:
    """Return how many replicas are connected and have received their first full copy of the data."""
    told = (value for name, value in info.items() if name.startswith("slave") and name[5:].isdecimal())
    return sum("state=online" in value.split(",") for value in told)


def replicas_of(info: Info) -> list[tuple[str, int]]:
    """Return the address of each connected replica, and how many bytes it is behind."""
    found = []
    for name, value in info.items():
        if name.startswith("slave") and name[5:].isdecimal():
            facts = dict(part.partition("=")[::2] for part in value.split(","))
            behind = number(info, "master_repl_offset") - number(facts, "offset")
            found.append((f"{facts.get('ip')}:{facts.get('port')}", max(0, behind)))
    return found


def keeps_data(info: Info) -> bool:
    """Return whether a server appends each change to a file (appendonly)."""
    return info.get("aof_enabled") == "1"


def refusal(info: Info, config: RedisConfig, where: str) -> str | None:
    """Return why a server is unsuitable, with the remedy, or None if it is suitable."""
    if "sentinel" in {info.get("redis_mode"), info.get("server_mode")}:
        return (
            f"the server at {where} is a Sentinel, which keeps no data: pass RedisConfig(sentinels=[{where!r}, ...], "
            "service=...) with the name of its service"
        )
    if is_old(info):
        return f"the server at {where} is {kind_and_version(info)}: install Redis 7.0, Valkey 7.2 or newer"
    if is_replica(info):
        primary = f"{info.get('master_host', 'its primary')}:{info.get('master_port', '')}".rstrip(":")
        return f"the server at {where} is a replica, which accepts no writes: pass its primary, {primary}"
    if evicts(info) and not config.allow_eviction:
        return (
            f"the server at {where} deletes data when its memory of {number(info, 'maxmemory'):,} bytes is full "
            f"(maxmemory-policy {info['maxmemory_policy']}), unread messages among them: CONFIG SET maxmemory-policy "
            "noeviction, or pass allow_eviction=True (in a URL ?allow_eviction=1) if messages may vanish"
        )
    return None


@dataclass(frozen=True, slots=True)
class Mailbox:
    """State of one mailbox.

    `oldest_s` is the age of the oldest unread message in seconds, or None if no message waits or the age is unknown.
    `lease_s` is the time until the lease ends, or None if the lease has ended or there is none.
    """

    name: str
    messages: int
    nbytes: int
    max_messages: int
    max_bytes: int
    oldest_s: float | None
    lease_s: float | None
    leased: bool
    unlogged: int
    unlogged_bytes: int
    hosts: bool  # whether no other mailbox may listen for the mailbox's agents
    owner: str = ""
    acked: int = 0  # how many messages were acknowledged although an earlier message was not
    in_steps: bool = False  # whether the mailbox belongs to a group with steps; a group is idle between runs
    ended: str = ""  # why `serve` has ended for this mailbox; "" if it still runs or never began
    failures: int = 0  # on how many messages a handler of `serve` has failed

    @property
    def waits_for_its_name(self) -> bool:
        """Return whether the mailbox belongs to a closed messager whose name may be used again.

        Return False for every mailbox of a group.
        """
        return self.lease_s is None and not self.leased and not self.hosts and not self.keeps_answers

    @property
    def keeps_answers(self) -> bool:
        """Return whether the mailbox has the answers of a survey, which are read but never acknowledged."""
        return is_survey_mailbox(self.name)


@dataclass(frozen=True, slots=True)
class Kept:
    """Data of one experiment on a server.

    `mailboxes_in_all` is the number of all mailboxes. `mailboxes` may have only some of them.
    """

    interceptor_epoch: int
    logged: bool
    dead_letters: int
    dead_letters_dropped: int
    noted: int
    noted_bytes: int
    max_noted: int
    max_noted_bytes: int
    mailboxes_in_all: int
    mailboxes: list[Mailbox]


@dataclass(slots=True)
class ServerFacts:
    """Answers of a server. If it has not answered, `error` says why.

    `skew_s` is how many seconds the server's clock is ahead of the clock of this process.
    """

    where: str
    error: str = ""
    refused: bool = False
    info: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # empty if our user may not read the server's settings
    round_trip_ms: float = 0.0
    skew_s: float = 0.0
    # The rights that our user lacks, in the form for ACL SETUSER; None: unknown.
    lacking: list[str] | None = field(default_factory=list)
    kept: Kept | None = None
    allow_eviction: bool = False  # whether the config accepts a server that deletes data when its memory is full
    by_cluster: bool = False  # whether the config names a cluster instead of this server
    # The state of the further servers, which have the bodies of large frames.
    others: "list[ServerFacts]" = field(default_factory=list)
