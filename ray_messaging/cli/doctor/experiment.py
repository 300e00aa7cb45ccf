"""Health check of a running experiment, from the command line."""

from ray_messaging.cluster.handles.actor_calls import named_actors
from ray_messaging.cluster.health_check import check_health
from ray_messaging.cluster.spec import Experiment
from ray_messaging.cluster.starting.ray_clusters import join_ray, searched_clusters
from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.observability.health.findings import Health


def examine_experiment(exp_id: str, config: RedisConfig | None) -> Health:
    """Return the health of an experiment; `config` is its server, for when its interceptor does not answer.

    Raises: ConfigError without a Ray cluster, UnknownName if the experiment does not run.
    """
    if not join_ray(exp_id):
        raise ConfigError(
            f"no Ray cluster was found that experiment {exp_id!r} could run in: set RAY_ADDRESS to its host:port"
        )
    actors = named_actors(f"{exp_id}/")
    if not actors:
        raise UnknownName(
            f"no experiment {exp_id!r} runs in the Ray cluster {searched_clusters()}; there are: "
            f"{', '.join(running_experiments()) or 'none'}. set RAY_ADDRESS for another cluster",
            kind="experiment",
            value=exp_id,
        )
    experiment = None if config is None else Experiment(exp_id, "", config, MessagingConfig())
    return check_health(exp_id, experiment, {})


def running_experiments() -> list[str]:
    """Return the experiments that run in this Ray cluster."""
    return sorted({name.partition("/")[0] for name in named_actors("")})
