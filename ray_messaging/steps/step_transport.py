"""The transport of messages that a group sends in its steps: frames go to boxes, under the attempt's tag."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ray_messaging.addressing.directory import NO_DATES, HostDates, Record
from ray_messaging.errors import StepAborted, StepTooLarge
from ray_messaging.transports.step_values import StepTag
from ray_messaging.transports.values import (
    DirectoryDelta,
    FrameFate,
    SenderState,
    SendReply,
    SendRequest,
    SendStatus,
)

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps
    from ray_messaging.transports.transport import RedisTransport


class DatedRecords:
    """The newest records of mailboxes, some with changes of hosts that count from a later step."""

    def __init__(self) -> None:
        self._dates = NO_DATES
        self._step = -1  # as of which the records were returned
        self._early: dict[str, Record] = {}  # records that have such a change

    def take(self, changed: Iterable[Record], dates: HostDates, step: int) -> list[Record]:
        """Take over records that have changed; return all that are new in a step, as they count in it."""
        newest = self._early | {record.mailbox: record for record in changed}
        self._dates, self._step = dates, step
        self._early = {name: record for name, record in newest.items() if self._next(record) is not None}
        return [record.at(step, dates) for record in newest.values()]

    def due(self, step: int) -> bool:
        """Tell whether some change counts from a step on that did not count before."""
        return any((first := self._next(record)) is not None and first <= step for record in self._early.values())

    def _next(self, record: Record) -> int | None:
        """Return the first step with which a record changes again."""
        later = [since for change in record.changes if (since := self._dates.since(change.version)) > self._step]
        return min(later, default=None)


class StepTransport:
    """The port of a `FrameSender` for the steps of one attempt.

    An attempt is one sender's epoch: a step that fails in any way is given up whole, so nothing is fenced or resumed.

    Args: `step` is the first one; `shut` gets the names of boxes that take nothing, because their group does not count
    in their step.
    """

    forgets = False

    def __init__(
        self, transport: "RedisTransport", store: "RedisSteps", group: str, attempt: int, shut: set[str], step: int
    ) -> None:
        self.step = step  # the open one
        self.rows = 0  # that mailboxes' boxes took in it
        self._transport = transport
        self._store = store
        self._group = group
        self._attempt = attempt
        self._shut = shut
        self.records = DatedRecords()

    def begin(self, step: int) -> None:
        """Send in this step from now on."""
        self.step, self.rows = step, 0

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return the changes of the directory since a version, with the hosts of the next step, which read messages.

        They are without mailboxes that host no agents. These have no steps: nobody would read their boxes.
        """
        delta = await self._transport.load_directory(since)
        exclusive = [record for record in delta.changed if record.exclusive]
        return delta._replace(changed=self.records.take(exclusive, delta.dates, self.step + 1))

    async def take_sender_epoch(self, sender: str, *, keep_s: float, held: int | None = None) -> SenderState:  # noqa: ARG002
        """Return the attempt as the sender's epoch. A higher one is another attempt: raises StepAborted."""
        if held is not None:
            raise StepAborted(
                f"step {self.step} of group {sender!r} has sends with an unknown outcome: the step is not committed, "
                "and the group's next driver runs it again",
                step=self.step,
                group=sender,
            )
        return SenderState(self._attempt, {}, [])

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Forget nothing: the numbers of an attempt go with its boxes."""

    async def leave(self, sender: str, epoch: int, *, keep_s: float) -> None:
        """Leave nothing behind: the numbers of an attempt go with its boxes."""

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:  # noqa: ARG002
        """Return None: a box is never full for a while."""
        return None

    async def send(self, request: SendRequest) -> SendReply:
        """Write frames to boxes. Raises StepAborted where the attempt is over, StepTooLarge for a full box."""
        reply = await self._store.send(request, StepTag(self._group, self.step, self._attempt))
        if reply.status is SendStatus.STEP_OVER:
            raise StepAborted(
                f"step {self.step} of group {self._group!r} has another driver, or was closed: what this attempt sent "
                "does not count",
                step=self.step,
                group=self._group,
            )
        for write, fate in zip(request.writes, reply.fates, strict=True):
            if fate is FrameFate.TOO_LARGE:
                raise await self._too_large(write.mailbox)
            if fate is FrameFate.GONE:
                self._shut.add(write.mailbox)
            if (
                fate in (FrameFate.WRITTEN, FrameFate.DUPLICATE)
                and write.mailbox.find("@") > 0
                and write.mailbox[0] != ":"
            ):
                self.rows += write.rows
        # What is published goes out at the seal: its takers are unknown now, so it counts as undeliverable.
        reply.takers = [0] * sum(len(write.publish) for write in request.writes if write.mailbox == "")
        return reply

    async def _too_large(self, box: str) -> StepTooLarge:
        size = await self._store.box_size(box)
        mailbox, _, step = box.rpartition("@")
        return StepTooLarge(
            f"{mailbox!r} would read more in step {step} than its limit: it has {size.rows:,} of {size.limit_rows:,} "
            f"messages, {size.nbytes:,} of {size.limit_bytes:,} bytes. Only the end of a step empties it: send less in "
            "a step, or split the group",
            rows=size.rows,
            limit_rows=size.limit_rows,
            nbytes=size.nbytes,
            limit_bytes=size.limit_bytes,
        )
