"""Helpers of the contract tests: foreign clients, access to the store, and functions that wait."""

import asyncio
from contextlib import asynccontextmanager
from inspect import isawaitable

import pytest
import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ray_messaging import Messager, Messages, MessagingConfig, Outgoing
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.config import ShardsConfig
from ray_messaging.messages import slice_of
from ray_messaging.model.columns import IdColumn
from ray_messaging.transports.transport_values import FrameFate, FrameWrite, LoggedFrame, SendRequest, SendStatus
from support.patience import WAIT_S
from support.replicated import primary_of
from support.slots import owner_of

LETTER_BYTES = 256  # what a dead letter counts beside its frame


async def fetch_all(messager, count, **options):
    """Fetch until `count` messages have come."""
    found = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await messager.fetch_messages(timeout=WAIT_S, **options)
    return found


async def fetch_batch(messager, count):
    """Fetch until `count` messages have come; return them as one batch."""
    found = Messages(messager.exp_id, [])
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found.slices += (await messager.fetch_messages(timeout=WAIT_S)).slices
    return found


def numbers(messages):
    """Return the `n` of each message."""
    return [message.payload["n"] for message in messages]


async def send_numbers(sender, *ns, to=1, **more):
    """Send numbers to an agent, in one frame."""
    receipts = await sender.send_messages([Outgoing.to_agent(to, {"n": n, **more}, from_id=0) for n in ns])
    assert receipts.counts()["delivered"] == len(ns)
    return receipts


async def take_in(messager, count):
    """Wait until `count` messages are in the inbox, without fetching."""
    async with asyncio.timeout(WAIT_S):
        while messager.stats()["inbox"] < count:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)


def held_rows(messager, mailbox):
    """Return how many rows a messager holds back for a mailbox that is full."""
    queues = messager.engine.frame_sender.queues
    return sum(frame.rows for frame in queues[mailbox].frames) if mailbox in queues else 0


async def until(condition):
    """Wait until a condition holds, which may be async."""
    async with asyncio.timeout(WAIT_S):
        while not (await found if isawaitable(found := condition()) else found):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)


async def refused(config, exp_id, kind, **settings):
    """Return the error of a messager that cannot be opened."""
    with pytest.raises(kind) as caught:
        async with Messager(config, exp_id, settings=MessagingConfig(**settings)):
            pass
    return caught.value


def as_asked_of(question, agent):
    """Return a question as if another agent had been asked, which then answers in place of the first one."""
    slice_of(question).batch.to_ids = IdColumn.of([agent])
    return question


async def ended(task):
    """Cancel a task, and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def full_memory(client):
    """Leave a server without memory for a write, within the block."""
    limit = (await client.config_get("maxmemory"))["maxmemory"]
    await client.config_set("maxmemory", "1mb")
    try:
        yield
    finally:
        await client.config_set("maxmemory", limit)


async def scripts_run(client):
    """Return how many scripts a server has run."""
    stats = await client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name in {"cmdstat_eval", "cmdstat_evalsha"})


async def vanish(messager):
    """Let a messager disappear as a killed process does: no goodbye, no renewal."""
    await messager.engine.accumulator.stop(RuntimeError("vanished"))
    subscription = messager.engine.subscription
    subscription._renewing.cancel()
    await asyncio.gather(subscription._renewing, return_exceptions=True)
    if subscription._reader is not None:
        await subscription._reader.close()
        if subscription._commits._background is not None:
            subscription._commits._background.cancel()
            await asyncio.gather(subscription._commits._background, return_exceptions=True)
    await messager.engine.transport.close()
    messager.engine.closed = True


async def kill_platform(channel):
    """Let a platform of OASIS' disappear as a killed process does, once it has actions in hand."""
    await until(lambda: channel._in_hand)
    await vanish(channel._server)
    channel._server = None


class RedisStore:
    """Look into a Redis server, and be a foreign client of it."""

    def __init__(self, config, exp_id):
        self.keys = Keys(exp_id)
        self.client = client_of(config, self.keys)
        self.listeners = []

    async def publish(self, channel, data):
        return await self.client.publish(channel, data)

    async def heard_by(self, count, channel, data=b"{}"):
        """Publish until so many subscriptions hear it."""
        async with asyncio.timeout(WAIT_S):
            while await self.publish(channel, data) != count:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)

    async def subscribe(self, *channels, globs=()):
        listener = self.client.pubsub(ignore_subscribe_messages=False)
        self.listeners.append(listener)
        if channels:
            await listener.subscribe(*channels)
        if globs:
            await listener.psubscribe(*globs)
        for _ in [*channels, *globs]:
            assert "subscribe" in (await listener.get_message(timeout=WAIT_S))["type"]

        async def get():
            message = await listener.get_message(timeout=WAIT_S)
            assert message is not None, "nothing was published"
            return message["channel"].decode(), message["data"]

        return get

    async def stream(self, mailbox):
        born = await self.client.hget(self.keys.state(mailbox), "born")
        return self.keys.stream(f"{mailbox}:{(born or b'none').decode()}")

    async def write(self, mailbox, frame):
        await self.client.xadd(await self.stream(mailbox), {"f": frame})

    async def dead(self):
        entries = await self.client.xrange(self.keys.dead)
        return [(fields[b"mailbox"].decode(), fields[b"reason"].decode(), fields[b"f"]) for _, fields in entries]

    async def expire(self, mailbox):
        await self.client.delete(self.keys.lease(mailbox))

    async def set_interceptor(self, epoch):
        await self.client.hset(self.keys.meta, "start:interceptor", epoch)

    async def waiting(self, mailbox):
        return int(await self.client.hget(self.keys.state(mailbox), "messages"))

    async def entries(self, mailbox):
        return [fields[b"f"] for _, fields in await self.client.xrange(await self.stream(mailbox))]

    async def mailboxes(self):
        return {name.decode() for name in await self.client.hkeys(self.keys.records)}

    async def senders(self):
        prefix = self.keys.sender("")
        names = [key.decode().removeprefix(prefix) async for key in self.client.scan_iter(prefix + "*", count=1000)]
        fields = [await self.client.hkeys(self.keys.sender(name)) for name in names]
        written = [{field[2:].decode() for field in each if field.startswith(b"s:")} for each in fields]
        return dict(zip(names, written, strict=True))

    async def close(self):
        for listener in self.listeners:
            await listener.aclose()
        await self.client.aclose()


class Post:
    """A sender's bare transport calls, with numbers per mailbox."""

    def __init__(self, transport, name="sender"):
        self.transport = transport
        self.name = name
        self.seqs = {}

    async def begin(self):
        self.epoch = (await self.transport.take_sender_epoch(self.name, keep_s=60)).epoch
        return self

    async def request(self, *frame_writes):
        version = (await self.transport.load_directory(-1)).version
        return SendRequest(self.name, self.epoch, version, -1, frame_writes)

    def part(self, mailbox, frame=b"", rows=1, note=None, publish=(), noted_rows=1):
        self.seqs[mailbox] = self.seqs.get(mailbox, 0) + 1
        noted = None if note is None else LoggedFrame(b"of " + note, note, noted_rows)
        return FrameWrite(mailbox, self.seqs[mailbox], rows, frame, publish, noted)

    async def ask(self, *frame_writes):
        reply = await self.transport.send(await self.request(*frame_writes))
        assert reply.status is SendStatus.OK
        return reply.fates

    async def write(self, mailbox, frame=b"", rows=1):
        """Send a frame that must be written."""
        assert await self.send(mailbox, frame, rows) is FrameFate.WRITTEN

    async def send(self, mailbox, frame=b"", rows=1, **options):
        [fate] = await self.ask(self.part(mailbox, frame, rows, **options))
        if fate is not FrameFate.WRITTEN:
            self.seqs[mailbox] -= 1
        return fate


async def sender_of(messager, name):
    """Begin a sender that writes bare frames by a messager's connection, as one of a newer version may."""
    return await Post(messager.engine.transport, name).begin()


def client_of(config, keys=None):
    """Return a client of a server: of the primary, in a cluster of the node with the keys."""
    if isinstance(config, ShardsConfig):
        config = config.servers[0]
    host, port = config.server, config.port
    if config.cluster:
        host, port = owner_of(config, keys)
    elif config.sentinels:
        host, port = primary_of(config)
    return aioredis.Redis(
        host=host,
        port=port,
        password=config.password,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=2 * WAIT_S,
    )
