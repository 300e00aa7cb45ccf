"""Reader of one box."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_messaging.errors import FrameError
from ray_messaging.transports.step_values import BoxFrame, BoxStart, Cover, News, counted

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

# One reply holds at most this many frames, and fewer where frames as large as the largest so far pass so many bytes.
_FRAMES, _BYTES = 64, 16 * 2**20
_GUESS = 256 * 2**10  # of a frame's size, before the first one is seen
_FIRST = 16  # frames of the reply that opens a box


class BoxReader:
    """Frames of one box. They can be read ahead, while the box's step waits for other groups.

    Args: with `with_news` the news that end a wait mostly open the step, so that its box is read with them. `filled`
    and `large` tell how the box of the step before was.
    """

    def __init__(
        self, store: "RedisSteps", box: str, *, with_news: bool = False, filled: bool = False, large: bool = False
    ) -> None:
        self._store = store
        self._box = box
        self._frames: list[BoxFrame] = []
        self._largest = _GUESS
        self._start: BoxStart | None = None  # as it was read with the last news
        self._with_news, self._filled, self._large = with_news, filled, large

    def following(self, box: str) -> "BoxReader":
        """Return the reader of the next step's box, which is likely to be as this one is.

        One that takes several replies is read ahead during the wait, and an empty one not before it is asked for.
        """
        filled, large = bool(self._frames), len(self._frames) > _FIRST
        return BoxReader(self._store, box, with_news=self._with_news, filled=filled, large=large)

    async def wait(self, news: str, block_s: float) -> News:
        """Wait for news as the store does; read the beginning of the box before, or with them."""
        if self._large:
            await self.read_ahead()
        with_news = self._with_news and self._filled and not self._frames
        found = await self._store.wait(news, block_s, box=self._box if with_news else "", count=_FIRST)
        self._start = found.start
        return found

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
        """Return all that counts of the box so far: after the last wait, if that was for its step."""
        if self._frames:
            return await self._store.covers(self._box)
        covers, frames = self._start or await self._store.open_box(self._box, _FIRST)
        self._frames = list(frames)
        return list(covers)

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
