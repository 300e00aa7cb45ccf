"""Traffic made from counts of log rows. Each row is counted once, into small bins of time."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.inspector.values import Flow, Traffic, name
from ray_messaging.receipt import FATES

GROUPS = 12  # most groups that are drawn; all others are drawn as one
OTHERS = "(others)"
UNNAMED = "(unnamed)"
_UNNAMED = "anon-"  # the names of messagers to which none was given begin with it
RULES = 8  # most rules in a chart
_UNITS = (("second", 1.0, 900.0), ("minute", 60.0, 54_000.0), ("hour", 3600.0, 2_592_000.0), ("day", 86_400.0, 1e18))


class Key(NamedTuple):
    """What rows are counted by, in addition to their time."""

    fate: str
    rule: str | None = None
    sender: str = ""
    mailbox: str | None = None


class Bin(NamedTuple):
    """Counts of the rows of one bin of time."""

    at: float
    counts: Counter[Key]


def unit_for(seconds: float) -> tuple[str, float]:
    """Return the unit of time for the bins of a period, and its length in seconds."""
    return next((unit, width) for unit, width, longest in _UNITS if seconds <= longest)


def counted(
    log: EventLog,
    unit: str,
    by: Sequence[str] = Key._fields,
    **fields: Any,  # noqa: ANN401 - see Fields
) -> dict[float, Counter[Key]]:
    """Return the counts of the log's rows by time (unix s) and key.

    Fields of the key that are not in `by` keep their defaults.
    """
    return by_time(log.count(by=[unit, *by], **fields), unit)


def by_time(counts: pa.Table, unit: str) -> dict[float, Counter[Key]]:
    """Convert a table of counts into counts by time (unix s) and key."""
    found: dict[float, Counter[Key]] = {}
    for row in counts.to_pylist():
        at, count = row.pop(unit).timestamp(), row.pop("count")
        found.setdefault(at, Counter())[Key(**row)] += count
    return found


def scaled(counts: Mapping[float, Counter[Key]], share: float) -> dict[float, Counter[Key]]:
    """Return estimates of the counts of all rows, from the counts of a share of them."""
    if share >= 1.0:
        return dict(counts)
    return {at: Counter({key: round(n / share) for key, n in found.items()}) for at, found in counts.items()}


class RollingTraffic:
    """The traffic of the last seconds, from counts that are added as they come."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._bins: deque[Bin] = deque()

    def add(self, counts: Mapping[float, Counter[Key]]) -> None:
        """Add counts by second. They are added to the counts that a second already has."""
        known = {found.at: found for found in self._bins}
        for at, found in counts.items():
            if at in known:
                known[at].counts.update(found)
            else:
                known[at] = Bin(at, Counter(found))
        self._bins = deque(sorted(known.values(), key=lambda found: found.at))
        self.forget(self._bins[-1].at if self._bins else 0.0)

    def forget(self, now: float) -> None:
        """Drop the bins from before the period that ends at `now`."""
        while self._bins and self._bins[0].at < now - self._seconds:
            self._bins.popleft()

    def traffic(self, now: float, rows: int, share: float) -> Traffic:
        """Return the traffic of the period that ends at `now`."""
        start = float(int(now)) - self._seconds + 1
        return traffic_of(self._bins, start, 1.0, self._seconds, rows, share)


def traffic_of(bins: Iterable[Bin], start: float, width_s: float, count: int, rows: int, share: float = 1.0) -> Traffic:
    """Return the traffic of `count` bins from `start` on."""
    fates: dict[str, list[int]] = {fate: [0] * count for fate in FATES}
    by_rule: dict[str, list[int]] = {}
    flows, blocked_from = Counter[tuple[str, str]](), Counter[str]()
    for at, counts in bins:
        place = int((at - start) // width_s)
        if not 0 <= place < count:
            continue
        for key, messages in counts.items():
            fates[key.fate][place] += messages
            if key.fate == "delivered" and key.mailbox is not None:
                flows[_end(key.sender), _end(key.mailbox)] += messages
            elif key.fate == "blocked":
                blocked_from[_end(key.sender)] += messages
                by_rule.setdefault(name(key.rule or "?"), [0] * count)[place] += messages
    few, kept = _few(flows, blocked_from)
    return Traffic(
        start, width_s, count, fates, _fewest(by_rule, count), few, {end: kept[end] for end in kept}, rows, share
    )


def _end(messager: str) -> str:
    """Return a messager's name. Messagers to which no name was given, such as the user's, share one."""
    return UNNAMED if messager.startswith(_UNNAMED) else messager


def _few(flows: Counter[tuple[str, str]], blocked: Counter[str]) -> tuple[list[Flow], Counter[str]]:
    """Return the flows between the busiest groups and the blocks of these. All other groups count as one."""
    busy = Counter[str]()
    for (sender, mailbox), messages in flows.items():
        busy[sender] += messages
        busy[mailbox] += messages
    busy.update(blocked)
    shown = {end for end, _ in busy.most_common(GROUPS)} if len(busy) > GROUPS else set(busy)
    together, stopped = Counter[tuple[str, str]](), Counter[str]()
    for (sender, mailbox), messages in flows.items():
        together[tuple(name(end) if end in shown else OTHERS for end in (sender, mailbox))] += messages  # type: ignore[index]
    for sender, messages in blocked.items():
        stopped[name(sender) if sender in shown else OTHERS] += messages
    return [Flow(*ends, messages) for ends, messages in together.most_common()], stopped


def _fewest(by_rule: dict[str, list[int]], count: int) -> dict[str, list[int]]:
    """Return the bins of the rules that block most. All other rules count as one."""
    order = sorted(by_rule, key=lambda rule: -sum(by_rule[rule]))
    found = {rule: by_rule[rule] for rule in order[:RULES]}
    if order[RULES:]:
        found[OTHERS] = [sum(by_rule[rule][place] for rule in order[RULES:]) for place in range(count)]
    return found
