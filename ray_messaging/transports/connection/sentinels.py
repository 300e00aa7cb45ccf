"""Sentinels of a service, which are asked for its primary."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from ray_messaging.config import RedisConfig
from ray_messaging.transports.connection.discovery import (
    ANSWER_S,
    NoPrimaryError,
    WrongSettingsError,
    answers_of,
    replies_of,
)
from ray_messaging.transports.connection.options import tls_options

_REFUSED = (AuthenticationError, NoPermissionError)
_DOWN = frozenset({"s_down", "o_down", "disconnected"})  # flags of a primary that cannot be used


class _Answer(NamedTuple):
    """Answer of one Sentinel: the state of the service, or why it gave none."""

    where: str
    state: Mapping[str, str] | None = None
    services: tuple[str, ...] | None = None  # the services that it knows, if it does not know ours
    error: Exception | None = None


class Sentinels:
    """Sentinels of one service. They are asked before each connection, because the primary may have changed.

    redis-py's `discover_master` asks one after the other, and uses the first answer, but a Sentinel that was cut off
    names the old primary. So we ask all at once, wait for a majority, and use the answer with the highest epoch.
    """

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._service = config.service or ""

    @property
    def where(self) -> str:
        """Return a name of the service and its Sentinels for error texts."""
        return f"service {self._service!r} of the Sentinels at {', '.join(self._config.sentinels)}"

    async def primary(self) -> tuple[str, int]:
        """Return the host and port of the primary, within 3 s.

        Raises: NoPrimaryError if no Sentinel answers or the primary is down; WrongSettingsError if those that answer do
        not know the service; AuthenticationError if they refuse the password.
        """
        return self._chosen(await self._ask_all())

    async def _ask_all(self) -> list[_Answer]:
        """Return the answers until a majority has named a primary, or the time is over."""
        options = {
            "username": self._config.sentinel_username,
            "password": self._config.sentinel_password,
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": ANSWER_S,
            "protocol": 2,
            "ssl": self._config.ssl,
        } | tls_options(self._config)
        asked = zip(self._config.sentinels, self._config.sentinel_addresses(), strict=True)
        return await answers_of([self._ask(*each, options) for each in asked], lambda answer: answer.state is not None)

    async def _ask(self, where: str, address: tuple[str, int], options: Mapping[str, Any]) -> _Answer:
        try:
            (replied,) = await replies_of(address, options, [("SENTINEL", "MASTERS")])
        except (RedisError, OSError) as error:
            return _Answer(where, error=error)
        states = {state["name"]: state for state in map(_fields, replied)}
        state = states.get(self._service)
        return _Answer(where, services=tuple(states)) if state is None else _Answer(where, state)

    def _chosen(self, answers: list[_Answer]) -> tuple[str, int]:
        states = [answer.state for answer in answers if answer.state is not None]
        if not states:
            raise self._without_primary(answers)
        # The epoch rises with each failover. Of two Sentinels with the same epoch, one may not reach the primary.
        state = max(states, key=lambda state: (int(state["config-epoch"]), not _is_down(state)))
        if _is_down(state):
            raise NoPrimaryError(
                f"the primary of {self.where}, {state['ip']}:{state['port']}, is down, and no replica has taken its "
                "place yet"
            )
        return state["ip"], int(state["port"])

    def _without_primary(self, answers: list[_Answer]) -> RedisError:
        for answer in answers:
            if answer.services is not None:
                known = ", ".join(map(repr, answer.services)) or "none"
                return WrongSettingsError(
                    f"the Sentinel at {answer.where} knows no service {self._service!r} (it knows {known}): give the "
                    "name of its `sentinel monitor` line as service="
                )
            if isinstance(answer.error, _REFUSED):
                return AuthenticationError(
                    f"the Sentinel at {answer.where} says {answer.error}: set sentinel_username and sentinel_password, "
                    "and give that user the right +sentinel"
                )
            if isinstance(answer.error, ResponseError):
                return WrongSettingsError(
                    f"the server at {answer.where} is no Sentinel ({answer.error}): sentinels= takes the addresses of "
                    "Sentinels, mostly at port 26379; a server itself goes to server= and port="
                )
        said = {answer.where: str(answer.error) for answer in answers}
        why = "; ".join(f"{where}: {said.get(where, 'no answer in time')}" for where in self._config.sentinels)
        return NoPrimaryError(f"no Sentinel of service {self._service!r} can be reached ({why})")


def _fields(flat: Sequence[bytes]) -> dict[str, str]:
    """Return the state of a service from a Sentinel's reply, in which names and values alternate."""
    texts = [part.decode() for part in flat]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _is_down(state: Mapping[str, str]) -> bool:
    return not _DOWN.isdisjoint(state["flags"].split(","))
