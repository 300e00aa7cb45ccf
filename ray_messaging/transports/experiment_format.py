"""Checks that this process may use an experiment's data on a server: their format, and the number of shards.

The format's number grows when earlier code could not read what may be written.
"""

from ray_messaging.errors import ConfigError

# 1: before there was a number. 2: frames of version 2.
FORMAT = 2


def check_format(exp_id: str, found: int) -> None:
    """Raise ConfigError if an experiment has a higher number than this code knows; 0: it has none."""
    if found > FORMAT:
        raise ConfigError(
            f"experiment {exp_id!r} has format {found} on its server, this ray_messaging knows formats up to {FORMAT}: "
            "a newer ray_messaging has opened the experiment, so install that version here too, or use another exp_id"
        )


def check_shards(exp_id: str, found: int, told: int) -> None:
    """Raise ConfigError if an experiment has another number of shards; 0: nothing of it is there."""
    if found and found != told:
        has = f"{found} shards" if found > 1 else "one shard"
        raise ConfigError(
            f"experiment {exp_id!r} has {has}, and shards={told} was given here: write shards={found}, or use another "
            "exp_id. Of embedded servers pass messaging.redis, which has all of them. The number cannot change"
        )
