"""A receiver's agents that move to other receivers, again and again, until its process is killed."""

import asyncio
import os
import random
import signal
from functools import partial

from faults.injector import at_call
from ray_messaging.errors import AlreadyExists, ConnectionFailed, MoveFailed, UnknownName


class Moving:
    """Moves of some of a messager's agents to other messagers; the first agent of `options["agents"]` stays.

    With options["crash"], "before" or "after", its process dies at a call that moves agents.
    """

    def __init__(self, messager, inbox, options):
        self._messager = messager
        self._inbox = inbox
        self._stays = options["agents"][0]
        self._count, self._dies = len(options["agents"]), options.get("crash") is not None
        self._to = options["moves_to"]
        self._share = options.get("move_share", 0.02)
        self._random = random.Random(options.get("seed", 0))
        if self._dies:
            die = partial(os.kill, os.getpid(), signal.SIGKILL)
            at_call(messager.engine.transport.moves, "move", options["crash"], die, options["nth"])
        self._task = asyncio.create_task(self._run())

    async def _run(self):
        while True:
            here = [agent for agent in self._messager.subscription.hosted if agent != self._stays]
            fewest = 0 if self._dies else self._count // 4  # so that each has some to let go
            count = min(len(here) - fewest, max(1, int(self._count * self._share)))
            some = self._random.sample(here, max(0, count))
            # The target may have moved some to us meanwhile, be full, or not be there yet.
            try:
                await self._messager.move_agents(some, to=self._random.choice(self._to), timeout=5)
                self._inbox.note(f"moved {len(some)}")
            except (MoveFailed, UnknownName, AlreadyExists, ConnectionFailed) as error:
                self._inbox.note(repr(error))
            await asyncio.sleep(0.02)  # others have the CPU

    async def end(self):
        """Move no more; an agent that is on its way arrives."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._messager.subscription._moves, return_exceptions=True)
