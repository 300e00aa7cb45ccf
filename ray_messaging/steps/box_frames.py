"""Reading of boxes. A box has the frames with the messages that one mailbox reads in one step.

A group reads the box of its own mailbox, and the boxes of mailboxes from which agents have moved to the group. The
supervisor of the steps may add frames, called amendments, which block or change messages of the other frames.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import agents_digest, encode_kept, fold, kept_places, row_kinds, spread
from ray_messaging.audiences.graph_edges import gathered
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AskedOutside, Extension, Fold, OutsideQuestion
from ray_messaging.model.joining import joined_arrays
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.steps.canonical_order import id_ranks
from ray_messaging.steps.moved_agents import MovedAgents
from ray_messaging.steps.step_inbox import FoldedBatch
from ray_messaging.transports.box_reader import BoxReader
from ray_messaging.transports.step_values import OUTSIDE, SUPERVISOR, BoxFrame, Opened, box_name
from ray_messaging.wire.frames import decode

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

# The sender names in frames of the supervisor that block or change messages of other frames.
BLOCKED, CHANGED = ":blocked", ":changed"
FIRST_ADDED = 2**30  # ordinals from this number on belong to messages that a rule added
FIRST_OUTSIDE = 2**31  # ordinals from this number on belong to messages that were sent outside of the steps


class ReadBoxes(NamedTuple):
    """The messages that a group reads in a step.

    `batches` has the messages with one recipient, and `folded` has the broadcasts. `outside` has only the messages and
    broadcasts that senders outside of the steps have sent, in the order of their arrival.
    """

    batches: list[Batch]
    folded: list[FoldedBatch]
    outside: list[FoldedBatch | Batch]


class OpenBox(NamedTuple):
    """The committed frames of a box, and the agents for which the group reads them.

    If `besides` is False, the group reads the messages for `agents`. If `besides` is True, it reads the messages for
    all other agents of the box.
    """

    frames: Sequence[BoxFrame]
    agents: AgentSet
    besides: bool


class BoxBatches(NamedTuple):
    """The decoded frames of a box, which has the messages that one mailbox reads in one step.

    `messages` has direct messages, and `folded` has broadcasts. `amendments` are frames of the steps' supervisor, which
    block or change messages. `outside` has the batches that senders outside of the steps sent, without any changes by
    amendments. Each of these batches comes with the number of rows from outside that the box had before it.
    """

    messages: list[Batch]
    folded: list[Batch]
    amendments: list[Batch]
    outside: list[tuple[int, Batch]]


class GroupBoxes:
    """The boxes that one group reads in its steps. A box has the messages that one mailbox reads in one step.

    After an agent has moved, earlier messages to it are still in the box of the group that had the agent before.
    """

    def __init__(self, store: "RedisSteps", unfolder: Unfolder) -> None:
        self._store = store
        self._unfolder = unfolder

    async def read(self, opened: Opened, box: BoxReader, record: MailboxRecord, moved: MovedAgents) -> ReadBoxes:
        """Read the boxes of an open step, and return the messages that the group reads in the step.

        Raises: FrameError if a frame cannot be decoded or was lost, or if an audience's pairs are damaged; UnknownName
        if the version of an audience does not exist.
        """
        own, step = await box.covered(opened.covers), opened.step
        late = all(cover.sent >= moved.changed for cover in opened.covers)
        others = [frames for origin in moved.origins.items() if (frames := await self._of_origin(*origin, step))]
        if late and not others:  # in most steps no agent has moved recently
            found = batches_of(own, step)
            outside = [
                each if each.fold is None else FoldedBatch(each, await self._unfolder.edges(each))
                for _, each in sorted(found.outside, key=itemgetter(0))
            ]
            return ReadBoxes(found.messages, await self._folded(found) if found.folded else [], outside)
        boxes = [OpenBox(own, moved.left, besides=True)]
        boxes += [OpenBox(frames, moved.came, besides=False) for frames in others]
        read, arrived = ReadBoxes([], [], []), list[tuple[int, Batch, OpenBox]]()
        for where in boxes:
            found = batches_of(where.frames, step)
            read.batches.extend(_addressed(batch, where) for batch in found.messages)
            read.folded.extend([await self._toward(each.batch, where, record) for each in await self._folded(found)])
            arrived += [(first, batch, where) for first, batch in found.outside]
        for _, batch, where in sorted(arrived, key=itemgetter(0)):
            ours = _addressed(batch, where) if batch.fold is None else await self._toward(batch, where, record)
            read.outside.append(ours)
        return read

    async def _folded(self, box: BoxBatches) -> list[FoldedBatch]:
        """Return the broadcasts of a box, with the supervisor's changes applied."""
        found: list[FoldedBatch] = []
        for batch, amendments in zip(box.folded, amendments_of(box.folded, box.amendments), strict=True):
            edges = await self._unfolder.edges(batch)
            left = amended_broadcasts(batch, edges, amendments)
            found += [] if left is None else [FoldedBatch(left, edges)]
        return found

    async def _toward(self, broadcasts: Batch, box: OpenBox, record: MailboxRecord) -> FoldedBatch:
        """Return broadcasts of `box`, each with only the hearers that get it from this box in this step.

        These hearers are agents that the group has in this step, and for which the group reads `box`.

        Raises: FrameError if the audience's pairs are damaged; UnknownName if the audience's version does not exist.
        """
        folded, agents = broadcasts.fold, record.agents(broadcasts.topics[0])
        assert folded is not None
        then = self._unfolder.agents_of(folded.agents)  # the mailbox's agents when the broadcasts were sent
        hearers = then & (agents - box.agents if box.besides else agents & box.agents)
        now = await self._unfolder.toward(broadcasts, agents)
        if then == agents == hearers:
            return FoldedBatch(broadcasts, now)
        before = (await self._unfolder.edges(broadcasts)).expand(broadcasts.from_ids)
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

    async def _of_origin(self, mailbox: str, since: int, step: int) -> list[BoxFrame]:
        """Return the committed frames in the box of `mailbox`, a group from which agents have come to this group.

        Frames that were sent in step `since` or later are left out: they have no messages for these agents, because
        such messages go to this group's own box.
        """
        name = box_name(mailbox, step)
        covers = [cover for cover in await self._store.covers(name) if cover.sent < since]
        return await BoxReader(self._store, name).covered(covers)


def _addressed(batch: Batch, box: OpenBox) -> Batch:
    """Return the rows of a batch in `box` that the group reads.

    The box may be from the mailbox of another group. Messages on plain channels, which belong to no agent, are read
    only by the group of that mailbox.
    """
    found = box.agents.find(batch.to_ids)
    plain = np.array([topic[:1] == ":" for topic in batch.topics], np.bool_)
    on_plain: NDArray[np.bool_] = plain[np.zeros(batch.rows, np.intp) if batch.topic is None else batch.topic]
    kept = ~found | on_plain if box.besides else found & ~on_plain
    return batch if bool(kept.all()) else batch.take(np.flatnonzero(kept))


def batches_of(frames: Iterable[BoxFrame], step: int) -> BoxBatches:
    """Decode the committed frames of a step's box, and sort them into messages, broadcasts and amendments.

    Amendments are frames of the steps' supervisor that block or change messages. They are applied to all messages, but
    not to broadcasts.

    Raises: FrameError for a frame that cannot be decoded.
    """
    found = BoxBatches([], [], [], [])
    for frame in frames:
        batch = batch_of(frame, step)
        if frame.tag.group == OUTSIDE:
            found.outside.append((frame.first, batch))
        kind = found.amendments if amends(frame, batch) else found.messages if batch.fold is None else found.folded
        kind.append(batch)
    return found._replace(messages=amended(found.messages, found.amendments)) if found.amendments else found


def amends(frame: BoxFrame, batch: Batch) -> bool:
    """Return whether a frame blocks or changes messages of other frames. If not, its rows are messages themselves."""
    return frame.tag.group == SUPERVISOR and batch.sender in {BLOCKED, CHANGED}


def batch_of(frame: BoxFrame, step: int) -> Batch:
    """Decode a frame of a step's box. Messages from senders outside of the steps get the number of the step.

    Raises: FrameError for a frame that cannot be decoded.
    """
    batch = decode(frame.frame) if frame.batch is None else frame.batch
    if frame.tag.group == OUTSIDE:
        ordinals = outside_ordinals(frame.first, np.arange(batch.rows, dtype=np.uint32))
        given = batch.extension or Extension()
        # This is read first, because the assignments below replace the ids that the messages had outside of the steps.
        asked = _asked_outside(batch, given)
        batch.step = step
        batch.extension = Extension(
            deliver=step,
            ordinal=ordinals,
            expects_answer=given.expects_answer,
            asked_outside=asked,
            audience=given.audience,
            fold=given.fold,
        )
    return batch


def outside_ordinals(first: int, places: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the ordinals of rows in a frame that a sender outside of the steps has sent.

    Ordinals order the messages of one sender in a step.

    Args: `places` are the positions of the rows in the frame. `first` is the number of rows from outside of the steps
    that the box had before the frame.
    """
    return places + np.uint32(FIRST_OUTSIDE + first)


def _asked_outside(batch: Batch, extension: Extension) -> AskedOutside:
    """Return the questions in a batch that came from outside of the steps, as a dict from row to question."""
    if extension.expects_answer is None:
        return {}
    rows = np.flatnonzero(extension.expects_answer).tolist()
    return {row: OutsideQuestion(extension.reply_mailbox, batch.message_id(row)) for row in rows}


class _Hits(NamedTuple):
    """The rows of one batch that amendments block or change. An amendment is a frame of the steps' supervisor.

    For each row, `batches` is the index of the amendment, and `places` is the row in that amendment. `blocked` says
    whether the row is blocked. A row that is not blocked gets the amendment's payload and labels.
    """

    rows: NDArray[np.intp]
    blocked: NDArray[np.bool_]
    batches: NDArray[np.intp]
    places: NDArray[np.intp]

    def take(self, some: NDArray[np.bool_] | NDArray[np.intp]) -> "_Hits":
        """Return some of the hits, which are rows that the supervisor's frames block or change.

        The argument is a mask of the hits, or their indices.
        """
        return _Hits(self.rows[some], self.blocked[some], self.batches[some], self.places[some])


def amended(batches: Sequence[Batch], amendments: Sequence[Batch]) -> list[Batch]:
    """Apply amendments to the batches of a box: return the batches without blocked rows, and with changed rows.

    An amendment is a frame of the steps' supervisor. All rows of a batch were sent in the same step, and so were all
    rows of an amendment.
    """
    found = list(batches)
    for step in dict.fromkeys(each.step for each in amendments):
        changes = [each for each in amendments if each.step == step]
        targets = [place for place, batch in enumerate(found) if batch.step == step and batch.rows]
        for place, hits in zip(targets, _hits([found[place] for place in targets], changes), strict=True):
            if len(hits.rows):
                found[place] = _apply(found[place], hits, changes)
    return [batch for batch in found if batch.rows]


def amendments_of(folded: Sequence[Batch], amendments: Sequence[Batch]) -> list[list[Batch]]:
    """Return, for each batch of broadcasts, the amendments that concern these broadcasts.

    An amendment is a frame that blocks or changes the messages for some pairs of sender and hearer. Its rows for other
    broadcasts are left out.
    """
    found: list[list[Batch]] = [[] for _ in folded]
    for step in dict.fromkeys(each.step for each in amendments):
        changes = [each for each in amendments if each.step == step]
        targets = [place for place, batch in enumerate(folded) if batch.step == step and batch.rows]
        if not targets:
            continue
        batches = [*changes, *(folded[place] for place in targets)]
        keys = np.split(_sent_keys(batches), np.cumsum([batch.rows for batch in batches])[:-1])
        amending = joined_arrays(keys[: len(changes)])
        of, rows = _places(changes)
        order = np.argsort(amending, kind="stable")
        for place, own in zip(targets, keys[len(changes) :], strict=True):
            said = np.unique(own)
            low = np.searchsorted(amending, said, sorter=order)
            counts = np.searchsorted(amending, said, side="right", sorter=order) - low
            hits = np.sort(order[gathered(low, counts)])
            for part in _groups(of[hits]):
                change, mine = changes[of[hits[part[0]]]], rows[hits[part]]
                found[place].append(change if len(mine) == change.rows else change.take(mine))
    return found


def amended_broadcasts(folded: Batch, edges: Edges, amendments: Sequence[Batch]) -> Batch | None:
    """Return a batch of broadcasts after amendments have blocked or changed some pairs of sender and hearer.

    An amendment is a frame that blocks or changes messages of other frames. If amendments change the pairs of one
    broadcast in different ways, the result has one row for each way. If no pair is left, the result is None.

    Args: `edges` are the audience's pairs of sender and hearer whose hearers are agents of the group.
    `amendments` are the result of `amendments_of` for the batch.
    """
    return _amended_pairs(folded, edges, amendments, without_changed=False)


def unamended_broadcasts(folded: Batch, edges: Edges, amendments: Sequence[Batch]) -> Batch | None:
    """Return broadcasts with only those pairs of sender and hearer that no amendment blocks or changes.

    An amendment is a frame that blocks or changes messages of other frames. If no pair is left, the result is None.

    Args: `edges` are the audience's pairs of sender and hearer whose hearers are agents of the group.
    `amendments` are the result of `amendments_of` for the batch.
    """
    return _amended_pairs(folded, edges, amendments, without_changed=True)


def _amended_pairs(folded: Batch, edges: Edges, amendments: Sequence[Batch], *, without_changed: bool) -> Batch | None:
    if not amendments:
        return folded
    assert folded.fold is not None
    pairs = _spread(folded, edges)
    kept = kept_places(folded.fold.kept, pairs.rows) if folded.fold.kept else np.arange(pairs.rows)
    hits = _hits([pairs.take(kept)], amendments)[0]
    if not len(hits.rows):
        return folded
    hits = hits._replace(rows=kept[hits.rows])
    changed = hits.take(~hits.blocked)
    stay = np.ones(pairs.rows, np.bool_)
    stay[hits.rows if without_changed else hits.rows[hits.blocked]] = False
    kept = kept[stay[kept]]
    if not len(kept):
        return None
    kinds = None
    if len(changed.rows) and not without_changed:
        pairs = _changed(pairs, changed, amendments)
        kinds = _kinds(pairs, changed.rows)
    made, _ = fold(pairs, kept, np.arange(pairs.rows), folded.fold.agents, kinds)
    made.numbers = None
    return made


def _kinds(pairs: Batch, changed: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return a number for each row: 0 if it is not changed, and equal numbers for equal payloads and labels."""
    assert pairs.lines is not None
    lines = {row: pairs.lines.row(row) for row in changed.tolist()}
    return row_kinds(lines, pairs.labels, pairs.rows)


def _spread(folded: Batch, edges: Edges) -> Batch:
    """Return a batch with a row for each pair of sender and hearer, even for pairs that rules have blocked.

    The `numbers` of the batch say from which row of `folded` each pair comes.
    """
    numbered = copy(folded)
    numbered.numbers = None
    return spread(numbered, edges)


def _places(batches: Sequence[Batch]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return, for each row of the joined batches, the index of its batch, and the row's index in that batch."""
    counts = np.array([batch.rows for batch in batches], np.intp)
    starts = np.cumsum(counts) - counts
    return np.repeat(np.arange(len(batches)), counts), np.arange(counts.sum()) - np.repeat(starts, counts)


def _groups(numbers: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Return, for each distinct number, the ascending positions at which the number occurs."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1) if len(numbers) else []


def _hits(targets: Sequence[Batch], amendments: Sequence[Batch]) -> list[_Hits]:
    """Return, for each batch in `targets`, the rows that amendments block or change.

    Amendments are frames of the steps' supervisor.
    """
    keys = message_keys([*amendments, *targets])
    ends = np.cumsum([batch.rows for batch in (*amendments, *targets)])
    amending = int(ends[len(amendments) - 1])
    of, places = _places(amendments)
    blocks = np.array([batch.sender == BLOCKED for batch in amendments], np.bool_)
    order = np.argsort(keys[:amending], kind="stable")
    ours = keys[:amending][order]
    found: list[_Hits] = []
    for low, high in zip(ends[len(amendments) - 1 : -1].tolist(), ends[len(amendments) :].tolist(), strict=True):
        wanted = keys[low:high]
        at = np.minimum(np.searchsorted(ours, wanted), amending - 1)
        rows = np.flatnonzero(ours[at] == wanted)
        by = order[at[rows]]
        found.append(_Hits(rows, blocks[of[by]], of[by], places[by]))
    return found


def _apply(batch: Batch, hits: _Hits, amendments: Sequence[Batch]) -> Batch:
    made = _changed(batch, hits.take(~hits.blocked), amendments)
    stay = np.ones(batch.rows, np.bool_)
    stay[hits.rows[hits.blocked]] = False
    return made if stay.all() else made.take(np.flatnonzero(stay))


def _changed(batch: Batch, changed: _Hits, amendments: Sequence[Batch]) -> Batch:
    """Return a batch in which the rows in `changed` have new payloads and labels.

    These come from `amendments`, frames of the steps' supervisor that change messages of other frames.
    """
    lines: dict[int, bytes] = {}
    labels = {name: [marked] for name, marked in batch.labels.items()}
    for some in _groups(changed.batches):
        amendment, mine = amendments[changed.batches[some[0]]], changed.take(some)
        assert amendment.lines is not None
        for row, place in zip(mine.rows.tolist(), mine.places.tolist(), strict=True):
            lines[row] = amendment.lines.row(place)
        for name, marked in amendment.labels.items():
            labels.setdefault(name, []).append(mine.rows[np.isin(mine.places, marked)].astype(np.uint32))
    made = batch.with_payloads(lines)
    joined = {name: np.unique(np.concatenate(parts)) for name, parts in labels.items()}
    made.labels = {name: marked for name, marked in joined.items() if len(marked)}
    return made


def message_keys(batches: Sequence[Batch]) -> NDArray[np.int64]:
    """Return a number for each row, so that copies of the same message have the same number.

    All batches are of one step. Rows with equal from_id and ordinal are copies. If some rows are broadcasts, the to_id
    must be equal too: it is None in a broadcast, and it is the hearer in a message that was made from the broadcast.
    """
    keys = _sent_keys(batches)
    if any(batch.extension is not None and batch.extension.audience is not None for batch in batches):
        said = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        keys = (said << 32) | np.unique(id_ranks([batch.to_ids for batch in batches]), return_inverse=True)[1]
    return keys


def _sent_keys(batches: Sequence[Batch]) -> NDArray[np.int64]:
    """Return a number for each row, such that rows with equal from_id and ordinal have the same number.

    The ordinal of a row is the number of the message among its sender's messages in a step.
    """
    _, senders = np.unique(id_ranks([batch.from_ids for batch in batches]), return_inverse=True)
    ordinals = joined_arrays([batch.ordinal for batch in batches if batch.ordinal is not None])
    keys: NDArray[np.int64] = (senders.astype(np.int64) << 32) | ordinals.astype(np.int64)
    return keys
