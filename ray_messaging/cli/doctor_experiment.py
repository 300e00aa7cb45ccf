"""Examine an experiment that runs, from the command line."""

import logging

import ray

from ray_messaging.cli.session import check_ray_address
from ray_messaging.cluster.health import examine, named_actors
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.health import Health


def join_ray() -> bool:
    """Join a Ray cluster that runs; False: none was found. Raises ConfigError where RAY_ADDRESS leads nowhere."""
    if ray.is_initialized():
        return True
    check_ray_address()
    try:
        ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    except ConnectionError:
        return False
    return True


def examine_experiment(exp_id: str, config: RedisConfig | None) -> Health:
    """Return how an experiment is; `config` says where its server is, where its interceptor cannot.

    Raises: ConfigError where no Ray cluster runs, UnknownName where the experiment does not.
    """
    if not join_ray():
        raise ConfigError(
            f"no Ray cluster was found that experiment {exp_id!r} could run in: set RAY_ADDRESS to its host:port"
        )
    actors = named_actors(f"{exp_id}/")
    if not actors:
        where = ray.get_runtime_context().gcs_address
        raise UnknownName(
            f"no experiment {exp_id!r} runs in the Ray cluster at {where}; there are: "
            f"{', '.join(running_experiments()) or 'none'}. Where several clusters run on this machine, RAY_ADDRESS "
            "says which one to ask",
            kind="experiment",
            value=exp_id,
        )
    experiment = None if config is None else Experiment(exp_id, "", config, MessagingConfig())
    return examine(exp_id, experiment, {})


def running_experiments() -> list[str]:
    """Return the experiments that run in this Ray cluster."""
    return sorted({name.partition("/")[0] for name in named_actors("")})
