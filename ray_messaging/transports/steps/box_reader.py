"""Reader of one box."""

from collections.abc import Sequence

from ray_messaging.errors import FrameError
from ray_messaging.transports.steps.store import StepStore
from ray_messaging.transports.steps.values import BoxFrame, Cover, counted

# One reply holds at most this many frames, and fewer where frames as large as the largest so far pass so many bytes.
_FRAMES, _BYTES = 64, 16 * 2**20
_GUESS = 256 * 2**10  # of a frame's size, before the first one is seen


class BoxReader:
    """Frames of one box. They can be read ahead, while the box's step waits for other groups."""

    def __init__(self, store: StepStore, box: str) -> None:
        self._store = store
        self._box = box
        self._frames: list[BoxFrame] = []
        self._largest = _GUESS

    async def read_ahead(self) -> None:
        """Read all frames that the box has by now."""
        count = more = 1
        while more >= count:
            count = max(1, min(_FRAMES, _BYTES // self._largest))
            after = self._frames[-1].entry if self._frames else "0-0"
            found = await self._store.read_box(self._box, after, count)
            self._largest = max([self._largest, *(len(frame.frame) for frame in found)])
            self._frames += found
            more = len(found)

    async def covers(self) -> list[Cover]:
        """Return all that counts of the box so far."""
        return await self._store.covers(self._box)

    async def covered(self, covers: Sequence[Cover]) -> list[BoxFrame]:
        """Return the frames that count, in the order of their arrival; raise FrameError if the server has lost some."""
        if not covers:
            return []
        found = counted(self._frames, covers)
        if found is None:
            await self.read_ahead()
            found = counted(self._frames, covers)
        if found is None:  # a server that came back with a slow clock gave out entries below the last one that we read
            self._frames = []
            await self.read_ahead()
            found = counted(self._frames, covers)
        if found is None:
            raise FrameError(
                f"box {self._box!r} lacks rows that a closed step has sent: its server lost data. Start the experiment "
                "anew"
            )
        return found
