"""Format number of an experiment's data on a server: it grows when earlier code could not read what may be written."""

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
