"""Ray's errors about an actor that is gone, as our own errors."""

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, ActorUnschedulableError

from ray_messaging.cluster.handles.connection import translated
from ray_messaging.errors import Closed, OutcomeUnknown

GONE = [
    ActorDiedError(),
    ActorUnavailableError("it restarts", b"0" * 16),
    ActorUnschedulableError("The node specified via NodeAffinitySchedulingStrategy doesn't exist any more"),
]


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_a_send_to_an_actor_that_goes_may_have_happened(error):
    found = translated(error, actor_name="group 'east'", sends=True)
    assert type(found) is OutcomeUnknown
    assert str(found).startswith(
        "group 'east' went down before or during this send, so the messages may or may not have been sent"
    )
    assert type(translated(error, actor_name="group 'east'")) is Closed
