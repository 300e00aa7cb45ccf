"""What travels between a messager and the interceptor: a batch's columns there, the blocked rows back."""

from typing import Protocol

import msgspec
import numpy as np

from ray_messaging.errors import FrameError
from ray_messaging.frames import Batch

FOREIGN = -1  # the epoch of verdicts that no interceptor of this experiment gave


class Blocked(msgspec.Struct, array_like=True, frozen=True):
    """Say which rows (uint32, little endian) a rule blocked for one reason."""

    rule: str
    reason: str
    rows: bytes


class Verdicts(msgspec.Struct, array_like=True, frozen=True):
    """Answer for one batch; append-only.

    `epoch` is the interceptor's. With `judged` false nothing was decided: the rules want the payloads, too.
    `wants_payload` says what to send the next time.
    """

    epoch: int
    judged: bool = True
    wants_payload: bool = False
    blocked: tuple[Blocked, ...] = ()

    def rows(self, count: int) -> dict[int, tuple[str, str]]:
        """Return the blocked rows with rule and reason; raise FrameError where one lies outside the batch."""
        found: dict[int, tuple[str, str]] = {}
        for entry in self.blocked:
            if len(entry.rows) % 4:
                raise FrameError("the interceptor's answer is damaged")
            for row in np.frombuffer(entry.rows, "<u4").tolist():
                if row >= count:
                    raise FrameError(f"the interceptor blocked row {row} of {count}")
                found[row] = (entry.rule, entry.reason)
        return found


class Judge(Protocol):
    """Give verdicts: the interceptor in this process, over its lane, or by Ray call."""

    way: str

    async def judge(self, batch: Batch) -> Verdicts:
        """Judge a batch; a batch asked again is answered as before. Raises InterceptorUnavailable."""

    async def close(self) -> None:
        """Let the interceptor go."""


encode_verdicts = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Verdicts).decode


def decode_verdicts(data: bytes) -> Verdicts:
    """Decode an answer; raise FrameError."""
    try:
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise FrameError(f"the interceptor's answer cannot be read: {error}") from error
