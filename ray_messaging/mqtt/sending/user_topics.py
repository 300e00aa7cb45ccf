"""Publications on topics of users: plain payloads for any MQTT client, with our fields as user properties."""

import asyncio
from collections.abc import Sequence

from ray_messaging.common.backoff import MQTT_REFUSED_RETRY
from ray_messaging.errors import ConnectionFailed, PayloadTooLarge, ServerRefused
from ray_messaging.model.batch import Batch
from ray_messaging.mqtt.connection import reasons
from ray_messaging.mqtt.connection.control_link import ControlLink
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.sending.mailbox_sender import FrameSizes
from ray_messaging.mqtt.wire.properties import encode_properties
from ray_messaging.transports.transport import TOO_LARGE_TAKER, Published


class UserTopics:
    """Publisher on topics of users."""

    def __init__(self, control: ControlLink, sizes: FrameSizes) -> None:
        self._control = control
        self._sizes = sizes

    async def publish(self, publications: Sequence[Published], batch: Batch, topics: Sequence[str]) -> list[int]:
        """Publish with retries; return per publication 1 (it had a subscriber), 0 (none) or TOO_LARGE_TAKER.

        Raises: ServerRefused if we may not publish, ConnectionFailed.
        """
        takers: list[int | None] = [None] * len(publications)

        async def attempt() -> None:
            sent: list[tuple[int, asyncio.Future[int]]] = []
            for row, known in enumerate(takers):
                if known is not None:
                    continue
                data = publications[row].data
                if self._sizes.refuses(len(data)):
                    takers[row] = TOO_LARGE_TAKER
                    continue
                try:
                    properties = encode_properties(batch, row, mirror=False)
                    sent.append((row, self._control.link.publish(topics[row], data, properties=properties)))
                except PayloadTooLarge:
                    takers[row] = TOO_LARGE_TAKER
            await asyncio.gather(*(confirmed for _, confirmed in sent), return_exceptions=True)
            for row, confirmed in sent:
                takers[row] = self._taker(topics[row], len(publications[row].data), confirmed)
            cut = next((confirmed.exception() for _, confirmed in sent if confirmed.exception() is not None), None)
            if cut is not None:
                raise cut
            if None in takers:  # a quota or an unknown reason
                await asyncio.sleep(MQTT_REFUSED_RETRY.first_s)
                raise self._control.unconfirmed(takers.count(None))

        await self._control.retry(attempt)
        return [known or 0 for known in takers]

    def _taker(self, topic: str, nbytes: int, confirmed: "asyncio.Future[int]") -> int | None:
        if confirmed.exception() is not None:
            return None
        code = confirmed.result()
        if code in (Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS):
            return int(code == Reason.SUCCESS)
        if code == Reason.PACKET_TOO_LARGE:
            self._sizes.refuse(nbytes)
            return TOO_LARGE_TAKER
        if code in reasons.NOT_PERMITTED:
            raise self._control.refused(topic, code)
        return None

    async def mirror(self, publications: Sequence[Published], batch: Batch, topics: Sequence[str]) -> None:
        """Publish a mailbox's messages for foreign clients, at most once and without a report of the outcome."""
        sent: list[asyncio.Future[int]] = []
        for row, (_, data) in enumerate(publications):
            try:
                properties = encode_properties(batch, row, mirror=True)
                sent.append(self._control.link.publish(topics[row], data, properties=properties))
            except (PayloadTooLarge, ConnectionFailed) as error:
                if isinstance(error, ServerRefused):
                    raise
        await asyncio.gather(*sent, return_exceptions=True)
