"""Arrivals in a mailbox, case by case (all cases at random: test_mqtt_lossy_broker.py)."""

from ray_messaging.mqtt.receiving.arrivals import HELD_BYTES, Arrivals, Frame, Resend
from ray_messaging.mqtt.wire.messages import Data, Position

ENOUGH = 10**6


def data(seq, *, after=None, base=1, epoch=1, frame=None, sender="s"):
    text = f"{epoch}.{seq}".encode() if frame is None else frame
    return Data(sender, epoch, seq, base, seq - 1 if after is None else after, text)


def fresh(places=None, hold_bytes=ENOUGH, **limits):
    return Arrivals(places or {}, hold_bytes, **limits)


def seqs(taken):
    return [frame.seq for frame in taken.frames]


def test_a_gap_is_asked_for_once_in_each_round_and_filled_in_order():
    arrivals = fresh()
    assert seqs(arrivals.take(data(1), "one")) == [1]
    early = arrivals.take(data(3), "three")
    assert (early.frames, early.acknowledge, early.resend) == ([], [], Resend("s", 1, 2))
    assert arrivals.take(data(4), "four").resend is None
    assert arrivals.gaps() == [Resend("s", 1, 2)]
    # The sender has begun again, and the broker lost 2 once more.
    again = arrivals.take(data(3), "three again")
    assert again.resend == Resend("s", 1, 2)
    assert again.acknowledge == ["three"]
    assert seqs(arrivals.take(data(2), "two")) == [2, 3, 4]
    assert arrivals.gaps() == []
    assert arrivals.held == arrivals.held_bytes == arrivals.lost == 0
    assert arrivals.committed("s", 1, 4, 0) == ["one", "two", "three again", "four"]


def test_a_redelivered_frame_is_acknowledged_under_its_newest_token():
    arrivals = fresh()
    arrivals.take(data(1), "old connection")
    again = arrivals.take(data(1), "new connection")
    assert again.frames == []
    assert again.acknowledge == ["old connection"]
    assert not again.confirm
    assert arrivals.committed("s", 1, 1, 0) == ["new connection"]
    after = arrivals.take(data(1), "late")
    assert after.acknowledge == ["late"]
    assert after.confirm
    assert arrivals.confirmed("s") == Position(1, 1, 0)


def test_a_held_frame_that_comes_again_in_its_turn_gives_back_its_older_token():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    arrivals.take(data(4), "four")
    # 2 and 3 were given up meanwhile.
    taken = arrivals.take(data(4, after=1), "four again")
    assert seqs(taken) == [4]
    assert taken.acknowledge == ["four"]
    assert arrivals.held == 0


def test_a_withdrawn_frame_is_dropped_after_a_later_frame_or_a_probe():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    arrivals.take(data(3), "orphan")
    taken = arrivals.take(data(4, after=1), "four")
    assert seqs(taken) == [4]
    assert taken.acknowledge == ["orphan"]
    arrivals.take(data(6), "orphan")
    probed = arrivals.take(data(8, after=4, frame=b""), "probe")
    assert probed.frames == []
    assert sorted(probed.acknowledge) == ["orphan", "probe"]
    assert arrivals.held == arrivals.lost == 0
    assert arrivals.gaps() == []


def test_an_older_copy_of_a_frame_behind_a_hole_goes_before_nothing():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    arrivals.take(data(6, after=3), "six, 4 and 5 given up")
    arrivals.take(data(5), "five, an older copy")
    taken = arrivals.take(data(2), "two")
    assert seqs(taken) == [2]
    taken = arrivals.take(data(3), "three")
    assert seqs(taken) == [3, 6]
    assert taken.acknowledge == ["five, an older copy"]


def test_an_older_copy_of_a_held_frame_brings_no_hole_back():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    arrivals.take(data(6, after=3), "six, 4 and 5 given up")
    assert arrivals.take(data(6), "six, an older copy").acknowledge == ["six, 4 and 5 given up"]
    arrivals.take(data(2), "two")
    assert seqs(arrivals.take(data(3), "three")) == [3, 6]


def test_a_probe_requests_missing_frames_and_confirms_the_rest():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    for token in ("probe", "and another"):
        probed = arrivals.take(data(3, frame=b""), token)
        assert probed.resend == Resend("s", 1, 2)
        assert probed.acknowledge == [token]
    arrivals.take(data(2), "two")
    assert not arrivals.take(data(3, frame=b""), "probe").confirm
    arrivals.committed("s", 1, 2, 0)
    probed = arrivals.take(data(3, frame=b""), "probe")
    assert probed.confirm
    assert probed.resend is None
    assert not arrivals.take(data(3, base=3, frame=b""), "a sender that knows").confirm


def test_a_frame_handled_in_part_goes_on_where_the_reader_before_stopped():
    first = fresh()
    first.take(data(1), "one")
    first.take(data(2), "two")
    assert first.committed("s", 1, 2, 5) == ["one"]
    assert first.confirmed("s") == Position(1, 1, 0)
    assert first.positions() == {"s": Position(1, 2, 5)}
    second = fresh(first.positions())
    assert second.take(data(1), "one again").acknowledge == ["one again"]
    assert second.take(data(2), "two").frames == [Frame("s", 1, 2, 5, b"1.2")]
    assert seqs(second.take(data(3), "three")) == [3]
    assert second.committed("s", 1, 2, 0) == ["two"]
    assert second.positions() == {"s": Position(1, 2, 0)}


def test_a_newer_incarnation_ends_the_older_one():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    arrivals.take(data(3), "three")
    taken = arrivals.take(data(7, epoch=2, base=7), "next")
    assert [(frame.epoch, frame.seq) for frame in taken.frames] == [(1, 3), (2, 7)]
    assert arrivals.lost == 1
    assert arrivals.take(data(4), "late").acknowledge == ["late"]
    # The broker redelivers unacknowledged frames of any sender.
    assert arrivals.take(data(3), "three again").acknowledge == ["three"]
    assert arrivals.committed("s", 2, 7, 0) == ["one", "three again", "next"]


def test_a_probe_of_an_older_incarnation_changes_nothing():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    arrivals.take(data(1, epoch=2), "next")
    probed = arrivals.take(data(1, frame=b""), "probe")
    assert probed.frames == []
    assert probed.acknowledge == ["probe"]
    assert probed.resend is None
    assert not probed.confirm
    assert arrivals.committed("s", 1, 1, 0) == ["one"]


def test_frames_of_a_dead_sender_behind_a_gap_are_read_and_the_gap_counted():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    asked = arrivals.take(data(4), "four").resend
    arrivals.take(data(6), "six")
    assert seqs(arrivals.give_up(asked)) == [4, 6]
    assert arrivals.lost == 3
    assert arrivals.gaps() == []
    assert arrivals.committed("s", 1, 6, 0) == ["one", "four", "six"]


def test_giving_up_a_gap_that_was_filled_meanwhile_does_nothing():
    arrivals = fresh()
    arrivals.take(data(1), "one")
    asked = arrivals.take(data(3), "three").resend
    arrivals.take(data(2), "two")
    arrivals.take(data(6), "six")
    assert arrivals.give_up(asked).frames == []
    assert arrivals.give_up(Resend("nobody", 1, 1)).frames == []
    assert arrivals.lost == 0


def test_frames_dropped_by_the_sender_are_not_awaited():
    arrivals = fresh()
    assert seqs(arrivals.take(data(9, base=9), "nine")) == [9]
    arrivals.take(data(12, base=9), "twelve")
    taken = arrivals.take(data(14, base=12), "fourteen")
    assert seqs(taken) == [12]
    assert taken.resend == Resend("s", 1, 13)
    assert arrivals.lost == 0


def test_held_frames_are_bounded_in_bytes_and_tokens_over_all_senders():
    arrivals = fresh(hold_bytes=4 * (HELD_BYTES + 3), most_held=2)
    for sender in "ab":
        arrivals.take(data(1, sender=sender), "one")
    assert arrivals.take(data(3, sender="a"), "a3").acknowledge == []
    assert arrivals.take(data(3, sender="b"), "b3").acknowledge == []
    assert arrivals.take(data(4, sender="b"), "b4").acknowledge == ["b4"]
    assert arrivals.take(data(4, sender="a"), "a4").acknowledge == ["a4"]
    assert arrivals.take(data(5, sender="a"), "a5").acknowledge == ["a5"]
    assert arrivals.held == 4
    assert seqs(arrivals.take(data(2, sender="a"), "a2")) == [2, 3, 4]
    assert sorted(arrivals.gaps()) == [Resend("a", 1, 5), Resend("b", 1, 2)]
    assert arrivals.committed("a", 1, 4, 0) == ["one", "a2", "a3"]
    arrivals.give_up(Resend("a", 1, 5))
    assert arrivals.lost == 1


def test_the_sender_that_was_silent_longest_is_forgotten_unless_something_of_it_is_open():
    arrivals = fresh(most_senders=2)
    arrivals.take(data(1, sender="busy"), "token")
    for number in range(5):
        sender = f"s{number}"
        arrivals.take(data(1, sender=sender), "token")
        arrivals.committed(sender, 1, 1, 0)
    assert len(arrivals.positions()) == 1
    assert arrivals.take(data(1, sender="busy"), "again").acknowledge == ["token"]
    # One that comes back goes on where its window stands.
    assert seqs(arrivals.take(data(2, base=2, sender="s0"), "token")) == [2]
    assert arrivals.committed("nobody", 1, 1, 0) == []
    assert arrivals.confirmed("nobody") is None


def test_the_cursor_never_goes_back():
    arrivals = fresh({"s": Position(2, 5, 0)})
    arrivals.committed("s", 2, 5, 3)
    arrivals.committed("s", 1, 9, 0)
    assert arrivals.positions() == {"s": Position(2, 5, 0)}
