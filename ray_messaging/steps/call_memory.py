"""Results of a group's calls through `me.remember` in a step, kept in case the step runs again after a fault."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ray_messaging.errors import MessagingError, PayloadTooLarge, StepAborted
from ray_messaging.model.calls import KEPT, PARENT, KeptCall

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

# One call to the server writes at most 256 results. It takes no further result once it has 1 MiB of results.
_BATCH, _BATCH_BYTES = 256, 2**20
# After each call to the server, there is a pause of this many seconds. A result that comes in the pause waits until the
# callers' event loop begins its next round, or until the pause ends, so that one call writes further results with it.
_WAIT_S = 0.05

_decode = msgspec.msgpack.Decoder(KeptCall).decode


class _New(NamedTuple):
    """The result of a call through `me.remember` that is not on the server yet.

    `kept` is a future that belongs to the event loop of the function that made the call.
    """

    key: str
    result: bytes
    kept: asyncio.Future[None]


class CallMemory:
    """Results of one group's calls through `me.remember` in one step, by key.

    The server keeps the results until the step is committed.

    All callers must share one event loop. The calls to the server may use another event loop. Results that come during
    a call to the server, or soon after it, are collected, and the next call writes all of them (see `_WAIT_S`).

    Args: a result may have at most `limit` bytes. With `again`, earlier attempts at the step may have kept results.
    """

    def __init__(self, store: "RedisSteps", group: str, attempt: int, step: int, *, limit: int, again: bool) -> None:
        # Once a call to the server has failed or was refused: the error that each further `keep` raises.
        self.broken: StepAborted | None = None
        # A function that reads the results of the run from which this run was forked. It is called in a thread.
        self.parent: Callable[[], Mapping[str, bytes]] | None = None
        self._store = store
        self._group = group
        self._attempt = attempt
        self.step = step
        self._limit = limit
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._loading: Future[None] | None = None
        # The loaded results by key. Each comes with the place that it was loaded from (KEPT or PARENT).
        self._answers: dict[str, tuple[str, bytes]] = {}
        self._failed: dict[str, KeptCall] = {}  # the usage of failed calls that have used tokens or money, by key
        self._new: deque[_New] = deque()
        self._idle = True  # False from the beginning of a write until `_WAIT_S` seconds after its end
        self._asked = False  # whether the callers' event loop will call `_ask` soon
        self._more = False  # whether `_begin` was called after `_write` last took new results
        self._task: asyncio.Task[None] | None = None  # the task that writes results
        self._pause: asyncio.TimerHandle | None = None  # the timer of the pause that follows a call to the server

    @property
    def may_know(self) -> bool:
        """Return whether `recall` may find results of earlier attempts at the step or of the run that was forked."""
        return self._again or self.parent is not None

    async def recall(self, key: str) -> tuple[str, KeptCall] | None:
        """Return where the result of a call through `me.remember` comes from, and the result; None if there is none.

        A result comes from an earlier attempt at the step (KEPT), or from the run that was forked (PARENT).

        Raises: StepAborted if the server does not return the results; LogError if the forked run's log cannot be read.
        """
        if self._loading is None:
            self._loading = asyncio.run_coroutine_threadsafe(self._load(), self._loop)
        if not self._loading.done():
            await asyncio.shield(asyncio.wrap_future(self._loading))
        self._loading.result()
        return self.known(key)

    def known(self, key: str) -> tuple[str, KeptCall] | None:
        """Return what `recall` would return, if the results are loaded already; otherwise return None.

        This never waits for the server.
        """
        if (answer := self._answers.get(key)) is None:
            return None
        source, result = answer
        return source, _decode(result) if source == KEPT else KeptCall(0.0, 0, msgspec.Raw(result))

    async def _load(self) -> None:
        kept: Mapping[str, bytes] = {}
        if self._again:
            try:
                kept = await self._store.remembered(self._group, self.step)
            except MessagingError as error:
                raise self._break(f"the stored results of me.remember could not be read: {error}") from error
        parents = {} if self.parent is None else await asyncio.to_thread(self.parent)
        answers = {key: (PARENT, result) for key, result in parents.items()}
        for key, result in kept.items():
            if (call := _decode(result)).failed:
                self._failed[key] = call
            else:
                answers[key] = KEPT, result
        self._answers = answers

    def failed(self, key: str) -> KeptCall | None:
        """Return what a failed call through `me.remember` has used in this step; None if no usage was recorded."""
        return self._failed.get(key)

    async def keep_failed(self, key: str, call: KeptCall) -> None:
        """Keep what a failed call has used. If the call is made again and succeeds, its result replaces this record."""
        self._failed[key] = call
        await self.keep(key, call)

    async def keep(self, key: str, call: KeptCall) -> None:
        """Keep the result of a call through `me.remember`; return when the server has stored it.

        Raises: PayloadTooLarge if the result is above the limit; StepAborted if the server did not keep it.
        """
        self.check(call)
        if self.broken is not None:
            raise self.broken
        new = _New(key, msgspec.msgpack.encode(call), asyncio.get_running_loop().create_future())
        self._new.append(new)
        if self._idle:
            self._idle = False
            self._loop.call_soon_threadsafe(self._begin)
        elif not self._asked:
            # In one round of this event loop, several functions that block the loop may end one after the other. `_ask`
            # runs after this round, so that one call to the server writes all their results.
            self._asked = True
            asyncio.get_running_loop().call_soon(self._ask)
        await new.kept

    def check(self, call: KeptCall) -> None:
        """Raise PayloadTooLarge if a result is above the limit."""
        size = len(memoryview(call.result))
        if size > self._limit:
            raise PayloadTooLarge(
                f"the result of a call has {size:,} bytes, but the limit, MessagingConfig.payload_bytes, is "
                f"{self._limit:,}: return less from the call, or raise the limit",
                size=size,
                limit=self._limit,
            )

    def _ask(self) -> None:
        """Begin to write results in the event loop of this object. The callers' event loop calls this."""
        self._asked = False
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        """Begin to write the new results to the server. If a write is under way, write them after it."""
        self._more = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._task is None:
            self._task = self._loop.create_task(self._write(), name="ray_messaging call results")

    async def _write(self) -> None:
        while self._more:
            self._more = False
            new = [self._new.popleft() for _ in range(len(self._new))]
            error: BaseException | None = None
            try:
                for part in _parts({each.key: each.result for each in new}):
                    await self._write_part(part)
            except Exception as raised:  # noqa: BLE001 - the callers that wait raise it
                error = raised
            if new:
                loop = new[0].kept.get_loop()  # all calls of a group are made in one event loop
                loop.call_soon_threadsafe(_settle, new, error)
        self._task, self._pause = None, self._loop.call_later(_WAIT_S, self._end_pause)

    def _end_pause(self) -> None:
        self._pause, self._idle = None, True
        if self._new:  # the callers' event loop has not called `_ask` for these results yet
            self._idle = False
            self._begin()

    async def _write_part(self, part: dict[str, bytes]) -> None:
        if self.broken is None:
            try:
                if await self._store.remember(self._group, self._attempt, self.step, part):
                    return
            except MessagingError as error:
                raise self._break(f"results of me.remember could not be stored: {error}") from error
            self._break("another process runs this group now, or the step has ended already: end this process")
        assert self.broken is not None
        raise self.broken

    def _break(self, why: str) -> StepAborted:
        self.broken = StepAborted(
            f"step {self.step} of group {self._group!r} is not committed, because {why}",
            step=self.step,
            group=self._group,
        )
        return self.broken


def _settle(new: Sequence[_New], error: BaseException | None) -> None:
    for each in new:
        if each.kept.done():  # the caller no longer waits for the result
            continue
        if error is None:
            each.kept.set_result(None)
        else:
            each.kept.set_exception(error)


def _parts(results: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Split results into parts that are small enough for one call to the server."""
    part: dict[str, bytes] = {}
    size = 0
    for name, result in results.items():
        part[name] = result
        size += len(result)
        if len(part) == _BATCH or size >= _BATCH_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part
