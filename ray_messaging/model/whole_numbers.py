"""Checks of whole numbers that users pass, most of them numbers of steps. numpy's integers count, and bools do not."""

from operator import index

from ray_messaging.errors import ConfigError


def check_step_number(step: object) -> int:
    """Return the number of a step; raise ConfigError unless it is an int of at least 0."""
    if (number := whole_number(step)) is None:
        raise ConfigError(f"step {step!r} is not a step: steps are numbered from 0")
    return number


def step_count(call: str, given: object, least: int) -> int:
    """Return `given`, a number of steps or a step's number, as an int.

    Args: `call` is the name of the function that the user called, for the error.

    Raises: ConfigError unless `given` is a whole number of at least `least`.
    """
    if (number := whole_number(given)) is None or number < least:
        raise ConfigError(f"{call}({given!r}) needs a whole number of at least {least}")
    return number


def check_until(until: object) -> int:
    """Return `until`, the first step that does not run; raise ConfigError unless it is an int of at least 0."""
    if (number := whole_number(until)) is None:
        raise ConfigError(f"until={until!r} must be a number of steps: until=20 runs the steps 0 to 19")
    return number


def delivery_step(deliver_at: object, step: int, horizon: int) -> int:
    """Return the step in which a message that is sent in `step` is read. `deliver_at` None means the next step.

    Raises: ConfigError unless `deliver_at` is None or a later step, at most `horizon` steps ahead.
    """
    if deliver_at is None:
        return step + 1
    low, high = step + 1, step + horizon
    if (found := whole_number(deliver_at)) is None or not low <= found <= high:
        raise ConfigError(
            f"deliver_at={deliver_at!r} in step {step} must be the number of a later step, an int from {low} to "
            f"{high}, at most {horizon} steps ahead"
        )
    return found


def whole_number(value: object) -> int | None:
    """Return an int of at least 0, or None for anything else."""
    try:
        number = -1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # others raise
    except TypeError:
        return None
    return number if number >= 0 else None
