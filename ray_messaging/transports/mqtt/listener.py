"""The receiving side: the mailbox's own connection, and what senders are told."""

import asyncio
import logging
import math

from ray_messaging.config import MqttConfig
from ray_messaging.directory import Record, decode_record
from ray_messaging.errors import Fenced, MessagingError
from ray_messaging.transports.base import Cursor, Limits
from ray_messaging.transports.mqtt.answers import Answers
from ray_messaging.transports.mqtt.arrivals import Taken
from ray_messaging.transports.mqtt.claims import Claims
from ray_messaging.transports.mqtt.control import Control, insist
from ray_messaging.transports.mqtt.cursors import Cursors
from ray_messaging.transports.mqtt.link import MqttLink
from ray_messaging.transports.mqtt.mailbox import RECEIVE_MAXIMUM, Mailbox, fenced
from ray_messaging.transports.mqtt.packets import Arrival, Will
from ray_messaging.transports.mqtt.registry import Registry
from ray_messaging.transports.mqtt.wanted import Wanted
from ray_messaging.transports.mqtt.wire import Card, Place

logger = logging.getLogger(__name__)

_FOR_EVER = 0xFFFFFFFF  # as the expiry of a session


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
        self._link: MqttLink | None = None
        self._asked: set[str] = set()  # what the session is subscribed to
        self._session_present = False
        self._open_yet = False
        self._leaving: asyncio.Task[None] | None = None
        self._saying: asyncio.Task[None] | None = None
        self._fresh_stamp = False  # what was sent to a session that is lost must come again
        self._answers = Answers(control, 0.0)

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
            mailbox = await self._open(record, epoch)
            if known is None or not self._session_present:
                stamp = card.stamp if self._session_present else ""
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
        mailbox.wanted = Wanted(self._exp_id, record)
        await self.claims.publish(mailbox.name, wider, self.claims.owner)
        return mailbox

    async def _open(self, record: Record, epoch: int) -> Mailbox:
        name = record.mailbox
        self._answers = Answers(self._control, self._limits.lease_s)
        mailbox = self.mailbox = Mailbox(
            self._exp_id,
            name,
            self._topics.mailbox(name),
            epoch=epoch,
            frame_rows=record.frame_rows,
            wanted=Wanted(self._exp_id, record),
            places={} if self._limits.leased else await self.cursors.load(name),
            answer=self._answer,
            marked=self._marked,
            bury=self._bury,
        )
        lease_s = max(1, math.ceil(self._limits.lease_s))
        ends = self._topics.directory(name) if self._limits.leased else self._topics.owner(name)
        self._link = MqttLink(
            self._config,
            f"rm-{self._exp_id}-{name}",
            session_expiry_s=lease_s if self._limits.leased else _FOR_EVER,
            receive_maximum=RECEIVE_MAXIMUM,
            on_publication=mailbox.arrived,
            on_connected=self._welcome,
            on_lost=self._lost,
            will=Will(ends, b"", retain=True),
            will_delay_s=lease_s,
        )
        mailbox.attach(self._link)
        mailbox.inherited = True  # until the broker says that there is no session
        await self._link.connect()
        self._open_yet = True
        return mailbox

    # -- its connection -------------------------------------------------------------------------------------------

    async def _welcome(self, session_present: bool) -> None:  # noqa: FBT001 - a link's callback
        mailbox, link = self.mailbox, self._link
        assert mailbox is not None
        assert link is not None
        self._session_present = session_present
        if self._open_yet:
            # We may have been cut as somebody newer has connected, and not every broker says so.
            await self._control.insist(self._control.barrier)
            if mailbox.error is not None:
                raise mailbox.error
        if session_present:
            return
        mailbox.inherited = False
        asked = mailbox.wanted.subscriptions() if self._asked else {}
        await link.subscribe([self._topics.mailbox(mailbox.name), *asked])
        self._asked = set(asked)
        if self._open_yet and self.claims.card is not None:
            self._fresh_stamp = True
            self.say_soon()

    def _fence(self, mailbox: Mailbox) -> None:
        """Leave the mailbox, and its session, to somebody newer."""
        mailbox.stop(fenced(mailbox.name, mailbox.epoch))
        if self._link is not None and self._leaving is None:
            self._leaving = asyncio.create_task(self._link.abort(), name="ray_messaging mqtt fenced")

    def _lost(self, error: Exception) -> None:
        if self.mailbox is not None:
            own = fenced(self.mailbox.name, self.mailbox.epoch) if isinstance(error, Fenced) else error
            self.mailbox.stop(own if isinstance(own, MessagingError) else MessagingError(str(own)))

    async def subscribe(self) -> None:
        """Have what is published on the topics of our record come here, too."""
        mailbox, link = self.mailbox, self._link
        assert mailbox is not None
        assert link is not None
        mailbox.resume()  # the answers must be read
        wanted = mailbox.wanted.subscriptions()
        fresh = [text for text in wanted if text not in self._asked]
        over = [text for text in self._asked if text not in wanted]
        self._asked = set(wanted)
        if fresh:
            # What is retained comes with a new subscription only: our predecessor has had it.
            await insist(link, self._control.patience_s, lambda: link.subscribe(fresh, retain_handling=1))
        if over:
            await insist(link, self._control.patience_s, lambda: link.unsubscribe(over))

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

    def reconnected(self) -> None:
        """Say again what the broker has lost, and what senders may not have heard."""
        mailbox, card = self.mailbox, self.claims.card
        if mailbox is None or card is None or mailbox.error is not None:
            return
        entry = self._registry.entries.get(mailbox.name)
        rival = (
            self._registry.rival(mailbox.name, decode_record(card.record)) if entry is None or not entry.seen else None
        )
        if rival is not None:
            logger.error("agent %r of %s lives in %s now: while we were away", rival[0], mailbox.name, rival[1])
            self.claims.card = None
            return
        if entry is None or not entry.seen or self._fresh_stamp:
            self.say_soon()
        self._answers.confirm_all(mailbox)

    def say_soon(self) -> None:
        """Publish our card in the background."""
        if self._saying is None or self._saying.done():
            self._saying = asyncio.create_task(self._say(), name="ray_messaging mqtt card")

    async def _say(self) -> None:
        mailbox, card = self.mailbox, self.claims.card
        try:
            while mailbox is not None and card is not None:
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
        """Look after what is missing."""
        if self.mailbox is not None:
            self._answers.look(self.mailbox)

    def _bury(self, payload: bytes, reason: str) -> None:
        mailbox = self.mailbox
        if mailbox is not None:
            self._control.bury_soon(mailbox.name, payload, reason)

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
        mailbox, link = self.mailbox, self._link
        assert mailbox is not None
        assert link is not None
        await self.claims.withdraw(mailbox.name)
        mailbox.deaf = True
        if link.connected:
            mailbox.resume()
            # Once this is answered whoever still sends here is told that nobody listens.
            await insist(link, self._control.patience_s, lambda: link.unsubscribe([self._topics.mailbox(mailbox.name)]))
        left = [entry for entry in mailbox.unhandled() if entry.sender]
        for entry in left:
            name = f"{mailbox.epoch}-{entry.number}"
            await self._control.bury(mailbox.name, name, entry.frame, "the mailbox was removed", row=entry.done)
        await link.close(end_session=True)
        self._link = None
        return len(left)

    async def remove_other(self, name: str) -> None:
        """Take out a mailbox that nobody reads, and end its session; whoever reads it is told that it was removed."""
        await self.claims.withdraw(name)
        link = MqttLink(
            self._config,
            f"rm-{self._exp_id}-{name}",
            session_expiry_s=1,
            on_publication=_pass_over,
            on_connected=_nothing,
        )
        await link.connect()
        await link.close(end_session=True)

    async def close(self) -> None:
        """Let go of the connection; a mailbox that we did not leave stays for its lease, as if our process had died."""
        if self._saying is not None:
            self._saying.cancel()
            await asyncio.gather(self._saying, return_exceptions=True)
        if self._leaving is not None:
            await self._leaving
        link, self._link = self._link, None
        if link is None:
            return
        if self.claims.owner or (self._limits.leased and self.claims.card is not None):
            await link.abort()
        else:
            await link.close()


async def _nothing(_session_present: bool) -> None:  # noqa: FBT001 - a link's callback
    pass


def _pass_over(_arrival: Arrival) -> None:
    pass
