"""Statistics of a log: fates, rules, the busiest agents, traffic over time and between groups."""

from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.eventlog.reading.counting import counts
from ray_messaging.eventlog.reading.fields import MICROSECONDS
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.eventlog.reading.scan import View, scan
from ray_messaging.receipt import FATES

BUSIEST = 10
BINS = 120  # at most
GROUPS = 16  # at most in the matrix, the rest of them together
OTHERS = "(others)"
_GROUPINGS = (("fate",), ("rule", "fate"), ("from_id",), ("to_id",), ("sender", "mailbox", "fate"), ("bin", "fate"))


def stats(view: View, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - see Fields
    """Return statistics of the matching rows, as JSON types; times in unix seconds.

    rows, first and last (sent_at; None without rows), fates, rules ({rule: {fate: rows}}), writers and readers (numbers
    of ids), busiest_writers and busiest_readers ([id, rows], None is the user), traffic (start, width_s, and per fate
    the rows in each bin), groups (`from` messager (row) `to` mailbox (column): rows delivered), segments, bytes, live.
    """
    filters = Filters(**fields)
    first, last = _span(view, filters)
    width = bin_width(last - first)
    start = first // width * width
    derive = partial(_with_bin, start=start, width=width)
    fates, rules, writers, readers, groups, bins = counts(view, filters, _GROUPINGS, derive)
    rows = pc.sum(fates["count"]).as_py() or 0
    return {
        "rows": rows,
        "first": first / MICROSECONDS if rows else None,
        "last": last / MICROSECONDS if rows else None,
        "fates": dict.fromkeys(FATES, 0) | {row["fate"]: row["count"] for row in fates.to_pylist()},
        "rules": _rules(rules),
        "writers": len(writers) - writers["from_id"].null_count,
        "readers": len(readers) - readers["to_id"].null_count,
        "busiest_writers": _busiest(writers),
        "busiest_readers": _busiest(readers),
        "traffic": _traffic(bins, start, width, (last - start) // width + 1 if rows else 0),
        "groups": _matrix(groups),
        "segments": len(view.segments),
        "bytes": sum(segment.size for segment in view.segments),
        "live": sum(map(len, view.live)),
    }


def _span(view: View, filters: Filters) -> tuple[int, int]:
    """Return the earliest and the latest sent_at in microseconds; (0, 0) without rows."""
    spans = [*map(_least_and_most, scan(view, filters, ["sent_at"], raw=True))]
    return min((low for low, _ in spans), default=0), max((high for _, high in spans), default=0)


def _least_and_most(part: pa.Table) -> tuple[int, int]:
    found = pc.min_max(part["sent_at"].cast(pa.int64())).as_py()
    return found["min"], found["max"]


def bin_width(span_us: int) -> int:
    """Return a round bin width in microseconds that divides a span into at most BINS bins."""
    round_ones = [factor * 10**power for power in range(3, 7) for factor in (1, 2, 5)]
    round_ones += [seconds * MICROSECONDS for seconds in (10, 15, 30)]
    round_ones += [minutes * 60 * MICROSECONDS for minutes in (1, 2, 5, 10, 15, 30)]
    round_ones += [hours * 3600 * MICROSECONDS for hours in (1, 2, 3, 6, 12)]
    day = 24 * 3600 * MICROSECONDS
    fits = (width for width in round_ones if span_us < width * (BINS - 1))
    return next(fits, day * -(-span_us // (day * (BINS - 1))))


def _with_bin(part: pa.Table, start: int, width: int) -> pa.Table:
    since = pc.subtract(part["sent_at"].cast(pa.int64()), start)
    return part.append_column("bin", pc.divide(since, width))


def _rules(counted: pa.Table) -> dict[str, dict[str, int]]:
    rules: dict[str, dict[str, int]] = {}
    for row in counted.to_pylist():
        if row["rule"] is not None:
            rules.setdefault(row["rule"], {})[row["fate"]] = row["count"]
    return rules


def _busiest(counted: pa.Table) -> list[list[Any]]:
    return [[as_id(end), rows] for end, rows in (row.values() for row in counted.slice(0, BUSIEST).to_pylist())]


def _traffic(counted: pa.Table, start: int, width: int, bins: int) -> dict[str, Any]:
    fates = {fate: [0] * bins for fate in FATES}
    for row in counted.to_pylist():
        fates.setdefault(row["fate"], [0] * bins)[row["bin"]] += row["count"]
    return {"start": start / MICROSECONDS, "width_s": width / MICROSECONDS, "fates": fates}


def _matrix(counted: pa.Table) -> dict[str, Any]:
    rows = [row for row in counted.to_pylist() if row["mailbox"] is not None and row["fate"] == "delivered"]
    senders, mailboxes = (_kept([row[end] for row in rows]) for end in ("sender", "mailbox"))
    delivered = [[0] * len(mailboxes) for _ in senders]
    for row in rows:
        sender, mailbox = (
            names.index(row[end]) if row[end] in names else len(names) - 1
            for end, names in (("sender", senders), ("mailbox", mailboxes))
        )
        delivered[sender][mailbox] += row["count"]
    return {"from": senders, "to": mailboxes, "delivered": delivered}


def _kept(names: list[str]) -> list[str]:
    """Return the busiest names, the first ones of `names`, sorted; OTHERS replaces the rest."""
    unique = list(dict.fromkeys(names))
    return sorted(unique) if len(unique) <= GROUPS else [*sorted(unique[: GROUPS - 1]), OTHERS]
