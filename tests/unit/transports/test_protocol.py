"""Commands in pieces: the same bytes as hiredis writes, without copies of large arguments."""

import uuid

import hiredis
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.messager import Messager
from ray_messaging.transports.connection import protocol as wire
from ray_messaging.transports.connection.protocol import pieces_of

LARGE = b"\r\n$" * 30_000
ARGUMENTS = st.one_of(st.binary(max_size=20), st.text(max_size=20), st.integers(), st.just(LARGE))


@given(st.lists(ARGUMENTS, min_size=1, max_size=8))
def test_the_pieces_are_the_command(args):
    pieces = pieces_of(args)
    assert b"".join(pieces) == hiredis.pack_command(tuple(args))
    assert [id(piece) for piece in pieces if len(piece) > 1000] == [id(arg) for arg in args if arg is LARGE]


def test_small_commands_are_one_piece():
    assert len(pieces_of([b"EVALSHA", "sha", 2, b"x" * 300])) == 1


async def test_a_large_frame_goes_as_it_is(valkey_config, monkeypatch):
    written = []
    monkeypatch.setattr(wire, "pieces_of", lambda args: written.append(found := pieces_of(args)) or found)
    async with Messager(valkey_config, f"pieces-{uuid.uuid4().hex[:8]}") as messager:
        await messager.host_agents([1], ["agent-chat"])
        assert await messager.send_message(messager.get_agent_chat_channel(1), {})  # the directory is known from now on
        receipts = await messager.send_columns(None, [1] * 1000, [{"t": "x" * 100}] * 1000)
        assert receipts.sent.all()
    assert [len(pieces) for pieces in written if sum(map(len, pieces)) > 100_000] == [3]
