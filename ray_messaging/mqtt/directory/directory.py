"""The directory of one experiment, as the broker retains it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from ray_messaging.addressing.channels import AgentId, check_name
from ray_messaging.addressing.directory import Record, decode_record
from ray_messaging.errors import FrameError, InvalidAddress
from ray_messaging.mqtt.wire.messages import DirectoryEntry, decode_entry
from ray_messaging.mqtt.wire.topics import check_filter

logger = logging.getLogger(__name__)

_MAX_EPOCH = 2**62  # far below the wire's limit, because the next reader needs a higher one


@dataclass(slots=True)
class KnownEntry:
    """Directory entry of a mailbox, and how sure the broker's memory of it is.

    `serial` orders claims by their arrival at the broker. `seen`: the broker has sent the entry over this connection.
    `proven`: it had the entry before our marker. `since`: when the entry came, or was missed (loop time).
    """

    entry: DirectoryEntry
    record: Record
    serial: int
    changed: int
    seen: bool
    proven: bool
    since: float


class MqttDirectory:
    """Entries of one experiment; `version` counts changes, `on_entry` gets each new entry (None: it was removed).

    A pending claim is kept apart, because senders must not see it. Entries that a restarted broker has lost are kept
    for `lease_s`, because their readers publish them again.
    """

    def __init__(
        self, lease_s: float, clock: Callable[[], float], on_entry: Callable[[str, DirectoryEntry | None], None]
    ) -> None:
        self.version = 0
        self.entries: dict[str, KnownEntry] = {}
        self.pending: dict[str, KnownEntry] = {}
        self.owners: dict[str, str] = {}
        self.frame_limit: int | None = None  # bytes of a frame that the broker takes
        self.lease_s = lease_s
        self._clock = clock
        self._on_entry = on_entry
        self._serial = 0

    # -- messages of the broker -----------------------------------------------------------------------------------

    def put(self, mailbox: str, payload: bytes) -> None:
        """Add an entry, or remove it if the payload is empty; an invalid one is logged and ignored."""
        if not payload:
            self.pending.pop(mailbox, None)
            self._drop(mailbox)
            return
        try:
            entry = decode_entry(payload)
            record = decode_record(entry.record)
            _check(mailbox, entry, record)
        except (FrameError, InvalidAddress) as error:
            logger.warning("the directory entry of mailbox %.200s is ignored: %.1000s", mailbox, error)
            return
        known = self.entries.get(mailbox)
        if known is not None and known.entry.reader == entry.reader and entry.number < known.entry.number:
            return  # its reader publishes the newer one again
        self._add(mailbox, entry, record)
        self._on_entry(mailbox, entry)

    def _add(self, mailbox: str, entry: DirectoryEntry, record: Record) -> None:
        self._serial += 1
        before = self.pending.pop(mailbox, None)
        claimed = before is not None and (before.entry.reader, before.entry.epoch) == (entry.reader, entry.epoch)
        serial = before.serial if before is not None and claimed else self._serial
        added = KnownEntry(entry, record, serial, self.version, seen=True, proven=False, since=self._clock())
        if entry.pending:
            self.pending[mailbox] = added
            return
        known = self.entries.get(mailbox)
        if known is not None and known.entry.reader == entry.reader and not claimed:
            added.serial = known.serial
        if known is None or known.entry.record != entry.record:
            self.version += 1
            added.changed = self.version
        else:
            added.changed = known.changed
        self.entries[mailbox] = added

    def put_owner(self, mailbox: str, payload: bytes) -> None:
        """Set the owner of a named mailbox (empty: none)."""
        self.owners.pop(mailbox, None)
        if payload:
            self.owners[mailbox] = payload.decode(errors="replace")

    # -- connections ----------------------------------------------------------------------------------------------

    def start_loading(self) -> None:
        """Expect all entries again, over a new connection."""
        self.owners.clear()
        for known in (*self.entries.values(), *self.pending.values()):
            known.seen = False

    def end_loading(self, *, kept: bool) -> None:
        """Handle missing entries after all have come.

        With `kept` the broker has our marker, so a missing entry that is older than the marker was removed.
        """
        now = self._clock()
        for mailbox, known in [(mailbox, known) for mailbox, known in self.entries.items() if not known.seen]:
            if kept and known.proven:
                self._drop(mailbox)
            elif not kept:
                known.proven, known.since = False, now
        self.pending = {mailbox: known for mailbox, known in self.pending.items() if known.seen}

    @property
    def unproven(self) -> bool:
        """Return whether entries have come since our marker was placed."""
        return any(known.seen and not known.proven for known in self.entries.values())

    def prove(self) -> None:
        """Note that our marker is placed behind all entries that have come."""
        for known in self.entries.values():
            known.proven = known.seen

    def expire(self) -> None:
        """Remove entries that the broker lost and that did not come back, and claims that were not settled."""
        end = self._clock() - self.lease_s
        missing = [(name, known) for name, known in self.entries.items() if not known.seen and known.entry.leased]
        for mailbox, known in missing:
            if known.since < end:
                self._drop(mailbox)
        self.pending = {name: known for name, known in self.pending.items() if known.since >= end}

    def returning(self, mailbox: str, connected_at: float) -> bool:
        """Return whether a mailbox without a subscriber may come back.

        A reader that leaves removes its entry, or its will does. So an entry that is younger than a lease, over one
        connection, may belong to a reader that lost its session with the broker's memory.
        """
        known = self.entries.get(mailbox)
        if known is None or not known.entry.leased:
            return known is not None
        return self._clock() - max(connected_at, known.since) < self.lease_s

    # -- entries --------------------------------------------------------------------------------------------------

    def _drop(self, mailbox: str) -> None:
        self.forget(mailbox)
        self._on_entry(mailbox, None)

    def forget(self, mailbox: str) -> None:
        """Remove an entry without an event."""
        if self.entries.pop(mailbox, None) is not None:
            self.version += 1

    def limit_frames(self, nbytes: int) -> None:
        """Lower the size of frames, because the broker takes no larger ones."""
        if self.frame_limit is None or nbytes < self.frame_limit:
            self.frame_limit = nbytes
            self.version += 1
            for known in self.entries.values():
                known.changed = self.version

    def changed(self, since: int) -> list[Record]:
        """Return the records that changed since a version, with the broker's limit on frames."""
        records = [known.record for known in self.entries.values() if known.changed > since]
        limit = self.frame_limit
        if limit is None:
            return records
        return [replace(record, frame_bytes=min(record.frame_bytes, limit)) for record in records]

    def rival(self, mailbox: str, record: Record) -> tuple[AgentId, str] | None:
        """Return an agent of the record that another mailbox claimed earlier, and that mailbox."""
        mine = self.pending.get(mailbox) or self.entries.get(mailbox)
        agents = record.agents()
        for others in (self.entries, self.pending):
            for name, known in others.items():
                earlier = mine is None or known.serial < mine.serial
                if name != mailbox and earlier and known.record.exclusive:
                    taken = agents & known.record.agents()
                    if taken:
                        return min(taken, key=str), name
        return None


def _check(mailbox: str, entry: DirectoryEntry, record: Record) -> None:
    """Raise FrameError or InvalidAddress for an entry that no messager could have published."""
    check_name("mailbox", mailbox)
    if record.mailbox != mailbox:
        raise FrameError(f"it names mailbox {record.mailbox[:200]!r}")
    if min(entry.messages, entry.nbytes, record.frame_rows, record.frame_bytes) < 1:
        raise FrameError("its mailbox has a limit below 1")
    if entry.epoch >= _MAX_EPOCH:
        raise FrameError(f"its reader's epoch is {entry.epoch}")
    for glob in record.globs:
        check_filter(glob)
