"""Counts that the groups have left about a sealed step."""

from operator import index
from typing import TYPE_CHECKING

from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.steps.digests import history_digest, step_digest
from ray_messaging.steps.step_account import StepCounts

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps


async def sealed_counts(store: "RedisSteps", step: int) -> dict[str, StepCounts]:
    """Return the counts of each group of a step that all have committed; raise ConfigError, UnknownName."""
    number = check_step_number(step)
    sealed = (await store.progress()).sealed
    if number > sealed:
        raise UnknownName(
            f"step {number} is not committed by all groups; the last one is {sealed if sealed >= 0 else 'none yet'}: "
            f"call messaging.steps.wait(until={number + 1}) before",
            kind="step",
            value=number,
        )
    left = await store.closed_step(number)
    if not left:
        raise UnknownName(
            f"step {number} is no longer kept: the server keeps the counts of the last steps before {sealed} only. The "
            "event log has all steps: start with log_dir=, and ask messaging.log",
            kind="step",
            value=number,
        )
    return {group: StepCounts.decode(each.counts) for group, each in left.items()}


def check_step_number(step: object) -> int:
    """Return the number of a step; raise ConfigError."""
    try:
        number = -1 if isinstance(step, bool) else index(step)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = -1
    if number < 0:
        raise ConfigError(f"step {step!r} is no step: steps are numbered from 0")
    return number


def messages_of(counts: dict[str, StepCounts]) -> int:
    """Return the number of messages of a step."""
    return sum(sum(each.fates.values()) + each.outside for each in counts.values())


def digest_of(counts: dict[str, StepCounts]) -> bytes:
    """Return the digest of a step; raise ConfigError where its groups computed none."""
    if not all(each.digest for each in counts.values()):
        raise ConfigError("these steps keep no digests: start the experiment with steps=Steps(digest=True)")
    return step_digest(int.from_bytes(each.digest, "little") for each in counts.values())


async def sealed_history(store: "RedisSteps", step: int) -> bytes:
    """Return the digest of all steps up to one; raise as `sealed_counts`, and ConfigError."""
    chained = b""
    await sealed_counts(store, step)
    for number in range(step + 1):
        counts = await sealed_counts(store, number)
        chained = history_digest(chained, number, messages_of(counts), digest_of(counts))
    return chained
