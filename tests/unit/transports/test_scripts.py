"""The short paths: send_one_frame and large_frames write the same as send."""

import random

import pytest
import redis

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.transports.connection.scripts import script_text

STATE = {"max_messages": 20, "max_bytes": 300, "messages": 0, "bytes": 0, "born": 5}


@pytest.fixture
def client(redis_config):
    with redis.Redis(host=redis_config.server, port=redis_config.port, password=redis_config.password) as client:
        yield client


class World:
    """One mailbox, written by one version of the script."""

    def __init__(self, client, exp_id, script):
        self.client, self.keys, self.sha = client, Keys(exp_id), client.script_load(script)
        self.large = client.script_load(script_text("large_frames", cluster=False))
        self.state, self.lease = self.keys.state("box"), self.keys.lease("box")
        client.hset(self.keys.meta, mapping={"directory": 3, "start:interceptor": 2, "start:standing": 77})
        client.hset(self.keys.sender("me"), mapping={"epoch": 9, "s:box": 1})
        client.hset(self.state, mapping=STATE)

    def send(self, epoch, version, interceptor, seq, rows, frame):
        keys = [self.keys.meta, self.keys.sender("me"), self.state, self.lease]
        head = [epoch, version, interceptor, self.keys.own, self.keys.prefix, 0]
        return self.client.evalsha(self.sha, len(keys), *keys, *head, "box", seq, rows, frame, -1, 0)

    def send_large(self, epoch, version, interceptor, seq, rows, frame):
        """Send by large_frames, and by the whole script where that writes nothing: it has the same reasons."""
        keys = [self.keys.meta, self.keys.sender("me"), self.state, self.lease]
        calls = [
            [epoch, version, interceptor, self.keys.own, self.keys.prefix, how, "box", seq, rows, len(frame), -1, 0]
            for how in ("open", "close")
        ]
        opens = self.client.exists(self.keys.stream("box:5"))
        with self.client.pipeline(transaction=True) as pipeline:
            pipeline.evalsha(self.large, len(keys), *keys, *calls[0])
            pipeline.execute_command("XADD", self.keys.open_stream("box"), "NOMKSTREAM", "*", "f", frame)
            pipeline.evalsha(self.large, len(keys), *keys, *calls[1])
            opened, entry, closed = pipeline.execute()
        assert (opened, closed) == (0 if entry else 1, 0)
        assert not self.client.exists(self.keys.open_stream("box"))
        if entry:
            return [0, 0, -1]
        reply = self.send(epoch, version, interceptor, seq, rows, frame)
        assert not opens or reply != [0, 0, -1]
        return reply

    def seen(self):
        state = self.client.hgetall(self.state)
        stream = self.keys.stream("box:5")
        frames = [fields for _, fields in self.client.xrange(stream)]
        last = state.pop(b"last", None)  # two streams have ids of their own
        assert last is None or last == self.client.xrevrange(stream, count=1)[0][0]
        return state, self.client.hgetall(self.keys.sender("me")), frames


def whole():
    return script_text("send", cluster=False)


def without_direct():
    direct = script_text("send_one_frame", cluster=False)
    shared = "\n".join(script_text(name, cluster=False) for name in ("mailbox_limit", "verdict_status", "plain_frame"))
    assert whole().startswith(f"{shared}\n{direct}")
    return shared + whole().removeprefix(f"{shared}\n{direct}")


def change(chance, world):
    """Change a mailbox as others may between two calls."""
    kind = chance.choice(["none"] * 6 + ["read", "logged", "let", "expired", "gone", "no standing", "no interceptor"])
    if kind == "read":
        world.client.hset(world.state, mapping={"messages": 0, "bytes": 0, "unlogged": 0, "unlogged_bytes": 0})
    elif kind == "logged":
        world.client.hset(world.state, mapping={"logged": 1, "unlogged": 7, "unlogged_bytes": 20})
    elif kind in {"let", "expired"}:
        world.client.hset(world.state, "leased", 1)
        (world.client.set if kind == "let" else world.client.delete)(world.lease, *(["me"] if kind == "let" else []))
    elif kind == "gone":
        world.client.delete(world.state)
    elif kind == "no standing":
        world.client.hdel(world.keys.meta, "start:standing")
    elif kind == "no interceptor":
        world.client.hdel(world.keys.meta, "start:interceptor")


@pytest.mark.parametrize("seed", range(40))
def test_all_ways_write_the_same(client, exp_id, seed):
    worlds = [World(client, f"{exp_id}-{n}", script) for n, script in enumerate((whole(), without_direct(), whole()))]
    ways = worlds[0].send, worlds[1].send, worlds[2].send_large
    chance, seq = random.Random(seed), 1
    for _ in range(30):
        fate = chance.getrandbits(64)
        for world in worlds:
            change(random.Random(fate), world)
        call = (
            chance.choice([9] * 9 + [8, 10]),
            chance.choice([3] * 9 + [2]),
            chance.choice([2, 77, 2, 77, 2, 77, -1, -2, 1, 76]),
            seq + chance.choice([1] * 8 + [0, 2]),
            chance.choice([1, 3, 30]),
            b"x" * chance.choice([1, 40, 400]),
        )
        replies = [send(*call) for send in ways]
        assert replies[0] == replies[1] == replies[2], call
        seen = [world.seen() for world in worlds]
        assert seen[0] == seen[1] == seen[2], call
        seq = int(seen[0][1].get(b"s:box", 0))
    client.delete(*(key for world in worlds for key in client.scan_iter(f"{world.keys.prefix}*")))


def test_large_frames_are_written_all_or_none(client, exp_id):
    keys, boxes = Keys(exp_id), ("one", "two", "three")
    client.hset(keys.meta, mapping={"directory": 3})
    client.hset(keys.sender("me"), mapping={"epoch": 9})
    for box in boxes:
        client.hset(keys.state(box), mapping=STATE)
        client.xadd(keys.stream(f"{box}:5"), {"f": "old"})
    names = [name for box in boxes for name in (keys.state(box), keys.lease(box))]

    def send(seq):
        fields = [field for box in boxes for field in (box, seq, 1, 100, -1, 0)]
        with client.pipeline(transaction=True) as pipeline:
            for how in ("open", "close"):
                asked = [9, 3, -1, keys.own, keys.prefix, how, *fields]
                all_keys = [keys.meta, keys.sender("me"), *names]
                pipeline.eval(script_text("large_frames", cluster=False), len(all_keys), *all_keys, *asked)
                for box in boxes if how == "open" else ():
                    pipeline.execute_command("XADD", keys.open_stream(box), "NOMKSTREAM", "*", "f", b"x" * 100)
            return pipeline.execute()

    opened, *entries, closed = send(1)
    assert (opened, closed) == (0, 0)
    assert all(entries)
    for box in boxes:  # room for two more in all but one
        client.hset(keys.state(box), "max_bytes", 350 if box != "three" else 150)
    assert send(2) == [1, None, None, None, 0]
    for box in boxes:
        assert client.xlen(keys.stream(f"{box}:5")) == 2
        assert client.hmget(keys.state(box), "messages", "bytes") == [b"1", b"100"]
    assert client.hgetall(keys.sender("me")) == {b"epoch": b"9", **{f"s:{box}".encode(): b"1" for box in boxes}}
    client.delete(*client.scan_iter(f"{keys.prefix}*"))
