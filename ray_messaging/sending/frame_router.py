"""The router, which divides a batch into frames: for each mailbox that listens, and for channels without a mailbox."""

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import build_channel
from ray_messaging.addressing.directory import NOBODY, MailboxRecord, Routes
from ray_messaging.audiences.folding import agents_digest, fold, row_kinds
from ray_messaging.default_limits_and_leases import CALL_BYTES, COLUMN_ROWS, FRAME_ROWS
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import Extension, Fold
from ray_messaging.model.fates import BLOCKED, DELIVERED, UNDELIVERABLE
from ray_messaging.receipt import PairFates
from ray_messaging.sending import logged_frames
from ray_messaging.sending.bulk_input import split_rows
from ray_messaging.sending.in_flight_batch import InFlightBatch, Rows
from ray_messaging.sending.pending_batch import Reaches
from ray_messaging.transports.step_values import ASKER, box_name
from ray_messaging.transports.transport_values import LOG, FrameWrite, LoggedFrame, Published
from ray_messaging.wire.frames import encode

# How many bytes a broadcast takes in a frame at most, besides its payload: id, number, ordinal, the payload's index.
_ROW_BYTES = 24


_UNOWNED_BYTES = CALL_BYTES  # how many bytes a frame for channels without a mailbox may have
_SHORT = 2**16  # If there are at most this many routes, their numbers are sorted as 16-bit numbers.
_SETS = 1_000  # about how many sets of agents a router remembers as known to the server
UNOWNED = ""  # the name of the queue of messages on channels without a mailbox


class OutboundFrame(FrameWrite, eq=False, kw_only=True):
    """Some rows of a batch, encoded as one frame.

    `taken` has the indices of these rows in the batch (None: the frame has all rows). Each call that sends the frame
    sets the frame's sequence number, `seq`. `nbytes` is the size of the frame, its publications
    and its note for the event log together. `verdict_epoch` is the number of the interceptor, or of the copy of its
    rules, that let the rows pass. `verdict_epoch` and `deadline` are set when the frame is queued.
    """

    in_flight: InFlightBatch
    taken: Rows | None
    nbytes: int
    verdict_epoch: int = 0
    deadline: float = 0.0  # the loop time until which the frame must be written

    def batch_rows(self) -> Rows:
        """Return the indices that the frame's rows have in the batch that is being sent."""
        return np.arange(self.rows) if self.taken is None else self.taken


class FrameRouter:
    """The part of a destination that makes frames of a batch: one for each mailbox that gets some of the messages.

    With `mirror`, messages to mailboxes are also published to subscribers of their channels.
    """

    def __init__(self, routes: Routes, *, mirror: bool) -> None:
        self.routes = routes
        self.mirror = mirror
        # The batch that was routed last, and its routes.
        self._routed: tuple[Batch, Routes, NDArray[np.int32]] | None = None
        # The last batch for which `_kinds` was computed, and the result.
        self._kinded: tuple[Batch, NDArray[np.intp]] | None = None
        # For each mailbox: its record, a topic, and the digest of the agents that the record has under the topic.
        self._digests: dict[str, tuple[MailboxRecord, str, bytes]] = {}
        # By digest: the sets of agents that frames name by their digests, and that the server may not have.
        self.unkept: dict[bytes, AgentSet] = {}
        self._kept: set[bytes] = set()
        # Boxes that accept no messages, because their group does not take part in the box's step.
        self.shut: set[str] = set()
        # Whether frames carry Batch objects in place of bytes, because only this process reads the frames.
        self.in_memory = False

    def route(self, in_flight: InFlightBatch, rows: Rows | None, *, settle: bool = True) -> list[OutboundFrame]:
        """Build the frames of some rows of a batch (None: of all rows that have no fate yet).

        A mailbox that already has a row does not get it again. If there is an event log, blocked rows go into a note
        for the log. Otherwise blocked rows get their fate here, if `settle` is true.
        """
        in_flight.pending.trace.writing(in_flight.outgoing)
        if in_flight.pending.reaches is not None:
            return self._fan_out(in_flight, in_flight.pending.reaches, rows)
        frames: list[OutboundFrame] = []
        row_bytes = _row_bytes(in_flight.outgoing) if in_flight.batch.rows > 1 else 0
        if in_flight.outcome.blocks:
            rows = in_flight.open_rows if rows is None else in_flight.still_open(rows)
            stopped = np.zeros(in_flight.batch.rows, np.bool_)
            stopped[np.fromiter(in_flight.outcome.blocks, np.intp)] = True
            blocked, rows = rows[stopped[rows]], rows[~stopped[rows]]
            if self.routes.logged and len(blocked):
                for part in self._parts(in_flight, LOG, blocked, row_bytes):
                    some = blocked if part is None else part
                    note = logged_frames.blocked(in_flight, some)
                    size = len(note.frame) + len(note.note)
                    frames.append(
                        OutboundFrame(LOG, 0, len(some), noted=note, in_flight=in_flight, taken=some, nbytes=size)
                    )
            elif settle and len(blocked):
                in_flight.settle(blocked, BLOCKED)
        for mailbox, found in self._rows_by_mailbox(in_flight, rows).items():
            parts = (found,) if in_flight.batch.rows == 1 else self._parts(in_flight, mailbox, found, row_bytes)
            frames += [self._frame(in_flight, mailbox, part) for part in parts]
        return frames

    def _fan_out(self, in_flight: InFlightBatch, reaches: Reaches, rows: Rows | None) -> list[OutboundFrame]:
        """Build the frames of the broadcasts in `rows` (None: in all rows).

        A mailbox gets one row for each broadcast that one of its agents hears.
        """
        batch, lines, frames = in_flight.outgoing, in_flight.outgoing.lines, list[OutboundFrame]()
        assert lines is not None
        opened = in_flight.open_rows if rows is None else in_flight.still_open(rows)
        senders = reaches.places_of(batch.from_ids)
        delivered, copies = np.zeros(batch.rows, np.int64), np.zeros(batch.rows, np.intp)
        for mailbox, record in self.routes.records.items():
            queue = _queue_of(mailbox, batch)
            if queue in self.shut:
                continue
            reach = reaches.of(record)
            counts = reach.hearers[senders]
            delivered += counts
            lacks = opened[counts[opened] > 0]
            if queue in in_flight.placed:
                lacks = lacks[~in_flight.placed[queue][lacks]]
            if not len(lacks):
                continue
            copies[lacks] += 1
            volumes = np.cumsum(lines.weights[lacks if lines.index is None else lines.index[lacks]] + _ROW_BYTES)
            for part in split_rows(lacks, volumes, min(record.frame_bytes, CALL_BYTES), len(lacks)):
                folded = copy(batch if len(part) == batch.rows else batch.take(part))
                folded.numbers, folded.extension = None, copy(folded.extension)
                assert folded.extension is not None
                folded.extension.fold = Fold(self._named(reach.agents, record, batch), int(counts[part].sum()))
                data = encode(folded)
                frames.append(
                    OutboundFrame(queue, 0, len(part), data, in_flight=in_flight, taken=part, nbytes=len(data))
                )
        in_flight.expect(opened, copies[opened])
        in_flight.outcome.pairs = PairFates(delivered, reaches.hearers[senders] - delivered)
        alone = opened[copies[opened] == 0]
        heard = delivered[alone] > 0
        in_flight.settle(alone[heard], DELIVERED)
        in_flight.settle(alone[~heard], UNDELIVERABLE)
        return frames

    def _rows_by_mailbox(self, in_flight: InFlightBatch, rows: Rows | None) -> dict[str, Rows | None]:
        """Return, for each mailbox, the indices of the rows that it gets. None: it gets all rows of the batch.

        Args: `rows` are the rows to divide among the mailboxes (None: all rows that have no fate yet).
        """
        known, batch = self.routes, in_flight.batch
        if rows is not None and not len(rows):
            return {}
        whole = rows is None and in_flight.left == batch.rows and not in_flight.placed
        asker = None if batch.extension is None else self._asker_of(batch.extension)
        if asker is not None and whole:
            in_flight.copies = None
            return {asker: None}
        if asker is not None:
            opened = in_flight.open_rows if rows is None else in_flight.still_open(rows)
            in_flight.expect(opened, 1)
            return {asker: opened}
        if whole and batch.rows == 1 and not self.shut:  # a single message needs no table of routes
            address = batch.to_ids[0], batch.topics[0]
            listeners = known.cached.get(address) or known.mailboxes_of(*address)
            if len(listeners) < 2:
                in_flight.copies = None
                return {listeners[0] if listeners else UNOWNED: None}
        routes = known.route(batch) if not self.shut else self._open_routes(batch)
        mailboxes = known.mailboxes(int(routes[0]))
        if whole and len(mailboxes) < 2 and (routes == routes[0]).all():
            in_flight.copies = None
            return {mailboxes[0] if mailboxes else UNOWNED: None}
        if whole:
            opened = np.arange(batch.rows)
        else:
            opened = in_flight.open_rows if rows is None else in_flight.still_open(rows)
            routes = routes[opened]
        counts = np.bincount(routes)
        used = np.flatnonzero(counts).tolist()
        if in_flight.placed or any(len(known.mailboxes(route)) > 1 for route in used):
            return self._copied_rows(in_flight, opened, routes.tolist())
        in_flight.expect(opened, 1)
        # Sorting 16-bit numbers takes half the time.
        order = np.argsort(routes.astype(np.uint16) if len(counts) <= _SHORT else routes, kind="stable")
        found: dict[str, Rows | None] = {}
        low = 0
        for route in used:
            high = low + int(counts[route])
            place = order[low:high]
            found[next(iter(known.mailboxes(route)), UNOWNED)] = place if whole else opened[place]
            low = high
        return found

    def _asker_of(self, extension: Extension) -> str | None:
        """Return the name of the queue for a batch of answers, or None if the messages are no answers.

        The queue is that of the asker's mailbox. If this mailbox is gone, return None: the answers then go to the
        mailboxes of their recipients. If the asker is outside of the steps, return the queue of the box from which the
        server moves the answers to the asker's mailbox.

        Args: `extension` has the columns that only some batches have, such as the ids of answered questions.
        """
        if extension.in_reply_to is None:
            return None
        # The server moves the answers when all groups have closed the step. Only then does it find out whether the
        # mailbox of an asker outside of the steps is gone.
        if extension.asked_outside:
            return ASKER + extension.reply_mailbox
        return extension.reply_mailbox if extension.reply_mailbox in self.routes.records else None

    def _open_routes(self, batch: Batch) -> NDArray[np.int32]:
        """Return a number for each row. The number stands for the mailboxes that get the row.

        The number is NOBODY if no mailbox accepts the row.
        """
        routes = self.routes.route(batch)
        for route in np.unique(routes).tolist():
            if all(_queue_of(name, batch) in self.shut for name in self.routes.mailboxes(route)):
                routes = np.where(routes == route, np.int32(NOBODY), routes)
        return routes

    def _copied_rows(self, in_flight: InFlightBatch, opened: Rows, routes: list[int]) -> dict[str, Rows | None]:
        """Return, for each mailbox, the rows that it gets; record how many copies each row gets.

        This is for batches in which some rows go to several mailboxes.
        """
        rows_of: dict[str, list[int]] = {}
        nowhere: list[int] = []

        def had(queue: str, row: int) -> bool:
            return queue in in_flight.placed and bool(in_flight.placed[queue][row])

        for row, route in zip(opened.tolist(), routes, strict=True):
            queues = {name: _queue_of(name, in_flight.batch) for name in self.routes.mailboxes(route)}
            left = [name for name, queue in queues.items() if not had(queue, row) and queue not in self.shut]
            targets = left or ([] if in_flight.is_placed(row) else [UNOWNED])
            for mailbox in targets:
                rows_of.setdefault(mailbox, []).append(row)
            if targets:
                in_flight.expect([row], len(targets))
            else:
                nowhere.append(row)
        if nowhere:
            # Each of these rows was delivered to a mailbox. The other mailboxes are gone, or accept no messages.
            in_flight.settle(np.array(nowhere, np.intp), DELIVERED)
        return {mailbox: np.array(rows) for mailbox, rows in rows_of.items()}

    def _parts(self, in_flight: InFlightBatch, mailbox: str, rows: Rows | None, row_bytes: int) -> list[Rows | None]:
        """Divide rows into parts, such that the frame of each part is within the mailbox's limits.

        For channels without a mailbox, each part has at most `_UNOWNED_BYTES` bytes.
        """
        record = self.routes.records.get(mailbox)
        lines = in_flight.outgoing.lines
        count = in_flight.batch.rows if rows is None else len(rows)
        if lines is None or count == 1:
            return [rows]
        if in_flight.batch.extension is not None and self._folds(in_flight, mailbox):
            return self._folded_parts(in_flight, mailbox, rows)
        most_rows = count if record is None else record.frame_rows
        if lines.small and most_rows >= FRAME_ROWS:
            most_rows = max(most_rows, COLUMN_ROWS)
        most_bytes = _UNOWNED_BYTES if record is None else min(record.frame_bytes, CALL_BYTES)
        # On channels without a mailbox, each row is published with its own copy of the payload.
        shared = mailbox != UNOWNED or lines.index is None
        if shared and count <= most_rows and lines.nbytes + count * row_bytes <= most_bytes:
            return [rows]
        if rows is None and lines.index is None:
            rows, volumes = np.arange(count), lines.volumes + row_bytes * np.arange(1, count + 1)
        else:
            rows = np.arange(count) if rows is None else rows
            volumes = np.cumsum(lines.weights[rows if lines.index is None else lines.index[rows]] + row_bytes)
        return [*split_rows(rows, volumes, most_bytes, most_rows)]

    def _frame(self, in_flight: InFlightBatch, mailbox: str, rows: Rows | None) -> OutboundFrame:
        batch = in_flight.outgoing if rows is None else in_flight.outgoing.take(rows)
        publish = self.publications(batch) if mailbox == UNOWNED or self.mirror else []
        note: LoggedFrame | None = None
        logged = self.routes.logged
        frame, places = batch, None
        if batch.extension is not None and self._folds(in_flight, mailbox):
            frame, places = self._fold(in_flight, mailbox, rows)
        if logged and mailbox == UNOWNED:
            note = logged_frames.published(in_flight, batch, rows)
        elif logged and in_flight.rewritten:
            note, frame = logged_frames.rewritten(in_flight, batch, rows, mailbox.removeprefix(ASKER), frame, places)
        handed = frame if self.in_memory and mailbox != UNOWNED else None
        data = b"" if mailbox == UNOWNED or self.in_memory else encode(frame)
        nbytes = len(data) if handed is None else handed.nbytes
        if note is not None:
            nbytes += len(note.frame) + len(note.note)
        if publish:
            nbytes += sum(len(channel) + len(message) for channel, message in publish)
        queue = mailbox if batch.extension is None else _queue_of(mailbox, batch)
        return OutboundFrame(
            queue, 0, batch.rows, data, publish, note, handed, in_flight=in_flight, taken=rows, nbytes=nbytes
        )

    # -- folding broadcasts ---------------------------------------------------------------------------------------

    def _folds(self, in_flight: InFlightBatch, mailbox: str) -> bool:
        """Return whether each broadcast to a mailbox becomes one row, in place of one row for each hearer.

        If the mailbox listens to patterns, its hearers are not a known set of agents, so this is not possible.
        """
        batch, record = in_flight.outgoing, self.routes.records.get(mailbox)
        broadcast = batch.extension is not None and batch.extension.audience is not None
        return broadcast and record is not None and not record.globs

    def _folded_parts(self, in_flight: InFlightBatch, mailbox: str, rows: Rows | None) -> list[Rows | None]:
        """Divide rows of broadcasts into parts such that the frame of each part is within the limits of the mailbox.

        Such a frame has one row for each broadcast, in place of one row for each hearer.
        """
        batch, record = in_flight.outgoing, self.routes.records[mailbox]
        assert batch.numbers is not None
        assert batch.lines is not None
        rows = np.arange(batch.rows) if rows is None else rows
        most_rows = COLUMN_ROWS if record.frame_rows >= FRAME_ROWS else record.frame_rows
        begins, kinds = np.diff(batch.numbers[rows].astype(np.int64), prepend=-1) != 0, self._kinds(in_flight)
        if kinds is not None:
            # Rows of one broadcast that rules have changed differently are not folded into one. So wherever the number
            # in `kinds` changes, a new row is counted. The count is at least the number of rows after folding.
            begins |= np.diff(kinds[rows], prepend=-1) != 0
        lines = batch.lines.weights[rows if batch.lines.index is None else batch.lines.index[rows]]
        volumes = np.cumsum(np.where(begins, lines + _ROW_BYTES, 0))
        return [*split_rows(rows, volumes, min(record.frame_bytes, CALL_BYTES), most_rows)]

    def _fold(self, in_flight: InFlightBatch, mailbox: str, rows: Rows | None) -> tuple[Batch, Rows]:
        """Return a mailbox's rows of broadcasts as a folded batch, which has one row for each broadcast.

        A broadcast has several rows in the folded batch if rules have changed its rows differently. The second value
        has, for each of the given rows (None: all rows), its row in the folded batch.
        """
        batch = in_flight.outgoing
        reaching = [mailbox in names for names in self.routes.routes]
        there = np.flatnonzero(np.array(reaching)[self._routes(in_flight.batch)])
        rows = np.arange(batch.rows) if rows is None else rows
        digest = self._named(self._digest(mailbox, batch.topics[0]), self.routes.records[mailbox], batch)
        return fold(batch, rows, there, digest, self._kinds(in_flight))

    def _routes(self, batch: Batch) -> NDArray[np.int32]:
        """Return a number for each row. The number stands for the mailboxes that get the row.

        The numbers are cached, for the later frames of the batch.
        """
        found = self._routed
        if found is None or found[0] is not batch or found[1] is not self.routes:
            found = self._routed = batch, self.routes, self.routes.route(batch)
        return found[2]

    def _named(self, digest: bytes, record: MailboxRecord, batch: Batch) -> bytes:
        """Return `digest`, which names a set of agents in a frame.

        If there is an event log, and the server may not have this set, add the set to `unkept`. The sets in `unkept`
        are written to the server before the frame.
        """
        if self.routes.logged and digest not in self._kept:
            self.unkept[digest] = record.agents(batch.topics[0])
        return digest

    def kept(self) -> None:
        """Record that the server now has all sets of agents that frames name and that the event log needs."""
        self._kept = {*self.unkept} if len(self._kept) > _SETS else self._kept.union(self.unkept)
        self.unkept = {}

    def forget_kept(self) -> None:
        """Record that the server may have lost all sets of agents that frames name, so that they are written again."""
        self._kept = set()

    def _kinds(self, in_flight: InFlightBatch) -> NDArray[np.intp] | None:
        """Return a number for each row. Rows that rules have changed in the same way have the same number.

        Return None if the rules have changed no row. The numbers are cached, because all frames of the batch use them.
        """
        outgoing, found = in_flight.outgoing, self._kinded
        if not in_flight.rewritten and not outgoing.labels:
            return None
        if found is None or found[0] is not outgoing:
            lines = {row: line for row, (_, line) in in_flight.rewritten.items()}
            found = self._kinded = outgoing, row_kinds(lines, outgoing.labels, in_flight.batch.rows)
        return found[1]

    def _digest(self, mailbox: str, topic: str) -> bytes:
        """Return a hash that stands for the set of agents for which a mailbox gets messages of a topic."""
        record = self.routes.records[mailbox]
        found = self._digests.get(mailbox)
        if found is None or found[0] is not record or found[1] != topic:
            found = self._digests[mailbox] = record, topic, agents_digest(record.agents(topic))
        return found[2]

    # -- publications ---------------------------------------------------------------------------------------------

    def publications(self, batch: Batch) -> list[Published]:
        """Return the messages of a batch as publications for the subscribers of their channels."""
        exp_id, lines = self.routes.exp_id, batch.lines
        assert lines is not None
        return [
            Published(build_channel(exp_id, to_id, batch.topic_of(row)), lines.row(row))
            for row, to_id in enumerate(batch.to_ids.tolist())
        ]


def _queue_of(mailbox: str, batch: Batch) -> str:
    """Return the name of the queue for a mailbox's frames.

    Outside of steps this is the name of the mailbox. In steps it is the name of the mailbox's box for the step in which
    the frames are read.
    """
    if batch.extension is None or mailbox == UNOWNED or not isinstance(batch.extension.deliver, int):
        return mailbox
    return box_name(mailbox, batch.extension.deliver)


def _row_bytes(batch: Batch) -> int:
    """Return the most bytes that a message takes in a frame besides its payload."""
    ids, lines = (batch.from_ids, batch.to_ids), batch.lines
    columns: list[Any] = [batch.numbers, batch.topic, batch.step, batch.sent_at, None if lines is None else lines.index]
    columns += [column for each in ids for column in (each.values, each.kinds)]
    in_columns = sum(column.itemsize for column in columns if isinstance(column, np.ndarray))
    in_columns += 0 if batch.extension is None else batch.extension.row_bytes
    # In the frame's header, each label takes a uint32 for each row that has the label, and `noted` for each noted row.
    return in_columns + sum(each.width for each in ids) + 4 * (len(batch.labels) + (batch.noted is not None))
