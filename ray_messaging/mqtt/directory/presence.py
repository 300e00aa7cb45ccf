"""The session that a mailbox has at the broker, and the connection that is there for it."""

import logging
import math
from collections.abc import Callable

from ray_messaging.config import MqttConfig
from ray_messaging.errors import Fenced, MessagingError
from ray_messaging.mqtt.connection.packets import Arrival, Will
from ray_messaging.mqtt.connection.reconnecting import MqttLink
from ray_messaging.mqtt.directory.control import Control, insist
from ray_messaging.mqtt.receiving.mailbox import Mailbox, fenced
from ray_messaging.transports.base import Limits

logger = logging.getLogger(__name__)

RECEIVE_MAXIMUM = 10_000  # arrivals that are not handled yet; the broker keeps the rest
_FOR_EVER = 0xFFFFFFFF  # as the expiry of a session


class Presence:
    """Be connected for a mailbox, and subscribed to what it listens on; `emptied` is called when a session was lost.

    `present` says whether the broker had the session when it was connected last.
    """

    def __init__(
        self,
        config: MqttConfig,
        control: Control,
        mailbox: Mailbox,
        client_id: str,
        limits: Limits,
        emptied: Callable[[], None],
    ) -> None:
        self.present = False
        self._control = control
        self._mailbox = mailbox
        self._emptied = emptied
        self._opened = False
        self._asked: set[str] = set()  # topics and filters of users
        lease_s = max(1, math.ceil(limits.lease_s))
        topics = control.topics
        ends = topics.directory(mailbox.name) if limits.leased else topics.owner(mailbox.name)
        self.link = MqttLink(
            config,
            client_id,
            session_expiry_s=lease_s if limits.leased else _FOR_EVER,
            receive_maximum=RECEIVE_MAXIMUM,
            on_publication=mailbox.arrived,
            on_connected=self._welcome,
            on_lost=self._lost,
            will=Will(ends, b"", retain=True),
            will_delay_s=lease_s,
        )

    async def open(self) -> None:
        """Connect; what waits in the session comes at once."""
        self._mailbox.attach(self.link)
        self._mailbox.inherited = True  # until the broker says that there is no session
        await self.link.connect()
        self._opened = True

    async def _welcome(self, session_present: bool) -> None:  # noqa: FBT001 - a link's callback
        self.present = session_present
        if self._opened:
            # We may have been cut as somebody newer has connected, and not every broker says so.
            await self._control.insist(self._control.barrier)
            if self._mailbox.error is not None:
                raise self._mailbox.error
        if not session_present:
            self._mailbox.begin_anew()
        # A broker that was killed may have an old session, which lacks some: what is retained comes with new ones only.
        asked = self._mailbox.wanted.subscriptions() if self._asked else {}
        await self.link.subscribe([self._topic, *asked], retain_handling=1)
        self._asked = set(asked)
        if self._opened and not session_present:
            self._emptied()

    @property
    def _topic(self) -> str:
        return self._control.topics.mailbox(self._mailbox.name)

    def _lost(self, error: Exception) -> None:
        mailbox = self._mailbox
        if isinstance(error, Fenced):
            error = fenced(mailbox.name, mailbox.epoch)
        mailbox.stop(error if isinstance(error, MessagingError) else MessagingError(str(error)))

    async def subscribe(self) -> None:
        """Have what is published on the topics of the mailbox's record come here, too."""
        link, patience_s = self.link, self._control.patience_s
        wanted = self._mailbox.wanted.subscriptions()
        fresh = [text for text in wanted if text not in self._asked]
        over = [text for text in self._asked if text not in wanted]
        self._asked = set(wanted)
        if fresh:
            await insist(link, patience_s, lambda: link.subscribe(fresh, retain_handling=1))
        if over:
            await insist(link, patience_s, lambda: link.unsubscribe(over))

    async def stop(self) -> None:
        """Take no more frames; once this is answered, whoever still sends some is told that nobody listens."""
        if self.link.connected:
            link = self.link
            await insist(link, self._control.patience_s, lambda: link.unsubscribe([self._topic]))

    async def end(self) -> None:
        """Let the broker forget the session."""
        await self.link.close(end_session=True)

    async def close(self, *, as_if_dead: bool) -> None:
        """Let go of the connection, and leave the session; `as_if_dead`: with its will, which is published later."""
        if as_if_dead:
            await self.link.abort()
        else:
            await self.link.close()


async def end_session(config: MqttConfig, client_id: str) -> None:
    """Let the broker forget the session of a client id, whoever it is connected for."""
    link = MqttLink(config, client_id, session_expiry_s=1, on_publication=_pass_over, on_connected=_nothing)
    await link.connect()
    await link.close(end_session=True)


async def _nothing(_session_present: bool) -> None:  # noqa: FBT001 - a link's callback
    pass


def _pass_over(_arrival: Arrival) -> None:
    pass
