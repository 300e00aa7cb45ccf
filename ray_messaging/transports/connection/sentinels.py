"""Sentinels of a service. They are asked for the service's primary."""

from collections.abc import Mapping
from typing import Any

from redis.exceptions import AuthenticationError, RedisError, ResponseError

from ray_messaging.config import RedisConfig
from ray_messaging.transports.connection.connection_options import tls_options
from ray_messaging.transports.connection.discovery import (
    ANSWER_S,
    REFUSED,
    NoPrimaryError,
    WrongSettingsError,
    answers_of,
    replies_of,
    said_by,
)

_Services = Mapping[str, Mapping[str, str]]
_DOWN = frozenset({"s_down", "o_down", "disconnected"})  # A primary with one of these flags cannot be used.


class Sentinels:
    """Sentinels of one service. They are asked before each connection, because the primary may have changed.

    A Sentinel that is cut off from the others still names the old primary. redis-py's `discover_master` asks one
    Sentinel after the other, and would use such an answer if it comes first. So all Sentinels are asked at the same
    time. When a majority has answered, the answer with the highest epoch is used.
    """

    def __init__(self, config: RedisConfig) -> None:
        self._config = config
        self._service = config.service or ""

    @property
    def where(self) -> str:
        """Return a description of the service and its Sentinels for error texts."""
        return f"service {self._service!r} of the Sentinels at {', '.join(self._config.sentinels)}"

    async def primary(self) -> tuple[str, int]:
        """Return the host and port of the primary, within 4 s.

        Raises: NoPrimaryError if no Sentinel answers or the primary is down; WrongSettingsError if the Sentinels that
        answer do not know the service; AuthenticationError if the Sentinels refuse the password.
        """
        options = {
            "username": self._config.sentinel_username,
            "password": self._config.sentinel_password,
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": ANSWER_S,
            "protocol": 2,
            "ssl": self._config.ssl,
        } | tls_options(self._config)
        asked = dict(zip(self._config.sentinels, self._config.sentinel_addresses(), strict=True))
        questions = {where: _services(address, options) for where, address in asked.items()}
        answers = await answers_of(questions, lambda services: self._service in services)
        known = [services for services in answers.values() if not isinstance(services, Exception)]
        states = [services[self._service] for services in known if self._service in services]
        if not states:
            raise self._without_primary(answers)
        # The epoch rises with each failover. If two Sentinels have the same epoch, one of them may be unable to reach
        # the primary. So an answer in which the primary is not down is preferred.
        state = max(states, key=lambda state: (int(state["config-epoch"]), not _is_down(state)))
        if _is_down(state):
            raise NoPrimaryError(
                f"the primary of {self.where}, {state['ip']}:{state['port']}, is down, and no replica has taken its "
                "place yet: start the primary, or wait for the failover"
            )
        return state["ip"], int(state["port"])

    def _without_primary(self, answers: Mapping[str, _Services | RedisError | OSError]) -> RedisError:
        for where, found in answers.items():
            if not isinstance(found, Exception):
                known = ", ".join(map(repr, found)) or "none"
                return WrongSettingsError(
                    f"the Sentinel at {where} knows no service {self._service!r} (it knows {known}): give the "
                    "name of its `sentinel monitor` line as service="
                )
            if isinstance(found, REFUSED):
                return AuthenticationError(
                    f"the Sentinel at {where} says {found}: set sentinel_username and sentinel_password, "
                    "and give that user the right +sentinel"
                )
            if isinstance(found, ResponseError):
                return WrongSettingsError(
                    f"the server at {where} is not a Sentinel ({found}): pass the addresses of Sentinels as "
                    "sentinels=, mostly with port 26379, or for a single server pass server= and port="
                )
        why = said_by(self._config.sentinels, answers)
        return NoPrimaryError(f"no Sentinel of service {self._service!r} can be reached ({why})")


async def _services(address: tuple[str, int], options: Mapping[str, Any]) -> _Services:
    """Return the services that a Sentinel knows, by name.

    In the Sentinel's reply, the names and values of each service alternate.
    """
    (replied,) = await replies_of(address, options, [("SENTINEL", "MASTERS")])
    texts = [[part.decode() for part in flat] for flat in replied]
    states = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in texts]
    return {state["name"]: state for state in states}


def _is_down(state: Mapping[str, str]) -> bool:
    return not _DOWN.isdisjoint(state["flags"].split(","))
