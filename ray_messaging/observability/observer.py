"""The class `Observer`, whose methods a messager calls to report what it does, for metrics."""

import numpy as np
from numpy.typing import NDArray


class Observer:
    """Receiver of a messager's events. The methods do nothing; a subclass overrides those that it needs.

    A messager calls a method once for each batch, frame, fetch or retry, in its event loop, and never for each message.
    A method must return quickly, and must not raise an error, because the send or fetch that calls it would fail with
    that error.
    """

    def batch_taken(self, messages: int, seconds: float) -> None:
        """Observe that a batch collects no more messages, `seconds` after its first message was accepted."""

    def batch_judged(self, messages: int, seconds: float) -> None:
        """Observe that the interceptor has given its verdicts on a batch, after `seconds`."""

    def batch_sent(self, fates: NDArray[np.uint8], seconds: float) -> None:
        """Observe that all messages of a batch have a fate, `seconds` after the first one was accepted.

        Args: `fates` are indices into `ray_messaging.model.fates.FATES`. A larger index means that the fate is unknown.
        """

    def messages_blocked(self, rule: str, messages: int) -> None:
        """Observe that a rule has blocked messages of a batch."""

    def frame_written(self, mailbox: str, messages: int, nbytes: int) -> None:
        """Observe that the server has accepted a frame of messages for a mailbox."""

    def call_made(self, frames: int, seconds: float) -> None:
        """Observe that the server has answered a call that writes frames, after `seconds`."""

    def messages_fetched(self, messages: int) -> None:
        """Observe that a fetch has returned messages."""

    def fetch_delayed(self, seconds: float) -> None:
        """Observe the age of the oldest message that a fetch returned, by the clocks of sender and receiver."""

    def step_committed(self, step: int, seconds: float) -> None:
        """Observe that a driver has committed a step that it had open for `seconds`."""

    def connected(self, server: str) -> None:
        """Observe that there is a new connection to the server, either the first one or one after a broken one."""

    def retried(self, server: str, error: BaseException) -> None:
        """Observe that a call to the server has failed and will be made again."""
