"""Random programs of senders and consumers whose calls are cut at any moment, and a plain oracle of what they saw.

A program is made of a seed. Its senders send numbered messages between pairs of agents; its consumers fetch, commit and
give back in all ways that there are, and each call may be cut by a timeout. The oracle knows what was sent and what
each consumer handled, and nothing of our code.
"""

import asyncio
import random
from collections import defaultdict
from contextlib import suppress

from support.patience import AT_ONCE_S, WAIT_S

PAUSES_S = (0.0, 0.0, 0.0005, 0.002, 0.01)
CUTS_S = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.01, 0.03)
TURNS = (*range(1, 16), 20, 30, 50)  # of the loop, after which a call is cut: so each await is reached


class Refused(Exception):
    """The error of a block that handles nothing."""


class Program:
    """What one seed does. `senders` and `consumers` are handles; a handle sends for the agents of `pairs`."""

    def __init__(self, seed, pairs, *, messages=40):
        self.random = random.Random(seed)
        self.pairs = pairs
        self.messages = messages  # of each sender
        self.sent = defaultdict(list)  # pair -> [(number, it was told to be delivered)]
        self.handled = []  # of each consumer: (pair, number)

    async def run(self, senders, consumers, kinds=("next", "next", "acked", "block")):
        """Run all, with these kinds of fetches; the oracle checks what came of it."""
        may_give_back = len(consumers) == 1
        self.handled = [[] for _ in consumers]
        share = {n: self.pairs[n :: len(senders)] for n in range(len(senders))}  # one sender for each pair
        over = asyncio.Event()
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
            reading = [
                tasks.create_task(self._consume(one, handled, over, kinds, may_give_back))
                for one, handled in zip(consumers, self.handled, strict=True)
            ]
            await asyncio.gather(*(self._send(one, share[n]) for n, one in enumerate(senders)))
            while not self._all_came():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.002)
            over.set()
            await asyncio.gather(*reading)
        self.check()

    async def _cut(self, call):
        """Await a call, which may be cut; return its result, or None if it was."""
        try:
            kind = self.random.random()
            if kind < 0.4:
                return await call
            if kind < 0.7:
                return await _cut_after(call, self.random.choice(TURNS))
            async with asyncio.timeout(self.random.choice(CUTS_S)):
                return await call
        except TimeoutError:
            return None

    async def _send(self, sender, pairs):
        left = self.messages
        while left > 0:
            count = self.random.randint(1, min(6, left))
            left -= count
            chosen = [self.random.choice(pairs) for _ in range(count)]
            numbers = []
            for pair in chosen:
                numbers.append(len(self.sent[pair]))
                self.sent[pair].append(False)
            froms, tos = zip(*chosen, strict=True)
            receipts = await self._cut(sender.send_columns(froms, tos, [{"n": n} for n in numbers]))
            for pair, n in zip(chosen, numbers, strict=True):
                self.sent[pair][n] = receipts is not None and "delivered"
            if receipts is not None:
                assert receipts.counts()["delivered"] == count
            await asyncio.sleep(self.random.choice(PAUSES_S))

    async def _consume(self, consumer, handled, over, kinds, may_give_back):
        while not over.is_set():
            limit, wait_s = self.random.choice((None, None, 1, 3)), self.random.choice((0.0, 0.003, 0.05, 1.0))
            kind = self.random.choice(kinds)
            if kind == "iterate":
                await self._iterate(consumer, handled)
                continue
            commit = "acked" if kind == "acked" else "next"
            complete = limit is None and self.random.random() < 0.1
            found = await self._cut(
                consumer.fetch_messages(limit=limit, timeout=wait_s, commit=commit, complete=complete)
            )
            if not found:
                await asyncio.sleep(0)
            elif kind == "block" and hasattr(found, "__aexit__"):
                gives_back = may_give_back and self.random.random() < 0.3
                with suppress(Refused):
                    await self._cut(_block(found, gives_back=gives_back))
                handled += [] if gives_back else map(_named, found)
            else:
                handled += map(_named, found)
                while kind == "acked" and await self._cut(_done(consumer.ack(found))) is None:
                    pass
            await asyncio.sleep(self.random.choice(PAUSES_S))
        while await self._cut(_done(consumer.ack())) is None:
            pass

    async def _iterate(self, consumer, handled):
        messages = aiter(consumer)
        for _ in range(self.random.randint(1, 8)):
            if (found := await self._cut(asyncio.wait_for(anext(messages), 0.05))) is not None:
                handled.append(_named(found))

    async def drain(self, consumers, waiting):
        """Handle what is left, of sends that were cut; fail if what was handled comes again, or is held for ever."""
        async with asyncio.timeout(AT_ONCE_S):
            while await waiting():
                for consumer, handled in zip(consumers, self.handled, strict=True):
                    handled += map(_named, await consumer.fetch_messages(timeout=0.05, commit="acked"))
                    await consumer.ack()
        self.check()

    def _all_came(self):
        came = {each for handled in self.handled for each in handled}
        return all(
            (pair, n) in came for pair, told in self.sent.items() for n, delivered in enumerate(told) if delivered
        )

    def check(self):
        """Compare what was handled with what was sent."""
        came = [each for handled in self.handled for each in handled]
        twice = {each for each in came if came.count(each) > 1}
        assert not twice, f"handled twice: {sorted(twice)}"
        unknown = [(pair, n) for pair, n in came if n >= len(self.sent[pair])]
        assert not unknown, f"handled and never sent: {unknown}"
        for consumer, handled in enumerate(self.handled):
            for pair in self.sent:
                numbers = [n for of, n in handled if of == pair]
                assert numbers == sorted(numbers), f"consumer {consumer} had {pair} out of order: {numbers}"


async def _cut_after(call, turns):
    """Cancel a call after so many turns of the loop; return its result, or raise TimeoutError if it was cut."""
    task = asyncio.ensure_future(call)
    for _ in range(turns):
        if task.done():
            break
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():
            raise
        raise TimeoutError from None


async def _block(found, *, gives_back):
    async with found:
        if gives_back:
            raise Refused


async def _done(call):
    await call
    return True


def _named(message):
    return (message.from_id, message.to_id), message.payload["n"]
