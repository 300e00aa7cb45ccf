"""Frames of a lane come whole and in order, however the socket cuts them."""

from hypothesis import given
from hypothesis import strategies as st
from support.frame_peers import receive

from ray_messaging.interception.lane import FrameProtocol


class Peer(FrameProtocol):
    """The frames that have come; an empty one is refused."""

    def __init__(self):
        super().__init__(2**20)
        self.frames = []

    def frame_received(self, frame):
        self.frames.append(bytes(frame))
        if not frame:
            self.refuse("an empty frame")


def stream_of(frames):
    return b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.lists(st.integers(1, 400), max_size=12))
def test_frames_come_whole_and_in_order_whatever_the_pieces(frames, cuts):
    peer, stream = Peer(), stream_of(frames)
    for cut in (*cuts, len(stream)):
        receive(peer, stream[:cut])
        stream = stream[cut:]
    assert peer.frames == frames


def test_no_frame_is_handled_after_one_that_was_refused():
    peer = Peer()
    receive(peer, stream_of([b"first", b"", b"second"]))
    assert peer.frames == [b"first", b""]


def test_a_frame_above_the_limit_is_refused_before_it_is_read():
    peer = Peer()
    receive(peer, (2**20 + 1).to_bytes(4, "little") + b"x")
    receive(peer, stream_of([b"y"]))
    assert peer.frames == [b"y"]
