"""Senders and receivers as processes of their own, which `faults.stage` starts.

They report events ({"event": ...}) by a pipe, obey the orders that come by it, and end when it closes, so that none
outlives its test.
"""

import asyncio
import logging
import os
import random
import threading
from contextlib import suppress
from multiprocessing.connection import Connection

from faults.ledger import Inbox, Ledger, fates_after
from faults.moving import Moving
from ray_messaging import Messager, Outgoing
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import ConnectionFailed, Fenced, MailboxFull, MessagingError, OutcomeUnknown
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import BlackList
from ray_messaging.transports.backend import open_transport
from ray_messaging.wire import frames

PASSING = (ConnectionFailed, MailboxFull, OutcomeUnknown)  # a sender goes on after these, a receiver after the first
PAUSE_S = 0.02  # after an error, so that a ledger does not fill with refusals


_pipe: Connection  # of this process, since it runs


def say(event, **facts):
    _pipe.send({"event": event, **facts})


class Orders:
    """Obey the orders of whoever started us; each is an event to wait for."""

    def __init__(self):
        self._events = {}
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._listen, daemon=True).start()

    def __getitem__(self, name):
        return self._events.setdefault(name, asyncio.Event())

    def _listen(self):
        with suppress(EOFError, OSError):  # whoever started us is gone
            while order := _pipe.recv():
                with suppress(RuntimeError):  # our end is near, and the loop closed
                    self._loop.call_soon_threadsafe(self._obey, order)
        os._exit(0)

    def _obey(self, name):
        self[name].set()


def open_messager(options):
    if "version" in options:  # what this process writes is of another version than what others read
        frames.VERSION = options["version"]
    settings = MessagingConfig(**options.get("settings", {}))
    rules = Interceptor(options["exp_id"], [BlackList(options["blocked"])]) if "blocked" in options else None
    return Messager(options["server"], options["exp_id"], rules, name=options.get("name"), settings=settings)


# -- sending ----------------------------------------------------------------------------------------------------------


class Sender:
    """Send numbered messages between all pairs of some agents, call by call, and keep the ledger."""

    def __init__(self, options, messager):
        self.messager = messager
        self.ledger = Ledger(options["ledger"])
        self.per_call = options.get("per_call", 20)
        self.way = options.get("way", "many")
        self.cancel_s = options.get("cancel_s")  # a call is cancelled after a random time up to this
        self.pad = "x" * options.get("pad", 0)
        self.pairs = [(by, to) for by in options["from_ids"] for to in options["to_ids"]]
        self.random = random.Random(options.get("seed", 0))
        self.at = 0
        self.errors = {}

    def keys(self):
        """Return the keys of the next call: the pairs take turns."""
        found = []
        for _ in range(self.per_call):
            found.append(self.ledger.number(*self.pairs[self.at]))
            self.at = (self.at + 1) % len(self.pairs)
        return found

    def payload(self, n):
        return {"n": n, "pad": self.pad} if self.pad else {"n": n}

    async def send(self, keys):
        """Send by the way under test; return the fates."""
        if self.way == "one":
            sends = [
                self.messager.send_message(self.messager.get_agent_chat_channel(to), self.payload(n), by, to)
                for by, to, n in keys
            ]
            return [receipt.fate for receipt in await asyncio.gather(*sends)]
        if self.way == "columns":
            by, to, numbers = zip(*keys, strict=True)
            return (await self.messager.send_columns(by, to, [self.payload(n) for n in numbers])).fates.tolist()
        sends = [Outgoing.to_agent(to, self.payload(n), from_id=by) for by, to, n in keys]
        return (await self.messager.send_messages(sends)).fates.tolist()

    async def call(self):
        """Make one call, and settle it in the ledger; tell whether it went well."""
        keys = self.keys()
        number = self.ledger.begin(keys)
        task = asyncio.ensure_future(self.send(keys))
        try:
            if self.cancel_s is None:
                fates = await task
            else:
                await asyncio.wait([task], timeout=self.random.random() * self.cancel_s)
                task.cancel()
                fates = await task
        except PASSING as error:
            return self.failed(number, keys, error)
        except asyncio.CancelledError as error:
            self.ledger.settle(number, fates_after(error, len(keys)), "cancelled")
            return True
        self.ledger.settle(number, fates)
        return True

    def failed(self, number, keys, error):
        kind = type(error).__name__
        self.errors[kind] = self.errors.get(kind, 0) + 1
        if self.way == "one":  # gather tells of the first failure only: the others have fates that we did not see
            self.ledger.settle(number, ["unknown"] * len(keys), repr(error))
        else:
            self.ledger.settle(number, fates_after(error, len(keys)), repr(error))
        return False


async def run_sender(options):
    orders = Orders()
    rate, calls = options.get("rate"), options.get("calls")  # calls per second (none: as fast as it goes), and in all
    async with open_messager(options) as messager:
        sender = Sender(options, messager)
        say("ready", name=messager.name)
        await orders["go"].wait()
        clock = asyncio.get_running_loop().time
        done, due = 0, clock()
        while not orders["stop"].is_set() and (calls is None or done < calls):
            well = await sender.call()
            done += 1
            due = max(due + 1 / rate, clock()) if rate else clock() + (0.0 if well else PAUSE_S)
            await asyncio.sleep(due - clock())
    say("done", calls=done, errors=sender.errors)


# -- receiving --------------------------------------------------------------------------------------------------------


async def fetch(messager, options, chance):
    """Fetch, and be cancelled at random where that is wanted."""
    task = asyncio.ensure_future(messager.fetch_messages(limit=options.get("limit"), timeout=0.25))
    if options.get("cancel_s") is not None:
        await asyncio.wait([task], timeout=chance.random() * options["cancel_s"])
        task.cancel()
    return await task


async def run_receiver(options):
    orders, chance = Orders(), random.Random(options.get("seed", 0))
    messager = open_messager(options)
    await messager.init()
    hosted = messager.directory.records.get(messager.name)  # some may have moved since
    agents = options["agents"] if hosted is None else hosted.agents()
    await messager.host_agents(agents, ["agent-chat", "user-chat"], owner=options.get("owner", ""))
    inbox = Inbox(options["inbox"])
    say("ready", name=messager.name)
    await orders["go"].wait()
    cancelled, moving = 0, Moving(messager, inbox, options) if "moves_to" in options else None
    while not orders["stop"].is_set():
        try:
            messages = await fetch(messager, options, chance)
        except asyncio.CancelledError:
            cancelled += 1
            continue
        except ConnectionFailed as error:
            inbox.note(repr(error))
            await asyncio.sleep(PAUSE_S)
            continue
        except Fenced:
            inbox.fenced()
            raise
        ends = [token for message in messages if (token := end_of(message))]
        inbox.take([message for message in messages if not end_of(message)])
        for token in ends:
            say("end", token=token)
        if moving is not None and orders["still"].is_set():
            ended, moving = moving, None
            await ended.end()
            say("still")
        if options.get("work_s"):
            await asyncio.sleep(options["work_s"])
    stats = messager.stats()
    await messager.close()
    inbox.committed()
    say("done", cancelled=cancelled, stats={key: stats[key] for key in ("unreadable", "ingress", "ingress_dropped")})


def end_of(message):
    """Return the token of a message that marks the end; None for all others."""
    if message.subtopic != "user-chat" or b'"end"' not in message.data:
        return None
    return message.payload["end"]


# -- the event log ----------------------------------------------------------------------------------------------------


async def run_logger(options):
    orders = Orders()
    transport = open_transport(options["server"], options["exp_id"], MessagingConfig())
    await transport.connect()
    writer = LogWriter(transport, Folder(options["log_dir"]), options["exp_id"], segment_age_s=0.5)
    await writer.start()
    say("ready")
    await orders["stop"].wait()
    await writer.close()
    await transport.close()
    say("done", rows=writer.rows)


async def main(options):
    try:
        await {"sender": run_sender, "receiver": run_receiver, "logger": run_logger}[options["role"]](options)
    except MessagingError as error:
        say("failed", error=type(error).__name__, text=str(error))
        os._exit(3)


def run(options, pipe, log):
    """Be the sender, receiver or logger of these options, with its output in a file."""
    global _pipe
    _pipe = pipe
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    asyncio.run(main(options))
