"""Cut a batch into frames, one or more for each mailbox that listens, and publications for what nobody owns."""

from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import build_channel
from ray_messaging.addressing.directory import Directory
from ray_messaging.interception.wire.verdicts import FOREIGN
from ray_messaging.model.batch import Batch
from ray_messaging.receipt import DELIVERED, UNKNOWN
from ray_messaging.sending.delivery import log_notes as noting
from ray_messaging.sending.delivery.in_flight_batch import InFlightBatch, Rows
from ray_messaging.transports.base import LOG, LoggedFrame, Published
from ray_messaging.wire.frames import encode

# One script call holds the server up for everybody, and ever longer the more it brings (2 MiB: some ms; 32 MiB: half a
# second): a frame has no more than this, but for one payload that is larger.
CALL_BYTES = 2 * 2**20
_CRATE_BYTES = CALL_BYTES  # of what goes to no mailbox
UNOWNED = ""  # the lane of what no mailbox owns


class Told(NamedTuple):
    """What the log is told of rows that are where they belong: the mailbox that has them ("": none), and their fate."""

    mailbox: str
    fate: int


class OutboundFrame(msgspec.Struct, eq=False):
    """Some rows of a posting (None: all) on their way to one mailbox, or to the log where they were blocked.

    `told` says what became of rows of which the log is told afterwards.
    """

    posting: InFlightBatch
    mailbox: str
    rows: Rows | None
    count: int
    frame: bytes
    publish: list[Published]
    batch: Batch | None  # the messages that are published
    noted: LoggedFrame | None
    verdicts: int
    deadline: float
    told: Told | None = None

    def rows_of_posting(self) -> Rows:
        """Return its rows as indices into the posting."""
        return np.arange(self.count) if self.rows is None else self.rows

    @property
    def nbytes(self) -> int:
        """Return what it takes of a call."""
        nbytes = len(self.frame)
        if self.noted is not None:
            nbytes += len(self.noted.frame) + len(self.noted.note)
        for channel, data in self.publish:
            nbytes += len(channel) + len(data)
        return nbytes


class FrameRouter:
    """Cut postings by one directory; with `logs_apart` the log is told of rows when they are where they belong."""

    def __init__(self, directory: Directory, *, mirror: bool, logs_apart: bool = False) -> None:
        self.directory = directory
        self.mirror = mirror
        self.logs_apart = logs_apart

    def cut(
        self, posting: InFlightBatch, rows: Rows | None, verdicts: int, deadline: float, *, settle: bool = True
    ) -> list[OutboundFrame]:
        """Cut rows (None: all) that are open; those that some of their mailboxes have go to the others only.

        Rows that were blocked go to the log, where there is one; else that settles them, unless told not to.
        """
        crates: list[OutboundFrame] = []
        if posting.stopped:
            rows = posting.open_rows if rows is None else posting.still_open(rows)
            stopped = np.zeros(posting.batch.rows, np.bool_)
            stopped[np.fromiter(posting.stopped, np.intp)] = True
            blocked, rows = rows[stopped[rows]], rows[~stopped[rows]]
            if self.directory.logged and len(blocked):
                for part in self._parts(posting, LOG, blocked):
                    told = blocked if part is None else part
                    noted = noting.blocked(posting, told)
                    crates.append(
                        OutboundFrame(posting, LOG, told, len(told), b"", [], None, noted, verdicts, deadline)
                    )
            elif settle and len(blocked):
                posting.stop(blocked)
        for mailbox, found in self._sorted(posting, rows).items():
            crates += [
                self._crate(posting, mailbox, part, verdicts, deadline) for part in self._parts(posting, mailbox, found)
            ]
        return crates

    def _sorted(self, posting: InFlightBatch, rows: Rows | None) -> dict[str, Rows | None]:
        """Return which rows go to which mailbox; None stands for all of them."""
        directory, batch = self.directory, posting.batch
        if rows is not None and not len(rows):
            return {}
        whole = rows is None and posting.untouched
        if whole and batch.rows == 1:  # a message alone is in a hurry
            listeners = directory.mailboxes(directory.route_one(batch.to_ids[0], batch.topics[0]))
            if len(listeners) < 2:
                posting.copies = None
                return {listeners[0] if listeners else UNOWNED: None}
        routes = directory.route(batch)
        mailboxes = directory.mailboxes(int(routes[0]))
        if whole and len(mailboxes) < 2 and (routes == routes[0]).all():
            posting.copies = None
            return {mailboxes[0] if mailboxes else UNOWNED: None}
        opened = posting.open_rows if rows is None else posting.still_open(rows)
        routes = routes[opened]
        used = np.flatnonzero(np.bincount(routes)).tolist()
        if posting.placed or any(len(directory.mailboxes(route)) > 1 for route in used):
            return self._copied(posting, opened, routes.tolist())
        posting.expect(opened, 1)
        order = np.argsort(routes, kind="stable")
        bounds: list[int] = np.searchsorted(routes[order], [*used, used[-1] + 1]).tolist() if used else []
        found: dict[str, Rows | None] = {}
        for route, (low, high) in zip(used, pairwise(bounds), strict=True):
            found[next(iter(directory.mailboxes(route)), UNOWNED)] = opened[order[low:high]]
        return found

    def _copied(self, posting: InFlightBatch, opened: Rows, routes: list[int]) -> dict[str, Rows | None]:
        """Sort rows of which some go to several mailboxes, and count the copies."""
        rows_of: dict[str, list[int]] = {}
        nowhere: list[int] = []
        for row, route in zip(opened.tolist(), routes, strict=True):
            left = [name for name in self.directory.mailboxes(route) if name not in posting.placed.get(row, ())]
            targets = left or ([UNOWNED] if row not in posting.placed else [])
            for mailbox in targets:
                rows_of.setdefault(mailbox, []).append(row)
            if targets:
                posting.expect([row], len(targets))
            else:
                nowhere.append(row)
        if nowhere:
            # What its last mailbox left for good is delivered if another one has it.
            posting.settle(np.array(nowhere, np.intp), DELIVERED)
        return {mailbox: np.array(rows) for mailbox, rows in rows_of.items()}

    def _parts(self, posting: InFlightBatch, mailbox: str, rows: Rows | None) -> list[Rows | None]:
        """Split rows so that each frame keeps to the mailbox's limits; what goes to none keeps to ours."""
        record = self.directory.records.get(mailbox)
        lines = posting.outgoing.lines
        count = posting.batch.rows if rows is None else len(rows)
        if lines is None or count == 1:
            return [rows]
        most_rows = count if record is None else record.frame_rows
        most_bytes = _CRATE_BYTES if record is None else min(record.frame_bytes, CALL_BYTES)
        row_bytes = _row_bytes(posting.outgoing)
        shared = mailbox != UNOWNED or lines.index is None  # each row is published by itself
        if shared and count <= most_rows and lines.nbytes + count * row_bytes <= most_bytes:
            return [rows]
        if rows is None and lines.index is None:
            rows, volumes = np.arange(count), lines.volumes + row_bytes * np.arange(1, count + 1)
        else:
            rows = np.arange(count) if rows is None else rows
            volumes = np.cumsum(lines.sizes[rows if lines.index is None else lines.index[rows]] + row_bytes)
        parts: list[Rows | None] = []
        low = 0
        while low < count:
            before = int(volumes[low - 1]) if low else 0
            fitting = int(np.searchsorted(volumes, before + most_bytes, side="right"))
            high = max(low + 1, min(low + most_rows, fitting))
            parts.append(rows[low:high])
            low = high
        return parts

    def _crate(
        self, posting: InFlightBatch, mailbox: str, rows: Rows | None, verdicts: int, deadline: float
    ) -> OutboundFrame:
        batch = posting.outgoing if rows is None else posting.outgoing.take(rows)
        publish = self._publications(batch) if mailbox == UNOWNED or self.mirror else []
        noted: LoggedFrame | None = None
        logged = self.directory.logged and not self.logs_apart
        if logged and mailbox == UNOWNED:
            noted = noting.published(posting, batch, rows)
        elif logged and posting.rewritten:
            noted, batch = noting.rewritten(posting, batch, rows, mailbox)
        frame = b"" if mailbox == UNOWNED else encode(batch)
        told = batch if publish else None
        return OutboundFrame(posting, mailbox, rows, batch.rows, frame, publish, told, noted, verdicts, deadline)

    def tell(self, crate: OutboundFrame, fates: "int | NDArray[np.intp]") -> list[OutboundFrame]:
        """Cut what the log is told of rows that a mailbox has, or that were published, by their fate."""
        rows, crates = crate.rows_of_posting(), []
        found = np.broadcast_to(fates, len(rows))
        for fate in np.unique(found[found != UNKNOWN]).tolist():
            part = rows[found == fate]
            noted = noting.settled(crate.posting, part, fate, crate.mailbox)
            told = Told(crate.mailbox, fate)
            crates.append(
                OutboundFrame(crate.posting, LOG, part, len(part), b"", [], None, noted, FOREIGN, crate.deadline, told)
            )
        return crates

    def _publications(self, batch: Batch) -> list[Published]:
        exp_id, lines = self.directory.exp_id, batch.lines
        assert lines is not None
        return [
            Published(build_channel(exp_id, to_id, batch.topic_of(row)), lines.row(row))
            for row, to_id in enumerate(batch.to_ids.tolist())
        ]


def _row_bytes(batch: Batch) -> int:
    """Return the most bytes that a message takes in a frame beside its payload."""
    ids, lines = (batch.from_ids, batch.to_ids), batch.lines
    columns: list[Any] = [batch.numbers, batch.topic, batch.step, batch.sent_at, None if lines is None else lines.index]
    columns += [column for each in ids for column in (each.values, each.kinds)]
    in_columns = sum(column.itemsize for column in columns if isinstance(column, np.ndarray))
    # A row that is named in the header takes an uint32 there.
    return in_columns + sum(each.width for each in ids) + 4 * (len(batch.labels) + (batch.noted is not None))
