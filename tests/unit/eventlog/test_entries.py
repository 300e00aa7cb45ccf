"""From entries to rows: every kind of frame, with the facts of its note."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import TIME, any_batches
from support.log_writing import batch_of, expected, note_of, rows_of

from ray_messaging.errors import FrameError
from ray_messaging.eventlog.writing.entries import DecodedEntry, decode_entry, payload_bytes, pieces
from ray_messaging.eventlog.writing.log_columns import record_batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import facts_of
from ray_messaging.transports.log_store import LogItem
from ray_messaging.transports.transport_values import LOG_STREAM
from ray_messaging.wire.frames import encode

ENTRY = "1790000000123-4"


def item_of(batch, stream="m:1", entry=ENTRY):
    return LogItem(stream, entry, encode(batch))


def noted_item(batch, note, takers=None):
    return LogItem(LOG_STREAM, ENTRY, encode(batch), note, takers)


# -- any frame --------------------------------------------------------------------------------------------------------

PAYLOADS = ("own", "shared", "raw", "raw shared")


def of_no_step(batch):
    """Return a batch whose rows are logged from its frame, but for those that a note describes."""
    if batch.extension is not None:
        batch.extension = msgspec.structs.replace(batch.extension, ordinal=None)
    return batch


LOGGED = any_batches(least=1, payloads=PAYLOADS, times=TIME.map(lambda time: round(time, 3))).map(of_no_step)


@given(st.lists(LOGGED, min_size=1, max_size=4))
def test_any_frames_become_the_rows_that_their_messages_are(frames):
    items = [item_of(batch, f"m{number}:1", f"17{number}-{number}") for number, batch in enumerate(frames)]
    assert rows_of(*items) == [row for item in items for row in expected(item)]


@given(LOGGED, st.integers(0, 40))
def test_pieces_of_an_entry_are_its_rows(batch, limit):
    whole = rows_of(item_of(batch))
    assert rows_of(item_of(batch), limit=limit) == whole
    part, messages = decode_entry(item_of(batch))
    assert messages == len(batch)
    for begin in range(len(whole)):
        cut = [*pieces(part, begin, limit)]
        assert [end for _, end in cut][-1] == len(whole)
        assert record_batch("exp", [piece for piece, _ in cut]).to_pylist() == whole[begin:]


@given(LOGGED)
def test_messages_of_a_step_are_left_to_its_boxes(batch):
    batch.step, batch.extension = 3, Extension(ordinal=np.arange(len(batch), dtype=np.uint32))
    assert decode_entry(item_of(batch)) == DecodedEntry(None, len(batch))


def test_the_rows_do_not_keep_the_frame_alive():
    batch = batch_of(100, step=np.arange(100), sent_at=np.arange(100.0), numbers=np.arange(100, dtype=np.uint32))
    part = decode_entry(item_of(batch)).part
    found = record_batch("exp", [part])
    assert not any(
        np.may_share_memory(np.frombuffer(buffer, np.uint8), part.batch.step)
        for column in found.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size
    )


# -- many rows: the columns are put together from what repeats ---------------------------------------------------------


NUMBERS = {
    "as they come": None,
    "in one piece": np.arange(500, 700, dtype=np.uint32),
    "with gaps": np.arange(0, 40_000, 200, dtype=np.uint32),
    "in no order": np.random.default_rng(1).permutation(200).astype(np.uint32),
    "the first and the last right": np.array([0, *[7] * 198, 199], np.uint32),
    "far apart": np.linspace(0, 2**32 - 1, 200).astype(np.uint32),
}


@pytest.mark.parametrize("first", [0, 800, 950, 9_900, 9_999_900, 2**61])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_ids_of_many_messages_are_those_of_their_receipts(first, numbers):
    one = batch_of(200, first=first, numbers=NUMBERS[numbers])
    other = batch_of(200, first=10**6, sender="sénder")
    items = [item_of(one), item_of(other, "m:2"), item_of(batch_of(3, first=10**6), "m:2")]
    assert rows_of(*items) == [row for item in items for row in expected(item)]


@pytest.mark.parametrize("low", [-(2**63), -150, 0, 2**63 - 300])
@pytest.mark.parametrize("width", [1, 299, 2**62])
def test_channels_of_many_agents_are_theirs(low, width):
    to_ids = np.random.default_rng(1).integers(low, min(low + width, 2**63 - 1), 300, endpoint=True)
    topic = np.arange(300, dtype=np.uint16) % 3
    frames = [
        batch_of(300, to_ids=IdColumn(to_ids), topics=("räte",)),
        batch_of(300, to_ids=IdColumn(to_ids), topics=("user-chat", "agent-chat", ":all"), topic=topic),
        batch_of(3, to_ids=IdColumn.of([low, "ann", None])),
    ]
    items = [item_of(batch) for batch in frames]
    for some in ([items[0]], items[:2], items):
        assert rows_of(*some) == [row for item in some for row in expected(item)]


def test_more_rows_than_columns_share_memory_for():
    rows = 70_000
    batch = batch_of(rows, payload={"n": 1})
    note = note_of("undeliverable")
    for item in (item_of(batch), noted_item(batch, note)):
        found = record_batch("exp", [decode_entry(item).part])
        assert found["row"].to_numpy().tolist() == [*range(rows)]
        assert {found[name].null_count for name in ("step", "labels", "rule", "from_name", "payload_before")} == {rows}
        assert {len(found[name].unique()) for name in ("sender", "mailbox", "fate", "noted", "subtopic")} == {1}
        assert len(found["message_id"].unique()) == rows


# -- payloads ---------------------------------------------------------------------------------------------------------


def test_invalid_utf8_stays_readable():
    raw = PayloadColumn.of([b"\xff\n{", b"plain", b"\xc3", b"\xa4"], raw=True)
    rows = rows_of(item_of(batch_of(4, lines=raw)))
    assert [row["payload"] for row in rows] == ["�\n{", "plain", "�", "�"]
    rows = rows_of(item_of(batch_of(2, lines=PayloadColumn.of([b'"\xff"', b'"ok"']))))
    assert [row["payload"] for row in rows] == ['"�"', '"ok"']


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 253402300800.0])
def test_times_of_a_mad_clock_can_still_be_read(time):
    (row,) = rows_of(item_of(batch_of(1, sent_at=time)))
    assert 1 <= row["sent_at"].year <= 9999


# -- notes ------------------------------------------------------------------------------------------------------------


FACTS = ("fate", "rule", "reason", "payload_before", "mailbox")
NOTES = {  # a note, its takers, and the facts of its rows
    "blocked": (
        note_of("blocked", why=[("max_length", "too long", [0]), ("ban", "banned", [1, 2])]),
        None,
        [("blocked", "max_length", "too long", None, None), *[("blocked", "ban", "banned", None, None)] * 2],
    ),
    "rewritten, by the last rule that did": (
        note_of("delivered", mailbox="m", why=[("first", "", [0, 1]), ("last", "soft", [1])], before=[([1], b"1")]),
        None,
        [("delivered", "first", "", None, "m"), ("delivered", "last", "soft", "1", "m")],
    ),
    "published to so many": (
        note_of("published", why=[("soften", "rude", [2, 3])], before=[([1, 3], b"1"), ([2], b"2")]),
        [2, 0, 1, 1],
        [
            ("published", None, None, None, None),
            ("undeliverable", None, facts_of("undeliverable").reason, "1", None),
            ("published", "soften", "rude", "2", None),
            ("published", "soften", "rude", "1", None),
        ],
    ),
}


@pytest.mark.parametrize(("note", "takers", "facts"), NOTES.values(), ids=NOTES)
def test_rows_have_the_facts_of_their_note(note, takers, facts):
    shared = PayloadColumn.of([b"x" * 100], np.zeros(len(facts), np.uint32))
    item = noted_item(batch_of(len(facts), lines=shared), note, takers)
    found = rows_of(item)
    assert [tuple(row[name] for name in FACTS) for row in found] == facts
    assert all((row["delivered_at"] is None) == (row["fate"] in {"blocked", "undeliverable"}) for row in found)
    assert {(row["noted"], row["payload"]) for row in found} == {(True, "x" * 100)}
    assert rows_of(item, limit=100) == found  # in pieces


def test_the_payload_before_a_rewrite_counts_in_a_piece():
    note = note_of("delivered", mailbox="m", why=[("soften", "", [0, 1, 2])], before=[([0, 2], b"x" * 1000)])
    part = decode_entry(noted_item(batch_of(4, lines=PayloadColumn.of([b"{}"], np.zeros(4, np.uint32))), note)).part
    assert payload_bytes(part) > 2000
    assert [end for _, end in pieces(part, 0, 1200)] == [2, 4]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (item_of(batch_of(1, lines=None)), "no payloads"),
        (noted_item(batch_of(4), note_of("delivered", mailbox="m", before=[([4], b"{}")])), "does not have"),
        (noted_item(batch_of(4), note_of("delivered", mailbox="m", before=[([0, 7], b"{}")])), "does not have"),
        *((noted_item(batch_of(2), note_of("published"), takers), "receiving clients") for takers in (None, [], [1])),
    ],
)
def test_what_cannot_be_makes_no_row(item, says):
    with pytest.raises(FrameError, match=says):
        decode_entry(item)


def test_frames_of_all_kinds_become_one_batch():
    items = [
        item_of(batch_of(2)),
        noted_item(batch_of(1), note_of("blocked", why=[("ban", "banned", [0])])),
        item_of(batch_of(1, labels={"a": np.array([0], np.uint32)}, topics=(":plain",), step=5)),
        noted_item(batch_of(1), note_of("undeliverable")),
    ]
    together = rows_of(*items)
    assert together == [row for item in items for row in rows_of(item)]
    assert [row["fate"] for row in together] == ["delivered", "delivered", "blocked", "delivered", "undeliverable"]
