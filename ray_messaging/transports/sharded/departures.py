"""Departures of agents on several shards: not there yet."""

from typing import NoReturn

from ray_messaging.errors import ConfigError
from ray_messaging.transports.departures import Rehosted, Rehosting, Release, Released


class NoDepartures:
    """Refusal of all departures: the mailboxes may be on different servers, and no call covers two of them."""

    async def entries(self, mailbox: str, first: str, last: str) -> list[tuple[str, bytes]]:
        """Refuse."""
        _refuse(mailbox, first, last)

    async def release(self, attempt: Release) -> Released:
        """Refuse."""
        _refuse(attempt)

    async def give_up(self, mailbox: str, epoch: int, number: int) -> bool:
        """Refuse."""
        _refuse(mailbox, epoch, number)

    async def rehost(self, attempt: Rehosting) -> Rehosted:
        """Refuse."""
        _refuse(attempt)

    async def state_before(self, group: str, step: int) -> bytes | None:
        """Refuse."""
        _refuse(group, step)


def _refuse(*_asked: object) -> NoReturn:
    raise ConfigError(
        "agents stay in their group in an experiment with shards: start it without shards= to move or remove agents"
    )
