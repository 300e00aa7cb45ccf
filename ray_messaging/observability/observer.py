"""Observer of a messager: the calls on which metrics and traces hang."""


class Observer:
    """Receiver of a messager's events; every method does nothing until a subclass overrides it.

    A messager calls it once per batch, frame, fetch or attempt, on its event loop, and never per message. A method must
    return quickly and must not raise: an error in it is an error of the send or fetch that called it.
    """

    def batch_judged(self, messages: int, seconds: float) -> None:
        """Note that the interceptor gave its verdicts on a batch, and how long that took."""

    def messages_blocked(self, rule: str, messages: int) -> None:
        """Note that a rule blocked messages of a batch."""

    def frame_written(self, mailbox: str, messages: int, nbytes: int) -> None:
        """Note that the server has a frame of messages for a mailbox."""

    def messages_fetched(self, messages: int) -> None:
        """Note that a fetch returned messages."""

    def connected(self, server: str) -> None:
        """Note a new connection to the server: the first one, or one in place of a broken one."""

    def retried(self, server: str, error: BaseException) -> None:
        """Note that a call to the server failed and is made again."""
