"""A real trace with rules and log, while the interceptor is killed ten times: every message is accounted for."""

import uuid
from collections import Counter

import numpy as np
import pytest
from support.cluster import PATIENCE_S, Busy, control, kill, new_handle, wait_for

from ray_messaging import Messaging, rules
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.receipt import FATES
from ray_messaging.replay.traces.trace import read_trace

pytestmark = pytest.mark.long

GROUPS, CHUNK, KILLS = 4, 500, 10
BANNED, PER_ROUND = 20, 100


class Share(Busy):
    """Send a group's part of the trace in chunks; record each row's fate and message id."""

    def __init__(self, group, rows, senders, receivers, told):
        super().__init__()
        self.group, self.rows = new_handle(group), rows
        self.senders, self.receivers, self.told = senders, receivers, told
        self.done = 0

    def work(self):
        for low in range(0, len(self.rows), CHUNK):
            rows = self.rows[low : low + CHUNK]
            payloads = [{"n": n} for n in rows.tolist()]
            receipts = self.group.send_columns(self.senders[rows], self.receivers[rows], payloads)
            for row, message_id, code in zip(rows.tolist(), receipts.message_ids, receipts.codes, strict=True):
                self.told[row] = message_id, FATES[code]
            self.done += len(rows)


class Receiver(Busy):
    """Fetch arrivals until told that no more will come."""

    def __init__(self, group):
        super().__init__()
        self.group, self.found = new_handle(group), []

    def work(self):
        while True:
            last = self.enough.is_set()
            messages = self.group.fetch(timeout=0.2)
            self.found += [(m.from_id, m.to_id, m.payload["n"]) for m in messages]
            if last and not len(messages):
                return self.group.ack()


def expected_fates(senders):
    """Return each row's expected fate: the most active senders are banned, the others have a limit."""
    banned = {sender for sender, _ in Counter(senders.tolist()).most_common(BANNED)}
    count, fates = Counter(), []
    for sender in senders.tolist():
        count[sender] += 1
        fates.append("blocked" if sender in banned or count[sender] > PER_ROUND else "delivered")
    return banned, fates


def kill_while_they_send(messaging, shares, total):
    """Kill the interceptor repeatedly; return its epochs."""
    epochs = []
    for number in range(1, KILLS + 1):
        wait_for(
            lambda number=number: (
                any(s.errors for s in shares) or sum(share.done for share in shares) >= number * total / (KILLS + 2)
            ),
            "progress",
        )
        assert any(share.is_alive() for share in shares)
        epochs.append(messaging.stats()["epoch"])
        kill(messaging.interceptor)
    return epochs


def check_log(log, told, expected, senders, receivers):
    """Compare the log with the receipts, and its edges with the file."""
    table = log.query()
    assert dict(zip(table["message_id"].to_pylist(), table["fate"].to_pylist(), strict=True)) == dict(told.values())
    assert table.num_rows == len(told) == log.balance().sends
    row_of = {message_id: row for row, (message_id, _) in told.items()}
    edges = log.edges()
    rows = np.array([row_of[message_id] for message_id in edges["message_id"].to_pylist()])
    order = np.argsort(rows)
    delivered = np.flatnonzero(np.array(expected) == "delivered")
    assert np.array_equal(rows[order], delivered)
    assert np.array_equal(edges["from_id"].to_numpy()[order], senders[delivered])
    assert np.array_equal(edges["to_id"].to_numpy()[order], receivers[delivered])


def test_the_interceptor_dies_ten_times_during_a_replay(ray_cluster, data, tmp_path):
    trace = read_trace(data("collegemsg/CollegeMsg.txt.gz"))
    senders, receivers = np.array(trace.senders), np.array(trace.receivers)
    banned, expected = expected_fates(senders)
    assert Counter(expected) == {"delivered": 37_529, "blocked": 22_306}
    messaging = Messaging.start(
        f"college-{uuid.uuid4().hex[:8]}",
        rules=[rules.BlackList([(agent, None) for agent in banned]), rules.RateLimit(per_round=PER_ROUND)],
        log_dir=tmp_path / "log",
    )
    with messaging:
        place = {agent: number % GROUPS for number, agent in enumerate(trace.agents)}
        groups = [messaging.create_group(f"college-{n}", trace.agents[n::GROUPS]) for n in range(GROUPS)]
        home, told = np.array([place[sender] for sender in trace.senders]), {}
        shares = [Share(g, np.flatnonzero(home == n), senders, receivers, told) for n, g in enumerate(groups)]
        ears = [Receiver(group) for group in groups]
        for thread in (*shares, *ears):
            thread.start()
        try:
            epochs = kill_while_they_send(messaging, shares, len(trace))
        finally:
            for share in shares:
                share.join(PATIENCE_S)
            for ear in ears:
                ear.enough.set()
        for thread in (*shares, *ears):
            thread.stop()
        assert [told[row][1] for row in range(len(trace))] == expected
        arrived = [row for ear in ears for row in ear.found]
        assert Counter(arrived).most_common(1)[0][1] == 1
        assert not {sender for sender, _, _ in arrived} & banned
        file = zip(trace.senders, trace.receivers, range(len(trace)), strict=True)
        same = sorted(arrived, key=lambda row: row[2]) == [row for row in file if expected[row[2]] == "delivered"]
        assert same  # outside of the assert: pytest would print the rows
        last = {}
        for sender, receiver, n in arrived:
            assert n > last.get((sender, receiver), -1)
            last[sender, receiver] = n
        assert control(messaging, "black_set") == {(agent, None) for agent in banned}
        blocked = Counter(s for s, fate in zip(trace.senders, expected, strict=True) if fate == "blocked")
        assert control(messaging, "violation_counts") == blocked
        epochs.append(messaging.stats()["epoch"])
        assert epochs == sorted(set(epochs))
        assert len(epochs) == 1 + KILLS
        check_log(messaging.log, told, expected, senders, receivers)
    check_log(EventLog.open(tmp_path / "log"), told, expected, senders, receivers)
