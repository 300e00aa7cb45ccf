"""Families of samples as text in Prometheus' format."""

from collections.abc import Iterable, Iterator
from typing import Any

from ray_messaging.observability.metrics.families import Family, joined, named_values

PREFIX = "ray_messaging_"


def prometheus_text(families: Iterable[Family]) -> str:
    """Return families as text; without prometheus-client raise an ImportError that says how to install it."""
    try:
        from prometheus_client import generate_latest  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ImportError("metrics_text() needs prometheus-client: pip install 'ray-messaging[metrics]'") from error
    return generate_latest(_Collected(families)).decode()


class _Collected:
    """Families, as a registry of prometheus-client has them."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = joined(families)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.metrics_core import Metric  # noqa: PLC0415 - an extra

        for family in self._families:
            metric = Metric(PREFIX + family.name, family.help, family.kind)
            for name, labels, value in named_values(family):
                metric.add_sample(PREFIX + name, dict(labels), value)
            yield metric
