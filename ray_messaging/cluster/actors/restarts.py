"""What Ray's actors must know of their restarts."""

import warnings

import ray

from ray_messaging.errors import ConnectionFailed, MailboxFull, MessagingError, ServerRefused


def restarted() -> bool:
    """Tell whether an earlier process of this actor died."""
    with warnings.catch_warnings(action="ignore"):  # Ray 2.60's property warns of another one that it uses itself
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def away(failure: MessagingError | None) -> bool:
    """Tell whether a start failed as the server did not answer."""
    return isinstance(failure, ConnectionFailed) and not isinstance(failure, ServerRefused)


def worth_a_retry(failure: MessagingError | None) -> bool:
    """Tell whether a server that did not answer, or had no memory left, may yet do what it was asked."""
    return away(failure) or isinstance(failure, MailboxFull)
