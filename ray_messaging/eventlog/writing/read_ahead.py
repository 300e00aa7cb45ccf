"""Read entries ahead: while some are turned into rows, the next ones come, as long as there is more than a little."""

import asyncio
from collections.abc import Callable

from ray_messaging.common import task_health as loops
from ray_messaging.eventlog.writing.intake import Intake
from ray_messaging.eventlog.writing.streams import READ_BYTES, Streams, size
from ray_messaging.transports.log_store import LogItem

# A read that brings this much is not the last one. After one that brings little, messages gather for a moment: a batch
# of rows costs 0.4 ms beside them. Not so after one in between, as who is behind may be given little of each stream.
_MUCH, _LITTLE = READ_BYTES // 4, 2**16


class ReadAhead:
    """Hand out what the streams hold, one read after the other; `few`: the last one brought something, but little."""

    def __init__(self, intake: Intake, streams: Streams) -> None:
        self.few = False
        self._intake = intake
        self._streams = streams
        self._coming: asyncio.Task[list[LogItem]] | None = None

    @property
    def coming(self) -> bool:
        """Tell whether entries are on the way that were asked for ahead."""
        return self._coming is not None

    async def items(self, patience_s: Callable[[], float]) -> list[LogItem]:
        """Return the next entries; wait for some up to `patience_s`, unless others of the streams have their turn."""
        if self._coming is None:
            read = self._streams.next()
            items = await self._intake.read(read, patience_s() if read.wait else 0.0)
        else:
            items = await self._coming
            self._coming = None
        self._streams.came(items)
        nbytes = sum(map(size, items))
        self.few = 0 < nbytes < _LITTLE
        if nbytes >= _MUCH:
            reading = self._intake.read(self._streams.next(), 0.0)
            self._coming = asyncio.create_task(reading, name="ray_messaging log read ahead")
        return items

    async def close(self) -> None:
        """Stop reading."""
        if self._coming is not None:
            await loops.end(self._coming)
            self._coming = None
