"""What Ray's actors must know of their restarts."""

import warnings

import ray

from ray_messaging.errors import ConnectionFailed, MessagingError, ServerRefused


def restarted() -> bool:
    """Tell whether an earlier process of this actor died."""
    with warnings.catch_warnings(action="ignore"):  # Ray 2.60's property warns of another one that it uses itself
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def worth_a_retry(failure: MessagingError | None) -> bool:
    """Tell whether a server that did not answer may yet do so."""
    return isinstance(failure, ConnectionFailed) and not isinstance(failure, ServerRefused)
