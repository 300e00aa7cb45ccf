"""The embedded Redis servers of an experiment. The first one has the mailboxes; others store large messages of steps.

Embedded servers may keep their data in folders for a later start.
"""

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, Literal, NamedTuple, Self

import ray

from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.ray_calls import context, find_named
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.config import RedisConfig, ServerConfig, ShardsConfig, Steps
from ray_messaging.default_limits_and_leases import SHARDS
from ray_messaging.embedded.data_directory import APPEND_ONLY_NAME
from ray_messaging.errors import Closed, ConfigError, ConnectionFailed

Shards = int | Literal["per-node"] | None
PER_NODE = "per-node"
LARGE_BYTES = 10**7  # if the servers' data have at least this size, a line on stderr says where they are
_told = Event()  # set when this process has printed a line about large data
_SHARD = re.compile(r"shard-(\d+)-of-(\d+)")


def server_names(exp_id: str, count: int) -> list[str]:
    """Return the names of the Ray actors of `count` embedded servers. The first server has the mailboxes."""
    return [f"{exp_id}/server", *(f"{exp_id}/server-{shard}" for shard in range(1, count))]


def check_shards(shards: object, *, server: ServerConfig | None, steps: Steps | None, data_dir: object) -> Shards:
    """Check the argument `shards`; return the number of servers, "per-node", or None for one server.

    Raises: ConfigError if `shards` does not fit the other arguments.
    """
    whole = isinstance(shards, int) and not isinstance(shards, bool) and shards >= 1
    if shards is not None and not whole and shards != PER_NODE:
        raise ConfigError(f"shards={shards!r} is unknown: write a number of servers, at least 1, or 'per-node'")
    if isinstance(shards, int) and shards > SHARDS:
        raise ConfigError(
            f"shards={shards} is too many servers: write at most {SHARDS}; a few for each machine are enough"
        )
    if server is not None:
        shards = _check_own(shards, server)
    if shards is None or shards == 1:
        return None
    if steps is None:
        raise ConfigError(
            f"shards={shards!r} spreads the large messages of steps, but this experiment has no steps. Without steps= "
            "one server does all the work: it can carry 3 to 5 million messages a second (docs/operations.md). Leave "
            "out shards=, or add steps=Steps()"
        )
    if steps.checkpoint is not None:
        raise ConfigError(
            f"checkpoint={steps.checkpoint} copies the data of one server, but shards={shards!r} spreads the data "
            "over several servers: leave out one of the two"
        )
    if shards == PER_NODE and data_dir is not None:
        raise ConfigError(
            "shards='per-node' cannot be combined with data_dir=, because a later start may find other nodes than "
            "those that have the data: leave out data_dir=, or write a number, such as shards=3"
        )
    return shards  # type: ignore[return-value]  # checked above


def _check_own(shards: object, server: ServerConfig) -> object:
    """Return the number of servers of an experiment whose servers the user names by `redis=`.

    The number is `shards`, or if `shards` is None, the number of servers in `redis=`.

    Raises: ConfigError if `shards` does not agree with `redis=`.
    """
    own = 1
    if isinstance(server, ShardsConfig):
        own = len(server.servers)
    elif isinstance(server, RedisConfig):
        own = server.shards
    if shards in {None, own}:
        return own
    if shards == 1 or own > 1:
        raise ConfigError(
            f"shards={shards!r}, but redis= has {own} shards: leave out shards=, or give both the same number"
        )
    is_cluster = isinstance(server, RedisConfig) and bool(server.cluster)
    if shards == PER_NODE and is_cluster:
        raise ConfigError(
            "shards='per-node' is for embedded servers, but redis= names a cluster of yours: write a number, such as "
            "shards=6, or leave out redis="
        )
    if not is_cluster:
        raise ConfigError(
            f"shards={shards!r} needs several servers, but redis= names only one: leave out shards= to use this "
            "server, leave out redis= to use embedded servers, or name a cluster: "
            "redis='redis+cluster://host:port,host:port', shards=6"
        )
    return shards


def nodes_of(shards: Shards) -> tuple[str, ...]:
    """Return the Ray node of each embedded server; the first one is this node."""
    here = context().get_node_id()
    if shards != PER_NODE:
        return (here,) * int(shards or 1)
    alive = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
    return (here, *(node for node in alive if node != here))


async def embedded_config(spec: InterceptorSpec) -> ServerConfig:
    """Wait until all embedded servers of an experiment run, and return their config; raise Closed if one is lost."""
    if (lost := lost_server(spec)) is not None:
        raise Closed(lost)
    names = server_names(spec.exp_id, len(spec.nodes))
    actors = [find_named(name, NAMESPACE) for name in names]
    servers: tuple[RedisConfig, ...] = tuple(await asyncio.gather(*(actor.config.remote() for actor in actors)))
    return ShardsConfig(servers=servers, nodes=spec.nodes if spec.per_node else ()) if servers[1:] else servers[0]


def lost_server(spec: InterceptorSpec) -> str | None:
    """Return an error text that names a server whose node, and so its data, are gone; None if no server is lost."""
    for shard, name in enumerate(server_names(spec.exp_id, len(spec.nodes))):
        try:
            find_named(name, NAMESPACE)
        except ValueError:
            which = "its embedded server" if len(spec.nodes) == 1 else f"the embedded server of shard {shard}"
            node = spec.nodes[shard]
            facts = {each["NodeID"]: each for each in ray.nodes()}.get(node, {})
            return _lost(spec.exp_id, which, node, facts)
    return None


def lost_machine(exp_id: str, config: ServerConfig, error: BaseException | None = None) -> Closed | None:
    """Return an error that names a lost node with its server; None if no node is lost, or without shards="per-node".

    Args: `error` is an error that a group has raised. If a server could not be reached, the server's node is treated as
    lost at once, because Ray takes up to a minute to report a lost node.
    """
    if not isinstance(config, ShardsConfig) or not config.nodes:
        return None
    known = {node["NodeID"]: node for node in ray.nodes()}
    for shard, (node, server) in enumerate(zip(config.nodes, config.servers, strict=True)):
        silent = isinstance(error, ConnectionFailed) and (error.host, error.port) == (server.server, server.port)
        facts = known.get(node, {})
        if silent or not facts.get("Alive"):
            return Closed(_lost(exp_id, f"the embedded server of shard {shard}", node, facts))
    return None


def _lost(exp_id: str, which: str, node: str, facts: Mapping[str, Any]) -> str:
    """Return the text of the error for a lost node.

    `facts` are what Ray knows of the node, or empty if Ray has forgotten it.
    """
    where = f" ({facts['NodeManagerHostname']}, {facts['NodeManagerAddress']})" if facts else ""
    return (
        f"experiment {exp_id!r} has lost {which}, because Ray node {node}{where} is gone, with the messages on it. "
        "Shut the experiment down, and start it anew. A server of your own with Sentinels, or a cluster (redis=), "
        "survives such a loss"
    )


def config_here(config: ServerConfig) -> ServerConfig:
    """Return the server's config for a group in this process.

    With several servers, the group stores the large messages that it sends in steps on the server of its own node, if
    there is one.
    """
    if isinstance(config, ShardsConfig) and config.nodes:
        return config.on_node(context().get_node_id())
    return config


class KeptData(NamedTuple):
    """A folder on this machine for the data of servers. If there are several servers, each has a subfolder.

    If the user has named the folder, `asked_for` is True, and the data stay there after the run. If not, the folder is
    beside the log, and the data are there only in case all other processes die. They are deleted when the log has all
    rows, but in an experiment with steps they stay, so that a later start can resume the run.
    """

    folder: Path
    of_servers: tuple[Path, ...]
    asked_for: bool

    @classmethod
    def of(cls, given: str | Path | None, *, log_dir: str | None, shards: Shards) -> Self | None:
        """Return the folder for the servers' data; None if each server has a temporary folder instead.

        The folder is `given`, or if that is None, the folder beside the log.

        Raises: ConfigError if the folder cannot be used.
        """
        if shards == PER_NODE:  # `check_shards` has refused data_dir= with "per-node"
            return None
        if given is None and (log_dir is None or "://" in log_dir):
            return None
        if "://" in str(given):
            raise ConfigError(f"data_dir={str(given)!r} must be a folder on this machine, not a URI")
        folder = Path(given or beside(str(log_dir))).expanduser().absolute()
        count = int(shards or 1)
        servers = tuple(folder / f"shard-{shard}-of-{count}" for shard in range(count)) if count > 1 else (folder,)
        _check(folder, servers)
        return cls(folder, servers, given is not None)

    def tell(self) -> None:
        """Print where data are kept, if they are large and the user has not named the folder.

        A process prints this only once.
        """
        if self.asked_for or _told.is_set():
            return
        # With Ray Client the folder is on another machine, and has no files here.
        nbytes = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        if nbytes >= LARGE_BYTES:
            _told.set()
            sys.stderr.write(f"{self.folder} ({nbytes / 1e6:,.0f} MB) is needed only to resume this run\n")

    def clean(self) -> None:
        """Remove the folder, if the subfolders of all servers have been removed."""
        if len(self.of_servers) > 1:
            with suppress(OSError):  # raised if the folder has other files
                self.folder.rmdir()


def beside(log_dir: str) -> str:
    """Return the folder in which an embedded server stores its data if the log is in the folder `log_dir`."""
    return f"{log_dir.rstrip('/')}-server"


def _check(folder: Path, servers: Sequence[Path]) -> None:
    """Raise ConfigError if the folder has data that these servers would not load, or not load completely."""
    with_data = {path.parent for path in folder.glob(f"*/{APPEND_ONLY_NAME}") if _SHARD.fullmatch(path.parent.name)}
    if (folder / APPEND_ONLY_NAME).exists():
        with_data.add(folder)
    if strangers := sorted(with_data - set(servers)):
        match = _SHARD.fullmatch(strangers[0].name)
        before = f"{match[2]} shards" if match else "one server"
        remedy = f"shards={match[2]}" if match else "no shards="
        raise ConfigError(
            f"data_dir={str(folder)!r} has the data of {before}, but the number of servers of this start is "
            f"{len(servers)}: start with {remedy}, or give another folder"
        )
    if with_data and (missing := [path.name for path in servers if path not in with_data]):
        raise ConfigError(
            f"data_dir={str(folder)!r} has the data of only some shards, and lacks {', '.join(missing)}: restore them, "
            "or pass another folder"
        )
