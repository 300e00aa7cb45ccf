# ruff: noqa: ARG002 - the methods have the arguments of those that they replace
"""The steps of a run that has only one group, in memory."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from ray_messaging.addressing.directory import Directory
from ray_messaging.transports.step_values import (
    PUBLICATIONS,
    BoxFrame,
    BoxSize,
    BoxStart,
    ClosedStep,
    Closing,
    Collected,
    CollectedKind,
    Committed,
    Cover,
    DrivenGroup,
    Driver,
    Opened,
    Progress,
    Refused,
    StepSettings,
    StepTag,
    box_name,
    counted,
)
from ray_messaging.transports.steps import RedisSteps
from ray_messaging.transports.transport_values import FrameFate, FrameWrite, SendReply, SendRequest, SendStatus

_ENTRY: Final = "1-0"  # the stream id that all frames get: one call reads a whole box, so ids need not differ
_EVERY: Final = 2**31  # more frames than a box has
_TURN_S: Final = 0.01  # after this time, other tasks of the event loop get a turn, such as the one that shows progress


class LocalSteps(RedisSteps):
    """The steps of a run whose only group is in this process. They replace steps on the server.

    A step waits for no other group, and nothing outlives the process, so the server need not know of the steps. The
    methods do the same as those of `RedisSteps`.

    Args: `joined` are the steps on the server, which the group has joined. `directory` is the group's copy of the
    directory of mailboxes.
    """

    in_memory = True

    def __init__(self, joined: RedisSteps, group: str, settings: StepSettings, directory: Directory) -> None:
        super().__init__(joined._link, joined._keys, joined.bodies)
        self._group, self._settings, self._directory = group, settings, directory
        self._attempt, self._closed = 0, -1
        self._state: bytes | None = None
        self._boxes: dict[str, list[BoxFrame]] = {}  # the frames of closed steps, by box
        self._written: dict[str, list[BoxFrame]] = {}  # the frames of the open step, by box
        self._sizes: dict[str, tuple[int, int]] = {}  # the rows and bytes of each box, including those of the open step
        self._closes: dict[int, ClosedStep] = {}
        self._collected: list[Collected] = []
        self._shape = b""  # the first line of the recorded series, which describes the other lines
        self._blocked = b""  # the messages that rules blocked in the last closed step
        self._results: dict[int, dict[str, bytes]] = {}  # the results of remembered calls, by step
        self._turn_at = 0.0  # when other tasks get the next turn

    async def adopt(self) -> None:
        """Copy the last closed step, the state and the boxes from the server, to go on with the next step."""
        self._closed = (await super().progress()).groups[self._group].closed
        self._state = await super().state(self._group)
        boxes = await super().covered_boxes(self._closed + 1, self._closed + self._settings.horizon)
        for box, covers in boxes.items():
            if box.startswith(f"{self._group}@"):
                frames = counted(await super().read_box(box, count=_EVERY), covers)
                self._boxes[box] = [each._replace(entry=_ENTRY) for each in frames or ()]
        self._closes = {self._closed: (await super().closed_step(self._closed))[self._group]}
        self._blocked = b"".join(await super().blocked(self._closed, [self._group]))
        self._collected = await super().collected(self._closed)
        series = [each.data for each in self._collected if each.kind is CollectedKind.SERIES]
        self._shape = series[0].partition(b"\n")[0] if series else b""

    async def take(
        self, group: str, driver: Driver, lease_s: float, over: str = "", until: int | None = None
    ) -> DrivenGroup:
        """Become the driver of the group, the task that takes the group through its steps.

        Messages that an earlier driver has sent in the open step do not count.
        """
        self._attempt += 1
        self._written, self._sizes = {}, {}
        return DrivenGroup(self._attempt, self._closed, self._state, None)

    async def renew(self, group: str, attempt: int) -> None:
        """Do nothing, because no other process can take the group."""

    async def let_go(self, group: str, attempt: int) -> None:
        """Do nothing, because no other process waits for the group."""

    async def hold(self, name: str, through: int) -> None:
        """Do nothing. On a server this call is for other readers of the steps' messages, and a local run has none."""

    async def open(self, group: str, attempt: int, step: int) -> Opened:
        """Open a step at once, because there is no other group for which it would have to wait."""
        frames = self._boxes.get(box_name(group, step), ())
        rows = Counter[StepTag]()
        for frame in frames:
            rows[frame.tag] += frame.rows
        covers = tuple(Cover(*tag, count) for tag, count in rows.items())
        return Opened(step, covers, self._directory.version, bool(self._blocked))

    async def send(self, request: SendRequest, tag: StepTag) -> SendReply:
        """Write frames to boxes. A frame for a full box is TOO_LARGE."""
        fates = [FrameFate.WRITTEN if self._write(each, tag) else FrameFate.TOO_LARGE for each in request.writes]
        return SendReply(SendStatus.OK, fates)

    async def commit(
        self, request: SendRequest, tag: StepTag, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused | None:
        """Write all frames of a step, and close it; return None, and change nothing, if a box is full."""
        if not all(self._write(each, tag) for each in request.writes):
            self._written, self._sizes = {}, {}
            return None
        return await self.close(tag.group, tag.attempt, tag.sent, closing, go_on=go_on)

    def _write(self, write: FrameWrite, tag: StepTag) -> bool:
        """Write a frame to its box; return False if the box is full."""
        # No process subscribes to a plain channel of this run, so publications are not sent. But they count towards the
        # limits of a box, as on a server.
        box = write.mailbox or box_name(PUBLICATIONS, tag.sent + 1)
        publish = tuple(each.data for each in write.publish)
        frame = BoxFrame(_ENTRY, tag, write.rows, write.frame, publish=publish, batch=write.batch)
        rows, nbytes = self._size(box)
        rows, nbytes = rows + frame.rows, nbytes + frame.nbytes
        if rows > self._settings.box_rows or nbytes > self._settings.box_bytes:
            return False
        self._written.setdefault(box, []).append(frame)
        self._sizes[box] = rows, nbytes
        return True

    def _size(self, box: str) -> tuple[int, int]:
        found = self._sizes.get(box)  # adding up all frames of the box for each write would take long
        if found is None:
            frames = self._boxes.get(box, ())
            rows, nbytes = [each.rows for each in frames], [each.nbytes for each in frames]
            found = self._sizes[box] = sum(rows), sum(nbytes)
        return found

    async def box_size(self, box: str) -> BoxSize:
        """Return the size of a box, and its limits."""
        return BoxSize(*self._size(box), self._settings.box_rows, self._settings.box_bytes)

    async def close(
        self, group: str, attempt: int, step: int, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused:
        """Close a step; with `go_on` open the next step, too.

        The first line of the recorded series describes the series. Return Refused if it differs from the first line of
        earlier steps.
        """
        if monotonic() >= self._turn_at:
            await asyncio.sleep(0)
            self._turn_at = monotonic() + _TURN_S
        shape = closing.series.partition(b"\n")[0]
        if shape and self._shape and shape != self._shape:
            return Refused(step, 0, series=self._shape)
        self._shape = self._shape or shape
        for kind, data in ((CollectedKind.SERIES, closing.series), (CollectedKind.CALLS, closing.calls)):
            if data:
                self._collected.append(Collected("", kind, step, group, data))
        for name in (box_name(group, step), box_name(PUBLICATIONS, step + 1)):
            self._boxes.pop(name, None)
            self._written.pop(name, None)
        for box, frames in self._written.items():
            self._boxes.setdefault(box, []).extend(frames)
        self._written, self._sizes, self._closed, self._blocked = {}, {}, step, closing.blocked
        if closing.state_changed:
            self._state = closing.state
        self._closes[step] = ClosedStep(attempt, closing.counts)
        self._closes.pop(step - self._settings.horizon, None)
        self._results.pop(step, None)
        return Committed(step, step, await self.open(group, attempt, step + 1) if go_on else None)

    async def open_box(self, box: str, count: int) -> BoxStart:
        """Return the frames of a box.

        The list of committed attempts, which `RedisSteps.open_box` also returns, is left out, because `open` has
        returned this list.
        """
        return BoxStart((), self._boxes.get(box, ()))

    async def read_box(self, box: str, after: str = "0-0", count: int = 64) -> list[BoxFrame]:
        """Return all frames of a box, also if there are more than `count`.

        All frames have the same entry. Return an empty list if `after` is this entry, because the caller then
        has all frames already.
        """
        return [] if after == _ENTRY else [*self._boxes.get(box, ())]

    async def closed_step(self, step: int) -> Mapping[str, ClosedStep]:
        """Return, under the group's name, how the group closed a step. Return an empty dict if this is not known.

        It is known for the last `horizon` steps (see `StepSettings`).
        """
        return {self._group: self._closes[step]} if step in self._closes else {}

    async def blocked(self, step: int, groups: Sequence[str]) -> list[bytes]:
        """Return the messages that rules blocked in the last closed step."""
        return [self._blocked] if self._blocked else []

    async def collected(self, through: int) -> list[Collected]:
        """Return the recorded series, and the results of remembered calls, of the steps up to `through`."""
        return [each for each in self._collected if each.step <= through]

    async def remember(self, group: str, attempt: int, step: int, results: Mapping[str, bytes]) -> bool:
        """Keep results of remembered calls, by the calls' keys, until the step is closed."""
        self._results.setdefault(step, {}).update(results)
        return True

    async def remembered(self, group: str, step: int) -> dict[str, bytes]:
        """Return the results of remembered calls that were kept for a step, by the calls' keys."""
        return {**self._results.get(step, {})}

    async def progress(self) -> Progress:
        """Return the progress of the run, which is its last closed step. The progress of its group is left out."""
        return Progress(self._closed, self._closed, None, {}, {}, "")
