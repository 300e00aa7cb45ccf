"""Specification of an experiment: what a pickle of a handle may hold."""

import pickle

import pytest

from ray_messaging import MessagingConfig, RedisConfig
from ray_messaging.cluster.spec import Experiment

SENTINELS = {"sentinels": ("a:26379",), "service": "town"}


@pytest.mark.parametrize(
    "secrets",
    [
        {"password": "pass-word"},
        {"sentinel_password": "pass-word"},
        {"password": "x", "sentinel_password": "pass-word"},
    ],
    ids=["the server's", "the Sentinels'", "both"],
)
def test_a_copy_for_a_pickle_has_no_password(secrets):
    experiment = Experiment("town", "run", MessagingConfig(), redis=RedisConfig(**SENTINELS, **secrets))
    copy = experiment.without_password()
    assert b"pass-word" not in pickle.dumps(copy)
    assert copy.withheld
    assert copy.without_password() == copy
    assert copy.redis.sentinels == experiment.redis.sentinels


def test_a_config_without_passwords_is_whole():
    experiment = Experiment("town", "run", MessagingConfig(), redis=RedisConfig(**SENTINELS))
    assert experiment.without_password() == experiment
