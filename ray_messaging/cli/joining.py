"""Connection of a command to a running experiment."""

from ray_messaging.addressing.channels import check_name
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.cluster.starting.ray_clusters import join_ray, searched_clusters
from ray_messaging.errors import ConfigError, UnknownName


def join_experiment(exp_id: str, otherwise: str, *, missing: str = "") -> Messaging:
    """Return a running experiment; raise ConfigError with `otherwise` as the remedy beside RAY_ADDRESS."""
    if not join_ray(check_name("exp_id", exp_id)):
        raise ConfigError(
            f"{missing}no Ray cluster runs here that could have experiment {exp_id!r}: set RAY_ADDRESS, or {otherwise}"
        )
    try:
        return Messaging.connect(exp_id)
    except UnknownName as error:
        raise ConfigError(
            f"{missing}no experiment {exp_id!r} runs in the Ray cluster {searched_clusters()}: set RAY_ADDRESS for "
            f"another cluster, or {otherwise}"
        ) from error
