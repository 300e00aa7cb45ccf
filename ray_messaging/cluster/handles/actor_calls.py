"""Call actors from drivers and tasks, and get our own errors back."""

import math
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.core.generated.gcs_pb2 import ActorTableData  # type: ignore[attr-defined]
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RayTaskError

from ray_messaging.errors import Closed, MessagingError, OutcomeUnknown

NAMESPACE = "ray_messaging"

# Between questions to an actor that starts again, in seconds.
_PAUSE_S = 0.1
# For Ray to tell that an actor is dead which was killed, and between two looks, in seconds.
_DEATH_S, _GLANCE_S = 2.0, 0.01


def result(ref: Any, *, what: str, sends: bool = False) -> Any:  # noqa: ANN401 - an ObjectRef and its value
    """Wait for a call and return its result; `what` names the actor in errors.

    Raises: what the actor raised; Closed where it is gone; OutcomeUnknown where a call that `sends` was cut.
    """
    try:
        return ray.get(ref)
    except (RayTaskError, RayActorError) as error:
        raise translated(error, what=what, sends=sends) from error


def known_dead(actor: Any) -> bool:  # noqa: ANN401 - a Ray actor handle
    """Tell whether this process knows that an actor will not come back, so that a call of it would never begin.

    False on Ray Client, and before the first call: nobody has asked then.
    """
    state = getattr(actor, "_get_local_state", None)
    return state is not None and state() == ActorTableData.ActorState.DEAD


def wait_dead(actor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
    """Wait until this process knows that an actor which was killed is dead: whoever calls it then is told so."""
    deadline = time.monotonic() + _DEATH_S
    while hasattr(actor, "_get_local_state") and not known_dead(actor) and time.monotonic() < deadline:
        time.sleep(_GLANCE_S)


def gone(what: str) -> Closed:
    """Build the error for a send by an actor that was gone before."""
    return Closed(
        f"{what} is gone: it was removed or shut down, or it died and cannot come back. Nothing was sent: create it "
        "again, or start the experiment anew",
        unsent=True,
    )


def insist(actor: Any, call: Callable[[], Any], *, what: str) -> Any:  # noqa: ANN401 - a handle, an ObjectRef, its value
    """Make a call that may be repeated, again and again while its actor starts again; raises as `result`.

    The actor answers `ready`. Ray's own retries come up to a second after it has told of a failure, which takes it one
    or two.
    """
    while True:
        try:
            return result(call(), what=what)
        except Closed as error:
            if not isinstance(error.__cause__, ActorUnavailableError):
                raise
        wait_restart(actor)


def wait_restart(actor: Any, timeout_s: float = math.inf) -> None:  # noqa: ANN401 - a Ray actor handle
    """Wait until an actor answers, or will not any more, at most for a time.

    A question that is asked while it starts again fails only seconds later, when others would be answered: many are.
    """
    asked: list[Any] = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        asked.append(actor.ready.remote())
        told, asked = ray.wait(asked, num_returns=len(asked), timeout=_PAUSE_S)
        for ref in told:
            try:
                ray.get(ref)
            except ActorUnavailableError:
                continue
            except (RayTaskError, RayActorError):  # whoever calls now is told
                pass
            return
        if not asked:  # all failed at once
            time.sleep(_PAUSE_S)


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
