"""Pairs of agents, threads that send and fetch, and the account of both.

Each call of a sender is one step: one message from each of its agents to that agent's one partner. So sender and step
name a message, and both columns are checked as arrays: nothing is decoded, and 50 million take seconds.
"""

import threading
import time
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.work import payload
from ray_messaging import Group
from ray_messaging.errors import MessagingError

STOPPED_EVERY = 100  # one agent in so many writes to an agent that the black list forbids
SPREAD = 7919  # a prime: partners are neighbours in no group
FETCH_S = 0.5
LARGEST_FETCH = 50_000


class Town:
    """The groups of all agents (0 to groups * size), and the partner of each."""

    def __init__(self, groups: int, size: int) -> None:
        self.groups, self.size = groups, size
        agents = np.arange(groups * size)
        home, place = np.divmod(agents, size)
        other = (home + 1 + place % (groups - 1)) % groups
        self.partner = other * size + (place * SPREAD) % size
        self.stopped = place % STOPPED_EVERY == 0

    def agents_of(self, group: int) -> NDArray[np.intp]:
        """Return the agents of a group."""
        return np.arange(group * self.size, (group + 1) * self.size)

    def black_list(self) -> list[tuple[int, int]]:
        """Return the pairs that must not talk."""
        stopped = np.flatnonzero(self.stopped)
        return list(zip(stopped.tolist(), self.partner[stopped].tolist(), strict=True))


class Sender(threading.Thread):
    """A thread that sends one step after the other at a pace, and notes acknowledged and unknown steps."""

    def __init__(self, town: Town, group: int, handle: Group, steps: int, pace_s: float) -> None:
        super().__init__(name=f"sender {group}")
        self.acknowledged: list[int] = []
        self.unknown: list[int] = []
        self.wrong_fates = 0
        self.errors: Counter[str] = Counter()
        self._handle, self._steps, self._pace_s = handle, steps, pace_s
        self._from = town.agents_of(group)
        self._to = town.partner[self._from]
        self._passes = ~town.stopped[self._from]
        self._payloads = [payload(number) for number in range(town.size)]
        self._enough = threading.Event()

    @property
    def done(self) -> int:
        """Return how many steps were sent."""
        return len(self.acknowledged) + len(self.unknown)

    def stop(self) -> None:
        """End after the step that is under way."""
        self._enough.set()

    def run(self) -> None:
        """Send all steps; catch up after a delay."""
        began = time.monotonic()
        for step in range(self._steps):
            if self._enough.wait(max(0.0, began + step * self._pace_s - time.monotonic())):
                return
            self._handle.step = step
            try:
                receipts = self._handle.send_columns(self._from, self._to, self._payloads)
            except MessagingError as error:
                self.errors[type(error).__name__] += 1
                self.unknown.append(step)
            else:
                self.wrong_fates += int((np.asarray(receipts.sent) != self._passes).sum())
                self.acknowledged.append(step)


class Receiver(threading.Thread):
    """A thread that fetches for a group, checks the order, and counts the messages of each sender's step."""

    def __init__(self, town: Town, group: int, handle: Group, steps: int) -> None:
        super().__init__(name=f"receiver {group}")
        self.counts = np.zeros((town.groups, steps), np.int64)
        self.out_of_turn = self.misdirected = self.received = 0
        self.gaps: list[tuple[float, float]] = []  # (its end, unix s; its length, s), those above a second
        self.failure: BaseException | None = None
        self._town, self._handle, self._steps = town, handle, steps
        self._last = np.full(town.groups * town.size, -1)
        self._enough = threading.Event()

    def stop(self) -> None:
        """Fetch the rest, then end."""
        self._enough.set()

    def run(self) -> None:
        """Fetch until told to stop."""
        try:
            self._fetch()
        except BaseException as error:  # noqa: BLE001 - raised where the thread is joined
            self.failure = error

    def _fetch(self) -> None:
        latest = time.monotonic()
        while True:
            enough = self._enough.is_set()
            messages = self._handle.fetch_messages(limit=LARGEST_FETCH, timeout=FETCH_S)
            if len(messages):
                now = time.monotonic()
                if now - latest > 1.0:
                    self.gaps.append((time.time(), now - latest))
                latest = now
                self._take(messages)
            elif enough:
                self._handle.ack()
                return

    def _take(self, messages: Any) -> None:
        from_ids, steps = messages.from_ids, messages.steps
        self.received += len(from_ids)
        self.misdirected += int((self._town.partner[from_ids] != messages.to_ids).sum())
        order = np.argsort(from_ids, kind="stable")
        senders, turns = from_ids[order], steps[order]
        first = np.ones(len(senders), np.bool_)
        first[1:] = senders[1:] != senders[:-1]
        before = np.empty_like(turns)
        before[1:] = turns[:-1]
        before[first] = self._last[senders[first]]
        self.out_of_turn += int((turns <= before).sum())
        self._last[senders] = turns  # of several, numpy keeps the last
        found, counts = np.unique(from_ids // self._town.size * self._steps + steps, return_counts=True)
        self.counts.ravel()[found] += counts


def account(town: Town, senders: list[Sender], receivers: list[Receiver]) -> dict[str, int]:
    """Compare the acknowledged messages with those that arrived, step by step."""
    arrived = np.sum([receiver.counts for receiver in receivers], axis=0)
    found: Counter[str] = Counter()
    for group, sender in enumerate(senders):
        passing = int((~town.stopped[town.agents_of(group)]).sum())
        known = arrived[group, sender.acknowledged]
        doubtful = arrived[group, sender.unknown] if sender.unknown else np.zeros(0, np.int64)
        found["sent"] += sender.done * town.size
        found["acknowledged"] += len(sender.acknowledged) * passing
        found["blocked"] += len(sender.acknowledged) * (town.size - passing)
        found["unknown"] += len(sender.unknown) * passing
        found["unknown_arrived"] += int(doubtful.sum())
        found["lost"] += int(np.maximum(passing - known, 0).sum())
        found["too_many"] += int(np.maximum(known - passing, 0).sum() + np.maximum(doubtful - passing, 0).sum())
        found["wrong_fates"] += sender.wrong_fates
    found["received"] = sum(receiver.received for receiver in receivers)
    found["out_of_turn"] = sum(receiver.out_of_turn for receiver in receivers)
    found["misdirected"] = sum(receiver.misdirected for receiver in receivers)
    return dict(found)


FLAWS = ("lost", "too_many", "wrong_fates", "out_of_turn", "misdirected")
