"""The in-flight batch: each row is settled, failed or blocked once, and each sender is answered once."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.errors import MailboxFull
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.fates import BLOCKED, DELIVERED, UNKNOWN
from ray_messaging.sending.in_flight_batch import InFlightBatch
from ray_messaging.sending.pending_batch import BulkWaiter, PendingBatch

ROWS = 6


class Made:
    """A batch in flight: rows with a future each, and rows of a bulk send."""

    def __init__(self, singles, bulk=0, wave=0):
        loop = asyncio.new_event_loop()
        pending = PendingBatch()
        self.singles = [loop.create_future() for _ in range(singles)]
        for row, future in enumerate(self.singles):
            pending.cells += (1, row, "chat", b"{}", 1.0, future)
        self.many = loop.create_future()
        if bulk:
            many = PendingBatch()
            many.append(1, list(range(bulk)), "chat", b"{}", None, 1.0)
            pending.join(many.seal("", 0, 0))
            pending.bulks.append(BulkWaiter(singles, singles + bulk, self.many, 0))
        self.finished = []
        self.closed = []
        self.in_flight = InFlightBatch(pending, pending.seal("s", 1, 0), self, wave)
        loop.close()

    def batch_done(self, in_flight):
        self.finished.append(in_flight)

    def callers_told(self):
        self.told = [single.done() for single in self.singles]

    def rows_done(self, count, nbytes):
        self.closed.append((count, nbytes))

    def block(self, chosen):
        """Block rows as a rule does, without a log: they are settled at once."""
        self.in_flight.apply(BatchVerdict(blocked=dict.fromkeys(chosen, ("black_list", "no"))))
        stopped = [row for row in self.in_flight.open_rows.tolist() if row in self.in_flight.outcome.blocks]
        self.in_flight.settle(rows(*stopped), BLOCKED)

    def fate(self, row):
        """Return a row's result: a fate, the name of an error, or None."""
        future = self.singles[row]
        if not future.done():
            return None
        return type(future.exception()).__name__ if future.exception() else future.result().fate


def rows(*found):
    return np.array(found, np.intp)


def full():
    return MailboxFull("full", mailbox="box")


FATES = {DELIVERED: "delivered", BLOCKED: "blocked", UNKNOWN: "MailboxFull"}
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["settle", "settle all", "fail", "fail all", "block", "deliver"]),
        st.lists(st.integers(0, ROWS - 1), unique=True, max_size=ROWS),
    ),
    max_size=12,
)


@given(STEPS, st.integers(0, ROWS))
def test_each_row_and_the_end_are_reported_once(steps, singles):  # noqa: C901 - a step each
    made = Made(singles, ROWS - singles)
    in_flight = made.in_flight
    in_flight.copies = np.full(ROWS, 2)
    expected = {}
    mailboxes = iter(range(100))
    for step, chosen in steps:
        if step in {"settle all", "fail all"}:
            chosen = range(ROWS)
        mine = [row for row in chosen if row not in expected]
        if step.startswith("settle"):
            in_flight.settle(None if step.endswith("all") else rows(*chosen), DELIVERED)
            expected |= dict.fromkeys(mine, DELIVERED)
        elif step.startswith("fail"):
            in_flight.fail(None if step.endswith("all") else rows(*chosen), full())
            expected |= dict.fromkeys(mine, UNKNOWN)
        elif step == "block":
            made.block(chosen)
            expected |= {row: BLOCKED for row in mine if not in_flight.is_placed(row)}
        elif mine:
            in_flight.deliver(rows(*mine), str(next(mailboxes)), DELIVERED)
            expected |= {row: DELIVERED for row in mine if sum(found[row] for found in in_flight.placed.values()) == 2}
        assert in_flight.outcome.fates.tolist() == [expected.get(row, UNKNOWN) for row in range(ROWS)]
        assert in_flight.open_rows.tolist() == [row for row in range(ROWS) if row not in expected]
        assert (in_flight.left > 0) == (len(expected) < ROWS)
        assert [made.fate(row) for row in range(singles)] == [FATES.get(expected.get(row)) for row in range(singles)]
        if singles < ROWS:
            assert made.many.done() == all(row in expected for row in range(singles, ROWS))
        assert len(made.finished) == (in_flight.left == 0)
        assert sum(count for count, _ in made.closed) == len(expected)
        nbytes = sum(nbytes for _, nbytes in made.closed)
        assert 0 <= nbytes <= in_flight.batch.lines.nbytes
        assert in_flight.left or nbytes == in_flight.batch.lines.nbytes
        assert set(in_flight.outcome.blocks) >= {row for row, fate in expected.items() if fate == BLOCKED}
        assert not any(expected.get(row) not in {None, BLOCKED} for row in in_flight.outcome.blocks)
    if made.many.done():
        made.many.exception()
    for future in made.singles:
        if future.done():
            future.exception()


def judged(blocked=(), rewritten=None, labels=None):
    return BatchVerdict(
        dict.fromkeys(blocked, ("rule", "why")),
        {row: ("editor", line) for row, line in (rewritten or {}).items()},
        {name: set(found) for name, found in (labels or {}).items()},
    )


def outgoing(in_flight):
    return [
        (in_flight.outgoing.lines.row(row), in_flight.outgoing.labels_of(row)) for row in range(len(in_flight.batch))
    ]


def test_a_later_verdict_replaces_an_earlier_one_except_for_delivered_rows():
    made = Made(4)
    in_flight = made.in_flight
    in_flight.copies = np.array([2, 1, 1, 1])
    in_flight.apply(judged([2], {0: b"[0]", 1: b"[1]"}, {"old": [0, 1]}))
    in_flight.deliver(rows(0), "a", DELIVERED)
    in_flight.apply(judged([3], {0: b"[7]"}, {"new": [0, 1, 2]}))
    assert outgoing(in_flight) == [(b"[0]", ("old",)), (b"{}", ("new",)), (b"{}", ("new",)), (b"{}", ())]
    assert set(in_flight.outcome.blocks) == {3}
    assert in_flight.rewritten == {0: ("editor", b"[0]")}


def test_bytes_go_with_their_rows_and_those_that_are_shared_with_the_last_one():
    pending = PendingBatch()
    pending.append(1, [1, 2, 3], "chat", b"x" * 9, None, 1.0)
    pending.append(1, [4], "chat", b"y" * 99, None, 1.0)
    made = Made(1)
    in_flight, closed = InFlightBatch(pending, pending.seal("s", 1, 0), made), made.closed
    for row in (0, 3, 2, 1):
        in_flight.settle(rows(row), DELIVERED)
        in_flight.settle(rows(row), DELIVERED)
    assert closed == [(1, 0), (1, 100), (1, 0), (1, 10)]


async def test_with_a_wave_some_callers_get_their_receipts_before_the_others():
    made, found = Made(singles=ROWS, wave=2), []
    made.singles[1].cancel()
    made.in_flight.settle(None, DELIVERED)
    assert made.finished == [made.in_flight]
    for _ in range(3):
        found.append([row for row in range(ROWS) if made.singles[row].done()])
        await asyncio.sleep(0)
    assert found == [[0, 1], [0, 1, 2, 3], [*range(ROWS)]]
    assert made.told == [True] * ROWS
    expected = map(made.in_flight.outcome.message_id, (0, 5))
    assert [made.singles[row].result().message_id for row in (0, 5)] == [*expected]


def test_a_group_of_callers_is_not_smaller_than_a_wave():
    made = Made(singles=ROWS, wave=4)
    made.in_flight.settle(None, DELIVERED)
    assert all(single.done() for single in made.singles)
