"""The transport of messages that a group sends in its steps: it writes frames to boxes, with the attempt's tag."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ray_messaging.addressing.directory import NO_DATES, HostDates, MailboxRecord
from ray_messaging.errors import StepAborted, StepTooLarge
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.transports.step_values import StepTag
from ray_messaging.transports.transport_values import (
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
    """The newest records of mailboxes, some of which have changes of agents that apply from a later step on."""

    def __init__(self) -> None:
        self._dates = NO_DATES
        self._step = -1  # the step for which records were last returned
        self._early: dict[str, MailboxRecord] = {}  # records with a change for a later step

    def take(self, changed: Iterable[MailboxRecord], dates: HostDates, step: int) -> list[MailboxRecord]:
        """Store changed records; return all records that change with `step`, in the form that is valid in it."""
        newest = self._early | {record.mailbox: record for record in changed}
        self._dates, self._step = dates, step
        self._early = {name: record for name, record in newest.items() if self._next(record) is not None}
        return [record.at(step, dates) for record in newest.values()]

    def due(self, step: int) -> bool:
        """Return whether a change that was not valid before is valid from a step on."""
        return any((first := self._next(record)) is not None and first <= step for record in self._early.values())

    def _next(self, record: MailboxRecord) -> int | None:
        """Return the first step with which a record changes again."""
        later = [since for change in record.changes if (since := self._dates.since(change.version)) > self._step]
        return min(later, default=None)


class StepTransport:
    """The port of a `FrameSender` for the steps of one attempt.

    The attempt's number is the sender's epoch. A step that fails in any way is given up as a whole, so no sender is
    fenced or resumed.

    Args: `step` is the first step; `shut` gets the names of boxes that accept nothing, because their group is not a
    member in their step.
    """

    forgets = False

    def __init__(
        self, transport: "RedisTransport", store: "RedisSteps", group: str, attempt: int, shut: set[str], step: int
    ) -> None:
        self.step = step  # the open step
        self.rows = 0  # the number of rows that were written to mailboxes' boxes in it
        self._transport = transport
        self._store = store
        self._group = group
        self._attempt = attempt
        self._shut = shut
        self.records = DatedRecords()

    def begin(self, step: int) -> None:
        """Use this open step for sends from now on."""
        self.step, self.rows = step, 0

    async def load_directory(self, since: int) -> DirectoryDelta:
        """Return the directory's changes since a version, with the agents' groups in the next step.

        In that step messages are read. Mailboxes that host no agents are left out: they have no steps, so nobody would
        read their boxes.
        """
        delta = await self._transport.load_directory(since)
        exclusive = [record for record in delta.changed if record.exclusive]
        return delta._replace(changed=self.records.take(exclusive, delta.dates, self.step + 1))

    async def take_sender_epoch(self, sender: str, *, keep_s: float, held: int | None = None) -> SenderState:  # noqa: ARG002
        """Return the attempt's number as the sender's epoch.

        Raises: StepAborted if `held` is given: a higher epoch would need another attempt.
        """
        if held is not None:
            raise StepAborted(
                f"step {self.step} of group {sender!r} has sends with an unknown outcome: the step is not committed, "
                "and the group's next driver runs it again",
                step=self.step,
                group=sender,
            )
        return SenderState(self._attempt, {}, [])

    async def forget(self, sender: str, epoch: int, mailboxes: Sequence[str]) -> None:
        """Do nothing: the sequence numbers of an attempt are deleted with its boxes."""

    async def still_full(self, mailbox: str, rows: int, nbytes: int) -> FrameFate | None:  # noqa: ARG002
        """Return None, because a frame that was refused for a full box is never tried again."""
        return None

    async def keep_agents(self, sets: Mapping[bytes, AgentSet]) -> None:
        """Keep sets of agents, by digest, for the event log, before frames that name them are written."""
        await self._transport.keep_agents(sets)

    async def send(self, request: SendRequest) -> SendReply:
        """Write frames to boxes. Raises StepAborted if the attempt is over, StepTooLarge for a full box."""
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
        # Messages without a mailbox are published at the seal. Their subscribers are unknown now, so they count as
        # undeliverable.
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
