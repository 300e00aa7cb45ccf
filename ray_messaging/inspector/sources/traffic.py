"""The numbers of messages over time or steps, in intervals called bins. Each row of the log is counted once."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from ray_messaging.inspector.page_values import TrafficBins, name
from ray_messaging.model.fates import BLOCKED, FATES

OTHERS = "(others)"
RULES = 8  # a chart shows at most this many rules
BINS = 120  # steps are put into at most this many bins
_UNITS = (("second", 1.0, 900.0), ("minute", 60.0, 54_000.0), ("hour", 3600.0, 2_592_000.0), ("day", 86_400.0, 1e18))


class Key(NamedTuple):
    """The fate and the rule by which rows of the log are counted, besides their time or step."""

    fate: str
    rule: str | None = None


Bins = Mapping[float, Counter[Key]]


def unit_for(seconds: float) -> tuple[str, float]:
    """Return the unit of time for the bins of a period of `seconds`, and the unit's length in seconds."""
    return next((unit, width) for unit, width, longest in _UNITS if seconds <= longest)


def binned(counts: pa.Table, by: str) -> dict[float, Counter[Key]]:
    """Return counts of messages by fate and rule, for each step, or for each period (its beginning in unix seconds).

    Rows without a step or time are left out.
    """
    found: dict[float, Counter[Key]] = {}
    for row in counts.select([by, *Key._fields, "count"]).to_pylist():
        at: Any = row.pop(by)
        if at is not None:
            count = row.pop("count")
            found.setdefault(at if by == "step" else at.timestamp(), Counter())[Key(**row)] += count
    return found


def scaled(bins: Bins, share: float) -> Bins:
    """Return estimates of the counts of all rows, given the counts of a share of the rows."""
    if share >= 1.0:
        return bins
    return {at: Counter({key: round(n / share) for key, n in found.items()}) for at, found in bins.items()}


class RollingTraffic:
    """The numbers of messages in the last seconds or steps, from counts that are added as they come."""

    def __init__(self, bins: int, *, in_steps: bool = False) -> None:
        self._most = bins
        self._in_steps = in_steps
        self.bins: dict[float, Counter[Key]] = {}
        self._shares: dict[float, float] = {}

    def add(self, bins: Bins, share: float = 1.0) -> None:
        """Add counts by second or step. If only a `share` of the rows was counted, add estimates for all rows."""
        for at, found in scaled(bins, share).items():
            self.bins.setdefault(at, Counter()).update(found)
            self._shares[at] = min(share, self._shares.get(at, 1.0))
        self.forget(max(self.bins, default=0.0))

    def forget(self, now: float) -> None:
        """Drop the bins that lie before the period that ends at `now`."""
        self.bins = {at: found for at, found in self.bins.items() if at > now - self._most}
        self._shares = {at: self._shares[at] for at in self.bins}

    def traffic(self, now: float, rows: int) -> TrafficBins:
        """Return the numbers of messages in the period that ends at `now`.

        If only a share of the rows was counted in some bins, the result's `share` is the smallest of these shares.
        """
        start = int(now) - self._most + 1
        start = max(0, start) if self._in_steps else start
        found = {at: counts for at, counts in self.bins.items() if at >= start}
        lasted = int(now) + 1 - min(found, default=now)
        share = min((self._shares[at] for at in found), default=1.0)
        sent = sum(sum(counts.values()) for counts in found.values())
        rate = None if self._in_steps else sent / max(1.0, lasted)
        return traffic_of(found, start, 1, int(now) + 1 - start, rows, rate, in_steps=self._in_steps, share=share)


def traffic_of(
    bins: Bins,
    start: float,
    width: float,
    count: int,
    rows: int,
    per_second: float | None,
    *,
    in_steps: bool,
    share: float = 1.0,
) -> TrafficBins:
    """Return the numbers of messages in `count` bins from `start` on, each `width` steps or seconds long."""
    fates: dict[str, list[int]] = {fate: [0] * count for fate in FATES}
    by_rule: dict[str, list[int]] = {}
    for at, counts in bins.items():
        place = int((at - start) // width)
        for key, messages in counts.items():
            fates[key.fate][place] += messages
            if key.fate == FATES[BLOCKED]:
                by_rule.setdefault(name(key.rule or "?"), [0] * count)[place] += messages
    return TrafficBins(start, width, in_steps, fates, _of_busiest_rules(by_rule, count), per_second, rows, share)


def _of_busiest_rules(by_rule: dict[str, list[int]], count: int) -> dict[str, list[int]]:
    """Return the bins of the rules that block the most messages. All other rules are joined under the name OTHERS.

    `by_rule` has, for each rule, the numbers of blocked messages in the `count` bins.
    """
    order = sorted(by_rule, key=lambda rule: -sum(by_rule[rule]))
    found = {rule: by_rule[rule] for rule in order[:RULES]}
    if order[RULES:]:
        found[OTHERS] = [sum(by_rule[rule][place] for rule in order[RULES:]) for place in range(count)]
    return found
