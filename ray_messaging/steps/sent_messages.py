"""All messages that groups have sent in one step, collected from all boxes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.sending.bulk_input import ColumnChunk
from ray_messaging.steps.box_frames import batch_of, message_keys
from ray_messaging.steps.canonical_order import id_ranks, joined_in_order
from ray_messaging.transports.box_reader import BoxReader
from ray_messaging.transports.step_values import ASKER, OUTSIDE, Cover, box_name

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

Rows = NDArray[np.intp]
# A function whose arguments are the name of a mailbox and a batch of broadcasts that the mailbox reads. The function
# returns a batch with one row for each hearer.
Unfold = Callable[[str, Batch], Awaitable[Batch]]


class BoxBatch(NamedTuple):
    """A decoded frame, which is in the box that the mailbox `mailbox` reads in step `step`."""

    mailbox: str
    step: int
    batch: Batch

    @property
    def box(self) -> str:
        """Return the name of the box."""
        return box_name(self.mailbox, self.step)


class Copies(NamedTuple):
    """Rows of one frame, each of which is a copy of a message. Several mailboxes may have copies of the same message.

    `messages` has the index of each row's message. `first` is true for the row that is the first copy of its message.
    """

    source: BoxBatch
    rows: Rows
    messages: Rows
    first: NDArray[np.bool_]


class SentMessages:
    """Messages that groups have sent in one step. A broadcast is counted as one message for each hearer.

    `batch` has each message once, in canonical order, even if several mailboxes have a copy.

    Args: `sources` are the decoded frames of all boxes. They have at least one message.
    """

    def __init__(self, number: int, sources: Sequence[BoxBatch]) -> None:
        self._sources = sources
        batches = [source.batch for source in sources]
        joined, order = joined_in_order(batches)
        keys, hearers = message_keys([joined]), id_ranks([joined.to_ids])
        self._first = np.ones(len(order), np.bool_)
        # The copies of a message are adjacent.
        self._first[1:] = (keys[1:] != keys[:-1]) | (hearers[1:] != hearers[:-1])
        self._message = np.cumsum(self._first) - 1
        counts = [batch.rows for batch in batches]
        self._source = np.repeat(np.arange(len(sources)), counts)[order]
        self._row = np.concatenate([np.arange(count) for count in counts])[order]
        self.batch = joined.take(np.flatnonzero(self._first))
        self.batch.step = number
        delivers = np.array([source.step for source in sources], np.int64)[self._source[self._first]]
        if self.batch.extension is not None:
            self.batch.extension.deliver = delivers

    def copies(self, messages: Iterable[int]) -> Iterator[Copies]:
        """Yield the copies of some messages in all boxes, frame by frame.

        A message has a copy in each box that gets the message.
        """
        wanted = np.isin(self._message, np.fromiter(messages, np.intp))
        for source in np.unique(self._source[wanted]).tolist():
            at = np.flatnonzero(wanted & (self._source == source))
            yield Copies(self._sources[source], self._row[at], self._message[at], self._first[at])


def no_messages(sender: str, step: int, attempt: int = 0) -> Batch:
    """Return a batch without messages for a step."""
    nobody, extension = IdColumn.of([]), Extension(attempt=attempt, ordinal=np.zeros(0, np.uint32))
    batch = ColumnChunk(nobody, nobody, PayloadColumn.of([])).batch((AGENT_CHAT,), step, 0.0, extension)
    batch.sender, batch.epoch = sender, attempt
    return batch


async def sent_messages(store: "RedisSteps", number: int, horizon: int, unfold: Unfold) -> SentMessages | None:
    """Return the messages that groups sent to mailboxes in a step, or None if there are none.

    All groups must have closed the step.

    Args: `horizon` is how many steps ahead a message may be sent. `unfold` turns a mailbox's broadcasts into messages.
    """
    covered = await store.covered_boxes(number + 1, number + horizon)
    boxes = {
        box: [cover for cover in covers if cover.sent == number and cover.group != OUTSIDE]
        for box, covers in covered.items()
        if not box.startswith((":", ASKER))
    }
    parts = await asyncio.gather(*(_sent_to(store, box, covers, unfold) for box, covers in boxes.items() if covers))
    sources = [source for part in parts for source in part]
    return SentMessages(number, sources) if sources else None


async def _sent_to(store: "RedisSteps", box: str, covers: Sequence[Cover], unfold: Unfold) -> list[BoxBatch]:
    mailbox, _, step = box.rpartition("@")
    batches = [batch_of(frame, int(step)) for frame in await BoxReader(store, box).covered(covers)]
    spread = [each if each.fold is None else await unfold(mailbox, each) for each in batches]
    return [BoxBatch(mailbox, int(step), each) for each in spread if each.rows]
