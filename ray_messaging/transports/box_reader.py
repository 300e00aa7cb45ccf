"""Reader of one box, which has the messages that one mailbox reads in one step."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ray_messaging.common.task_health import end
from ray_messaging.errors import FrameError, MessagingError
from ray_messaging.transports.cursors import order
from ray_messaging.transports.step_values import (
    BoxFrame,
    BoxStart,
    Cover,
    Done,
    News,
    Opened,
    Waiting,
    box_in_words,
    counted,
)

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

# One reply has at most _FRAMES frames. It has fewer if _FRAMES frames, each as large as the largest frame so far, would
# have more than _BYTES bytes.
_FRAMES, _BYTES = 64, 16 * 2**20
_GUESS = 256 * 2**10  # the assumed size of a frame before any frame was read
_FIRST = 16  # the first reply about a box has at most this many frames
# The last group to close a step gets the server's answer on one connection, and the news of the step on another one. If
# the news have not come this many seconds after the answer, the box is read without them.
_BESIDE_S = 0.1
# A run's driver opens a step for a group, and then calls the group. The news that the step is open arrive at about the
# same time as this call. The group waits this many seconds for the news before it asks the server to open the step.
_TOLD_S = 0.01
Answer = Opened | Waiting | Done


class BoxReader:
    """Reader of the frames of one box. Frames can be read ahead, while the group waits until the box's step opens.

    Args: With `with_news` and `filled`, the beginning of the box is read in the same round trip as news of the steps,
    because the first news will most likely say that the box's step is open. `filled` and `large` say whether the
    previous step's box had frames, and whether it had many frames.
    """

    def __init__(
        self, store: "RedisSteps", box: str, *, with_news: bool = False, filled: bool = False, large: bool = False
    ) -> None:
        self._store = store
        self._box = box
        self._frames: list[BoxFrame] = []
        self._largest = _GUESS
        # The box's first frames, if they were read already. The list of committed attempts (covers) that was read with
        # them is not used, because it may grow.
        self._start: BoxStart | None = None
        # A task that waits for news. It began before the group knew whether it has to wait.
        self._awaited: asyncio.Task[News] | None = None
        # A task that waits until the box's step is opened for this group, although the group has not asked for it.
        self._told: asyncio.Task[News] | None = None
        self._with_news, self._filled, self._large = with_news, filled, large
        self._written: Sequence[BoxFrame] = ()  # frames that this process has written to the box itself
        self._waited = False  # whether the group has waited for news before it opened the box's step

    def following(self, box: str) -> "BoxReader":
        """Return the reader of the next step's box, which is likely to have about as many frames as this box.

        If this box had more frames than the first reply can have (`_FIRST`), the next box is read ahead while the group
        waits. If this box was empty, or if nothing was read from it and the group did not wait, the next box is read
        only when it is needed.
        """
        filled = bool(self._frames) or (bool(self._written) and self._waited)
        large = len(self._frames) > _FIRST
        return BoxReader(self._store, box, with_news=self._with_news, filled=filled, large=large)

    def hand_over(self, written: Sequence[BoxFrame]) -> None:
        """Take over the frames that this process has written to the box itself.

        If no other frames count in the box, the box need not be read from the server.
        """
        self._written = written

    def expect(self, news: str, block_s: float) -> None:
        """Begin to wait for news of the steps while the group is still closing the step before the box's step.

        The awaited news come after the stream id `news`. As the wait begins early, the group gets the beginning of the
        box as soon as the last group has closed the step. If the wait began only after the answer to the close, the
        group would need one more round trip.
        """
        if self._with_news and self._filled and not self._large and news:
            self._awaited = asyncio.create_task(self._wait(news, block_s), name="ray_messaging step news")

    def expect_opening(self, news: str, step: int, block_s: float) -> None:
        """Begin to wait until the box's step is opened for this group, although the group has not asked for it.

        Between two calls of a run's driver, the group thus gets the news, and the beginning of the box, in half the
        time that a question and its answer would take.
        """
        if self._with_news and self._told is None:
            self._told = asyncio.create_task(self._opening_of(news, step, block_s), name="ray_messaging step opening")

    async def _opening_of(self, news: str, step: int, block_s: float) -> News:
        found = News(news)
        while found.opened < step:
            found = await self._wait(found.place, block_s, unasked=True)
        return found

    async def ask(self, opening: Callable[[], Awaitable[Answer]]) -> Answer | News:
        """Make a call that opens the box's step, and read the box's beginning in the same round trip.

        Return the call's answer. If news that the step is open for this group come before the answer, return these
        news.
        """
        told = self._told

        async def asked() -> Answer:
            await asyncio.sleep(0 if told is None else _TOLD_S)
            answer, self._start = await asyncio.gather(opening(), self._store.open_box(self._box, _FIRST))
            return answer

        if told is None:
            return await asked()
        asking = asyncio.create_task(asked(), name="ray_messaging step question")
        try:
            await asyncio.wait((told, asking), return_when=asyncio.FIRST_COMPLETED)
            if not told.done() or told.cancelled() or told.exception() is not None:
                return await asking
            self._waited = True
            return told.result()
        finally:
            await end(asking)

    async def end(self) -> None:
        """Stop the tasks of this reader that still wait for news of the steps."""
        for task in (self._awaited, self._told):
            if task is not None:
                await end(task)

    async def wait(self, news: str, block_s: float) -> News:
        """Wait up to `block_s` seconds for news of the steps that are later than the stream id `news`; return them.

        If there are several, return the latest. The beginning of the box is read before the news or with them.
        """
        self._waited = True
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            found = await awaited
            if order(found.place) > order(news):
                return found
        if self._large:
            await self.read_ahead()
        return await self._wait(news, block_s)

    async def _wait(self, news: str, block_s: float, *, unasked: bool = False) -> News:
        with_news = self._with_news and self._filled and not self._frames
        box = self._box if with_news else ""
        found = await self._store.wait(news, block_s, box=box, count=_FIRST, unasked=unasked)
        self._start = found.start
        return found

    async def read_ahead(self) -> None:
        """Read all frames that are in the box now."""
        count = more = 1
        while more >= count:
            count = max(1, min(_FRAMES, _BYTES // self._largest))
            after = self._frames[-1].entry if self._frames else "0-0"
            found = await self._store.read_box(self._box, after, count)
            self._largest = max([self._largest, *(len(frame.frame) for frame in found)])
            self._frames += found
            more = len(found)

    async def covers(self, news: News) -> list[Cover]:
        """Return the covers of the box. They list the attempts at earlier steps whose frames in the box are committed.

        Args: `news` say that the box's step is open, so that no covers will be added. A beginning of the box that was
        read before these news may lack covers, so only a beginning that came with these news is used.
        """
        if self._frames or (self._written and news.start is None):
            return await self._store.covers(self._box)
        covers, frames = news.start or await self._store.open_box(self._box, _FIRST)
        self._frames = list(frames)
        return list(covers)

    async def covered(self, covers: Sequence[Cover]) -> list[BoxFrame]:
        """Return the frames of the committed attempts that `covers` list, in order of arrival.

        Raises: FrameError if the server has lost some of the frames.
        """
        # The task `_awaited` gets the news and the beginning of the box, and stores the beginning. The news are not
        # needed, because the server has already answered that the step is open.
        if (awaited := self._awaited) is not None and (await asyncio.wait((awaited,), timeout=_BESIDE_S))[0]:
            self._awaited = None
            with suppress(MessagingError):  # the next call raises the error, if it persists
                await awaited
        if not covers:
            return []
        written = counted(self._written, covers)
        if written is not None:
            return written
        if self._start is not None and not self._frames:
            self._frames = list(self._start.frames)
        found = counted(self._frames, covers)
        if found is None:
            await self.read_ahead()
            found = counted(self._frames, covers)
        # After a restart, a server whose clock is behind may have given new entries ids below the last id that was
        # read. So all frames of the box are read again.
        if found is None:
            self._frames = []
            await self.read_ahead()
            found = counted(self._frames, covers)
        if found is None:
            raise FrameError(
                f"{box_in_words(self._box)} are lost, because the server was flushed, or restored from older data: "
                "start the experiment anew"
            )
        return found
