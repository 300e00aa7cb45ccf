"""The boxes of steps as the destination of a sender. A box has the messages that one mailbox reads in one step.

A broadcast is written as one row for each mailbox if no rule judges it before the step ends, and if each hearer is an
agent of a group. Otherwise it is written as one row for each hearer.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray_messaging.addressing.directory import Routes
from ray_messaging.audiences.cache import EVERYBODY, current_audience
from ray_messaging.audiences.folding import spread
from ray_messaging.errors import StepAborted, StepTooLarge
from ray_messaging.messager_engine import Engine
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AudiencePairs
from ray_messaging.sending import send_errors
from ray_messaging.sending.bulk_input import edges_of, within_pairs
from ray_messaging.sending.destination import OF_VERDICTS, Destination
from ray_messaging.sending.frame_router import OutboundFrame
from ray_messaging.sending.pending_batch import PendingBatch, Reaches
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.transports.step_values import BoxFrame, StepTag, box_name
from ray_messaging.transports.transport_values import WRITTEN, FrameFate, FrameWrite, SendReply, SendRequest, SendStatus

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps


class AttemptBoxes:
    """The calls with which one attempt writes frames to boxes. An attempt is one driver's work at a group's steps.

    A box has the messages that one mailbox reads in one step. If a call fails, the attempt must be given up.

    Args: `attempt` is the number of the attempt; `step` is its first step.
    """

    def __init__(self, store: "RedisSteps", group: str, attempt: int, step: int) -> None:
        self.step = step  # the open step
        self.rows = 0  # how many rows the open step has written to boxes of mailboxes and of askers, see `in_box`
        # The frames that the open step has written to the group's own box of the next step.
        self.own: list[BoxFrame] = []
        # Boxes that accept no messages, because their group does not take part in the box's step.
        self.shut: set[str] = set()
        self.group = group
        self.attempt = attempt
        self.tag = StepTag(group, step, attempt)  # the tag of the frames that are written in the open step
        self.in_memory = store.in_memory
        self._store = store

    def begin(self, step: int) -> None:
        """Begin a step: the frames that are written from now on belong to it."""
        if step != self.step:  # if the supervisor runs the same step again, the boxes in `shut` still accept nothing
            self.shut.clear()
        self.step, self.rows, self.own, self.tag = step, 0, [], StepTag(self.group, step, self.attempt)

    def request(self, writes: Sequence[FrameWrite], verdict_epoch: int) -> SendRequest:
        """Return the request of a call that writes frames. The attempt's number takes the place of a sender's epoch."""
        return SendRequest(self.group, self.attempt, 0, verdict_epoch, writes)

    async def send(self, writes: Sequence[FrameWrite], verdict_epoch: int) -> SendReply:
        """Write frames to boxes.

        The server refuses a frame if its box takes no more frames, or its verdicts are outdated.

        Raises: StepAborted if another attempt has taken over the step, or if a delayed call may still write a refused
        frame; StepTooLarge for a full box; ConfigError if there are no verdicts.
        """
        reply = await self._store.send(self.request(writes, verdict_epoch), self.tag)
        if reply.status is SendStatus.STEP_OVER:
            raise self._aborted(
                "was taken over by another task or process, or was closed, so nothing that this task sends in the step "
                "counts: end this task"
            )
        if reply.status is SendStatus.UNJUDGED:
            raise send_errors.no_verdicts()
        for write, fate in zip(writes, reply.fates, strict=True):
            if fate in WRITTEN:
                self.rows += write.rows if in_box(write) else 0
                self.keep_own([write])
            elif reply.repeated or fate is FrameFate.GAP:
                raise self._aborted(
                    "has sends with an unknown outcome, so the step is not committed: the next task that drives the "
                    "group runs it again"
                )
            elif fate is FrameFate.TOO_LARGE:
                raise await self._too_large(write.mailbox)
            elif fate is FrameFate.GONE:
                self.shut.add(write.mailbox)
        return reply

    def keep_own(self, writes: Sequence[FrameWrite]) -> None:
        """Keep the frames that the group itself reads in the next step, so that it need not fetch them again."""
        box = box_name(self.group, self.step + 1)
        self.own += [
            BoxFrame("", self.tag, write.rows, write.frame, batch=write.batch)
            for write in writes
            if write.mailbox == box
        ]

    def _aborted(self, why: str) -> StepAborted:
        return StepAborted(f"step {self.step} of group {self.group!r} {why}", step=self.step, group=self.group)

    async def _too_large(self, box: str) -> StepTooLarge:
        size = await self._store.box_size(box)
        mailbox, _, step = box.rpartition("@")
        return StepTooLarge(
            f"{mailbox!r} would read more in step {step} than its limit: it has {size.rows:,} of {size.limit_rows:,} "
            f"messages, {size.nbytes:,} of {size.limit_bytes:,} bytes. A mailbox must have room for all messages of a "
            "step: send less in a step, or split the group",
            rows=size.rows,
            limit_rows=size.limit_rows,
            nbytes=size.nbytes,
            limit_bytes=size.limit_bytes,
        )


def in_box(write: FrameWrite) -> bool:
    """Return whether a frame goes into the box of a mailbox or of an asker outside of the steps.

    Other frames are only published or logged, or have new positions of agents.
    """
    return write.mailbox.find("@") > 0 and write.mailbox[0] != ":"


class StepDestination(Destination):
    """The boxes of steps as the destination to which one driver of a group sends. Each box is for one mailbox and step.

    A message goes to the group that has the recipient in the step after the open step, because most messages are read
    in that step.
    """

    def __init__(self, engine: Engine, boxes: AttemptBoxes) -> None:
        self._engine = engine
        self.boxes = boxes
        self._routes = engine.directory.read_in(boxes.step + 1)
        super().__init__(
            engine.transport,
            engine.name,
            self._routes,
            engine.directory.schemas,
            mirror=engine.settings.mirror,
            observer=engine.observer,
        )
        self.router.shut = boxes.shut
        self.router.in_memory = boxes.in_memory
        # For each audience to which the group broadcasts, the hash of its pairs.
        self.digests: dict[AudiencePairs, bytes] = {}
        # By audience and topic: the senders and the routes for which `_reach` has computed its result, and the result.
        # None in place of the routes: the result does not depend on routes.
        self._reaches: dict[tuple[AudiencePairs, str], tuple[AgentPlaces, Routes | None, Reaches]] = {}

    @property
    def routes(self) -> Routes:
        """Return the mailboxes to which messages of the open step go."""
        return self._routes

    def begin(self, step: int) -> None:
        """Begin a step: the messages that are sent from now on belong to it.

        They are routed by the directory of mailboxes that was loaded last.
        """
        self.boxes.begin(step)
        self._routes = self._engine.directory.read_in(step + 1)

    async def reload(self) -> None:
        """Load the directory of mailboxes, and route messages by it from now on."""
        await self._engine.frame_sender.refresh()
        self._routes = self._engine.directory.read_in(self.boxes.step + 1)

    async def write(self) -> None:
        """Write the queued frames.

        Afterwards `stale_verdicts` has the rows whose verdicts the server refused as too old.

        Raises: the same errors as `AttemptBoxes.send`, such as StepAborted and StepTooLarge.
        """
        while not self.stale_verdicts and (frames := self.next_call()):
            await self.keep_agents()
            reply = await self.boxes.send(frames, frames[0].verdict_epoch)
            for frame, fate in zip(frames, reply.fates, strict=True):
                if fate in WRITTEN:
                    self.dequeue(frame)
                    self.stored(frame)
            if reply.status in OF_VERDICTS:
                self.refuse_verdicts(reply.status)
            elif FrameFate.GONE in reply.fates:
                await self.reload()
                self.reroute(again=True)

    def stored(self, frame: OutboundFrame) -> None:
        """Set the fates of the rows of a frame that was written, or that will be written with the step's commit.

        Messages on plain channels, which belong to no agent, are published only when all groups have closed the step.
        Nobody knows yet whether these messages will have subscribers, so they count as undeliverable.
        """
        self.written(frame, [0] * len(frame.publish))

    # -- broadcasts -----------------------------------------------------------------------------------------------

    async def prepared(self, batches: Sequence[Batch], senders: AgentPlaces, step: int) -> list[PendingBatch]:
        """Return batches in a form that can be sent. Where possible, a broadcast to many hearers stays one row.

        Raises: UnknownName if an audience does not exist; FrameError if its pairs are damaged.
        """
        made: list[PendingBatch] = []
        for batch in batches:
            audience = None if batch.extension is None else batch.extension.audience
            if audience is None:
                made.append(PendingBatch.of(batch))
                continue
            if batch.unspread and batch.extension is not None:
                audience = current_audience(self._engine.directory.audiences, audience.name, step)
                batch.extension.audience = audience
            reaches = await self._reach(audience, batch.topics[0], senders)
            made += await self._sendable(batch, reaches)
        return made

    async def _sendable(self, broadcasts: Batch, reaches: Reaches) -> list[PendingBatch]:
        records = self.routes.records.values()
        # A hearer that no group hosts needs a row of its own, because its message is published, and the event log gets
        # a note about this message. So broadcasts are sent whole only if groups host all their hearers. And no mailbox
        # may listen to a pattern of channels, because nobody knows which agents hear through a pattern.
        whole = not any(record.globs for record in records) and reaches.are_all_in(records, broadcasts.from_ids)
        if whole and await self._engine.verdict_client.pass_whole(broadcasts) is not None:
            return [PendingBatch.of(broadcasts, reaches=reaches)]
        parts = within_pairs(broadcasts, reaches.edges)
        return [PendingBatch.of(spread(part, reaches.edges)) for part in parts]

    async def _reach(self, audience: AudiencePairs, topic: str, senders: AgentPlaces) -> Reaches:
        """Return how many agents hear each sender in an audience.

        The result is cached for each topic until the senders or the audience change. For the audience of all agents,
        the result is also computed again when the routes change.
        """
        routes = self.routes
        # The directory's version does not tell whether the routes are the same. A move of agents may count only from a
        # later step on, so the routes of two steps may differ although the directory has not changed between them.
        key, everybody = (audience, topic), routes if audience == EVERYBODY else None
        found = self._reaches.get(key)
        if found is None or found[0] is not senders or found[1] is not everybody:
            edges = await edges_of(audience, topic, routes, self._engine.audiences)
            self.digests[audience] = edges.digest
            self._reaches = {
                (each, name): kept
                for (each, name), kept in self._reaches.items()
                if each == audience or each.name != audience.name
            }
            reaches = Reaches(edges.of(senders.agents), senders.column, senders.find, topic)
            found = self._reaches[key] = senders, everybody, reaches
        return found[2]
