"""Names of an experiment's embedded servers: those of their actors in Ray, and those in errors."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ray_messaging.errors import ConfigError, ServerFailed


def server_names(exp_id: str, count: int) -> list[str]:
    """Return the names of the servers: the only one, or the shards."""
    return [f"{exp_id}/server", *(f"{exp_id}/server-{shard}" for shard in range(1, count))]


@contextmanager
def named_in_errors(what: str, shard: int, nodes: Sequence[str]) -> Iterator[None]:
    """Name the server in an error of its start, where an experiment has several: the shard, and its Ray node."""
    try:
        yield
    except (ServerFailed, ConfigError) as error:
        if len(nodes) > 1:
            error.args = (f"{what} of shard {shard}, on Ray node {nodes[shard]}: {error}",)
        raise
