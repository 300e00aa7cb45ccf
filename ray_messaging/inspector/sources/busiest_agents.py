"""The agents of a run that send the most messages, and the pairs of agents with the most messages."""

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.reading.results import as_id
from ray_messaging.inspector.page_values import BusiestAgents, name
from ray_messaging.model.fates import STORED

AGENTS = 60
PAIRS = 12
MOST = 500_000  # if there are more rows than this, only a sample of the rows is counted


def society_of(log: EventLog, *, after: int = -1) -> BusiestAgents:
    """Return who writes to whom in a log's rows after a position.

    Only messages from one agent to another are counted: no broadcasts, and no messages from or to the user, who is no
    agent.

    If there are more than MOST rows, a sample of them is counted.
    """
    sample = log.sample(["from_id", "to_id", "fate"], after=after, most=MOST)
    delivered = pc.is_in(sample.counts["fate"], pa.array(STORED))
    counts = sample.counts.filter(pc.and_(delivered, pc.not_equal(sample.counts["from_id"], sample.counts["to_id"])))
    estimated = pc.round(pc.divide(counts["count"], sample.share)).cast(pa.int64())
    counts = counts.set_column(counts.column_names.index("count"), "count", estimated)
    writers = counts.group_by("from_id").aggregate([("count", "sum")]).sort_by([("count_sum", "descending")])
    busiest = writers.slice(0, AGENTS)
    ends = [pc.is_in(counts[end], value_set=busiest["from_id"].combine_chunks()) for end in ("from_id", "to_id")]
    pairs: dict[frozenset[str], tuple[str, str, int]] = {}
    for one, other, count in _named(counts.slice(0, 2 * PAIRS)):
        pairs.setdefault(frozenset((one, other)), (one, other, count))
    agents = [
        (name(as_id(agent)), sent)
        for agent, sent in zip(busiest["from_id"].to_pylist(), busiest["count_sum"].to_pylist(), strict=True)
    ]
    return BusiestAgents(
        agents, len(writers), _named(counts.filter(pc.and_(*ends))), [*pairs.values()][:PAIRS], sample.share
    )


def _named(counts: pa.Table) -> list[tuple[str, str, int]]:
    ends = ([name(as_id(agent)) for agent in counts[end].to_pylist()] for end in ("from_id", "to_id"))
    return [*zip(*ends, counts["count"].to_pylist(), strict=True)]
