"""Ray names of the actors of an experiment's embedded servers."""


def server_names(exp_id: str, count: int) -> list[str]:
    """Return the names of the servers: the only one, or the shards."""
    return [f"{exp_id}/server", *(f"{exp_id}/server-{shard}" for shard in range(1, count))]


def replica_names(exp_id: str, count: int) -> list[str]:
    """Return the names of the servers that begin as the replicas, one of each server."""
    return [f"{name}/replica" for name in server_names(exp_id, count)]


def sentinel_name(exp_id: str) -> str:
    """Return the name of the Sentinel, the one of all servers."""
    return f"{exp_id}/server/sentinel"
