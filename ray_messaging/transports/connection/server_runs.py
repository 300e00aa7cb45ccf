"""Restarts of a server. After a restart, new entry ids must be above all ids that the server assigned before."""

import asyncio
import logging
import math
from collections.abc import Mapping

from ray_messaging.addressing.server_keys import Keys
from ray_messaging.transports.connection.protocol import Wire
from ray_messaging.transports.experiment_store import check_format, check_shards

logger = logging.getLogger(__name__)


class ServerRuns:
    """Which process of a server was seen last, and the latest time of its clock.

    The script `raise_entry_ids` needs both, to notice a restart and to raise the next entry ids.
    """

    def __init__(self, keys: Keys, script: str, timeout_s: float, shards: int, *, any_format: bool) -> None:
        self._keys = keys
        self._script = script
        self._timeout_s = timeout_s
        self._shards = shards
        self._any_format = any_format
        self._life = ""
        self._ahead_ms = -math.inf  # how far the server's clock is ahead of our monotonic clock

    async def greet(self, wire: Wire, read: Mapping[str, str]) -> None:
        """Make the first call on a new connection.

        If the server was restarted, the call makes the next entry ids higher than all ids that were assigned before.

        Args: `read` has, for each stream that will be read over the connection, the last entry that was read.
        Raises: ConfigError if, at the first connection, the experiment has another format or number of shards.
        """
        began = asyncio.get_running_loop().time()
        above = math.ceil(began * 1000 + self._ahead_ms) if self._life else 0
        args = [self._keys.prefix, self._life, above, *(part for pair in read.items() for part in pair)]
        command = ("EVAL", self._script, 2, self._keys.meta, self._keys.changes, *args)
        life, now_ms, found, shards, *lost = await wire.call(command, self._timeout_s)
        if not self._life:  # only at this object's first connection
            if not self._any_format:
                check_format(self._keys.exp_id, found)
            check_shards(self._keys.exp_id, shards, self._shards)
        if life.decode() != self._life:
            self._life, self._ahead_ms = life.decode(), -math.inf
        self.heard(now_ms, began)
        for stream in lost:
            logger.error(
                "the server has lost entries of %s that were read already, and its clock is behind: was it restored "
                "from old data? Messages that were sent between its restart and now may not be delivered",
                stream.decode(),
            )

    def heard(self, now_ms: int, asked_at: float) -> None:
        """Record that the server's clock showed `now_ms` in its answer to a request.

        `asked_at` is the time, by the event loop's clock, at which the request was made. If the server's clock was set
        back, `now_ms` is ignored.
        """
        self._ahead_ms = max(self._ahead_ms, now_ms - asked_at * 1000)
