"""Families of samples, as in Prometheus. They are plain data that actors can send, and can be formatted as text."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

Labels = tuple[tuple[str, str], ...]  # the name and the value of each label
Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
MESSAGES = (1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 4_096.0, 16_384.0)


class Distribution(NamedTuple):
    """The number of observed values in each bucket of a histogram.

    `counts[i]` counts the values above `bounds[i - 1]`, up to and with `bounds[i]`. The last count has the values above
    all bounds. `total` is the sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


class MetricSample(NamedTuple):
    """A value with its labels. The value of a histogram is a distribution."""

    labels: Labels
    value: "float | Distribution"


class Family(NamedTuple):
    """The samples of one metric, with its name, kind and help text, as in Prometheus.

    The values of counters are counts since the process began.
    """

    name: str
    kind: Kind
    help: str
    samples: list[MetricSample]


class NamedValue(NamedTuple):
    """One value under the name that it has in Prometheus, such as `messages_total` or `send_seconds_bucket`."""

    name: str
    labels: Labels
    value: float


class Histogram:
    """A distribution that is built from values observed one by one."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        """Return the distribution of all values observed so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


def counter(name: str, about: str, values: Mapping[str, float], label: str) -> Family:
    """Build a family of counters with one label. `values` has the count for each value of the label."""
    return Family(name, "counter", about, [MetricSample(((label, key),), value) for key, value in values.items()])


def gauge(name: str, about: str, values: Mapping[str, float], label: str) -> Family:
    """Build a family of gauges with one label. `values` has the gauge for each value of the label."""
    return counter(name, about, values, label)._replace(kind="gauge")


def single(name: str, kind: Kind, about: str, value: "float | Distribution") -> Family:
    """Build a family of one sample without labels."""
    return Family(name, kind, about, [MetricSample((), value)])


def labelled(families: Iterable[Family], **labels: str) -> list[Family]:
    """Return the families with `labels` added to each sample. The new labels come first."""
    more = tuple(labels.items())
    return [
        family._replace(samples=[MetricSample(more + sample.labels, sample.value) for sample in family.samples])
        for family in families
    ]


def joined(families: Iterable[Family]) -> list[Family]:
    """Join families of the same name into one. The result is in the order in which the names first appear."""
    found: dict[str, Family] = {}
    for family in families:
        if family.name in found:
            found[family.name].samples.extend(family.samples)
        else:
            found[family.name] = family._replace(samples=[*family.samples])
    return [*found.values()]


def named_values(family: Family) -> Iterator[NamedValue]:
    """Yield the values of a family. A histogram has one value for each bucket, one for the count, one for the sum."""
    suffix = "_total" if family.kind == "counter" else ""
    for labels, value in family.samples:
        if not isinstance(value, Distribution):
            yield NamedValue(family.name + suffix, labels, value)
            continue
        sums = [*accumulate(value.counts)]
        for bound, count in zip([*map(str, value.bounds), "+Inf"], sums, strict=True):
            yield NamedValue(f"{family.name}_bucket", (*labels, ("le", bound)), count)
        yield NamedValue(f"{family.name}_count", labels, sums[-1])
        yield NamedValue(f"{family.name}_sum", labels, value.total)


PREFIX = "ray_messaging_"


def prometheus_text(families: Iterable[Family]) -> str:
    """Return families in Prometheus' text format; raise ImportError if prometheus-client is not installed."""
    try:
        from prometheus_client import generate_latest  # noqa: PLC0415 - an extra
        from prometheus_client.metrics_core import Metric  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("metrics_text() needs prometheus-client: pip install 'ray-messaging[metrics]'") from error
    metrics: list[Metric] = []
    for family in joined(families):
        metrics.append(Metric(PREFIX + family.name, family.help, family.kind))
        for name, labels, value in named_values(family):
            metrics[-1].add_sample(PREFIX + name, dict(labels), value)
    collected: Any = SimpleNamespace(collect=lambda: metrics)
    return generate_latest(collected).decode()
