"""The account of a replay: how many messages had which fate, and whether the numbers of sends and arrivals agree."""

from collections import Counter
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.model.fates import FATES, IS_STORED, STORED, UNDELIVERABLE, UNKNOWN
from ray_messaging.replay.replay_plan import Plan, WorkerShare
from ray_messaging.replay.worker import ReceivedTally, ReplaySent

_NOT_IN_JSON = {"fates", "unknown", "agents_differ", "unheard", "matrix"}
_NAMED = 5  # the most agents in `unheard`


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ReplayAccount:
    """The results of a replay. `problems` says in words which numbers do not agree.

    `lost` counts messages that were not received, although their receipts say that they were delivered. `leaked` counts
    messages that were received, although their receipts say that they were not delivered. `matrix` has the number of
    messages delivered from each group (row) to each group (column). `unheard` has, for a few agents, the number of
    messages that could not be delivered to them. Latencies are in ms, from send to fetch.
    """

    messages: int
    fates: dict[str, int]
    unknown: int
    received: int
    duplicates: int
    out_of_order: int
    lost: int
    leaked: int
    misdirected: int
    changed: int
    unexpected: int
    agents_differ: int
    seconds: float
    latency_ms: dict[str, float | None]
    blocked_by: dict[str, int]
    unheard: dict[AgentId, int]
    received_by_agent: dict[AgentId, int]
    received_equals_file: bool
    groups: list[dict[str, Any]]
    matrix: list[list[int]]

    @property
    def per_second(self) -> float:
        """Return the number of messages per second."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    @property
    def problems(self) -> list[str]:
        """Return in words which numbers do not agree; [] if all do."""
        delivered = sum(self.fates[fate] for fate in STORED)
        checks = (
            (self.unknown, f"{self.unknown:,} messages have no fate"),
            (delivered != self.received, f"{delivered:,} messages were delivered, but {self.received:,} received"),
            (self.lost, f"{self.lost:,} delivered messages never arrived"),
            (self.leaked, f"{self.leaked:,} messages arrived that were blocked or undeliverable"),
            (self.duplicates, f"{self.duplicates:,} messages arrived again"),
            (self.out_of_order, f"{self.out_of_order:,} messages arrived after a later one of their pair"),
            (self.misdirected, f"{self.misdirected:,} messages arrived with other ids, or at another group"),
            (self.changed, f"{self.changed:,} messages arrived with another text or time"),
            (self.unexpected, f"{self.unexpected:,} messages arrived that this replay did not send"),
            (self.agents_differ, f"{self.agents_differ:,} agents received another number than was delivered to them"),
        )
        return [words for wrong, words in checks if wrong]

    @property
    def balances(self) -> bool:
        """Return whether each message has exactly one fate, and arrived accordingly: once, in order and unchanged."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Return the account as a dict of JSON's types.

        Each fate has a key of its own, and `matrix` has the key `group_matrix`. The fields `unknown` and
        `agents_differ` are left out, because `problems` says them in words. `unheard` is left out, too.
        """
        names = [field.name for field in fields(self) if field.name not in _NOT_IN_JSON]
        return {name: getattr(self, name) for name in names} | {
            **self.fates,
            "seconds": round(self.seconds, 6),
            "messages_per_second": round(self.per_second, 1),
            "balances": self.balances,
            "problems": self.problems,
            "group_matrix": self.matrix,
            "received_by_agent": {str(agent): count for agent, count in self.received_by_agent.items()},
        }


def build_account(
    plan: Plan, shares: list[WorkerShare], sent: list[ReplaySent], tallies: list[ReceivedTally]
) -> ReplayAccount:
    """Build the account from what the groups have sent and received."""
    traffic, codes = plan.traffic, fate_codes(plan, shares, sent)
    delivered = IS_STORED[codes]
    counts = np.bincount(codes, minlength=UNKNOWN + 1).tolist()
    unheard = Counter(traffic.agents[place] for place in traffic.targets[codes == UNDELIVERABLE].tolist())
    seen = np.sum([tally.seen for tally in tallies], axis=0, dtype=np.int64)
    by_agent = np.sum([tally.by_agent for tally in tallies], axis=0)
    delivered_to = np.bincount(traffic.targets[delivered], minlength=len(traffic.agents))
    begun = min(part.began_at for part in sent)
    file_counts = np.bincount(traffic.targets, minlength=len(traffic.agents))
    return ReplayAccount(
        messages=len(traffic),
        fates=dict(zip(FATES, counts, strict=False)),
        unknown=counts[UNKNOWN],
        received=sum(tally.received for tally in tallies),
        duplicates=int(np.maximum(seen - 1, 0).sum()),
        out_of_order=sum(tally.out_of_order for tally in tallies),
        lost=int((delivered & (seen == 0)).sum()),
        leaked=int((~delivered & (seen > 0)).sum()),
        misdirected=sum(tally.misdirected for tally in tallies),
        changed=sum(tally.changed for tally in tallies),
        unexpected=sum(tally.unexpected for tally in tallies),
        agents_differ=int((by_agent != delivered_to).sum()),
        seconds=max(*(part.ended_at for part in sent), *(tally.last_at for tally in tallies)) - begun,
        latency_ms=percentiles(
            np.concatenate([np.zeros(0), *(found for tally in tallies for found in tally.latencies)])
        ),
        blocked_by=dict(sum((part.blocked_by for part in sent), Counter[str]())),
        unheard=dict(unheard.most_common(_NAMED)),
        received_by_agent={
            agent: count for agent, count in zip(traffic.agents, by_agent.tolist(), strict=True) if count
        },
        received_equals_file=bool((by_agent == file_counts).all()),
        groups=[
            {"name": share.name, "agents": size, "sent": len(share.rows), "received": tally.received}
            for share, size, tally in zip(shares, plan.sizes, tallies, strict=True)
        ],
        matrix=matrix(plan, delivered).tolist(),
    )


def fate_codes(plan: Plan, shares: list[WorkerShare], sent: list[ReplaySent]) -> NDArray[np.uint8]:
    """Return the fate of every message, uint8 (n,); UNKNOWN for a message that no group sent."""
    codes = np.full(len(plan.traffic), UNKNOWN, np.uint8)
    for share, part in zip(shares, sent, strict=True):
        codes[share.rows] = part.codes
    return codes


def matrix(plan: Plan, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of messages from each group (row) to each group (column).

    `chosen` says which messages to count.
    """
    traffic, groups = plan.traffic, plan.groups
    cells = plan.group_of[traffic.sources[chosen]] * groups + plan.group_of[traffic.targets[chosen]]
    return np.bincount(cells, minlength=groups * groups).reshape(groups, groups)


def percentiles(seconds: NDArray[np.floating[Any]]) -> dict[str, float | None]:
    """Return the percentiles p50 and p99 of durations, in ms; both are None if there are no durations."""
    if not len(seconds):
        return {"p50": None, "p99": None}
    p50, p99 = np.percentile(np.asarray(seconds, np.float64) * 1000, (50, 99)).tolist()
    return {"p50": round(p50, 4), "p99": round(p99, 4)}
