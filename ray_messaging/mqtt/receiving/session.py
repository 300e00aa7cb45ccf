"""The broker's session for our mailbox, and its link."""

import math
from collections.abc import Callable

from ray_messaging.config import MqttConfig
from ray_messaging.errors import Fenced, MessagingError
from ray_messaging.mqtt.connection.connection import Connection
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.link import MqttLink
from ray_messaging.mqtt.connection.packets import Arrival, SessionOptions
from ray_messaging.mqtt.receiving.mailbox import Mailbox
from ray_messaging.transports.transport import Limits, fenced

RECEIVE_MAXIMUM = 10_000  # unhandled arrivals; the broker keeps the rest
_NEVER = 0xFFFFFFFF  # as the expiry of a session


class MailboxSession:
    """Session with the subscriptions of a mailbox; `on_emptied` is called after the broker has lost it.

    `present`: the broker had the session at the last connect.
    """

    def __init__(
        self,
        config: MqttConfig,
        control: ControlLink,
        mailbox: Mailbox,
        client_id: str,
        limits: Limits,
        on_emptied: Callable[[], None],
    ) -> None:
        self.present = False
        self._control = control
        self._mailbox = mailbox
        self._topic = control.topics.mailbox(mailbox.name)
        self._on_emptied = on_emptied
        self._opened = False
        self._subscribed: set[str] = set()  # topics and filters of users
        lease_s = max(1, math.ceil(limits.lease_s))
        topics = control.topics
        ends = topics.directory(mailbox.name) if limits.leased else topics.owner(mailbox.name)
        options = SessionOptions(client_id, lease_s if limits.leased else _NEVER, RECEIVE_MAXIMUM, ends, lease_s)
        self.link = MqttLink(config, options, self)
        self.on_arrival = mailbox.on_arrival

    async def open(self) -> None:
        """Connect; messages that wait in the session come at once."""
        self._mailbox.link = self.link
        self._mailbox.inherited = True  # until the broker says that there is no session
        await self.link.connect()
        self._opened = True

    async def on_connected(self, *, session_present: bool) -> None:
        """Subscribe again; raise the mailbox's final error."""
        self.present = session_present
        if self._opened:
            # A newer reader may have caused the cut, and not every broker reports that.
            await self._control.retry(self._control.barrier)
            if self._mailbox.error is not None:
                raise self._mailbox.error
        if not session_present:
            self._mailbox.session_lost()
        # A broker that was killed may come back with an old session without some subscriptions. Retained messages come
        # only with new ones.
        wanted = self._mailbox.subscriptions.to_make() if self._subscribed else {}
        await self.link.subscribe([self._topic, *wanted], retain_handling=1)
        self._subscribed = set(wanted)
        if self._opened and not session_present:
            self._on_emptied()

    def on_lost(self, error: MessagingError) -> None:
        """Stop the mailbox."""
        taken_over = isinstance(error, Fenced)
        self._mailbox.stop(fenced(self._mailbox.name, self._mailbox.epoch) if taken_over else error)

    async def subscribe(self) -> None:
        """Subscribe to the topics of users in the mailbox's record."""
        link, timeout_s = self.link, self._control.timeout_s
        wanted = self._mailbox.subscriptions.to_make()
        fresh = [text for text in wanted if text not in self._subscribed]
        over = [text for text in self._subscribed if text not in wanted]
        self._subscribed = set(wanted)
        if fresh:
            await link.retry(timeout_s, lambda: link.subscribe(fresh, retain_handling=1))
        if over:
            await link.retry(timeout_s, lambda: link.unsubscribe(over))

    async def stop(self) -> None:
        """Take no more frames; from then on the broker answers senders that there is no subscriber."""
        if self.link.connected:
            await self.link.retry(self._control.timeout_s, lambda: self.link.unsubscribe([self._topic]))


async def end_session(config: MqttConfig, client_id: str) -> None:
    """End the session of a client id at the broker, and disconnect a client that has it."""
    connection = Connection(config, SessionOptions(client_id, expiry_s=1), _ignore)
    await connection.open()
    await connection.close(end_session=True)


def _ignore(_arrival: Arrival) -> None:
    pass
