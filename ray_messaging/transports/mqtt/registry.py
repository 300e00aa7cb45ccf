"""Who listens where, as the cards say that the broker retains; a version counts what changed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from ray_messaging.channels import AgentId
from ray_messaging.directory import Record, decode_record
from ray_messaging.errors import FrameError
from ray_messaging.transports.mqtt.wire import Card, decode_card

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Entry:
    """A mailbox and its card.

    `serial` orders claims by the moment at which the broker had them, `seen` says that the broker has the card over
    this connection, `fresh` that it came while we looked, and `since` when we saw it first, or missed it (loop time).
    """

    card: Card
    record: Record
    serial: int
    changed: int
    seen: bool
    fresh: bool
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
        self._lease_s = lease_s
        self._clock = clock
        self._on_card = on_card
        self._serial = 0

    # -- what the broker says -------------------------------------------------------------------------------------

    def take(self, mailbox: str, payload: bytes, *, retained: bool) -> None:
        """Take a card in, or out where it is empty; one that cannot be read is logged, and changes nothing."""
        if not payload:
            self.pending.pop(mailbox, None)
            self.forget(mailbox)
            self._on_card(mailbox, None)
            return
        try:
            card = decode_card(payload)
            record = decode_record(card.record)
            if record.mailbox != mailbox:
                raise FrameError(f"the card of {mailbox!r} speaks of {record.mailbox!r}")  # noqa: TRY301 - one way out
        except FrameError as error:
            logger.warning("the card of mailbox %s is passed over: %s", mailbox, error)
            return
        self._enter(mailbox, card, record, retained=retained)
        self._on_card(mailbox, card)

    def _enter(self, mailbox: str, card: Card, record: Record, *, retained: bool) -> None:
        self._serial += 1
        before = self.pending.pop(mailbox, None)
        claimed = before is not None and (before.card.reader, before.card.epoch) == (card.reader, card.epoch)
        serial = before.serial if before is not None and claimed else self._serial
        entry = Entry(card, record, serial, self.version, seen=True, fresh=not retained, since=self._clock())
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
            entry.seen = entry.fresh = False

    def end(self, *, kept: bool) -> None:
        """Note that it has told all; `kept`: it has lost nothing, so what it did not tell of is over."""
        now = self._clock()
        for mailbox in [mailbox for mailbox, entry in self.entries.items() if not entry.seen]:
            if kept:
                self.forget(mailbox)
                self._on_card(mailbox, None)
            else:
                self.entries[mailbox].since = now
        self.pending = {mailbox: entry for mailbox, entry in self.pending.items() if entry.seen}

    def expire(self) -> None:
        """Forget mailboxes that the broker has lost and that did not come back, and claims that nobody settled."""
        end = self._clock() - self._lease_s
        for mailbox in [name for name, entry in self.entries.items() if not entry.seen and entry.since < end]:
            self.forget(mailbox)
            self._on_card(mailbox, None)
        self.pending = {name: entry for name, entry in self.pending.items() if entry.since >= end}

    def returning(self, mailbox: str, connected_at: float) -> bool:
        """Tell whether a mailbox to which nobody listens may be on its way back: the broker may have lost sessions."""
        entry = self.entries.get(mailbox)
        return entry is not None and not entry.fresh and self._clock() - connected_at < self._lease_s

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
