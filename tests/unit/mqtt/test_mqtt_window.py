"""The window: frames that a sender keeps, their numbers, and its messages about holes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.mqtt.sending.window import Window
from ray_messaging.mqtt.wire.messages import Data

ENOUGH = 10**6


def window(count=0, **limits):
    made = Window("s", 7, **({"max_messages": ENOUGH, "max_bytes": ENOUGH} | limits))
    for number in range(1, count + 1):
        made.put(f"{number}".encode(), 2)
    return made


def waiting(made):
    return [(data.seq, data.after) for data in made.pending()]


def test_a_frame_is_kept_until_it_is_confirmed():
    made = window()
    assert made.put(b"one", 2) == Data("s", 7, 1, 1, 0, b"one")
    assert made.put(b"two", 3) == Data("s", 7, 2, 1, 1, b"two")
    assert (made.messages, made.nbytes, len(made), made.base, made.last) == (5, 6, 2, 1, 2)
    assert made.confirm(1)
    assert list(made.pending()) == [Data("s", 7, 2, 2, 1, b"two")]
    assert (made.messages, made.nbytes, len(made), made.base, made.last) == (3, 3, 1, 2, 2)
    assert made.confirm(2)
    assert (made.messages, made.nbytes, len(made), made.base, made.last) == (0, 0, 0, 3, 2)
    assert made.put(b"three", 1) == Data("s", 7, 3, 3, 2, b"three")


@pytest.mark.parametrize("seq", [-1, 0, 1, 4, 10**18])
def test_confirmations_of_old_or_unsent_frames_are_ignored(seq):
    made = window(3)
    made.confirm(1)
    assert not made.confirm(seq)
    assert waiting(made) == [(2, 1), (3, 2)]


def test_limits_count_messages_and_bytes_and_may_change():
    made = window(max_messages=4, max_bytes=10)
    assert made.fits(100, 100)  # else a frame above the limits would wait for ever
    made.put(b"12345", 2)
    assert made.fits(2, 5)
    assert not made.fits(3, 5)
    assert not made.fits(2, 6)
    made.max_messages, made.max_bytes = 5, 11
    assert made.fits(3, 6)


def test_an_abandoned_frame_leaves_a_hole_that_the_next_frame_announces():
    made = window(4)
    made.arrived(1)
    made.arrived(3)
    assert made.abandon_unarrived() == 2
    assert waiting(made) == [(1, 0), (3, 1)]
    assert made.put(b"5", 2)[2:5] == (5, 1, 3)
    made.confirm(1)
    assert waiting(made) == [(3, 2), (5, 3)]
    assert made.base == 3
    assert made.messages == 4
    assert made.next(4) == made.next(5)
    assert made.next(1) == made.next(3)
    assert made.next(6) is None


def test_a_refused_frame_is_withdrawn_with_all_later_ones_and_numbers_are_not_reused():
    made = window(4)
    made.arrived(1)
    made.arrived(3)
    assert made.withdraw(2) == 3
    assert waiting(made) == [(1, 0)]
    assert made.put(b"5", 2)[2:5] == (5, 1, 1)
    # It has left already: later frames stay.
    assert made.withdraw(3) == 0
    assert waiting(made) == [(1, 0), (5, 1)]
    assert (made.messages, made.nbytes) == (4, 2)


def test_a_probe_names_the_last_frame_that_is_kept():
    made = window(4)
    made.withdraw(3)
    assert made.probe() == Data("s", 7, 5, 1, 2, b"")
    made.confirm(2)
    assert made.probe() == Data("s", 7, 5, 5, 4, b"")


def test_a_confirmed_frame_counts_as_arrived():
    made = window(3)
    made.arrived(2)
    assert [made.is_arrived(seq) for seq in (1, 2, 3)] == [False, True, False]
    made.confirm(2)
    assert [made.is_arrived(seq) for seq in (1, 2, 3)] == [True, True, False]
    made.arrived(1)  # its answer comes last
    assert len(made) == 1


def test_a_window_that_is_opened_again_goes_on_counting():
    made = Window("s", 7, ENOUGH, ENOUGH, last=41)
    assert made.base == 42
    assert made.probe() == Data("s", 7, 42, 42, 41, b"")
    assert made.put(b"x", 1) == Data("s", 7, 42, 42, 41, b"x")


def test_frames_may_change_while_pending_ones_are_iterated():
    made = window(3)
    seen = []
    for data in made.pending():
        seen.append(data.seq)
        if data.seq == 1:
            made.confirm(2)
            made.put(b"4", 2)
    assert seen == [1, 3, 4]


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "confirm", "arrived", "abandon", "withdraw"]), st.integers(0, 20)),
        max_size=60,
    )
)
def test_whatever_happens_the_sums_are_right_and_each_frame_names_the_one_before_it(steps):
    made = window()
    for what, seq in steps:
        if what == "put":
            made.put(b"x" * seq, seq)
        elif what == "abandon":
            made.abandon_unarrived()
        else:
            getattr(made, what)(seq)
        kept = list(made.pending())
        assert made.messages == made.nbytes == sum(len(data.frame) for data in kept)
        assert len(made) == len(kept)
        assert [data.after for data in kept] == [made.base - 1, *(data.seq for data in kept)][: len(kept)]
        assert made.probe().after == (kept[-1].seq if kept else made.last)
        assert {data.base for data in kept} <= {made.base}
