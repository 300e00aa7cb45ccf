"""What a server keeps of an experiment, asked and changed past the messagers that a test looks at."""

import asyncio

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.cli.doctor import examine_server
from ray_messaging.cluster.handles.dead_letters import DeadLetters
from ray_messaging.observability.health.mailbox_checks import check_kept
from ray_messaging.observability.health.redis_checks import check_server
from ray_messaging.transports.backend import backend_of
from ray_messaging.transports.connection.scripts import script_names, script_text
from ray_messaging.transports.dead_letter_store import RedisDeadLetters
from ray_messaging.transports.requeueing import Requeueing
from ray_messaging.transports.transport_values import Limits
from support.patience import WAIT_S


def keys_of(exp_id):
    """Return the names of an experiment's keys."""
    return Keys(exp_id)


def forget_owners(client, exp_id):
    """Let a server forget who has an experiment's rules and log."""
    fields = "interceptor", "standing", "kept", "log_epoch", "log"
    client.hdel(Keys(exp_id).meta, *(f"start:{field}" for field in fields))


def all_scripts(*, cluster):
    """Return the text of each script that the library runs on a server."""
    return [script_text(name, cluster=cluster) for name in script_names()]


async def remove_mailbox(messager, name):
    """Remove a mailbox, as any process may whose watch has seen its lease end."""
    await messager.engine.transport.remove(name, None)


def ask_when_cut(messager, question):
    """Let a messager ask, where its link is cut, whether the experiment has ended, as messagers of a group do."""
    messager.engine.transport.ask_when_cut(question)


async def see_a_lease_over(watcher):
    """Wait until a messager has seen some lease unchanged for its whole length."""
    seen, transport = asyncio.Event(), watcher.engine.transport
    end_leases = transport.end_leases

    async def end(over):
        await end_leases(over)
        seen.set()

    transport.end_leases = end
    async with asyncio.timeout(WAIT_S):
        await seen.wait()
    transport.end_leases = end_leases


async def entries_after(messager, mailbox, entry, timeout_s):
    """Wait for entries of a mailbox after one that is known, as its reader does; return them."""
    return await messager.engine.transport.read(mailbox, entry, 10, timeout_s)


async def waiting_in(messager, name):
    """Return how many messages of a mailbox are not acknowledged."""
    return (await messager.engine.transport.waiting())[name]


async def kept_in_mailboxes(config, exp_id):
    """Return what a server keeps of an experiment, by its mailboxes, as health asks for it."""
    return {mailbox.name: mailbox for mailbox in (await _asked(config, exp_id)).kept.mailboxes}


async def findings_of_mailboxes(config, exp_id):
    """Return the findings of health about an experiment's mailboxes and dead letters."""
    return check_kept((await _asked(config, exp_id)).kept)


async def findings_of_server(config):
    """Return the findings of health about a server."""
    return check_server(await _asked(config))


async def _asked(config, exp_id=None):
    facts = await asyncio.to_thread(backend_of(config).probe, exp_id)
    assert not facts.error
    return facts


async def closed_names(config, exp_id):
    """Return the named mailboxes of an experiment whose messagers are closed."""
    return await asyncio.to_thread(backend_of(config).closed_names, exp_id)


def examined(config):
    """Return the health of a server, as `ray-messaging doctor` asks for it."""
    return examine_server(config)


async def log_all(messager):
    """Register a log that nobody writes: from now on senders keep a copy of what needs a note."""
    return await messager.engine.transport.log.register(Limits(1_000_000, 2**28, 0.0, leased=False))


def dead_letters_of(config, exp_id):
    """Return the dead letters of an experiment, as `messaging.dead_letters` gives them."""
    return DeadLetters(config, exp_id)


class Letters(RedisDeadLetters):
    """The dead letters of an experiment, by the transport of a messager, or by one of its own."""

    def __init__(self, opened):
        super().__init__(opened.engine.transport if hasattr(opened, "engine") else opened)

    async def letters(self):
        return await self.page("", 1000)

    async def move(self, letter):
        """Requeue a letter."""
        return await Requeueing(self, self._transport.exp_id).requeue(letter)

    async def move_all(self):
        """Requeue all letters, as one call does."""
        requeueing = Requeueing(self, self._transport.exp_id)
        return [await requeueing.requeue(letter) for letter in await self.letters()]
