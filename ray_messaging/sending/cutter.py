"""Cut a batch into frames, one or more for each mailbox that listens, and publications for what nobody owns."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ray_messaging.channels import build_channel
from ray_messaging.directory import Directory
from ray_messaging.frames import Batch, encode
from ray_messaging.receipt import DELIVERED
from ray_messaging.sending.posting import Posting, Rows
from ray_messaging.transports.base import Published

_ROW_BYTES = 40  # what the columns take of a message, beside names
BARE = ""  # the lane of what no mailbox owns


@dataclass(slots=True, eq=False)
class Crate:
    """Some rows of a posting (None: all) on their way to one mailbox."""

    posting: Posting
    mailbox: str
    rows: Rows | None
    count: int
    frame: bytes
    publish: list[Published]
    verdicts: int
    deadline: float

    def rows_of_posting(self) -> Rows:
        """Return its rows as indices into the posting."""
        return np.arange(self.count) if self.rows is None else self.rows

    @property
    def nbytes(self) -> int:
        """Return what it takes of a call."""
        return len(self.frame) + sum(len(channel) + len(data) for channel, data in self.publish)


class Cutter:
    """Cut postings by one directory."""

    def __init__(self, directory: Directory, *, mirror: bool) -> None:
        self.directory = directory
        self.mirror = mirror

    def cut(self, posting: Posting, verdicts: int, deadline: float) -> list[Crate]:
        """Cut what is open of a posting; rows that some of their mailboxes have go to the others only."""
        crates: list[Crate] = []
        for mailbox, rows in self._sorted(posting).items():
            crates += [
                self._crate(posting, mailbox, part, verdicts, deadline) for part in self._parts(posting, mailbox, rows)
            ]
        return crates

    def _sorted(self, posting: Posting) -> dict[str, Rows | None]:
        """Return which rows go to which mailbox; None stands for all of them."""
        directory, batch = self.directory, posting.batch
        posting.copies = None
        if len(batch) == 1 and posting.untouched:  # a message alone is in a hurry
            listeners = directory.mailboxes(directory.route_one(batch.to_ids[0], batch.topics[0]))
            if len(listeners) < 2:
                return {listeners[0] if listeners else BARE: None}
        routes = directory.route(batch)
        mailboxes = directory.mailboxes(int(routes[0]))
        if posting.untouched and len(mailboxes) < 2 and (routes == routes[0]).all():
            return {mailboxes[0] if mailboxes else BARE: None}
        used = np.flatnonzero(np.bincount(routes)).tolist()
        opened = posting.open_rows
        routes = routes[opened]
        if posting.placed or any(len(directory.mailboxes(route)) > 1 for route in used):
            return self._copied(posting, opened, routes.tolist())
        order = np.argsort(routes, kind="stable")
        bounds = np.searchsorted(routes[order], [*used, used[-1] + 1])
        found: dict[str, Rows | None] = {}
        for route, (low, high) in zip(used, pairwise(bounds.tolist()), strict=True):
            if high > low:
                found[next(iter(directory.mailboxes(route)), BARE)] = opened[order[low:high]]
        return found

    def _copied(self, posting: Posting, opened: Rows, routes: list[int]) -> dict[str, Rows | None]:
        """Sort rows of which some go to several mailboxes, and count the copies."""
        posting.copies = np.zeros(len(posting.batch), np.intp)
        rows_of: dict[str, list[int]] = {}
        for row, route in zip(opened.tolist(), routes, strict=True):
            left = [name for name in self.directory.mailboxes(route) if name not in posting.placed.get(row, ())]
            for mailbox in left or ([BARE] if row not in posting.placed else []):
                rows_of.setdefault(mailbox, []).append(row)
                posting.copies[row] += 1
        # What its last mailbox left for good is delivered if another one has it.
        posting.settle(opened[posting.copies[opened] == 0], DELIVERED)
        return {mailbox: np.array(rows) for mailbox, rows in rows_of.items()}

    def _parts(self, posting: Posting, mailbox: str, rows: Rows | None) -> list[Rows | None]:
        """Split rows so that each frame keeps to the mailbox's limits."""
        record = self.directory.records.get(mailbox)
        lines = posting.batch.lines
        count = len(posting.batch) if rows is None else len(rows)
        if record is None or lines is None:
            return [rows]
        row_bytes = _ROW_BYTES + posting.batch.from_ids.width + posting.batch.to_ids.width
        if count <= record.frame_rows and lines.nbytes + count * row_bytes <= record.frame_bytes:
            return [rows]
        rows = np.arange(count) if rows is None else rows
        sizes = np.fromiter(map(len, lines.list), np.int64, lines.count)
        volumes = np.cumsum(sizes[rows if lines.index is None else lines.index[rows]] + row_bytes)
        parts: list[Rows | None] = []
        low = 0
        while low < count:
            before = int(volumes[low - 1]) if low else 0
            fitting = int(np.searchsorted(volumes, before + record.frame_bytes, side="right"))
            high = max(low + 1, min(low + record.frame_rows, fitting))
            parts.append(rows[low:high])
            low = high
        return parts

    def _crate(self, posting: Posting, mailbox: str, rows: Rows | None, verdicts: int, deadline: float) -> Crate:
        batch = posting.batch if rows is None else posting.batch.take(rows)
        publish = self._publications(batch) if mailbox == BARE or self.mirror else []
        frame = b"" if mailbox == BARE else encode(batch)
        return Crate(posting, mailbox, rows, len(batch), frame, publish, verdicts, deadline)

    def _publications(self, batch: Batch) -> list[Published]:
        exp_id, lines = self.directory.exp_id, batch.lines
        assert lines is not None
        return [
            Published(build_channel(exp_id, to_id, batch.topic_of(row)), lines.row(row))
            for row, to_id in enumerate(batch.to_ids.tolist())
        ]
