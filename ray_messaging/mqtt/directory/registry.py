"""Who listens where, as the cards say that the broker retains; a version counts what changed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from ray_messaging.addressing.channels import AgentId, check_name
from ray_messaging.addressing.directory import Record, decode_record
from ray_messaging.errors import FrameError, InvalidAddress
from ray_messaging.mqtt.wire.signals import Card, decode_card
from ray_messaging.mqtt.wire.topics import check_filter

logger = logging.getLogger(__name__)

_HIGHEST_EPOCH = 2**62  # far below what a card can say: a reader must find a higher one


@dataclass(slots=True)
class Entry:
    """A mailbox and its card.

    `serial` orders claims by the moment at which the broker had them, `seen` says that the broker has the card over
    this connection, `proven` that it had it before our marker, and `since` when it came, or was missed (loop time).
    """

    card: Card
    record: Record
    serial: int
    changed: int
    seen: bool
    proven: bool
    since: float


class Registry:
    """Keep the cards of one experiment; `on_card` hears of each that comes (None: it was taken out).

    A card whose claim is pending stands apart: senders do not see it. Cards that a broker had before it was started
    anew, and has no more, are kept for `lease_s`: whoever they are of comes back.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float], on_card: Callable[[str, Card | None], None]) -> None:
        self.version = 0
        self.entries: dict[str, Entry] = {}
        self.pending: dict[str, Entry] = {}
        self.owners: dict[str, str] = {}
        self.clamp: int | None = None  # bytes of a frame that the broker takes
        self.lease_s = lease_s
        self._clock = clock
        self._on_card = on_card
        self._serial = 0

    # -- what the broker says -------------------------------------------------------------------------------------

    def take(self, mailbox: str, payload: bytes) -> None:
        """Take a card in, or out where it is empty; one that cannot be read is logged, and changes nothing."""
        if not payload:
            self.pending.pop(mailbox, None)
            self.forget(mailbox)
            self._on_card(mailbox, None)
            return
        try:
            card = decode_card(payload)
            record = decode_record(card.record)
            _check(mailbox, card, record)
        except (FrameError, InvalidAddress) as error:
            logger.warning("the card of mailbox %.200s is passed over: %.1000s", mailbox, error)
            return
        known = self.entries.get(mailbox)
        if known is not None and known.card.reader == card.reader and card.number < known.card.number:
            return  # its reader publishes the newer one again
        self._enter(mailbox, card, record)
        self._on_card(mailbox, card)

    def _enter(self, mailbox: str, card: Card, record: Record) -> None:
        self._serial += 1
        before = self.pending.pop(mailbox, None)
        claimed = before is not None and (before.card.reader, before.card.epoch) == (card.reader, card.epoch)
        serial = before.serial if before is not None and claimed else self._serial
        entry = Entry(card, record, serial, self.version, seen=True, proven=False, since=self._clock())
        if card.pending:
            self.pending[mailbox] = entry
            return
        known = self.entries.get(mailbox)
        if known is not None and known.card.reader == card.reader and not claimed:
            entry.serial = known.serial
        if known is None or known.card.record != card.record:
            self.version += 1
            entry.changed = self.version
        else:
            entry.changed = known.changed
        self.entries[mailbox] = entry

    def own(self, mailbox: str, payload: bytes) -> None:
        """Take in who holds a mailbox (empty: nobody)."""
        owner = payload.decode(errors="replace")
        if owner:
            self.owners[mailbox] = owner
        else:
            self.owners.pop(mailbox, None)

    # -- connections ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that the broker is asked for all it has, over a new connection."""
        self.owners.clear()
        for entry in (*self.entries.values(), *self.pending.values()):
            entry.seen = False

    def end(self, *, kept: bool) -> None:
        """Note that it has told all; `kept`: it has our marker, so what it had before that and misses now is over."""
        now = self._clock()
        for mailbox, entry in [(mailbox, entry) for mailbox, entry in self.entries.items() if not entry.seen]:
            if kept and entry.proven:
                self.forget(mailbox)
                self._on_card(mailbox, None)
            elif not kept:
                entry.proven, entry.since = False, now
        self.pending = {mailbox: entry for mailbox, entry in self.pending.items() if entry.seen}

    @property
    def unproven(self) -> bool:
        """Tell whether cards have come since our marker was placed."""
        return any(entry.seen and not entry.proven for entry in self.entries.values())

    def prove(self) -> None:
        """Note that our marker is placed behind all cards that have come."""
        for entry in self.entries.values():
            entry.proven = entry.seen

    def expire(self) -> None:
        """Forget mailboxes that the broker has lost and that did not come back, and claims that nobody settled."""
        end = self._clock() - self.lease_s
        lost = {name: entry for name, entry in self.entries.items() if not entry.seen and entry.card.leased}
        for mailbox in [name for name, entry in lost.items() if entry.since < end]:
            self.forget(mailbox)
            self._on_card(mailbox, None)
        self.pending = {name: entry for name, entry in self.pending.items() if entry.since >= end}

    def returning(self, mailbox: str, connected_at: float) -> bool:
        """Tell whether a mailbox to which nobody listens may be on its way back.

        One that goes takes its card along, or its will does; so what has a card for less than a lease, over one
        connection, may only have lost its session with the broker's memory.
        """
        entry = self.entries.get(mailbox)
        if entry is None or not entry.card.leased:
            return entry is not None
        return self._clock() - max(connected_at, entry.since) < self.lease_s

    # -- what we make of it ---------------------------------------------------------------------------------------

    def forget(self, mailbox: str) -> None:
        """Take a mailbox out."""
        if self.entries.pop(mailbox, None) is not None:
            self.version += 1

    def limit(self, nbytes: int) -> None:
        """Have frames cut smaller, as the broker takes no larger ones."""
        if self.clamp is None or nbytes < self.clamp:
            self.clamp = nbytes
            self.version += 1
            for entry in self.entries.values():
                entry.changed = self.version

    def changed(self, since: int) -> list[Record]:
        """Return the records that changed since a version, as senders may use them."""
        records = [entry.record for entry in self.entries.values() if entry.changed > since]
        if self.clamp is None:
            return records
        return [replace(record, frame_bytes=min(record.frame_bytes, self.clamp)) for record in records]

    def rival(self, mailbox: str, record: Record) -> tuple[AgentId, str] | None:
        """Return an agent that another mailbox claimed before this one did, and that mailbox."""
        mine = self.pending.get(mailbox) or self.entries.get(mailbox)
        agents = record.agents()
        for others in (self.entries, self.pending):
            for name, entry in others.items():
                earlier = mine is None or entry.serial < mine.serial
                if name != mailbox and earlier and entry.record.exclusive:
                    taken = agents & entry.record.agents()
                    if taken:
                        return min(taken, key=str), name
        return None


def _check(mailbox: str, card: Card, record: Record) -> None:
    """Raise FrameError or InvalidAddress for a card with which no messager can listen: each sender would meet it."""
    check_name("mailbox", mailbox)
    if record.mailbox != mailbox:
        raise FrameError(f"it speaks of mailbox {record.mailbox[:200]!r}")
    if min(card.messages, card.nbytes, record.frame_rows, record.frame_bytes) < 1:
        raise FrameError("its mailbox takes nothing")
    if card.epoch >= _HIGHEST_EPOCH:
        raise FrameError(f"its reader's epoch is {card.epoch}")
    for glob in record.globs:
        check_filter(glob)
