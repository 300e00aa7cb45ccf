"""Results of calls that a step has made, kept for its later attempts."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from ray_messaging.errors import MessagingError, PayloadTooLarge, StepAborted
from ray_messaging.model.calls import KEPT, PARENT, KeptCall

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

# One call to the server writes at most so many results, and no more when they exceed so many bytes.
_BATCH, _BATCH_BYTES = 256, 2**20

_decode = msgspec.msgpack.Decoder(KeptCall).decode


class CallMemory:
    """Results of the remembered calls of one group in one step, by key, on the server until the step is committed.

    Results that arrive while a call to the server is in flight are written together by the next one.

    Args: `limit` is the most bytes of one result; `again` says that earlier attempts at this step may have kept some.
    """

    def __init__(self, store: "RedisSteps", group: str, attempt: int, step: int, *, limit: int, again: bool) -> None:
        self.broken: StepAborted | None = None  # why no more can be kept
        self.parent: Callable[[], Mapping[str, bytes]] | None = None  # reads the results of an earlier run, in a thread
        self._store = store
        self._group = group
        self._attempt = attempt
        self._step = step
        self._limit = limit
        self._again = again
        self._known: asyncio.Task[Mapping[str, bytes]] | None = None
        self._parents: asyncio.Task[Mapping[str, bytes]] | None = None
        self._new: dict[str, bytes] = {}
        self._kept: asyncio.Future[None] | None = None  # done when all results in `_new` are kept
        self._writing: asyncio.Task[None] | None = None

    @property
    def may_know(self) -> bool:
        """Return whether a result may be there before its call is made."""
        return self._again or self.parent is not None

    async def recall(self, key: str) -> tuple[str, KeptCall] | None:
        """Return who has answered, KEPT for an earlier attempt or PARENT for an earlier run, and the result.

        None: nobody has.

        Raises: StepAborted if the server does not return the results; LogError if the earlier run cannot be read.
        """
        if self._again:
            if self._known is None:
                self._known = asyncio.create_task(self._store.remembered(self._group, self._step))
            try:
                known = await asyncio.shield(self._known)
            except MessagingError as error:
                raise self._break(str(error)) from error
            if key in known:
                return KEPT, _decode(known[key])
        if self.parent is not None:
            if self._parents is None:
                self._parents = asyncio.create_task(asyncio.to_thread(self.parent))
            parents = await asyncio.shield(self._parents)
            if key in parents:
                return PARENT, KeptCall(0.0, 0, msgspec.Raw(parents[key]))
        return None

    async def keep(self, key: str, call: KeptCall) -> None:
        """Keep a result; return when the server has it.

        Raises: PayloadTooLarge if the result is above the limit; StepAborted if the server did not keep it.
        """
        size = len(memoryview(call.result))
        if size > self._limit:
            raise PayloadTooLarge(
                f"the result of a call has {size:,} bytes, and MessagingConfig.payload_bytes is {self._limit:,}",
                size=size,
                limit=self._limit,
            )
        if self.broken is not None:
            raise self.broken
        if self._kept is None:
            self._kept = asyncio.get_running_loop().create_future()
        self._new[key] = msgspec.msgpack.encode(call)
        kept = self._kept
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="ray_messaging call results")
        await asyncio.shield(kept)

    async def _write(self) -> None:
        while self._kept is not None:
            (new, self._new), (kept, self._kept) = (self._new, {}), (self._kept, None)
            try:
                for part in _parts(new):
                    await self._write_part(part)
            except Exception as error:  # noqa: BLE001 - the callers that wait raise it
                kept.set_exception(error)
            else:
                kept.set_result(None)
        self._writing = None

    async def _write_part(self, part: dict[str, bytes]) -> None:
        if self.broken is None:
            try:
                if await self._store.remember(self._group, self._attempt, self._step, part):
                    return
            except MessagingError as error:
                raise self._break(str(error)) from error
            self._break("it has another driver, or is closed")
        assert self.broken is not None
        raise self.broken

    def _break(self, why: str) -> StepAborted:
        self.broken = StepAborted(
            f"step {self._step} of group {self._group!r} is not committed, because results of its calls could not be "
            f"kept: {why}",
            step=self._step,
            group=self._group,
        )
        return self.broken


def _parts(results: dict[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Yield results in parts that are small enough for one call to the server."""
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
