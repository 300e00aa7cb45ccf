"""Epochs of logs and interceptors on the server: they rise, and none is given twice."""

import pytest
from support.server_side import forget_owners

from ray_messaging.errors import Fenced
from ray_messaging.transports.log_store import LogMark
from ray_messaging.transports.transport import RedisTransport
from ray_messaging.transports.transport_values import Limits, new_epoch, successor_of

LIMITS = Limits(1000, 2**20, 60.0, leased=False)


@pytest.fixture(params=["all", "the interceptor"])
def forget(request, clocked_server, server_clock, exp_id):
    """Return a function by which the server forgets an experiment, or who owns its parts, and sets its clock back."""

    def forget():
        with clocked_server.client() as client:
            if request.param == "all":
                client.flushall()
            else:
                forget_owners(client, exp_id)
            server_clock.step(client, -60)

    return forget


async def test_a_server_that_forgot_a_log_writer_rejects_its_calls(clocked_server, exp_id, forget):
    transport = RedisTransport(clocked_server.config, exp_id, patience_s=5)
    await transport.connect()
    try:
        old = await transport.log.register(LIMITS)
        await transport.log.note_written(old, {}, [])
        forget()
        new = await transport.log.register(LIMITS)
        assert new != old
        for call in (
            transport.log.note_written(old, {}, []),
            transport.log.note_resumed(old, {}),
            transport.log.note_written(old, {":log:0": LogMark("1-1", 1, 1)}, []),
            transport.log.unregister(old),
        ):
            with pytest.raises(Fenced):
                await call
        await transport.log.note_written(new, {}, [])
    finally:
        await transport.close()


@pytest.mark.parametrize(
    ("script", "field"),
    [("advance_interceptor_epoch", "start:interceptor"), ("open_log", "start:log_epoch")],
    ids=["interceptor", "log"],
)
async def test_a_late_attempt_does_not_take_the_successors_epoch(valkey_config, exp_id, script, field):
    transport = RedisTransport(valkey_config, exp_id, patience_s=5)
    meta = transport.keys.meta
    keys = [meta] if field == "start:interceptor" else [meta, transport.keys.changes, transport.keys.state(":log")]
    args = [] if field == "start:interceptor" else [1, 1, transport.keys.prefix]
    try:
        before, first = await transport.log.take_epoch(script, field, keys, args)
        assert before == b""
        again = [*args, "", before, first]
        assert await transport.link.script(script, keys, again) == 1  # an answer may be lost
        before, second = await transport.log.take_epoch(script, field, keys, args)
        assert before == b"%d" % first
        assert second > first
        assert await transport.link.script(script, keys, again) == 0
        assert await transport.link.command("HGET", meta, field) == b"%d" % second
        transport.log.run = "another"
        with pytest.raises(Fenced, match="started anew"):
            await transport.log.take_epoch(script, field, keys, args)
    finally:
        await transport.close()


def test_epochs_rise_and_never_repeat(monkeypatch):
    first = new_epoch()
    assert 2**60 < first < 2**62
    monkeypatch.setattr("ray_messaging.transports.transport_values.time.time_ns", lambda: 10**18)  # long ago
    later = [successor_of(b"%d" % first) for _ in range(100)]
    assert min(later) > first
    assert len(set(later)) > 90
    assert new_epoch() < first


@pytest.mark.parametrize("kept", [None, b"", b"5", b"-7", b"x" * 40, b"9" * 19, b"1e300", "²".encode()])
def test_a_damaged_epoch_on_the_server_does_no_harm(kept):
    assert 2**60 < successor_of(kept) < 2**62
