"""Random traffic and transactions over a transport that loses, repeats and delays calls; then books are compared."""

import asyncio
import contextlib
import json
import random
from collections import defaultdict

from ray_messaging import Messager, MessagingConfig, MessagingError, Outgoing
from ray_messaging.errors import ConnectionFailed, Fenced, OutcomeUnknown
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.log_store import LogMark
from ray_messaging.transports.transport_values import LOG_STREAM, Limits
from ray_messaging.wire.frames import decode

NAMES = {"a": 1, "b": 2, "c": 3}
NOBODY = 98
_OP_S = 60.0  # nothing takes longer
_SETTINGS = MessagingConfig(
    mailbox_messages=60, inbox_messages=20, frame_rows=5, send_timeout_s=0.4, interceptor_timeout_s=1.0
)
_WAYS = {
    "send": ("lost", "unanswered", "repeated", "late", "late and repeated", "slow"),
    "commit": ("lost", "unanswered", "repeated", "late", "late and repeated", "slow"),
    "take_sender_epoch": ("lost", "slow"),
    "load_directory": ("lost", "slow"),
}


class Faulty:
    """A transport with calls that are lost, unanswered, repeated, or late."""

    def __init__(self, real, rng, share):
        self.real, self.rng, self.share = real, rng, share
        self.dead = False
        self.late = []
        for name, ways in _WAYS.items():
            setattr(self, name, self._faulty(name, ways))

    def __getattr__(self, name):
        return getattr(self.real, name)

    def _faulty(self, name, ways):
        real = getattr(self.real, name)

        async def call(*args, **options):
            way = self.rng.choice(ways) if self.rng.random() < self.share else ""
            if self.dead or way == "lost":
                raise _cut()
            if way.startswith("late"):
                self.late.append(asyncio.create_task(self._later(real, args, options)))
                if way == "late":
                    raise _cut()
            if way == "slow":
                await asyncio.sleep(self.rng.random() / 100)
            reply = await real(*args, **options)
            if way == "repeated":
                await asyncio.sleep(0)
                reply = await real(*args, **options)
            if way == "unanswered" or self.dead:
                raise _cut()
            if name == "send":
                reply.repeated = "repeated" in way
            return reply

        return call

    async def _later(self, real, args, options):
        await asyncio.sleep(self.rng.random() / 20)
        with contextlib.suppress(MessagingError):
            await real(*args, **options)


def _cut():
    return ConnectionFailed("cut by the model", host="", port=0)


class Model:
    """Three messagers that write to each other; `a` and `b` handle messages in transactions, `c` fetches them."""

    def __init__(self, seed, server, exp_id, *, share):
        self.rng = random.Random(seed)
        self.server, self.exp_id, self.share = server, exp_id, share
        self.admin = open_transport(server, exp_id, MessagingConfig())
        self.now, self.opened, self.tasks = {}, [], set()
        self.fates, self.sender, self.order = {}, {}, {}  # by message; the order as it was accepted
        self.attempts = {}  # of transactions: what they sent
        self.done = set()
        self.fetched = []
        self.written = defaultdict(list)  # by mailbox, as the event log sees it
        self.noted = defaultdict(list)
        self._log_epoch, self._read, self._taken = 0, {}, defaultdict(lambda: (0, 0))
        self._logging = asyncio.Lock()

    async def run(self, steps):
        """Go `steps` steps on each side, let all calls end, and return the messages of each mailbox's reader."""
        await self.admin.connect()
        self._log_epoch = await self.admin.log.register(Limits(10_000, 2**26, 60.0, leased=False))
        for name in NAMES:
            await self.open(name)
        await asyncio.gather(*(self.work(name, steps) for name in NAMES))
        await asyncio.gather(*self.tasks)
        for messager in self.opened:
            messager.engine.transport.share = 0.0
            await asyncio.gather(*messager.engine.transport.late)
        kept = await self.rest()
        for messager in self.opened:
            await self.leave(messager)
            await messager.engine.transport.close()  # a call that came after its end has connected anew
        await self.admin.close()
        return kept

    async def open(self, name):
        messager = Messager(self.server, self.exp_id, name=name, settings=_SETTINGS)
        messager.engine.transport = Faulty(messager.engine.transport, self.rng, 0.0)
        self.opened.append(messager)
        await messager.init()
        await messager.subscribe_and_start_listening([messager.get_agent_chat_channel(NAMES[name])])
        messager.engine.transport.share = self.share
        self.now[name] = messager

    async def leave(self, messager):
        with contextlib.suppress(MessagingError):
            async with asyncio.timeout(_OP_S):
                await messager.close()

    async def work(self, name, steps):
        for _ in range(steps):
            async with asyncio.timeout(_OP_S):
                await self.step(name)

    async def step(self, name):
        chance = self.rng.random()
        if chance < 0.45 and name != "c":
            await self.transact(name)
        elif chance < 0.80:
            sent = self.messages(name, self.rng.choice([1, 1, 3, 8]))
            task = asyncio.create_task(self.send(self.now[name], sent))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            await asyncio.sleep(0)
        elif chance < 0.90:
            if name == "c":
                with contextlib.suppress(ConnectionFailed):
                    self.fetched += [m.payload["n"] for m in await self.now[name].fetch_messages(timeout=0.01)]
            await self.log()
        elif chance < 0.93 and name != "c":
            await self.die(name)

    async def die(self, name):
        """Let its calls end, as a killed process's do; a successor opens."""
        old = self.now[name]
        old.engine.transport.dead = True
        await self.open(name)
        self.tasks.add(task := asyncio.create_task(self.leave(old)))
        task.add_done_callback(self.tasks.discard)

    def messages(self, name, count):
        """Number new messages of a messager, and choose their receivers."""
        chosen = {}
        for _ in range(count):
            n = len(self.sender)
            to_id = self.rng.choice([*NAMES.values(), NOBODY])
            self.sender[n] = (self.now[name], to_id)
            chosen[n] = Outgoing.to_agent(to_id, {"n": n}, from_id=NAMES[name])
        return chosen

    def accept(self, sent):
        place = len(self.order)
        self.order.update(dict.fromkeys(sent, place))

    async def send(self, messager, sent):
        self.accept(sent)
        receipts, otherwise = [], "refused"
        try:
            receipts = await messager.send_messages(list(sent.values()))
        except OutcomeUnknown as error:
            receipts, otherwise = error.receipts, "unknown"
        except MessagingError as error:
            receipts = getattr(error, "receipts", None) or []
        found = [*(receipts or []), *[None] * len(sent)]
        for n, receipt in zip(sent, found, strict=False):
            self.fates[n] = otherwise if receipt is None else receipt.fate

    async def transact(self, name):
        task = asyncio.create_task(self.transaction(name, self.now[name]))
        if self.rng.random() < 0.25:
            for _ in range(self.rng.randrange(40)):
                await asyncio.sleep(0)
            task.cancel()
        try:
            await task
        except Fenced:
            raise  # it is the newest of its name
        except (asyncio.CancelledError, MessagingError, ZeroDivisionError):
            pass

    async def transaction(self, name, messager):
        async with messager.transaction() as tx:
            numbers, attempts = json.loads(tx.state or b"[[], []]")
            fetched = await tx.fetch_messages(limit=self.rng.randrange(1, 12), timeout=0.01)
            sent = self.messages(name, self.rng.choice([0, 1, 2, 7, 14]))
            attempt = len(self.attempts)
            self.attempts[attempt] = list(sent)
            tx.send_messages(list(sent.values()))
            tx.state = json.dumps([numbers + [m.payload["n"] for m in fetched], [*attempts, attempt]]).encode()
            if self.rng.random() < 0.1:
                raise ZeroDivisionError
            self.accept(sent)
        self.done.add(attempt)
        self.fates.update(zip(sent, tx.receipts.fates.tolist(), strict=True))

    async def log(self):
        """Read as the event log does: the streams are the truth."""
        async with self._logging:
            return await self._log()

    async def _log(self):
        live, ended = await self.admin.log.streams()
        cursors = {stream: self._read.get(stream, "0-0") for stream in [*live, *ended]}
        marks = {}
        for item in await self.admin.log.read(cursors, 1000, 0.001):
            batch = decode(item.frame) if item.frame else []
            numbers = [json.loads(batch.lines.row(row))["n"] for row in range(len(batch))]
            if item.stream != LOG_STREAM:
                self.written[item.stream.rpartition(":")[0]] += numbers
            for n in numbers if item.stream == LOG_STREAM else ():
                self.noted[n].append(item.entry)
            rows, nbytes = self._taken[item.stream]
            noted = len(item.note or b"") if item.stream == LOG_STREAM else 0
            self._taken[item.stream] = rows + len(batch), nbytes + len(item.frame or b"") + noted
            self._read[item.stream] = item.entry
            marks[item.stream] = LogMark(item.entry, *self._taken[item.stream])
        if marks:
            await self.admin.log.note_written(self._log_epoch, marks, [])
        return bool(marks)

    async def rest(self):
        """Handle the remaining messages."""
        kept, left = {}, [1]
        for name in "ab":
            while left:
                async with self.now[name].transaction() as tx:
                    kept[name], attempts = json.loads(tx.state or b"[[], []]")
                    left = [m.payload["n"] for m in await tx.fetch_messages(timeout=0.1)]
                    kept[name] += left
                    self.done |= set(attempts)
                    tx.state = json.dumps([kept[name], attempts]).encode()
            left = [1]
        while left:
            left = [m.payload["n"] for m in await self.now["c"].fetch_messages(timeout=0.1)]
            self.fetched += left
        while await self.log():
            pass
        return kept | {"c": self.fetched}


def compare(model, kept):
    """Return the differences between the books; empty if there are none."""
    places = defaultdict(list)
    for mailbox, numbers in model.written.items():
        for n in numbers:
            places[n].append(mailbox)
    wrong = [("written twice", n, where) for n, where in places.items() if len(where) > 1]
    wrong += [("noted twice, or beside a mailbox", n) for n, told in model.noted.items() if len(told) > 1 or places[n]]
    wrong += [("handled", name) for name in NAMES if kept[name] != model.written[name]]
    there = {n for n in model.sender if places[n] or model.noted[n]}
    wrong += [
        ("lost", n) for n, fate in model.fates.items() if fate in {"delivered", "undeliverable"} and n not in there
    ]
    wrong += [("refused, and there", n) for n, fate in model.fates.items() if fate == "refused" and n in there]
    for attempt, sent in model.attempts.items():
        wrong += [("half done", attempt, n) for n in sent if (n in there) != (attempt in model.done)]
    for mailbox, numbers in model.written.items():
        last = {}
        for n in numbers:
            wrong += [("order", mailbox, n)] if last.get(model.sender[n], -1) > model.order[n] else []
            last[model.sender[n]] = model.order[n]
    return wrong
