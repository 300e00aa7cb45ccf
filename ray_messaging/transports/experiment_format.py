"""Checks that this process may use an experiment's data on a server: their format, and the number of shards.

There is one format; its number changes with what lies on the server.
"""

from ray_messaging.errors import ConfigError

FORMAT = 3


def check_format(exp_id: str, found: int) -> None:
    """Raise ConfigError if an experiment's data have another format; 0: there are none."""
    if found not in {0, FORMAT}:
        raise ConfigError(
            f"experiment {exp_id!r} has data of format {found} on its server, and this ray_messaging reads format "
            f"{FORMAT} only: use another exp_id, go on with the version of ray_messaging that wrote them, or delete "
            "them by Messaging.start(..., on_existing='reset')"
        )


def check_shards(exp_id: str, found: int, told: int) -> None:
    """Raise ConfigError if an experiment has another number of shards; 0: nothing of it is there."""
    if found and found != told:
        has = f"{found} shards" if found > 1 else "one shard"
        raise ConfigError(
            f"experiment {exp_id!r} has {has}, and shards={told} was given here: write shards={found}, or use another "
            "exp_id. Of embedded servers pass messaging.redis, which names all of them. The number cannot change"
        )
