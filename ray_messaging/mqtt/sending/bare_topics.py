"""Publications on bare topics: a payload as it is, for any MQTT client; user properties tell our own the rest."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ray_messaging.addressing.channels import AgentId, check_id, check_name
from ray_messaging.errors import ConnectionFailed, InvalidAddress, PayloadTooLarge, ServerRefused
from ray_messaging.model.batch import Batch
from ray_messaging.mqtt.connection.packets import UserProperties
from ray_messaging.mqtt.connection.reasons import Reason
from ray_messaging.mqtt.directory.control import Control
from ray_messaging.mqtt.sending.mailbox_sender import Proof
from ray_messaging.transports.base import TOO_LARGE_TAKER, Published

_ID, _FROM, _TO, _STEP, _SENT_AT, _MIRROR = "rm-id", "rm-from", "rm-to", "rm-step", "rm-sent-at", "rm-mirror"
_PAUSE_S = 0.05
_REFUSALS = {Reason.NOT_AUTHORIZED, Reason.BAD_TOPIC}


class Told(NamedTuple):
    """What user properties tell of a message: its id in three parts, and its columns; `mirror`: it is in a mailbox."""

    sender: str
    epoch: int
    number: int
    from_id: AgentId | None
    to_id: AgentId | None
    step: int | None
    sent_at: float
    mirror: bool


def tell(batch: Batch, row: int, *, mirror: bool) -> UserProperties:
    """Tell of one message."""
    step, sent_at = batch.step, batch.sent_at
    told = [(_ID, batch.message_id(row))]
    for key, value in (
        (_FROM, batch.from_ids[row]),
        (_TO, batch.to_ids[row]),
        (_STEP, step if step is None or isinstance(step, int) else int(step[row])),
        (_SENT_AT, float(sent_at[row] if isinstance(sent_at, np.ndarray) else sent_at)),
        (_MIRROR, 1 if mirror else None),
    ):
        if value is not None:
            told.append((key, str(value)))
    return tuple(told)


def read(properties: UserProperties) -> Told | None:
    """Read what was told; None: nothing, or nothing that makes sense: it is a foreign client's."""
    told = dict(properties)
    if _ID not in told:
        return None
    try:
        sender, epoch, number = told[_ID].rsplit("-", 2)
        return Told(
            check_name("sender", sender),
            _within(int(epoch)),
            _within(int(number)),
            check_id(told[_FROM]) if _FROM in told else None,
            check_id(told[_TO]) if _TO in told else None,
            _within(int(told[_STEP])) if _STEP in told else None,
            float(told.get(_SENT_AT, "0")),
            _MIRROR in told,
        )
    except (ValueError, InvalidAddress):
        return None


def _within(number: int) -> int:
    if not -(2**62) < number < 2**62:
        raise ValueError(f"{number} is no number of ours")
    return number


class BareTopics:
    """Publish on bare topics, each until the broker has answered."""

    def __init__(self, control: Control, proof: Proof) -> None:
        self._control = control
        self._proof = proof

    async def publish(self, publications: Sequence[Published], batch: Batch, topics: Sequence[str]) -> list[int]:
        """Return for each whether somebody took it (1), nobody (0), or it is too large (TOO_LARGE_TAKER).

        Raises: ServerRefused where we may not publish, ConnectionFailed.
        """
        takers: list[int | None] = [None] * len(publications)

        async def attempt() -> None:
            sent: list[tuple[int, asyncio.Future[int]]] = []
            for row, known in enumerate(takers):
                if known is not None:
                    continue
                if self._proof.refuses(len(publications[row].data)):
                    takers[row] = TOO_LARGE_TAKER
                    continue
                try:
                    told = tell(batch, row, mirror=False)
                    sent.append((row, self._control.publish(topics[row], publications[row].data, told)))
                except PayloadTooLarge:
                    takers[row] = TOO_LARGE_TAKER
            await asyncio.gather(*(confirmed for _, confirmed in sent), return_exceptions=True)
            for row, confirmed in sent:
                takers[row] = self._taker(topics[row], len(publications[row].data), confirmed)
            cut = next((confirmed.exception() for _, confirmed in sent if confirmed.exception() is not None), None)
            if cut is not None:
                raise cut
            if None in takers:  # a quota, or what the broker does not name
                await asyncio.sleep(_PAUSE_S)
                raise self._control.silent(takers.count(None))

        await self._control.insist(attempt)
        return [known or 0 for known in takers]

    def _taker(self, topic: str, nbytes: int, confirmed: "asyncio.Future[int]") -> int | None:
        if confirmed.exception() is not None:
            return None
        code = confirmed.result()
        if code in (Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS):
            return int(code == Reason.SUCCESS)
        if code == Reason.PACKET_TOO_LARGE:
            self._proof.refuse(nbytes)
            return TOO_LARGE_TAKER
        if code in _REFUSALS:
            raise self._control.refused(topic, code)
        return None

    async def mirror(self, publications: Sequence[Published], batch: Batch, topics: Sequence[str]) -> None:
        """Publish for foreign clients what a mailbox has: at most once, and nobody is told what became of it."""
        sent: list[asyncio.Future[int]] = []
        for row, (_, data) in enumerate(publications):
            try:
                sent.append(self._control.publish(topics[row], data, tell(batch, row, mirror=True)))
            except (PayloadTooLarge, ConnectionFailed) as error:
                if isinstance(error, ServerRefused):
                    raise
        await asyncio.gather(*sent, return_exceptions=True)
