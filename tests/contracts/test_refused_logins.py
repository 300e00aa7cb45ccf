"""A server that refuses us for a while, by a login or a right: calls raise it meanwhile, and go on afterwards."""

import asyncio
from contextlib import suppress

import pytest
from support.contracts import client_of, fetch_all, numbers, send_numbers, until
from support.receivers import tasks_that_fail
from support.step_society import LoggedGroups

from ray_messaging import MessagingError
from ray_messaging.errors import ServerRefused

pytestmark = pytest.mark.one_server("it changes the users of a server of its own")

# What is taken from the user, and how the user gets it back.
REFUSALS = {
    "login": (["off"], ["on"]),
    "right": (["-xread"], ["+xread"]),
    "keys": (["resetkeys"], ["~*"]),
}


class User:
    """A user of a server, from whom something is taken."""

    def __init__(self, config, client):
        self.config, self.client = config, client

    async def change(self, rights):
        await self.client.execute_command("ACL", "SETUSER", "agent", *rights)
        await self.client.execute_command("CLIENT", "KILL", "USER", "agent")


@pytest.fixture
async def user(redis_process):
    client = client_of(redis_process.config)
    await client.execute_command("ACL", "SETUSER", "agent", "reset", "on", ">secret", "~*", "&*", "+@all")
    yield User(redis_process.config.model_copy(update={"username": "agent", "password": "secret"}), client)
    await client.aclose()


@pytest.fixture
async def society(user, exp_id, tmp_path):
    """Give the log of the experiment a folder, and a writer that is this user."""
    async with LoggedGroups(user.config, exp_id, tmp_path) as found:
        yield found


async def refused(fetch):
    """Fetch until that is refused, which may take until the reader has noticed."""

    async def raised():
        try:
            await fetch()
        except ServerRefused:
            return True
        return False

    await until(raised)


@pytest.mark.parametrize("what", REFUSALS)
async def test_a_reader_goes_on_after_a_refusal_and_says_it_meanwhile(user, opener, what):
    taken, given = REFUSALS[what]
    sender, receiver = await opener(user.config), await opener(user.config, name="group", host=[1], listen=["news"])
    await send_numbers(sender, 1)
    assert numbers(await fetch_all(receiver, 1)) == [1]
    waiting = asyncio.create_task(receiver.fetch_messages(timeout=None))
    await user.change(taken)
    with pytest.raises(ServerRefused, match="refused this client"):
        await waiting
    await refused(lambda: receiver.fetch_messages(timeout=0.1))
    await until(lambda: "reader" in tasks_that_fail(receiver))
    await user.change(given)

    async def sent():
        with suppress(ServerRefused):
            await send_numbers(sender, 2)
            return True
        return False

    await until(sent)
    found = []

    async def came():
        with suppress(ServerRefused):
            found.extend(numbers(await receiver.fetch_messages(timeout=0.1)))
        return found

    await until(came)
    assert found == [2]
    await until(lambda: not tasks_that_fail(receiver))
    await until(lambda: user.client.publish("news", b'{"n":3}'))
    assert numbers(await fetch_all(receiver, 1)) == [3]


async def test_an_iteration_and_answers_go_on_after_a_refusal(user, opener):
    asker, answering = await opener(user.config), await opener(user.config, name="group", host=[1])

    async def answer(message):
        return {"n": message.payload["n"]}

    async def serve():
        while True:
            with suppress(ServerRefused):
                await answering.serve(answer)
            await asyncio.sleep(0)

    serving = asyncio.create_task(serve())
    assert (await asker.ask(None, 1, {"n": 1})).payload == {"n": 1}
    await user.change(["off"])
    with pytest.raises(MessagingError, match="refused this client"):
        await asker.ask(None, 1, {"n": 2})
    await user.change(["on"])

    async def answered():
        with suppress(MessagingError):
            return (await asker.ask(None, 1, {"n": 3})).payload == {"n": 3}

    await until(answered)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.long  # a read of the log that found nothing ends after five seconds
async def test_the_event_log_goes_on_after_a_refusal_and_says_it_meanwhile(user, society, opener):
    writer = await society.writer()
    sender, _ = await opener(user.config), await opener(user.config, name="group", host=[1])
    await send_numbers(sender, 1)
    await until(lambda: writer.stats()["rows"] == 1)
    await user.change(["off"])
    await until(lambda: "refused this client" in (writer.stats()["error"] or ""))
    await user.change(["on"])
    await until(lambda: writer.stats()["error"] is None)
    await send_numbers(sender, 2)
    await until(lambda: writer.stats()["rows"] == 2)
    await writer.close()
