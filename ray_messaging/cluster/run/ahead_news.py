"""News that the groups of a run exchange about agents that have run in later steps ahead of time.

With this news, an agent to which agents of other groups may send can run ahead of time, too. Each group writes its news
to one Redis stream of the experiment, and reads this stream. News may be lost or wrong, because the results of steps
do not depend on it.
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

_MOST = 256  # one entry of the stream has at most this many steps of agents
_MOST_BYTES = 2**16  # the same for the bytes of messages, because the server keeps many entries in memory


class ToldMessage(NamedTuple):
    """A message to agent `to` for step `deliver`, which its sender sent in a step that the sender ran ahead of time.

    `line` is the payload as JSON, and `topic` the subtopic. `ordinal` is the number, from 0, of the message among those
    that the sender sent in the same step. `asks` is True if the message is a question. `answers` is the id of
    the question that the message answers (None: the message is no answer).
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
    """What a group of a run tells the other groups: the `steps` that its agents have ended ahead of time.

    `run` identifies the run, because the Redis stream of these records may also have those of earlier runs. With
    `anew`, what the group told earlier may be wrong: its agents have stopped running ahead of time, or begin to do so
    anew.
    """

    run: str
    group: str
    anew: bool
    steps: Sequence[ToldStep]


_encode = msgspec.msgpack.Encoder().encode
decode_told = msgspec.msgpack.Decoder(Told).decode


class AheadNews:
    """Exchange of news between the groups of a run about steps that agents have ended ahead of time.

    Make this object in the event loop of the group's actor.

    Args: `run` identifies the run. `hear` is called in that event loop with each `Told` of another group of this run.
    News of earlier runs, which may have had another model or other agents, is ignored.
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

        With `anew`, also tell them that what this group told them earlier may be wrong.
        """
        first, *others = _in_entries(steps)
        self._new.append(Told(self._run, self._group, anew, first))
        self._new.extend(Told(self._run, self._group, anew=False, steps=each) for each in others)
        self._loop.call_soon_threadsafe(self._begin)

    async def close(self) -> None:
        """Stop writing news for other groups, and stop reading the news of other groups."""
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
            with suppress(MessagingError):  # without this news, the other groups wait until the steps are committed
                await self._store.tell_ahead([_encode(each) for each in told])

    async def _read(self) -> None:
        place, backoff = "0-0", Backoff(STEP_SUPERVISOR_RETRY)
        while True:
            try:
                found = await self._store.told_ahead(place, STEP_NEWS_TIMEOUT_S)
            except Closed:
                return
            except MessagingError:  # the steps use the same server, so if the error persists, they raise it
                await backoff.sleep()
                continue
            for entry, told in found:
                place, news = entry, decode_told(told)
                if news.run == self._run and news.group != self._group:
                    self._hear(news)


def _in_entries(steps: Sequence[ToldStep]) -> list[list[ToldStep]]:
    """Divide steps that agents have ended ahead of time among entries of a Redis stream; return the steps by entry.

    There is at least one entry, even without steps. A step whose messages do not fit into an entry is left out. Other
    groups then wait until this step is committed.
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
