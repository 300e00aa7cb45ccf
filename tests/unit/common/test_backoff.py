import asyncio
import time

import pytest

from ray_messaging.common import backoff
from ray_messaging.common.backoff import Backoff, RetryPolicy


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_pause() for _ in range(count)]


def test_pauses_double_up_to_the_longest_until_they_begin_anew():
    assert pauses(Backoff(RetryPolicy(0.3, 1.0)), 4) == [0.3, 0.6, 1.0, 1.0]
    backoff = Backoff(RetryPolicy(0.5, 8.0))
    assert pauses(backoff, 7) == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    backoff.reset()
    assert pauses(backoff, 2) == [0.5, 1.0]


def test_jitter_is_at_most_half_a_pause():
    policy = RetryPolicy(1.0, 1.0, jitter=True)
    found = pauses(Backoff(policy), 1_000)
    assert 0.5 <= min(found) < 0.6
    assert 1.4 < max(found) <= 1.5


def test_exhausted_means_that_the_next_pause_passes_the_deadline():
    assert not Backoff(RetryPolicy(1.0, 1.0)).exhausted
    assert not Backoff(RetryPolicy(1.0, 1.0), deadline=time.monotonic() + 10).exhausted
    backoff = Backoff(RetryPolicy(1.0, 20.0), deadline=time.monotonic() + 10)
    pauses(backoff, 4)
    assert backoff.exhausted


async def test_sleep_takes_the_next_pause(monkeypatch):
    slept = []

    async def sleep(pause_s: float) -> None:
        slept.append(pause_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    backoff = Backoff(RetryPolicy(0.1, 0.2))
    for _ in range(3):
        await backoff.sleep()
    assert slept == [0.1, 0.2, 0.2]


@pytest.mark.parametrize("name", [name for name in vars(backoff) if isinstance(getattr(backoff, name), RetryPolicy)])
def test_policies_are_capped(name):
    policy = getattr(backoff, name)
    # Nothing waits for the lane, as messages go by Ray calls meanwhile; and a provider of models has a rate by minute.
    longest_s = 30 if name in {"LANE_RETRY", "CALL_RETRY"} else 10
    assert 0 < policy.first_s <= policy.longest_s <= longest_s
