"""What the groups of a run tell each other about agents that run ahead of the open step.

So an agent can run ahead although agents of other groups may send to it. The news is in one stream of the experiment,
which each group reads. It may be lost or wrong, because the steps themselves do not depend on it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.backoff import STEP_SUPERVISOR_RETRY, Backoff
from ray_messaging.common.task_health import end, logs_failure
from ray_messaging.default_limits_and_leases import STEP_NEWS_TIMEOUT_S
from ray_messaging.errors import Closed, MessagingError

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

_MOST = 256  # the most steps of agents in one entry of the stream
_MOST_BYTES = 2**16  # the most bytes of messages in one entry, because the server keeps many entries in memory


class ToldMessage(NamedTuple):
    """A message of an agent that runs ahead of the open step: its recipient, and the step of delivery.

    `line` is the payload as JSON, and `topic` the subtopic. `ordinal` is the message's number among the sender's
    messages. `asks` says that it is a question, and `answers` is the id of the question that it answers (None: none).
    """

    to: AgentId
    deliver: int
    ordinal: int
    line: bytes
    topic: str
    asks: bool
    answers: str | None


class ToldStep(NamedTuple):
    """A step that an agent has ended ahead of time, and what it sent in that step to agents of other groups."""

    agent: AgentId
    step: int
    sent: Sequence[ToldMessage]


class Told(NamedTuple):
    """What a group of a run tells the other groups about its agents that run ahead of the open step.

    With `anew`, the group's look-ahead begins anew, so what it told earlier may be wrong.
    """

    run: str
    group: str
    anew: bool
    steps: Sequence[ToldStep]


_encode = msgspec.msgpack.Encoder().encode
decode_told = msgspec.msgpack.Decoder(Told).decode


class AheadNews:
    """Exchange of news between the groups of a run about agents that run ahead of the open step.

    It is made in the actor's event loop. Args: `hear` is called there with each `Told` of another group of `run`. The
    stream may also have entries of earlier runs, which may have had another model or other agents.
    """

    def __init__(self, store: "RedisSteps", run: str, group: str, hear: Callable[[Told], None]) -> None:
        self._store = store
        self._run = run
        self._group = group
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._new: deque[Told] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._reading = self._task(self._read())

    def tell(self, steps: Sequence[ToldStep], *, anew: bool = False) -> None:
        """Tell the other groups which `steps` agents of this group have ended ahead of time. Any thread may call this.

        With `anew`, what this group told them earlier may be wrong.
        """
        first, *others = _in_entries(steps)
        self._new.append(Told(self._run, self._group, anew, first))
        self._new.extend(Told(self._run, self._group, anew=False, steps=each) for each in others)
        self._loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        """Stop telling other groups about agents that run ahead, and stop hearing from other groups about theirs."""
        await end(self._reading)
        if self._writing is not None:
            await end(self._writing)

    def _begin(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = self._task(self._write())

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name="ray_messaging look-ahead news")
        task.add_done_callback(logs_failure(f"group {self._group!r} no longer exchanges news of agents that run ahead"))
        return task

    async def _write(self) -> None:
        while self._new:
            told = [self._new.popleft() for _ in range(len(self._new))]
            with suppress(MessagingError):  # then the other groups wait for the steps themselves
                await self._store.tell_ahead([_encode(each) for each in told])

    async def _read(self) -> None:
        place, backoff = "0-0", Backoff(STEP_SUPERVISOR_RETRY)
        while True:
            try:
                found = await self._store.told_ahead(place, STEP_NEWS_TIMEOUT_S)
            except Closed:
                return
            except MessagingError:  # the steps themselves raise the error, if it persists
                await backoff.sleep()
                continue
            for entry, told in found:
                place, news = entry, decode_told(told)
                if news.run == self._run and news.group != self._group:
                    self._hear(news)


def _in_entries(steps: Sequence[ToldStep]) -> list[list[ToldStep]]:
    """Divide what is told to other groups among entries of a Redis stream; return the steps of each entry.

    There is at least one entry, even without steps. A step whose messages do not fit into an entry is left out, so for
    this step the other groups wait until it is committed.
    """
    found: list[list[ToldStep]] = [[]]
    size = 0
    for step in steps:
        nbytes = sum(len(each.line) for each in step.sent)
        if nbytes > _MOST_BYTES:
            continue
        if len(found[-1]) == _MOST or size + nbytes > _MOST_BYTES:
            found.append([])
            size = 0
        found[-1].append(step)
        size += nbytes
    return found
