"""Departures of agents on several shards: in steps as on one server, else not there yet."""

from typing import NoReturn

from ray_messaging.errors import ConfigError
from ray_messaging.transports.departures import Release, Released
from ray_messaging.transports.redis.departures import RedisDepartures


class ShardedDepartures:
    """Departures of agents of an experiment on several servers.

    In steps all mailboxes, boxes and records are on the control shard, and so are departures. The bytes of large frames
    stay on other shards: a box keeps its name, by which a new group reads it.
    """

    def __init__(self, control: RedisDepartures) -> None:
        self.rehost = control.rehost
        self.state_before = control.state_before

    async def entries(self, mailbox: str, first: str, last: str) -> list[tuple[str, bytes]]:
        """Refuse."""
        _refuse(mailbox, first, last)

    async def release(self, attempt: Release) -> Released:
        """Refuse."""
        _refuse(attempt)

    async def give_up(self, mailbox: str, epoch: int, number: int) -> bool:
        """Refuse."""
        _refuse(mailbox, epoch, number)


def _refuse(*_asked: object) -> NoReturn:
    raise ConfigError(
        "without steps, agents stay in their group in an experiment with shards: start it without shards= to move or "
        "remove agents"
    )
