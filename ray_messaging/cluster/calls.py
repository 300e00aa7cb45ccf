"""Call actors from drivers and tasks, and get our own errors back."""

from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from ray_messaging.errors import Closed, MessagingError, OutcomeUnknown

NAMESPACE = "ray_messaging"


def result(ref: Any, *, what: str, sends: bool = False) -> Any:  # noqa: ANN401 - an ObjectRef and its value
    """Wait for a call and return its result; `what` names the actor in errors.

    Raises: what the actor raised; Closed where it is gone; OutcomeUnknown where a call that `sends` was cut.
    """
    try:
        return ray.get(ref)
    except (RayTaskError, RayActorError) as error:
        raise translated(error, what=what, sends=sends) from error


def translated(error: RayTaskError | RayActorError, *, what: str, sends: bool = False) -> Exception:
    """Turn Ray's error into the one that the actor raised, or into ours."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, MessagingError):
        return cause
    if isinstance(error, ActorDiedError | ActorUnavailableError):
        if sends:
            later = "it was shut down" if isinstance(error, ActorDiedError) else "it starts again, so send again"
            return OutcomeUnknown(
                f"{what} went down before or during this send, which may or may not have happened; {later}"
            )
        why = (str(error).strip().splitlines() or ["no reason given"])[-1]
        return Closed(f"{what} is gone: it was shut down, or it died and cannot come back ({why})")
    return error
