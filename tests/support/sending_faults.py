"""Calls by which a messager sends: cut, held up, made twice, or answered as the test says."""

from contextlib import asynccontextmanager

from ray_messaging.errors import ConnectionFailed


def cut():
    """Return the error of a call whose connection was cut."""
    return ConnectionFailed("cut by the test", host="", port=0)


def instead(messager, call):
    """Have the next call that sends something be `call(real)`, where `await real()` makes it."""
    transport, real = messager.engine.transport, messager.engine.transport.send

    async def send(request):
        transport.send = real
        return await call(lambda: real(request))

    transport.send = send


async def break_send(messager, *, before):
    """Have the next call that sends something end without an answer: before it was made, or after."""

    async def send(real):
        if not before:
            await real()
        raise cut()

    await know_the_directory(messager)
    instead(messager, send)


async def know_the_directory(messager):
    """Let a messager know who listens now, so that the server does not refuse its next call."""
    await messager.engine.frame_sender.reload()


@asynccontextmanager
async def each_send_twice(messager):
    """Make each call that sends something twice, as after a cut connection."""
    await know_the_directory(messager)
    transport, real = messager.engine.transport, messager.engine.transport.send

    async def send(request):
        await real(request)
        reply = await real(request)
        reply.repeated = True
        return reply

    transport.send = send
    yield
    transport.send = real


@asynccontextmanager
async def without_epochs(messager):
    """Cut each call by which a messager would take a new epoch."""
    transport, real = messager.engine.transport, messager.engine.transport.take_sender_epoch

    async def away(*_args, **_options):
        raise cut()

    transport.take_sender_epoch = away
    yield
    transport.take_sender_epoch = real


async def take_epoch(messager):
    """Let a messager take a new epoch, as after a send without an answer."""
    await messager.engine.frame_sender.take_epoch()


def room_taken(messager):
    """Return how many messages and bytes wait in a messager to be sent."""
    room = messager.engine.accumulator.capacity
    return room.rows, room.nbytes
