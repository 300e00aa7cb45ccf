"""Foreign data in a mailbox: they go to the dead letters, and the reader goes on."""

from functools import partial

import msgspec
from support.frames import sealed

from faults.case import Case, weaker
from faults.stage import Stage, until
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.default_limits_and_leases import FRAME_LIMIT
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.wire.frames import VERSION, encode


def valid(n=0):
    """Encode a frame that is one."""
    batch = Batch(
        sender="hand",
        epoch=1,
        first=n,
        from_ids=IdColumn.of([1]),
        rows=1,
        to_ids=IdColumn.of([0]),
        topics=("agent-chat",),
        lines=PayloadColumn.of([b'{"hand":1}'], raw=True),
    )
    return encode(batch)


def only_header(body):
    return sealed(body, len(body))


def malformed():
    """Return malformed frames, by their error."""
    whole = valid()
    header = ["hand", 1, 0, 2**40, 0, 0, ["agent-chat"], [], [], None, 0.0]
    return {
        "empty": b"",
        "text": b"hello",
        "truncated prefix": whole[:5],
        "truncated": whole[:-3],
        "flipped bit": whole[:-1] + bytes([whole[-1] ^ 1]),
        "another version": sealed(whole[12:], len(whole) - 12, VERSION + 1),
        "header longer than itself": sealed(b"x", 2**31),
        "header of something else": only_header(msgspec.msgpack.encode({"a": 1})),
        "2**40 rows": only_header(msgspec.msgpack.encode(header)),
        "nested deeply": only_header(b"\x91" * 100_000),
        "pickle": b"\x80\x05cposix\nsystem\n(S'false'\ntR.",
    }


def by_hand(folder, *, rounds, oversized):
    """Write malformed frames between a sender's, by hand."""
    frames = malformed()
    if oversized:
        frames["oversized"] = bytes(FRAME_LIMIT + 1)
    with Stage(folder, appendfsync="everysec") as stage, stage.server.client(socket_timeout=60) as client:
        _, [receiver] = stage.talk()
        keys = Keys(stage.exp_id)
        born = client.hget(keys.state("group-0"), "born").decode()
        for _ in range(rounds):
            for frame in frames.values():
                client.xadd(keys.stream(f"group-0:{born}"), {"f": frame})
            client.xadd(keys.stream(f"group-0:{born}"), {"unknown": "field", "another": "one"})
            stage.more_received(50)
        wanted = rounds * (len(frames) + 1)
        until(lambda: receiver.logged("becomes a dead letter") >= wanted, "all of them are dead letters")
        letters = client.xrange(keys.dead, count=wanted)  # the oldest are dropped where they are too large
        stage.facts |= {"dead_letters": wanted, "reasons": len({fields[b"reason"] for _, fields in letters})}
        stage.memory(receiver=receiver.pid, server=stage.server.pid)
        account = stage.finish()
        assert account.facts["unreadable"] == wanted, account
        return account


def another_version(folder):
    """Let a real sender's frames be of a version that the receiver cannot read; the mailbox must not stay full."""
    with Stage(folder, appendfsync="everysec") as stage, stage.server.client() as client:
        limits = {"mailbox_messages": 2000, "send_timeout_s": 0.5}
        stage.receiver([0], settings=limits)
        options = {"per_call": 200, "rate": 50, "calls": 20, "settings": limits}
        alien = stage.sender([7], [0], version=VERSION + 1, **options)
        alien.end(stop=False)  # twice what the mailbox holds
        calls, dead = stage.sent() // 200, Keys(stage.exp_id).dead
        until(lambda: client.xlen(dead) == calls, "all of them are dead letters")
        stage.ledgers.clear()  # these were taken, and nobody can read them
        stage.sender([1001], [0], rate=100, settings=limits)
        stage.more_received(500)
        stage.facts["dead_letters"] = client.xlen(dead)
        account = stage.finish()
        assert calls == alien.options["calls"], "the mailbox stayed full of what was read and buried"
        return account


DEAD = weaker("what is no frame becomes a dead letter with a reason; ours as ever")
CASES = [
    Case("malformed frames by hand", partial(by_hand, rounds=2, oversized=False), DEAD, quick=True),
    Case("malformed and oversized frames", partial(by_hand, rounds=1, oversized=True), DEAD),
    Case("frames of another version", another_version, DEAD),
]
