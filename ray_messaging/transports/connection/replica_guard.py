"""Commands behind a call that wait until replicas have all that the call may show."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError

_LONGEST_S = 1.0


class TooFewReplicasError(RedisConnectionError):
    """Fewer replicas than asked for confirmed a call in time; whether it lasts is unknown."""

    def __init__(self, replicas: int, wanted: int, within_s: float) -> None:
        super().__init__(f"{replicas} of {wanted} replicas confirmed it within {within_s:g} s")
        self.replicas = replicas
        self.wanted = wanted


class UnconfirmedError(RedisConnectionError):
    """A call was answered, and the commands behind it were not: whether replicas have it is unknown."""


class ReplicaGuard:
    """Commands that follow each call on its connection: a write, then WAIT for `replicas` replicas.

    WAIT covers what its own connection wrote last, and nothing else. Without a write before it, it answers at once for
    a send that is repeated over a new connection, and for a read of an entry that no replica has. With the write it
    covers all that the server did before, whoever asked for it.
    """

    def __init__(self, replicas: int, *, marker: str, key: str, patience_s: float) -> None:
        self.replicas = replicas
        self._within_s = min(_LONGEST_S, patience_s / 2)
        self.behind: Sequence[Sequence[Any]] = (
            ("EVAL", marker, 1, key),
            ("WAIT", replicas, max(1, int(self._within_s * 1000))),
        )

    def check(self, replies: list[Any]) -> None:
        """Take the replies to `behind` off the end of a call's; raise TooFewReplicasError.

        An error there is none of the call's: that may have had its effect.
        """
        replicas, marked = replies.pop(), replies.pop()
        for error in (marked, replicas):
            if isinstance(error, NoPermissionError):
                raise error
            if isinstance(error, BaseException):
                raise UnconfirmedError(f"it was not confirmed: {error}") from error
        if replicas < self.replicas:
            raise TooFewReplicasError(replicas, self.replicas, self._within_s)
