"""Specification of an experiment: what a pickle of a handle may hold."""

import pickle

import pytest

from ray_messaging import MessagingConfig, RedisConfig
from ray_messaging.cluster.spec import Experiment

SENTINELS = {"sentinels": ("a:26379",), "service": "town"}


@pytest.mark.parametrize("secrets", [("password",), ("sentinel_password",), ("password", "sentinel_password"), ()])
def test_a_copy_for_a_pickle_has_no_password_and_all_else(secrets):
    redis = RedisConfig(**SENTINELS, **dict.fromkeys(secrets, "pass-word"))
    experiment = Experiment("town", "run", MessagingConfig(), redis=redis)
    copy = experiment.without_password()
    assert b"pass-word" not in pickle.dumps(copy)
    assert copy.withheld == bool(secrets)
    assert copy.without_password() == copy
    assert copy.redis == RedisConfig(**SENTINELS)
