"""Commands in pieces: what the server reads is what hiredis would have written, and large arguments are not copied."""

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.transports.redis.wire import pieces_of

LARGE = b"\r\n$" * 10_000
ARGUMENTS = st.one_of(st.binary(max_size=20), st.text(max_size=20), st.integers(), st.just(LARGE))


@given(st.lists(ARGUMENTS, min_size=1, max_size=8))
def test_the_pieces_are_the_command(args):
    pieces = pieces_of(args)
    assert b"".join(pieces) == hiredis.pack_command(tuple(args))
    assert [id(piece) for piece in pieces if len(piece) > 1000] == [id(arg) for arg in args if arg is LARGE]


def test_what_is_small_goes_in_one_piece():
    assert len(pieces_of([b"EVALSHA", "sha", 2, b"x" * 300])) == 1
