"""The society of a run: the agents that write most, who among them writes to whom, and the busiest pairs."""

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.inspector.values import Society, name

AGENTS = 60
PAIRS = 12


def society_of(counts: pa.Table) -> Society:
    """Return the society of a table of from_id, to_id and count, the largest counts first.

    The user, and broadcasts, whose rows have no recipient, are left out.
    """
    counts = counts.filter(pc.not_equal(counts["from_id"], counts["to_id"]))
    writers = counts.group_by("from_id").aggregate([("count", "sum")]).sort_by([("count_sum", "descending")])
    most = writers.slice(0, AGENTS)
    ends = [pc.is_in(counts[end], value_set=most["from_id"].combine_chunks()) for end in ("from_id", "to_id")]
    pairs: dict[frozenset[str], tuple[str, str, int]] = {}
    for one, other, count in _named(counts.slice(0, 2 * PAIRS)):
        pairs.setdefault(frozenset((one, other)), (one, other, count))
    agents = [
        (name(as_id(agent)), sent)
        for agent, sent in zip(most["from_id"].to_pylist(), most["count_sum"].to_pylist(), strict=True)
    ]
    return Society(agents, len(writers), _named(counts.filter(pc.and_(*ends))), [*pairs.values()][:PAIRS])


def _named(counts: pa.Table) -> list[tuple[str, str, int]]:
    ends = ([name(as_id(agent)) for agent in counts[end].to_pylist()] for end in ("from_id", "to_id"))
    return [*zip(*ends, counts["count"].to_pylist(), strict=True)]
