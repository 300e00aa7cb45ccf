"""Observer of a messager: the calls on which metrics hang."""

import numpy as np
from numpy.typing import NDArray


class Observer:
    """Receiver of a messager's events; every method does nothing until a subclass overrides it.

    A messager calls it once per batch, frame, fetch or attempt, on its event loop, and never per message. A method must
    return quickly and must not raise: an error in it is an error of the send or fetch that called it.
    """

    def batch_taken(self, messages: int, seconds: float) -> None:
        """Note that a batch collects no more messages; `seconds` since the first of them was accepted."""

    def batch_judged(self, messages: int, seconds: float) -> None:
        """Note that the interceptor gave its verdicts on a batch, and how long that took."""

    def batch_sent(self, fates: NDArray[np.uint8], seconds: float) -> None:
        """Note that all messages of a batch have a fate, as indices into `receipt.FATES` (behind them: unknown).

        Args: seconds since the first of them was accepted.
        """

    def messages_blocked(self, rule: str, messages: int) -> None:
        """Note that a rule blocked messages of a batch."""

    def frame_written(self, mailbox: str, messages: int, nbytes: int) -> None:
        """Note that the server has a frame of messages for a mailbox."""

    def call_made(self, frames: int, seconds: float) -> None:
        """Note that the server has answered a call that writes frames, and how long that took."""

    def messages_fetched(self, messages: int) -> None:
        """Note that a fetch returned messages."""

    def fetch_delayed(self, seconds: float) -> None:
        """Note how old the oldest of the messages is that a fetch returned: by the clocks of sender and receiver."""

    def step_committed(self, step: int, seconds: float) -> None:
        """Note that a driver has committed a step, and how long it had it open."""

    def connected(self, server: str) -> None:
        """Note a new connection to the server: the first one, or one in place of a broken one."""

    def retried(self, server: str, error: BaseException) -> None:
        """Note that a call to the server failed and is made again."""
