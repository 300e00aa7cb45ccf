"""Which start of an experiment has it on its server: it is taken once, and given away only by its end, or a reset."""

import asyncio

from ray_messaging.cluster.rule_store import RuleStore
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.common.limits import SCAN_COUNT
from ray_messaging.errors import AlreadyExists
from ray_messaging.transports.redis import RedisTransport
from ray_messaging.transports.redis.log import other_run

BEAT_S = 0.5
# An interceptor that has not beaten for so long is dead, or hangs: it may be succeeded, as its epoch fences it.
_SILENT_S = 6 * BEAT_S
_ENDING_S = 20.0  # so long may Ray's processes outlive a driver that was killed
_KEPT_FIELDS = {b"run", b"erasing", b"interceptor", b"directory", b"born", b"log_epoch"}  # no number comes again


class Ownership:
    """Take an experiment for one start of it (`spec.run`), and erase what an earlier one has left."""

    def __init__(self, transport: RedisTransport, store: RuleStore, spec: InterceptorSpec) -> None:
        self._transport = transport
        self._store = store
        self._spec = spec
        self._link = transport.link
        self._meta = transport.keys.meta

    async def take(self) -> tuple[int, bool]:
        """Take the experiment; return a new epoch, and whether this start had it, as after a restart of its actor.

        Raises: AlreadyExists where the server holds an experiment of this name already, unless told otherwise; Fenced
        where another start has taken it from this one.
        """
        mine = self._spec.run.encode()
        while True:
            holder = await self._link.command("HGET", self._meta, "run")
            if holder != mine:
                if await self._store.began():  # what was put in and banned since would be forgotten
                    raise other_run(self._spec.exp_id, 0)
                if holder is not None or await self._headless():
                    await self._check(holder or b"")
            reset = int(self._spec.on_existing == "reset")
            taken = await self._link.script("claim", [self._meta], [holder or b"", mine, reset])
            if taken:
                break
        epoch = await self._store.enthrone()  # from here on nothing of an earlier start passes
        if taken == 2:
            await self._erase_earlier()
        return epoch, holder == mine and taken == 1

    async def _check(self, holder: bytes) -> None:
        """Raise AlreadyExists where the start that has the experiment keeps it."""
        spec = self._spec
        if spec.on_existing == "reset":
            return
        deadline = asyncio.get_running_loop().time() + (_ENDING_S if spec.on_existing == "resume" else 0.0)
        while (lives := await self._lives()) and asyncio.get_running_loop().time() < deadline:
            pass  # its driver may have been killed: Ray ends what it had started some seconds later
        if lives:
            text = (
                f"experiment {spec.exp_id!r} runs already: another Ray cluster uses it on the server at "
                f"{self._link.where}. Shut it down there, choose another exp_id, or start it afresh by "
                "on_existing='reset', which ends it"
            )
        elif spec.on_existing == "error":
            text = (
                f"experiment {spec.exp_id!r} has data on the server at {self._link.where} already: go on with them by "
                "on_existing='resume', delete them by on_existing='reset', or choose another exp_id"
            )
        else:
            return
        raise AlreadyExists(text, kind="experiment", value=spec.exp_id, owner=holder.decode() or None)

    async def _headless(self) -> bool:
        """Tell whether there are mailboxes, and the server has lost what it knew of the experiment itself."""
        versioned = await self._link.command("HEXISTS", self._meta, "directory")
        return not versioned and bool(await self._link.command("EXISTS", self._transport.keys.changes))

    async def _lives(self) -> bool:
        """Tell whether the interceptor of the start that has the experiment lives: no clock is asked, it is watched."""
        first = beat = await self._link.command("HGET", self._meta, "beat")
        deadline = asyncio.get_running_loop().time() + _SILENT_S
        while first is not None and beat == first and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(BEAT_S / 4)
            beat = await self._link.command("HGET", self._meta, "beat")
        return beat is not None and beat != first

    # -- erasing --------------------------------------------------------------------------------------------------

    async def _erase_earlier(self) -> None:
        """Delete what earlier starts have left; an attempt that is cut off is made again by our restart."""
        await self._erase(but=self._meta.encode())
        fields = await self._link.command("HKEYS", self._meta)
        if gone := [field for field in fields if field not in _KEPT_FIELDS]:
            await self._link.command("HDEL", self._meta, *gone)
        await self._link.command("HINCRBY", self._meta, "directory", 1)
        await self._link.command("HDEL", self._meta, "erasing")

    async def erase(self) -> None:
        """Delete all that the experiment has on the server, unless another start has it by now."""
        if await self._link.command("HGET", self._meta, "run") == self._spec.run.encode():
            await self._erase()

    async def _erase(self, but: bytes = b"") -> None:
        cursor = b"0"
        # The prefix holds no glob characters: an exp_id has none, and braces are none of Redis's.
        pattern = self._transport.keys.prefix + "*"
        while True:
            cursor, keys = await self._link.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
            if found := [key for key in keys if key != but]:
                await self._link.command("UNLINK", *found)
            if int(cursor) == 0:
                return
