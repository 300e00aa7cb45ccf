"""Positions in flight: rows are acknowledged in any order, and a new reader hands out only the others."""

import random

import pytest
from support.batches import batch_to

from ray_messaging.messages import Slice
from ray_messaging.model.batch import Origin
from ray_messaging.receiving.ack_ranges import range_of, spans_in
from ray_messaging.receiving.commits import InFlight
from ray_messaging.receiving.inbox import Inbox, Piece
from ray_messaging.transports.cursors import START, Cursor, begins, decode_ranges, decode_rows, ends, order


def batch_of(entry, rows):
    return batch_to([1] * rows, origin=Origin("box", entry))


class Model:
    """A mailbox with frames of random sizes, some of them empty, and its acknowledged rows."""

    def __init__(self, rng, frames=40):
        self.rng = rng
        self.frames = [(f"{1 + n // 3}-{n % 3}", rng.choice([0, 1, 1, 2, 7])) for n in range(frames)]
        self.acked = set()
        self.cursor, self.ranges = START, b""

    def begin(self):
        """Take the mailbox over as a new reader does; the former reader's state is forgotten."""
        self.flight, self.inbox = InFlight(self.cursor, decode_ranges(self.ranges)), Inbox(10**6)
        self.out = []
        begun = False
        for entry, rows in self.frames:
            at, low = Cursor(entry, 0), 0
            if not begun and self.cursor.entry != "0-0":
                begun = entry == self.cursor.entry
                if not begun or not self.cursor.row:
                    continue
                low = self.cursor.row
            begun = True
            batch = batch_of(at.entry, rows)
            self.inbox.put(Piece(entry, batch if low < rows else None, low, rows, 10))

    def take(self, limit):
        found = self.inbox.take(limit, self.flight)
        assert self.rows(found).isdisjoint(self.acked)
        self.out += found
        return found

    def rows(self, slices):
        return {(part.batch.origin.entry, row) for part in slices for row in range(part.low, part.high)}

    def ack(self):
        """Acknowledge some of the rows in flight."""
        if not self.out:
            return
        part = self.rng.choice(self.out)
        low = self.rng.randrange(part.low, part.high)
        some = part._replace(low=low, high=self.rng.randrange(low + 1, part.high + 1))
        [span] = spans_in([some], "box")
        self.acked |= self.rows([some])
        self.flight.ack(*self.flight.numbers(span.entry, span.low, span.high))

    def check(self):
        flight = self.flight
        acks = flight.acks()
        found = decode_ranges(acks.ranges)
        told = {(entry, row) for entry, rows in self.frames for row in range(rows) if self.before(entry, row)}
        for entry, rows in self.frames:
            for each in found:
                low, high = (int(min(row, rows)) for row in (begins(each, entry), ends(each, entry)))
                told |= {(entry, row) for row in range(low, high)}
        assert told == self.acked
        behind = {row for row in self.acked if not self.before(*row)}
        assert acks.messages == len(behind) == sum(one.rows for one in found)
        assert self.rows(flight.unacked(self.out)) == self.rows(self.out) - self.acked

    def before(self, entry, row):
        cursor = self.flight.cursor
        at, mine = order(cursor.entry), order(entry)
        return mine < at or (mine == at and (cursor.row == 0 or row < cursor.row))

    def commit(self):
        self.cursor, self.ranges = self.flight.cursor, self.flight.acks().ranges


@pytest.mark.parametrize("seed", range(30))
def test_rows_acknowledged_in_any_order_are_committed_and_never_handed_out_again(seed):
    model = Model(random.Random(seed))
    for _ in range(6):  # readers
        model.begin()
        for _ in range(model.rng.randrange(25)):
            if model.rng.random() < 0.5:
                model.take(model.rng.choice([1, 2, 5, None]))
            else:
                model.ack()
            if model.rng.random() < 0.4:
                model.check()
        model.commit()
    model.begin()
    while model.take(3):
        pass
    for part in model.out:
        model.flight.ack(*model.flight.numbers(part.batch.origin.entry, part.low, part.high))
    assert model.flight.cursor == Cursor(model.frames[-1][0], 0)
    assert model.flight.ranges == 0
    assert model.flight.acks() == (b"", 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_is_as_it_was(seed):
    model = Model(random.Random(seed))
    model.begin()
    model.take(7)
    model.ack()
    flight = model.flight
    before, copy = (flight.cursor, flight.acks(), flight.taken), flight.copy()
    model.take(9)
    for _ in range(9):
        model.ack()
    assert (copy.cursor, copy.acks(), copy.taken) == before


def test_acknowledgements_of_a_predecessors_callers_are_accepted():
    model = Model(random.Random(1))
    model.frames = [("1-0", 4), ("2-0", 4), ("3-0", 4)]
    model.begin()
    part = Slice(batch_of("2-0", 4), 1, 3)
    [span] = spans_in([part], "box")
    assert model.flight.ack_ahead(range_of(span))
    assert model.flight.ack_ahead(range_of(span))  # again
    assert model.flight.acks().messages == 2
    assert len(model.rows(model.take(None))) == 10
    assert model.flight.ack_ahead(range_of(span))
    assert not model.flight.ack_ahead(range_of(span._replace(low=0)))  # it was handed out
    model.flight.ack(0, model.flight.taken)
    assert model.flight.cursor == Cursor("3-0", 0)


def test_rows_behind_the_cursor_count_as_acknowledged():
    flight, slices = InFlight(START), []
    for n in range(4):
        flight.take(f"{n + 1}-0", 0, 2, True, 1)
        slices.append(Slice(batch_of(f"{n + 1}-0", 2), 0, 2))
    flight.ack(0, 5)
    assert flight.unacked(slices) == [slices[2]._replace(low=1), slices[3]]
    runs = flight.runs((f"{n + 1}-0", 0, 2) for n in range(4))
    assert [run[:2] for run in flight.spans(runs)] == [(Cursor("3-0", 1), Cursor("4-0", 0))]


def test_a_thousand_messages_that_are_acknowledged_backwards_are_one_range():
    flight = InFlight(START)
    for n in range(1000):
        flight.take(f"1-{n}", 0, 1, True, 1)
    for n in range(999, 0, -1):
        assert flight.ack(*flight.numbers(f"1-{n}", 0, 1)) == 1
        assert flight.ranges == 1
    assert flight.acks() == (b"1-0 0 1-999 0 999", 999)
    flight.ack(0, 1)
    assert (flight.cursor, flight.front, flight.nbytes) == (Cursor("1-999", 0), 1000, 1000)


def test_rows_of_a_dead_letter_are_read_from_text():
    rows = [(0, 2), (5, float("inf"))]
    assert decode_rows("0-2,5-") == rows
    assert decode_rows("x,1-2-3,-4,") == []
