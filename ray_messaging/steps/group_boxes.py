"""The boxes that a group reads in a step. A box has the messages that one mailbox reads in one step.

A group reads the box of its own mailbox, and the boxes of mailboxes from which agents have moved to the group.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.audiences.folding import agents_digest, encode_kept, kept_places
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Fold
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.steps.box_frames import (
    BoxBatches,
    amended_broadcasts,
    amendments_of,
    batch_of,
    batches_of,
    from_outside,
)
from ray_messaging.steps.moved_agents import MovedAgents
from ray_messaging.steps.step_inbox import FoldedBatch
from ray_messaging.transports.box_reader import BoxReader
from ray_messaging.transports.step_values import OUTSIDE, BoxFrame, Opened, box_name

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

Mask = NDArray[np.bool_]


class ReadBoxes(NamedTuple):
    """The messages and broadcasts (`folded`) that a group reads in a step.

    `outside` has only the ones that came from senders outside of the steps, in the order of their arrival.
    """

    batches: list[Batch]
    folded: list[FoldedBatch]
    outside: list[FoldedBatch | Batch]


class OpenBox(NamedTuple):
    """The committed frames of a box, and the agents for which the group reads them.

    The group reads the messages for `agents`. If `besides` is True, it reads the messages for all agents of the box
    except `agents`.
    """

    frames: Sequence[BoxFrame]
    agents: AgentSet
    besides: bool


class GroupBoxes:
    """The boxes that one group reads in its steps.

    After an agent has moved, earlier messages to it are still in the box of the group that had the agent before.
    """

    def __init__(self, store: "RedisSteps", unfolder: Unfolder) -> None:
        self._store = store
        self._unfolder = unfolder

    async def read(self, opened: Opened, box: BoxReader, record: MailboxRecord, moved: MovedAgents) -> ReadBoxes:
        """Read all committed frames for an open step. Raises FrameError if one cannot be decoded or was lost."""
        own, step = await box.covered(opened.covers), opened.step
        late = all(cover.sent >= moved.changed for cover in opened.covers)
        others = [frames for origin in moved.origins.items() if (frames := await self._of_origin(*origin, step))]
        if late and not others:  # in most steps no agent has moved recently
            batches = batches_of(own, step)
            outside = [
                each if each.fold is None else FoldedBatch(each, await self._unfolder.edges(each))
                for each in from_outside(own, step)
            ]
            return ReadBoxes(batches.messages, await self._folded(batches), outside)
        boxes = [OpenBox(own, moved.left, besides=True)]
        boxes += [OpenBox(frames, moved.came, besides=False) for frames in others]
        found = ReadBoxes([], [], [])
        for where in boxes:
            batches = batches_of(where.frames, step)
            found.batches.extend(_addressed(batch, where) for batch in batches.messages)
            found.folded.extend([await self._toward(each.batch, where, record) for each in await self._folded(batches)])
        arrived = [(frame, where) for where in boxes for frame in where.frames if frame.tag.group == OUTSIDE]
        for frame, where in sorted(arrived, key=lambda pair: pair[0].first):
            batch = batch_of(frame, step)
            ours = _addressed(batch, where) if batch.fold is None else await self._toward(batch, where, record)
            found.outside.append(ours)
        return found

    async def _folded(self, box: BoxBatches) -> list[FoldedBatch]:
        """Return the broadcasts of a box, with the supervisor's changes applied."""
        found: list[FoldedBatch] = []
        for batch, amendments in zip(box.folded, amendments_of(box.folded, box.amendments), strict=True):
            edges = await self._unfolder.edges(batch)
            left = amended_broadcasts(batch, edges, amendments)
            found += [] if left is None else [FoldedBatch(left, edges)]
        return found

    async def _toward(self, batch: Batch, box: OpenBox, record: MailboxRecord) -> FoldedBatch:
        """Return the broadcasts with only the pairs of sender and hearer that the group reads.

        Raises: the errors of `toward_agents`.
        """
        agents = record.agents(batch.topics[0])
        return await toward_agents(self._unfolder, batch, agents, _chosen(box, agents))

    async def _of_origin(self, mailbox: str, since: int, step: int) -> list[BoxFrame]:
        """Return the committed frames in the box of the group `mailbox`, which agents have left.

        Only frames of steps before step `since` are returned, because later messages go to the agents' new group.
        """
        name = box_name(mailbox, step)
        covers = [cover for cover in await self._store.covers(name) if cover.sent < since]
        return await BoxReader(self._store, name).covered(covers)


def _chosen(box: OpenBox, agents: AgentSet) -> Callable[[AgentSet], AgentSet]:
    """Return a function that takes the agents that the mailbox had, and selects those for which the group reads."""
    return lambda then: then & (agents - box.agents if box.besides else agents & box.agents)


def _addressed(batch: Batch, box: OpenBox) -> Batch:
    """Return the rows of a batch that the group reads.

    Only the group whose mailbox has the box reads plain channels.
    """
    found = box.agents.find(batch.to_ids)
    plain = np.array([topic[:1] == ":" for topic in batch.topics], np.bool_)
    on_plain: Mask = plain[np.zeros(batch.rows, np.intp) if batch.topic is None else batch.topic]
    kept = ~found | on_plain if box.besides else found & ~on_plain
    return batch if bool(kept.all()) else batch.take(np.flatnonzero(kept))


async def toward_agents(
    unfolder: Unfolder, broadcasts: Batch, agents: AgentSet, chosen: Callable[[AgentSet], AgentSet]
) -> FoldedBatch:
    """Return a batch of broadcasts in which the hearers are agents that the group has in this step.

    Pairs of sender and hearer are left out if `chosen` does not select the hearer.

    Args: `agents` are the group's agents. `chosen` takes the agents that the frame names, and returns the ones for
    which the group reads the frame. All of these are among `agents`.
    Raises: FrameError if the audience's pairs are damaged; UnknownName if the audience's version does not exist.
    """
    folded = broadcasts.fold
    assert folded is not None
    then = unfolder.agents_of(folded.agents)
    hearers = chosen(then)
    now = await unfolder.toward(broadcasts, agents)
    if then == agents == hearers:
        return FoldedBatch(broadcasts, now)
    before = (await unfolder.edges(broadcasts)).expand(broadcasts.from_ids)
    kept = np.ones(len(before.rows), np.bool_)
    if folded.kept:
        kept[:] = False
        kept[kept_places(folded.kept, len(before.rows))] = True
    after = now.expand(broadcasts.from_ids)
    # `before` and `after` both have the pairs whose hearers are `hearers`, in the same order.
    places = np.flatnonzero(hearers.find(after.hearers))[kept[hearers.find(before.hearers)]]
    made = copy(broadcasts)
    made.frame, made.extension = None, copy(broadcasts.extension)
    assert made.extension is not None
    made.extension.fold = Fold(agents_digest(agents), len(places), encode_kept(places, len(after.rows)))
    return FoldedBatch(made, now)
