"""Warnings about a server that the calls of a step cannot reach."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# The first warning is logged after `_REFUSED_S` seconds of an outage if the server refuses connections, or after
# `_SILENT_S` seconds if it gives no answer and so may only be slow. Further warnings follow every `_AGAIN_S` seconds.
_REFUSED_S, _SILENT_S, _AGAIN_S = 2.0, 5.0, 30.0


class Outage:
    """Warnings about a server for which a step waits.

    All calls over one link share one Outage, so that an outage is logged once.

    Args: `who` names the group that waits. `timeout_s` is the longest wait.
    """

    def __init__(self, who: str, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._who = who
        self._clock = clock
        self._since: float | None = None  # the clock's time of the first failed call, or None if there is no outage
        self._said_at = 0.0  # the clock's time of the last warning, or 0 if there was no warning yet

    def failed(self, where: str, error: BaseException) -> None:
        """Record that a call to the server at `where` has failed, and log a warning if it is time for one."""
        now = self._clock()
        if self._since is None:
            self._since, self._said_at = now, 0.0
        lasts = now - self._since
        due = (
            now - self._said_at >= _AGAIN_S
            if self._said_at
            else lasts >= (_REFUSED_S if _refused(error) else _SILENT_S)
        )
        if due:
            self._said_at = now
            what = "refuses connections" if _refused(error) else "gives no answer"
            logger.warning(
                "the server at %s %s for %.0f s, and the step of %s waits for it, up to %g s "
                "(MessagingConfig.cut_timeout_s): check the server, and the network to it",
                where, what, lasts, self._who, self.timeout_s,
            )  # fmt: skip

    def over(self, where: str) -> None:
        """Record that the server was reached again, which ends an outage. Log this if there was a warning."""
        since, self._since = self._since, None
        if since is not None and self._said_at:
            logger.warning("%s reaches the server at %s again, after %.0f s", self._who, where, self._clock() - since)


def _refused(error: BaseException) -> bool:
    """Return whether an error says that no server listens at the port."""
    found: BaseException | None = error
    for _ in range(8):  # the causes of an error may form a loop, so at most 8 errors are examined
        if found is None or isinstance(found, ConnectionRefusedError):
            return found is not None
        found = found.__cause__ or found.__context__
    return False
