"""Limits of the machine: the codec alone, the store alone, Ray's round trip, loopback."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import ray
import redis

from benchmarks.axes.bounds.samples import FRAME_ROWS, batch_of
from benchmarks.axes.cost.processes import client
from benchmarks.axes.society.society import cluster
from benchmarks.figures import LIMIT, Figure, Plan, percentiles
from benchmarks.work import payload
from ray_messaging import RedisConfig
from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.transports.transport import RedisTransport
from ray_messaging.transports.transport_values import FrameWrite, Limits, SendRequest, SendStatus
from ray_messaging.wire.frames import decode, encode

FRAMES = 64  # a burst: the server is emptied after each
PIPELINED = 16
CALLS, CALL_MESSAGES = 200, 1_000
ECHOES = 2_000
CHUNK = 2**20


def measure(plan: Plan) -> Iterator[Figure]:
    """Measure each limit."""
    yield from _codec(plan)
    frame = encode(batch_of(FRAME_ROWS))
    with EmbeddedServer("127.0.0.1") as server:
        yield from _store(plan, server.start(), frame)
    yield from _loopback(plan)
    with cluster():
        yield from _ray(plan)


def _figure(case: str, who: str, unit: str, values: list[float], note: str = "") -> Figure:
    return Figure("limits", case, f"{LIMIT}{who}", unit, values, note=note)


def _best(plan: Plan, call: Callable[[], int]) -> list[float]:
    """Return how many messages a second a call does, in every repetition; it returns how many it did."""
    found = []
    for _ in range(plan.repeats):
        begun, done = time.perf_counter(), 0
        while time.perf_counter() < begun + plan.seconds / 4:
            done += call()
        found.append(done / (time.perf_counter() - begun))
    return found


# -- the codec ----------------------------------------------------------------------------------------------------


def _codec(plan: Plan) -> Iterator[Figure]:
    batch, payloads = batch_of(FRAME_ROWS), [payload(number) for number in range(FRAME_ROWS)]
    encoded, to_json = encode(batch), msgspec.json.Encoder().encode

    def there_and_back() -> int:
        return len(decode(encode(batch)))

    def only_decode() -> int:
        return len(decode(encoded))

    def texts() -> int:
        return len([to_json(each) for each in payloads])

    note = f"frames of {FRAME_ROWS:,} messages whose JSON is there; one core"
    yield _figure("frame, encode and decode", "codec", "messages/s", _best(plan, there_and_back), note)
    yield _figure("frame, decode", "codec", "messages/s", _best(plan, only_decode), note)
    yield _figure("JSON of payloads", "msgspec", "messages/s", _best(plan, texts), "one core")


# -- the store ----------------------------------------------------------------------------------------------------


def _store(plan: Plan, config: RedisConfig, frame: bytes) -> Iterator[Figure]:
    note = f"frames of {FRAME_ROWS:,} messages, {len(frame):,} bytes, one connection"
    with client(config) as plain:
        yield _figure("store", "XADD, pipelined", "messages/s", _best(plan, lambda: _xadd(plain, frame)), note)
        yield _figure("store", "our script", "messages/s", asyncio.run(_scripts(plan, config, plain, frame)), note)


def _xadd(plain: redis.Redis, frame: bytes) -> int:
    for _ in range(FRAMES // PIPELINED):
        pipeline = plain.pipeline(transaction=False)
        for _ in range(PIPELINED):
            pipeline.xadd("limit", {"f": frame})
        pipeline.execute()
    plain.unlink("limit")
    return FRAMES * FRAME_ROWS


async def _scripts(plan: Plan, config: RedisConfig, plain: redis.Redis, frame: bytes) -> list[float]:
    """Write frames by the script that senders use; return messages per second."""
    transport = RedisTransport(config, "limits", patience_s=5.0)
    await transport.connect()
    try:
        limits, seq, found = Limits(2**40, 2**40, 30.0, leased=False), 0, []
        state = await transport.take_sender_epoch("writer", keep_s=60.0)
        version = (await transport.load_directory(-1)).version
        listening = await transport.listen(MailboxRecord("box", [], ["box"], []), version, limits, owner="", epoch=None)
        assert listening is not None
        for _ in range(plan.repeats):
            began, frames, spent = time.perf_counter(), 0, 0.0
            while time.perf_counter() < began + plan.seconds / 4:
                burst = time.perf_counter()
                for _ in range(FRAMES):
                    seq += 1
                    shipment = FrameWrite("box", seq, FRAME_ROWS, frame)
                    reply = await transport.send(SendRequest("writer", state.epoch, listening.version, -2, [shipment]))
                    if reply.status is not SendStatus.OK or set(reply.fates) != {0}:
                        raise RuntimeError(f"the script answered {reply}")
                spent += time.perf_counter() - burst
                frames += FRAMES
                _empty(plain)
            found.append(frames * FRAME_ROWS / spent)
        return found
    finally:
        await transport.close()


def _empty(plain: redis.Redis) -> None:
    """Empty the experiment's streams, which nothing reads."""
    for key in plain.scan_iter(_type="stream"):
        plain.xtrim(key, maxlen=0, approximate=False)


# -- loopback -----------------------------------------------------------------------------------------------------


def _loopback(plan: Plan) -> Iterator[Figure]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        echo = threading.Thread(target=_echo, args=(listener,))
        echo.start()
        with socket.create_connection(listener.getsockname()) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found = [percentiles([_echoed(line) for _ in range(ECHOES)], 50, 99) for _ in range(plan.repeats)]
        echo.join()
        p50, p99 = zip(*found, strict=True)
        yield _figure("round trip of a byte, p50", "loopback", "ms", list(p50), "two threads of one process, blocking")
        yield _figure("round trip of a byte, p99", "loopback", "ms", list(p99))
        volumes = [_volume(listener, plan.seconds / 4) for _ in range(plan.repeats)]
        yield _figure("volume", "loopback", "MB/s", volumes, "one connection, two threads of one process")


def _echo(listener: socket.socket) -> None:
    with listener.accept()[0] as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while byte := line.recv(1):
            line.sendall(byte)


def _echoed(line: socket.socket) -> float:
    begun = time.perf_counter()
    line.sendall(b"x")
    line.recv(1)
    return 1000 * (time.perf_counter() - begun)


def _volume(listener: socket.socket, seconds: float) -> float:
    """Send for some time; return MB/s until the last byte was read."""

    def drain() -> None:
        buffer = bytearray(CHUNK)
        with listener.accept()[0] as line:
            while line.recv_into(buffer):
                pass

    reader = threading.Thread(target=drain)
    reader.start()
    begun, sent, data = time.perf_counter(), 0, bytes(CHUNK)
    with socket.create_connection(listener.getsockname()) as line:
        while time.perf_counter() < begun + seconds:
            line.sendall(data)
            sent += CHUNK
    reader.join()
    return sent / 1e6 / (time.perf_counter() - begun)


# -- Ray ----------------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0)
class Taker:
    """An actor that takes its arguments and does nothing."""

    async def take(self, messages: Any) -> int:
        """Say how many came."""
        return len(messages)


@ray.remote(num_cpus=0)
class Caller:
    """Call another actor and await each answer."""

    async def ask(self, taker: Any, calls: int, messages: list[dict[str, Any]]) -> list[float]:
        """Return how long each call took, in ms."""
        found = []
        for _ in range(calls):
            begun = time.perf_counter()
            await taker.take.remote(messages)
            found.append(1000 * (time.perf_counter() - begun))
        return found


def _ray(plan: Plan) -> Iterator[Figure]:
    taker, caller = Taker.remote(), Caller.remote()
    one, many = [payload(0)], [payload(number) for number in range(CALL_MESSAGES)]
    ray.get(caller.ask.remote(taker, 20, one))
    ones = [percentiles(ray.get(caller.ask.remote(taker, CALLS, one)), 50, 99) for _ in range(plan.repeats)]
    p50, p99 = zip(*ones, strict=True)
    yield _figure("round trip of an awaited call, p50", "Ray call", "ms", list(p50))
    yield _figure("round trip of an awaited call, p99", "Ray call", "ms", list(p99))
    took = [sum(ray.get(caller.ask.remote(taker, CALLS, many))) / 1000 for _ in range(plan.repeats)]
    rates = [CALLS * CALL_MESSAGES / seconds for seconds in took]
    note = f"lists of {CALL_MESSAGES:,} dicts, each call awaited"
    yield _figure("batches by awaited calls", "Ray call", "messages/s", rates, note)
