"""The leases of others: over for whoever has seen one unchanged, by a clock of its own, for as long as it lasts."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

from ray_messaging.errors import AlreadyExists
from ray_messaging.transports.base import Held, Transport

# Whether Ray, or whoever else knows, says that an owner is dead for good.
Gone = Callable[[str], Awaitable[bool]]

_WATCHED = 64
_LEAST_S = 0.01  # between two looks


class _Watched:
    """A lease as it was first seen, and for how long it has stayed so.

    A look counts for a third of the lease at most, as often as it is renewed: while nobody could ask, or this process
    stood still, nobody may have been able to renew it either.
    """

    def __init__(self, lease: str) -> None:
        self.lease = lease
        self.lasts_s = lasts_s(lease)
        self._unchanged_s = 0.0
        self._seen_at = monotonic()

    def unchanged(self) -> bool:
        """Note that it is still as it was; tell whether it is over."""
        now = monotonic()
        self._unchanged_s += min(now - self._seen_at, self.lasts_s / 3)
        self._seen_at = now
        return self._unchanged_s >= self.lasts_s * 0.999


class LeaseWatch:
    """Watch other messagers' leases, and end those that are over; each messager does, some at a time."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self._name = name
        self._watched: dict[str, _Watched] = {}

    async def look(self) -> None:
        """Look at those that are watched, and at some others by chance."""
        found = await self._transport.leases(list(self._watched))
        over = {}
        for name, lease in found.items():
            watched = self._watched.get(name)
            if watched is not None and watched.lease == lease and watched.unchanged():
                over[name] = lease
        self._watched = {
            name: watched
            for name, watched in self._watched.items()
            if found.get(name) == watched.lease and name not in over
        }
        for name, lease in found.items():
            if name != self._name and name not in over and len(self._watched) < _WATCHED:
                self._watched.setdefault(name, _Watched(lease))
        if over:
            await self._transport.end_leases(over)


async def outlast(transport: Transport, mailbox: str, held: Held, gone: Gone | None) -> str:
    """Return another owner's lease of a mailbox once it is known to be over; raise AlreadyExists where it is not.

    Nobody waits for an owner that lives, by the server's clock or as `gone` says. Where that clock says that the lease
    is over, it is looked at until it was over by ours: the server's may have been stepped.
    """
    if gone is not None and await gone(held.owner):
        return held.lease
    watched = _Watched(held.lease)
    while held.overdue:
        await asyncio.sleep(max(_LEAST_S, watched.lasts_s / 30))
        lease = (await transport.leases([mailbox])).get(mailbox)
        if lease is None:
            return ""
        if lease != watched.lease:
            break
        if watched.unchanged():
            return lease
    raise AlreadyExists(
        f"mailbox {mailbox!r} is held by {held.owner!r}, which is alive: choose another name, or close it (if it died, "
        f"wait {watched.lasts_s:g} s)",
        kind="group",
        value=mailbox,
        owner=held.owner,
    )


def lasts_s(lease: str) -> float:
    """Return how long a lease lasts, in seconds."""
    parts = lease.split(":")
    return int(parts[1]) / 1000 if len(parts) > 1 and parts[1].isdecimal() else 0.0
