"""Calls of one sender under way: held up, or with random faults."""

import asyncio
import math
import random

from ray_messaging.errors import ConnectionFailed, MailboxFull
from ray_messaging.sending import frame_sender, send_loop
from support.sending_faults import cut


def count_as_far(monkeypatch):
    """Have senders count each server as far, and three messages as enough for a call beside others."""
    monkeypatch.setattr(frame_sender, "_FAR_S", 0.0)
    monkeypatch.setattr(frame_sender, "_BYTE_S", 0.0)
    monkeypatch.setattr(send_loop, "_WAVE", 3)


def count_as_near(monkeypatch):
    """Have senders count no server as far, however busy this machine is."""
    monkeypatch.setattr(frame_sender, "_FAR_S", math.inf)


class Gate:
    """A gate before a messager's calls that send; while it is shut, calls wait, and count as under way."""

    def __init__(self, messager):
        self.under_way = self.most = 0
        self.open = asyncio.Event()
        self.open.set()
        self._real = messager.engine.transport.send
        messager.engine.transport.send = self._send

    async def _send(self, request):
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.open.wait()
        self.under_way -= 1
        return await self._real(request)


def hold_later_verdicts(messager):
    """Have all verdicts but the first wait for an event; return the list of the judged batches, and the event."""
    client, asked, decided = messager.engine.accumulator.send_loop.verdict_client, [], asyncio.Event()
    judge = client.judge

    async def judge_the_first_at_once(batch):
        asked.append(batch)
        if len(asked) > 1:
            await decided.wait()
        return await judge(batch)

    client.judge = judge_the_first_at_once
    return asked, decided


def lose_one_of_three(messager, lost, *, taken):
    """Have one of the next three calls end without an answer, `taken` by the server or not; return what undoes it.

    All three are under way at the same time.
    """
    transport, real, calls, all_made = messager.engine.transport, messager.engine.transport.send, [], asyncio.Event()

    async def send(request):
        calls.append(request)
        at = len(calls) - 1
        reply = None if at == lost and not taken else await real(request)
        if len(calls) == 3:
            all_made.set()
        await all_made.wait()
        if at == lost:
            raise cut()
        return reply

    transport.send = send

    def restore():
        transport.send = real

    return restore


async def kill(messager):
    """Stop sending at once, as if the experiment had ended."""
    await messager.engine.accumulator.stop(ConnectionFailed("killed by the test", host="", port=0))


class Faults:
    """Random faults of the calls by which a messager sends; some attempts arrive late, when others have come."""

    def __init__(self, messager, seed):
        self.random = random.Random(seed)
        self.late = []
        self.most = self._under_way = 0
        self._real = messager.engine.transport.send
        messager.engine.transport.send = self._send
        self._kinds = self.random.choices(
            ["slow", "twice", "late repeat", "lost", "reply lost", "lost, but late", "unsent", "full"], k=4
        )

    async def _send(self, request):
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        try:
            return await self._faulty(request)
        finally:
            self._under_way -= 1

    async def _faulty(self, request):
        kind = self.random.choice([*self._kinds, *["plain"] * 16])
        if kind in ("slow", "late repeat") or self.random.random() < 0.2:
            await self._turns()
        if kind == "unsent":
            raise ConnectionFailed("unsent", host="", port=0, unsent=True)
        if kind == "full":
            raise MailboxFull("full", mailbox="")
        if kind.startswith("lost"):
            if kind != "lost":
                self._arrive_late(request)
            await self._turns()
            raise cut()
        reply = await self._real(request)
        await self._turns()
        if kind == "reply lost":
            raise cut()
        if kind == "twice":
            reply = await self._real(request)
        if kind == "late repeat":
            self._arrive_late(request)
        reply.repeated = kind in ("twice", "late repeat")
        return reply

    def _arrive_late(self, request):
        async def arrive():
            await self._turns(300)
            await self._real(request)

        self.late.append(asyncio.create_task(arrive()))

    async def _turns(self, most=30):
        for _ in range(self.random.randrange(most)):
            await asyncio.sleep(0)


def reroute_in_a_send(sender, change):
    """Have `change` alter the directory while a send is made, so that new routes name a set that the server lacks.

    Return what the server is then asked, in order: to keep sets of agents, or to write frames.
    """
    frames, transport, done = sender.engine.frame_sender, sender.engine.transport, []
    send, call, route = frames.send, transport.send, frames.router.route

    async def keep_agents(sets):
        done.append("kept")

    async def noted(request):
        done.append("called")
        return await call(request)

    def routed(*args, **options):
        frames.router.unkept[b"new"] = None  # as for broadcasts to a mailbox whose agents have changed
        return route(*args, **options)

    async def send_by_new_routes(**options):
        if frames.queues.empty:
            return await send(**options)
        await change()
        await frames.refresh()  # as any broadcast does
        frames.router.route = routed
        frames.send = send
        return await send(**options)

    transport.keep_agents, transport.send, frames.send = keep_agents, noted, send_by_new_routes
    return done
