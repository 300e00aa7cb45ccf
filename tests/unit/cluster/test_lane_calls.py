"""Calls over a group's lane: what is written is read, and damaged bytes raise FrameError."""

from contextlib import suppress
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to

from ray_messaging.cluster.lane_calls import (
    AckCall,
    BatchFates,
    FactsOfPairs,
    FetchCall,
    RelayCall,
    answer_of,
    body_of,
    committed_of,
    messages_of,
    parse_call,
    parts_of,
    receipts_of,
)
from ray_messaging.errors import CommitFailed, FrameError
from ray_messaging.messages import Messages, Slice
from ray_messaging.model.batch import Origin
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import UNRESOLVED, AudiencePairs, Extension
from ray_messaging.model.fates import BLOCKED, DELIVERED, UNDELIVERABLE
from ray_messaging.receipt import Outcome, Receipts
from ray_messaging.receiving.ack_ranges import Span
from ray_messaging.receiving.delivery_leases import FetchOptions, Token
from ray_messaging.transports.cursors import AckRange, Cursor

texts = st.text(max_size=20)
numbers = st.integers(0, 2**40)
cursors = st.builds(Cursor, texts, numbers)
tokens = st.builds(
    Token,
    texts,
    numbers,
    st.lists(st.builds(AckRange, cursors, cursors, numbers), max_size=3).map(tuple),
    st.floats(0, 2e9),
)
spans = st.builds(Span, texts, numbers, numbers, numbers, st.none())
options = st.builds(FetchOptions, st.sampled_from(["next", "acked"]), st.booleans(), numbers, numbers)
calls = st.one_of(
    st.builds(RelayCall, texts, numbers, numbers),
    st.builds(FetchCall, texts, st.none() | tokens, st.none() | numbers, st.floats(0, 1e6), options),
    st.builds(AckCall, st.lists(st.tuples(tokens, st.none() | st.lists(spans, max_size=3).map(tuple))).map(tuple)),
)
frames = st.lists(st.binary(max_size=50), max_size=4)


def header_of(answer):
    [header] = parts_of(b"".join(answer_of(answer)))
    return header


def batch_of(rows=3, from_id=7):
    lines = PayloadColumn.of([b'{"n":%d}' % row for row in range(rows)])
    to_ids = [*range(rows - 1), "nobody"]
    return batch_to(to_ids, [from_id] * rows, sender="", epoch=0, sent_at=100.0, lines=lines)


@given(calls, frames, st.integers(0, 10**6), st.integers(1, 255))
def test_a_call_is_read_as_it_was_written_and_a_damaged_one_as_some_call_or_refused(call, given_frames, at, change):
    body = bytearray(b"".join(body_of(call, given_frames)))
    assert parse_call(bytes(body)) == (call, given_frames)
    body[at % len(body)] ^= change
    for damaged in (bytes(body), bytes(body[: at % len(body)])):
        with suppress(FrameError):
            parse_call(damaged)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_call_or_refused(body):
    for read in (parse_call, committed_of, partial(messages_of, "town", frames=[]), partial(receipts_of, batches=[])):
        with suppress(FrameError):
            read(body)


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\1\0\0\0\2\0\0\0\x90"])
def test_a_table_of_sizes_that_lies_is_refused(body):
    with pytest.raises(FrameError, match="socket"):
        parse_call(body)


def test_receipts_are_those_of_the_actor():
    batch = batch_of()
    batch.sender, batch.epoch, batch.first = "west", 3, 40
    outcome = Outcome(batch)
    outcome.settle(None, np.array([DELIVERED, BLOCKED, UNDELIVERABLE], np.uint8))
    outcome.blocks[1] = ("black_list", "7 may not write to 1")
    outcome.keep_addresses(batch)
    outcome.done_at = 100.5
    there = Receipts([(outcome, 0, 3)])
    here = receipts_of(header_of(there), [batch_of()])
    assert [repr(receipt) for receipt in here] == [repr(receipt) for receipt in there]
    assert [bool(receipt) for receipt in here] == [True, False, False]
    assert "nobody" in here[2].reason
    assert (here[1].rule, here[0].consumption) == ("black_list", 0.5)


@pytest.mark.parametrize("sent_at", [100.0, np.array([100.0, 100.0, 101.0])], ids=["one time", "times"])
def test_receipts_of_a_broadcast_are_those_of_the_actor(sent_at):
    pairs = batch_of()
    pairs.sender, pairs.epoch, pairs.first, pairs.numbers = "west", 3, 40, np.array([0, 0, 1], np.uint32)
    pairs.sent_at = sent_at
    outcome = Outcome(pairs)
    outcome.settle(None, np.array([DELIVERED, BLOCKED, UNDELIVERABLE], np.uint8))
    outcome.blocks[1] = ("black_list", "7 may not write to 1")
    outcome.keep_addresses(pairs)
    outcome.done_at = 100.5
    there = Receipts([(outcome, 0, 3)])
    here = receipts_of(header_of(there), [batch_of(rows=2)])
    assert [repr(receipt) for receipt in here] == [repr(receipt) for receipt in there]
    assert [receipt.message_id for receipt in here] == ["west-3-40", "west-3-40", "west-3-41"]
    assert [receipt.consumption for receipt in here] == [receipt.consumption for receipt in there]
    assert "'nobody'" in here[2].reason


def test_a_broadcast_that_nobody_hears_has_no_receipts():
    batch = batch_of()
    batch.extension = Extension(audience=AudiencePairs("friends", UNRESOLVED))
    assert not len(receipts_of(header_of(Receipts([])), [batch]))


def test_facts_of_pairs_that_do_not_fit_are_refused():
    facts = FactsOfPairs(b"\0" * 4, 1.0, None)
    [answer] = parts_of(b"".join(body_of((BatchFates("west", 1, 0, b"\0\0", (), 0.0, facts),))))
    with pytest.raises(FrameError, match="receipts of broadcasts"):
        receipts_of(answer, [batch_of()])


def test_why_rows_could_not_be_committed_is_what_the_actor_says():
    token, late = Token("p", 1, (), 5.0), CommitFailed("too late", group="west", messages=3, held_s=9.5, loan_s=5.0)
    assert committed_of(header_of(([token], None))) == ([token], None)
    over, here = committed_of(header_of(([], late)))
    assert (over, repr(here), vars(here)) == ([], repr(late), vars(late))


def test_an_answer_with_fates_for_other_rows_is_refused():
    [answer] = parts_of(b"".join(body_of((BatchFates("west", 1, 0, b"\0", (), 0.0),))))
    with pytest.raises(FrameError, match="3 messages"):
        receipts_of(answer, [batch_of()])
    with pytest.raises(FrameError, match="2 batches"):
        receipts_of(answer, [batch_of(), batch_of()])


def test_messages_are_those_of_the_actor():
    batch, foreign = batch_of(), batch_of()
    batch.origin = Origin("west:1", "5-0")
    there = Messages("town", [Slice(batch, 1, 3), Slice(foreign, 0, 1, b"exps:*")], more=True)
    token = Token("p", 1, (), 5.0)
    header, *given_frames = parts_of(b"".join(answer_of((token, there))))
    found, here = messages_of("town", header, given_frames)
    assert (found, here.more) == (token, True)
    assert [message.payload for message in here] == [{"n": 1}, {"n": 2}, {"n": 0}]
    assert [part.batch.origin for part in here.slices] == [Origin("west:1", "5-0"), None]
    assert here[2]["pattern"] == b"exps:*"
