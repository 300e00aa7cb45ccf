"""Port to the part of transactions that waits for other servers, and to the rules that judge it again."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from ray_messaging.transports.transport import LoggedFrame, Published


class WaitingFrame(msgspec.Struct, array_like=True, frozen=True):
    """A frame write that waits for its server; `batch` is a frame for the rules. Append-only."""

    mailbox: str
    seq: int
    rows: int
    frame: bytes
    publish: tuple[Published, ...]
    noted: LoggedFrame | None
    batch: bytes = b""


class JudgedFrame(NamedTuple):
    """The rows of a waiting frame that the rules of now let pass, and the notes on these and on the blocked ones.

    `frame` is empty where none passes; `stopped` is how many do not.
    """

    frame: bytes
    rows: int
    publish: Sequence[Published]
    noted: LoggedFrame | None
    blocked: LoggedFrame | None
    stopped: int
    verdict_epoch: int


class WaitingJudge(Protocol):
    """The rules of now, for frames that have waited."""

    async def judge_waiting(self, waiting: WaitingFrame, epoch: int) -> JudgedFrame:
        """Judge a frame once more; `epoch` is the sender's. Raises InterceptorUnavailable, Closed, FrameError."""


class Outbox(Protocol):
    """The part of transactions that waits for other servers; `judge` judges it again before it goes there."""

    judge: WaitingJudge | None
