"""With any loss of answers, all is written once and in order, and each step is done whole or not at all."""

import asyncio

import pytest

from faults.model import Model, compare
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.sending import frame_sender

pytestmark = pytest.mark.faults


async def books(server, exp_id, monkeypatch, *, seed, steps):
    monkeypatch.setattr(frame_sender, "FENCE_RETRY", RetryPolicy(0.02, 0.02))
    model = Model(seed, server, exp_id, share=0.1)
    wrong = compare(model, await model.run(steps))
    assert not wrong, (seed, len(wrong), wrong[:5])
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("ray_messaging")]
    assert model.done
    assert len(model.sender) > steps


async def test_the_books_agree(valkey_config, exp_id, monkeypatch):
    await books(valkey_config, exp_id, monkeypatch, seed=1, steps=40)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 6))
async def test_the_books_agree_in_the_long_run(valkey_config, exp_id, monkeypatch, seed):
    await books(valkey_config, exp_id, monkeypatch, seed=seed, steps=80)
