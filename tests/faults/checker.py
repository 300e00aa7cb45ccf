"""Compare ledgers, inboxes and the event log after the dust has settled."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from faults.ledger import Key, Send, read_ledger, read_lines

_EXAMPLES = 5
_MAY_ARRIVE = {"delivered", "unknown", "pending"}


@dataclass
class Account:
    """Counts of the messages of one run, by outcome.

    `lost` were acknowledged as delivered and never received. `duplicates` were received again after they were
    committed, or twice by one incarnation of a receiver. `order_breaks` came before an older message of their pair.
    `phantoms` were received though they were not sent, or though their sender got a refusal.
    `unknown` are sends with that fate, or without one as their sender died; `came_of_unknown` of these arrived.
    `log_breaks` are messages with another fate in the event log. `longest_gap_s` lies between two arrivals, `drain_s`
    between the end of the fault (or the last send) and the last arrival of an earlier message. `facts` hold further
    measurements of a case.
    """

    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    lost: int = 0
    duplicates: int = 0
    order_breaks: int = 0
    phantoms: int = 0
    unknown: int = 0
    came_of_unknown: int = 0
    refused: int = 0
    blocked: int = 0
    log_breaks: int = 0
    longest_gap_s: float = 0.0
    drain_s: float = 0.0
    examples: dict[str, list[Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def flaws(self) -> dict[str, int]:
        """Return the counted breaks of the strongest promise; empty if there are none."""
        kinds = ("lost", "duplicates", "order_breaks", "phantoms", "log_breaks")
        return {kind: getattr(self, kind) for kind in kinds if getattr(self, kind)}

    def __str__(self) -> str:
        return (
            f"{self.sent:,} sent, {self.acknowledged:,} acknowledged, {self.received:,} received, {self.lost} lost, "
            f"{self.duplicates} twice, {self.order_breaks} out of order, {self.phantoms} phantoms, {self.unknown} "
            f"unknown ({self.came_of_unknown} came), {self.refused} refused, longest gap {self.longest_gap_s:.2f} s, "
            f"drain {self.drain_s:.2f} s {self.facts or ''} {self.examples or ''}"
        )


class _Received:
    """The received messages, in the order of time."""

    def __init__(self) -> None:
        self.count: Counter[Key] = Counter()
        self.first_at: dict[Key, float] = {}
        self.arrivals: list[float] = []
        self._twice: list[tuple[str, Key]] = []
        self.early: list[Key] = []
        self.strays = 0
        self._committed: set[Key] = set()
        self._held: dict[str, set[Key]] = defaultdict(set)
        self._newest: dict[tuple[Any, Any], int] = {}
        self._last: dict[tuple[str, Any, Any], int] = {}

    @property
    def twice(self) -> list[Key]:
        """Return what was received again, though it should not have been."""
        return [key for _, key in self._twice]

    def follow(self, line: list[Any]) -> None:
        """Take the next line of an inbox."""
        kind, incarnation, at = line[:3]
        if kind == "committed":
            self._committed |= self._held.pop(incarnation, set())
        elif kind == "fenced":  # what it had in hand when its successor came was not committed, whoever noted it first
            held = self._held.pop(incarnation, set())
            self._twice = [each for each in self._twice if each[0] != incarnation or each[1] not in held]
        elif kind == "fetched":
            self.arrivals.append(at)
            for key in line[3]:
                if key is None:
                    self.strays += 1
                else:
                    self._take((key[0], key[1], key[2]), incarnation, at)

    def _take(self, key: Key, incarnation: str, at: float) -> None:
        by, to, n = key
        held = self._held[incarnation]
        # What comes again, as it was not committed, is a repetition from there on, and keeps its order, too.
        before = self._last.get((incarnation, by, to), -1) if key in self.count else self._newest.get((by, to), -1)
        if key in self._committed or key in held:
            self._twice.append((incarnation, key))
        elif n < before:
            self.early.append(key)
        self.count[key] += 1
        self.first_at.setdefault(key, at)
        held.add(key)
        self._newest[by, to] = max(n, self._newest.get((by, to), -1))
        self._last[incarnation, by, to] = n


def check(
    ledgers: Iterable[Any],
    inboxes: Iterable[Any],
    log: Iterable[Mapping[str, Any]] | None = None,
    *,
    healed_at: float | None = None,
) -> Account:
    """Compare files of ledgers and inboxes, and rows of an event log where one was kept.

    Args: a row of the log has from_id, to_id, n, fate, rule and reason. healed_at: when the fault was over (unix s).
    """
    sends = [send for path in ledgers for send in read_ledger(path)]
    received = _Received()
    for line in sorted((line for path in inboxes for line in read_lines(path)), key=lambda line: line[2]):
        received.follow(line)
    known = {send.key: send for send in sends}
    fates = Counter(send.fate for send in sends)
    lost = [send.key for send in sends if send.fate == "delivered" and send.key not in received.count]
    phantoms = [key for key in received.count if key not in known or known[key].fate not in _MAY_ARRIVE]
    open_ended = [send.key for send in sends if send.fate in {"unknown", "pending"}]
    account = Account(
        sent=len(sends),
        acknowledged=fates["delivered"],
        received=sum(received.count.values()),
        lost=len(lost),
        duplicates=len(received.twice),
        order_breaks=len(received.early),
        phantoms=len(phantoms),
        unknown=len(open_ended),
        came_of_unknown=sum(key in received.count for key in open_ended),
        refused=fates["refused"],
        blocked=fates["blocked"],
        longest_gap_s=_longest_gap(received.arrivals),
        drain_s=_drain(sends, received.first_at, healed_at),
    )
    found = {"lost": lost, "twice": received.twice, "out of order": received.early, "phantoms": phantoms}
    if log is not None:
        found["log"] = _log_breaks(known, received.count, log)
        account.log_breaks = len(found["log"])
    account.examples = {name: keys[:_EXAMPLES] for name, keys in found.items() if keys}
    if received.strays:
        account.facts["foreign"] = received.strays
    return account


def _longest_gap(arrivals: list[float]) -> float:
    return max((after - before for before, after in pairwise(arrivals)), default=0.0)


def _drain(sends: list[Send], first_at: Mapping[Key, float], healed_at: float | None) -> float:
    end = max((send.begun_at for send in sends), default=0.0) if healed_at is None else healed_at
    last = max((first_at[send.key] for send in sends if send.begun_at <= end and send.key in first_at), default=end)
    return max(0.0, last - end)


def _log_breaks(known: Mapping[Key, Send], received: Counter[Key], log: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return the messages of which the log says nothing, too much, or something else."""
    rows: dict[Key, list[Mapping[str, Any]]] = defaultdict(list)
    for row in log:
        rows[row["from_id"], row["to_id"], row["n"]].append(row)
    breaks: list[Any] = [("not sent", key) for key in rows if key not in known]
    for key, send in known.items():
        told = rows.get(key, [])
        if send.fate == "refused":
            right = not told
        elif send.fate in {"unknown", "pending"}:
            right = len(told) <= 1 and (bool(told) or key not in received)
        else:
            right = len(told) == 1 and told[0]["fate"] == send.fate
        if right and send.fate == "blocked":
            right = bool(told[0]["rule"] and told[0]["reason"])
        if not right:
            breaks.append((send.fate, key, [row["fate"] for row in told]))
    return breaks
