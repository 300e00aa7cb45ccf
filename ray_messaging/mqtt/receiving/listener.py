"""The receiving side: our card in the directory, our mailbox, its session, and what its senders are told."""

import asyncio
import logging
import math
from collections.abc import Sequence

from ray_messaging.addressing.directory import Record, decode_record
from ray_messaging.config import MqttConfig
from ray_messaging.errors import Fenced, MessagingError
from ray_messaging.mqtt.connection.packets import Arrival
from ray_messaging.mqtt.directory.claims import Claims
from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.directory.presence import Presence, end_session
from ray_messaging.mqtt.directory.registry import Registry
from ray_messaging.mqtt.receiving.arrivals import Taken
from ray_messaging.mqtt.receiving.confirmations import Confirmations
from ray_messaging.mqtt.receiving.cursors import Cursors
from ray_messaging.mqtt.receiving.mailbox import Entry, Mailbox, fenced
from ray_messaging.mqtt.receiving.subscription_topics import SubscriptionTopics
from ray_messaging.mqtt.wire.signals import Card, Place
from ray_messaging.transports.base import Cursor, Limits

logger = logging.getLogger(__name__)

_BURIED_AT_ONCE = 20


class Listener:
    """Hold one mailbox, from `take` to `remove` or `close`."""

    def __init__(self, config: MqttConfig, exp_id: str, control: Control, registry: Registry) -> None:
        self.mailbox: Mailbox | None = None
        self.claims = Claims(control, registry)
        self.cursors = Cursors(control)
        self._config = config
        self._exp_id = exp_id
        self._control = control
        self._topics = control.topics
        self._registry = registry
        self._limits = Limits(0, 0, 0.0, leased=True)
        self._presence: Presence | None = None
        self._answers = Confirmations(control, 0.0)
        self._removing = False
        self._leaving: asyncio.Task[None] | None = None
        self._saying: asyncio.Task[None] | None = None
        self._fresh_stamp = False  # what was sent to a session that is lost must come again

    # -- taking a mailbox -----------------------------------------------------------------------------------------

    async def take(self, record: Record, limits: Limits, owner: str) -> Mailbox:
        """Take a mailbox over; raise AlreadyExists where it, or an agent of it, is another's, who is alive."""
        name, claims = record.mailbox, self.claims
        claims.check_owner(name, limits, owner)
        owner = "" if limits.leased else owner
        known, epoch = self._registry.entries.get(name), claims.next_epoch(name)
        card = claims.make(record, epoch, owner, limits, stamp="" if known is None else known.card.stamp)
        self._limits = limits
        # Where it goes on, senders do, too; and nobody else can have claimed what its last reader had.
        goes_on = known is not None and not (record.exclusive and record.agents() - known.record.agents())
        try:
            if not goes_on and (record.exclusive or not limits.leased):
                await claims.claim(record, card)
            if known is not None:  # its last reader hears it from this, and does not connect again
                await claims.publish(name, card, owner)
            mailbox, presence = await self._open(record, epoch)
            if known is None or not presence.present:
                stamp = card.stamp if presence.present else ""
                await claims.publish(name, claims.make(record, epoch, owner, limits, stamp=stamp), owner)
        except BaseException:
            claims.card = None
            await self.close()
            self.mailbox = None
            raise
        return mailbox

    async def widen(self, record: Record, limits: Limits) -> Mailbox:
        """Listen on more; raise AlreadyExists where some of it is another's, Fenced where the mailbox is."""
        mailbox, card = self.mailbox, self.claims.card
        if mailbox is None or card is None:
            raise fenced(record.mailbox, 0)
        if mailbox.error is not None:
            raise mailbox.error
        wider = self.claims.make(record, card.epoch, card.owner, limits, stamp=card.stamp)
        if record.exclusive and record.agents() - decode_record(card.record).agents():
            await self.claims.claim(record, wider)
        mailbox.wanted = SubscriptionTopics(self._exp_id, record)
        await self.claims.publish(mailbox.name, wider, self.claims.owner)
        return mailbox

    async def _open(self, record: Record, epoch: int) -> tuple[Mailbox, Presence]:
        name = record.mailbox
        self._answers = Confirmations(self._control, self._limits.lease_s)
        mailbox = self.mailbox = Mailbox(
            self._exp_id,
            name,
            self._topics.mailbox(name),
            epoch=epoch,
            frame_rows=record.frame_rows,
            wanted=SubscriptionTopics(self._exp_id, record),
            places={} if self._limits.leased else await self.cursors.load(name, epoch),
            answer=self._answer,
            marked=self._marked,
            bury=self._bury,
        )
        presence = Presence(self._config, self._control, mailbox, self._client_id(name), self._limits, self._emptied)
        self._presence = presence
        await presence.open()
        return mailbox, presence

    def _client_id(self, mailbox: str) -> str:
        return f"rm-{self._exp_id}-{mailbox}"

    async def subscribe(self) -> None:
        """Have what is published on the topics of our record come here, too."""
        if self._presence is not None:
            await self._presence.subscribe()

    # -- our card -------------------------------------------------------------------------------------------------

    @property
    def there(self) -> bool:
        """Tell whether our mailbox is in the directory, as far as we know."""
        return self.claims.card is not None

    def on_card(self, name: str, card: Card | None) -> None:
        """Look whether our mailbox is still ours."""
        mailbox = self.mailbox
        if mailbox is None or name != mailbox.name or self.claims.card is None:
            return
        if card is None:
            self.claims.card = None  # somebody has removed it, or we were away for longer than our lease
        elif card.reader != self.claims.reader and not card.pending and card.epoch >= mailbox.epoch:
            self._fence(mailbox)

    def _fence(self, mailbox: Mailbox) -> None:
        """Leave the mailbox, and its session, to somebody newer."""
        mailbox.stop(fenced(mailbox.name, mailbox.epoch))
        if self._presence is not None and self._leaving is None:
            self._leaving = asyncio.create_task(
                self._presence.close(as_if_dead=False), name="ray_messaging mqtt fenced"
            )

    def reconnected(self) -> None:
        """Say again what the broker has lost, and what senders may not have heard."""
        mailbox, card = self.mailbox, self.claims.card
        if mailbox is None or card is None or mailbox.error is not None or self._removing:
            return
        entry = self._registry.entries.get(mailbox.name)
        missing = entry is None or not entry.seen or entry.card.reader != card.reader
        rival = self._registry.rival(mailbox.name, decode_record(card.record)) if missing else None
        if rival is not None:
            logger.error("agent %r of %s lives in %s now: while we were away", rival[0], mailbox.name, rival[1])
            self.claims.card = None
            return
        if missing or self._fresh_stamp:
            self._say_soon()
        self._answers.confirm_all(mailbox)

    def _emptied(self) -> None:
        if self.claims.card is not None and not self._removing:
            self._fresh_stamp = True
            self._say_soon()

    def _say_soon(self) -> None:
        if self._saying is None or self._saying.done():
            self._saying = asyncio.create_task(self._say(), name="ray_messaging mqtt card")

    async def _say(self) -> None:
        """Publish our card again."""
        mailbox, presence = self.mailbox, self._presence
        try:
            while mailbox is not None and presence is not None:
                # Who reads the card publishes at once: somebody must listen.
                await presence.link.wait_connected(math.inf)
                card = self.claims.card
                if card is None:
                    return
                if self._fresh_stamp:
                    self._fresh_stamp = False
                    card = self.claims.renewed(card)
                await self.claims.publish(mailbox.name, card, self.claims.owner)
                if not self._fresh_stamp:
                    return
        except MessagingError as error:
            if isinstance(error, Fenced) and mailbox is not None:
                self._fence(mailbox)
            logger.warning("our card is not in the directory: %s", error)

    # -- what senders are told ------------------------------------------------------------------------------------

    def _answer(self, taken: Taken[Arrival], sender: str) -> None:
        if self.mailbox is not None:
            self._answers.answer(self.mailbox, taken, sender)

    def _marked(self, mark: bytes) -> None:
        if self.mailbox is not None:
            self._answers.marked(self.mailbox, mark)

    def look(self) -> None:
        """Look after what is missing, unless it may have come and lies unread in the socket."""
        if self.mailbox is not None and not self.mailbox.full:
            self._answers.look(self.mailbox)

    def _bury(self, payload: bytes, reason: str) -> None:
        if self.mailbox is not None:
            self._control.bury_soon(self.mailbox.name, payload, reason)

    # -- handling, leaving ----------------------------------------------------------------------------------------

    async def commit(self, cursor: Cursor) -> None:
        """Note that all up to a cursor is handled; raise Fenced."""
        mailbox = self.mailbox
        assert mailbox is not None
        for sender in await mailbox.commit(cursor, None if self._limits.leased else self._keep):
            self._answers.confirm(mailbox, sender)

    async def _keep(self, places: dict[str, Place]) -> None:
        assert self.mailbox is not None
        await self.cursors.keep(self.mailbox.name, places)

    async def remove(self) -> int:
        """Take our mailbox out; what is not handled becomes dead letters. Returns their frames."""
        mailbox, presence = self.mailbox, self._presence
        if mailbox is None or presence is None:
            return 0
        self._removing = mailbox.deaf = True
        if not self._limits.leased:
            await self.cursors.clear(mailbox.name)
        await self.claims.withdraw(mailbox.name)
        await presence.stop()
        left = [entry for entry in mailbox.unhandled() if entry.sender]
        await self._bury_all(mailbox, left)
        await presence.end()
        self._presence = None
        return len(left)

    async def _bury_all(self, mailbox: Mailbox, left: Sequence[Entry]) -> None:
        why, buried = "the mailbox was removed", 0
        try:
            while buried < len(left):
                some = left[buried : buried + _BURIED_AT_ONCE]
                letters = [
                    self._control.bury(
                        mailbox.name, f"{mailbox.epoch}-{entry.number}", entry.frame, why, row=entry.done
                    )
                    for entry in some
                ]
                await asyncio.gather(*letters)
                buried += len(some)
        finally:
            if buried < len(left):
                logger.error(
                    "mailbox %s was removed with %d unhandled frames: up to %d of them are lost, there was no time to "
                    "make dead letters of them",
                    mailbox.name,
                    len(left),
                    len(left) - buried,
                )

    async def remove_other(self, name: str) -> None:
        """Take out a mailbox that is not ours, and end its session; whoever reads it is told that it was removed."""
        await self.cursors.clear(name)  # before somebody else can have the name
        await Claims(self._control, self._registry).withdraw(name)
        await end_session(self._config, self._client_id(name))

    async def close(self) -> None:
        """Let go of the connection; a mailbox that we did not leave stays for its lease, as if our process had died."""
        if self._saying is not None:
            self._saying.cancel()
            await asyncio.gather(self._saying, return_exceptions=True)
        if self._leaving is not None:
            await self._leaving
        presence, self._presence = self._presence, None
        if presence is not None:
            not_left = bool(self.claims.owner) or (self._limits.leased and self.claims.card is not None)
            await presence.close(as_if_dead=not_left)
