"""What the readers of named mailboxes have handled, as the broker retains it."""

import logging

from ray_messaging.errors import FrameError
from ray_messaging.transports.mqtt.control import Control
from ray_messaging.transports.mqtt.wire import Place, decode_places, encode_places

logger = logging.getLogger(__name__)


class Cursors:
    """Keep and load where a mailbox stands with each sender."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._found = b""

    async def load(self, mailbox: str) -> dict[str, Place]:
        """Return up to where the last reader of a mailbox had handled each sender's frames."""
        topic = self._control.topics.cursor(mailbox)
        self._found = b""
        await self._control.listen([topic])
        await self._control.insist(self._control.barrier)
        await self._control.unlisten([topic])
        try:
            return decode_places(self._found) if self._found else {}
        except FrameError as error:
            logger.error("the cursor of mailbox %s cannot be read, messages may come again: %s", mailbox, error)  # noqa: TRY400 - no bug
            return {}

    def on_cursor(self, _mailbox: str, payload: bytes, _retained: bool) -> None:  # noqa: FBT001 - a handler
        """Take a cursor."""
        self._found = payload

    async def keep(self, mailbox: str, places: dict[str, Place]) -> None:
        """Keep how far we are, and return when whoever has taken the mailbox over before that has been heard."""
        await self._control.insist_say((self._control.topics.cursor(mailbox), encode_places(places)))
