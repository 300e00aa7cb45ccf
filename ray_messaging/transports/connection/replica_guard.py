"""Commands that are sent after a call, and wait until replicas have all data on which the call's reply may depend."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

_LONGEST_S = 1.0


class TooFewReplicasError(RedisConnectionError):
    """Too few replicas have confirmed a call in time, so its effect may be lost in a failover."""

    def __init__(self, replicas: int, wanted: int, within_s: float) -> None:
        super().__init__(f"{replicas} of {wanted} replicas confirmed the call within {within_s:g} s")
        self.replicas = replicas
        self.wanted = wanted


class UnconfirmedError(RedisConnectionError):
    """A call was answered, but a command that the guard sent after the call has failed.

    So it is unknown whether replicas have the effect of the call.
    """


class ReplicaGuard:
    """Commands that are sent after each call on its connection: a write, then WAIT for `replicas` replicas.

    WAIT covers only writes that were made over its own connection. Without the write before it, WAIT would answer at
    once in two cases: after a send that was repeated over a new connection, and after a read of an entry that no
    replica has. With the write, WAIT covers everything that the server did earlier for any client.
    """

    def __init__(self, replicas: int, *, marker: str, key: str, patience_s: float) -> None:
        self.replicas = replicas
        self._within_s = min(_LONGEST_S, patience_s / 2)
        self.behind: Sequence[Sequence[Any]] = (
            ("EVAL", marker, 1, key),
            ("WAIT", replicas, max(1, int(self._within_s * 1000))),
        )

    def check(self, replies: list[Any]) -> None:
        """Remove the replies to the guard's own commands from the end of a call's replies, and check these replies.

        If a command of the guard has failed, the call may nevertheless have had its effect.

        Raises: TooFewReplicasError if too few replicas have confirmed the call; NoPermissionError if the user may not
        run the guard's commands; UnconfirmedError if they failed for another reason.
        """
        replicas, marked = replies.pop(), replies.pop()
        for error in (marked, replicas):
            if isinstance(error, NoPermissionError):
                raise error
            if isinstance(error, BaseException):
                raise UnconfirmedError(f"the call was not confirmed by replicas: {error}") from error
        if replicas < self.replicas:
            raise TooFewReplicasError(replicas, self.replicas, self._within_s)
