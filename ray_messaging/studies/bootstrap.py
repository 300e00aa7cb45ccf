"""Statistics of outcomes: bootstrap intervals of means, and effect sizes."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
_CHUNK = 2**20  # about this many random numbers are drawn at a time, to save memory
_NORMAL = NormalDist()


class Interval(NamedTuple):
    """A mean, and the bounds of its bootstrap interval."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float], *, level: float, resamples: int = RESAMPLES) -> Interval:
    """Return the mean of values with its bootstrap interval. `level` is the interval's level, such as 0.95.

    The same values always give the same interval.

    The bounds are percentiles of the means of resamples. For few values the usual percentiles would give an interval
    that is too narrow. So the percentiles are moved outwards, by as much as Student's distribution is wider than the
    normal one (the expanded percentile interval of Hesterberg 2015, "What teachers should know about the bootstrap").
    For fewer than two values, or if a value is infinite or NaN, the bounds are NaN.
    """
    data = np.asarray(values, np.float64)
    mean = float(data.mean()) if len(data) else math.nan
    if len(data) < 2 or not np.isfinite(data).all():
        return Interval(mean, math.nan, math.nan)
    tail = _NORMAL.cdf(-math.sqrt(len(data) / (len(data) - 1)) * student_quantile((1 + level) / 2, len(data) - 1))
    low, high = np.quantile(_resampled_means(data, resamples), [tail, 1 - tail])
    return Interval(mean, float(low), float(high))


def _resampled_means(data: NDArray[np.float64], resamples: int) -> NDArray[np.float64]:
    chance = np.random.default_rng(0)
    rows = max(1, _CHUNK // len(data))
    parts = [
        data[chance.integers(0, len(data), (min(rows, resamples - done), len(data)))].mean(axis=1)
        for done in range(0, resamples, rows)
    ]
    return np.concatenate(parts)


def effect_size(values: Sequence[float], base: Sequence[float]) -> float:
    """Return Cohen's d: the difference of the means, divided by the pooled standard deviation.

    Return NaN if there are fewer than two values, or if the deviation is 0.
    """
    ours, theirs = np.asarray(values, np.float64), np.asarray(base, np.float64)
    if len(ours) < 2:
        return math.nan
    pooled = math.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / 2)
    return float((ours.mean() - theirs.mean()) / pooled) if pooled > 0 else math.nan


def student_quantile(p: float, freedom: int) -> float:
    """Return a quantile of Student's distribution, for p of at least 0.5.

    For one and two degrees of freedom there are exact formulas. For more, an expansion (Abramowitz and Stegun 26.7.5)
    is improved by Newton's method. This needs no scipy.
    """
    if freedom == 1:
        return math.tan(math.pi * (p - 0.5))
    if freedom == 2:
        return (2 * p - 1) * math.sqrt(2 / (4 * p * (1 - p)))
    z = _NORMAL.inv_cdf(p)
    found = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    for _ in range(20):
        step = (_student_cdf(found, freedom) - p) / _student_density(found, freedom)
        found -= step
        if abs(step) < 1e-12 * found:
            break
    return found


def _student_density(t: float, freedom: int) -> float:
    head = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    return math.exp(head - (freedom + 1) / 2 * math.log1p(t * t / freedom))


def _student_cdf(t: float, freedom: int) -> float:
    """Return the probability that a value of Student's distribution is at most t.

    The sums are finite (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine, term, total = math.cos(angle) ** 2, 1.0, 0.0
    if freedom % 2:
        term = math.cos(angle)
        for k in range(1, (freedom - 1) // 2 + 1):
            total += term
            term *= cosine * 2 * k / (2 * k + 1)
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    for k in range(1, freedom // 2 + 1):
        total += term
        term *= cosine * (2 * k - 1) / (2 * k)
    return 0.5 + math.sin(angle) * total / 2
