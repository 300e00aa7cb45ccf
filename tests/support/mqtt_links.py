"""Helpers of the MQTT tests: links, a relay that cuts connections, and a broker with chosen answers."""

import asyncio
import contextlib

from ray_messaging.mqtt.connection.link import MqttLink
from ray_messaging.mqtt.connection.packets import SessionOptions
from support.patience import WAIT_S

CONNACK = b"\x20\x03\x00\x00\x00"
CONNECT, PUBLISH, SUBSCRIBE, PINGREQ, DISCONNECT = 0x10, 0x30, 0x80, 0xC0, 0xE0
TAKEN_OVER = b"\xe0\x01\x8e"


class Watched:
    """A link, with its reports."""

    def __init__(self, config, client_id, *, acknowledge=True, on_connected=None, **options):
        self.arrivals = []
        self.sessions = []
        self.lost = []
        self.acknowledge = acknowledge
        self.then = on_connected
        self.link = MqttLink(config, SessionOptions(client_id, **options), self)
        self.on_lost = self.lost.append

    def on_arrival(self, arrival):
        self.arrivals.append(arrival)
        if self.acknowledge:
            arrival.acknowledge()

    async def on_connected(self, *, session_present):
        self.sessions.append(session_present)
        if self.then is not None:
            await self.then(self.link)

    @property
    def payloads(self):
        return [arrival.payload for arrival in self.arrivals]


async def until(condition):
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.002)


async def listener(open_link, config, topic, **options):
    """Connect a link that has subscribed to a topic, once."""
    watched = await open_link(config, **options)
    await watched.link.subscribe([topic])
    return watched


class Relay:
    """A relay between a link and its broker; `cut` ends its connections abruptly."""

    def __init__(self, target):
        self.target = target
        self.writers = set()
        self.tasks = set()

    async def start(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.config = self.target.model_copy(update={"port": self.server.sockets[0].getsockname()[1]})
        return self

    async def accept(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        far_reader, far_writer = await asyncio.open_connection(self.target.server, self.target.port)
        self.writers |= {writer, far_writer}
        await asyncio.gather(self.pump(reader, far_writer), self.pump(far_reader, writer))
        writer.transport.abort()
        far_writer.transport.abort()

    async def pump(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self):
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def stop(self):
        self.cut()
        self.server.close()
        await asyncio.gather(*self.tasks)


class FakeBroker:
    """A broker that answers each CONNECT by the next of `answers` (the last stays), and keeps all packets."""

    def __init__(self, target, *answers):
        self.target = target
        self.answers = list(answers)
        self.packets = []  # the type of each packet that came
        self.writers = []
        self.tasks = set()

    async def start(self):
        self.server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.config = self.target.model_copy(update={"port": self.server.sockets[0].getsockname()[1]})
        return self

    async def accept(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                kind = (await reader.readexactly(1))[0] & 0xF0
                await self.skip(reader)
                self.packets.append(kind)
                if kind == CONNECT:
                    answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                    if answer is None:
                        break
                    writer.write(answer)
        writer.transport.abort()

    async def skip(self, reader):
        length = shift = 0
        while True:
            byte = (await reader.readexactly(1))[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        await reader.readexactly(length)

    def say(self, data):
        self.writers[-1].write(data)

    async def stop(self):
        for writer in self.writers:
            writer.transport.abort()
        self.server.close()
        await asyncio.gather(*self.tasks)
