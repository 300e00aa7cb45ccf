"""Restarts of Ray actors, and failures that are worth a retry."""

import warnings

import ray

from ray_messaging.errors import ConnectionFailed, MailboxFull, MessagingError, ServerRefused


def restarted() -> bool:
    """Return whether an earlier process of this actor died."""
    with warnings.catch_warnings(action="ignore"):  # Ray 2.60's property emits a warning about another property
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def server_unreachable(failure: MessagingError | None) -> bool:
    """Return whether a start failed because the server did not answer."""
    return isinstance(failure, ConnectionFailed) and not isinstance(failure, ServerRefused)


def worth_a_retry(failure: MessagingError | None) -> bool:
    """Return whether another try may succeed: the server did not answer, or had no memory left."""
    return server_unreachable(failure) or isinstance(failure, MailboxFull)
