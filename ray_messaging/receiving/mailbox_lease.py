"""Leases of mailboxes: a messager renews its own lease while it lives, and watches the leases of other messagers.

A watching messager counts a lease as ended if, by the messager's own clock, the lease has not changed for as long as it
lasts.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING

from ray_messaging.common.backoff import LEASE_RETRY, Backoff
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.errors import AlreadyExists, Fenced, MessagingError, NotListening, ServerRefused
from ray_messaging.transports.transport_values import HeldMailbox

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

# A function that is passed the name of a mailbox's owner, and says whether the owner is gone for good.
IsDead = Callable[[str], Awaitable[bool]]

# The server keeps the state of a sender without a name for this many seconds. This is longer than any retry.
KEEP_S = 86_400.0
# If a process stood still for longer than 0.25 s, another process may own its mailbox now. So a messager checks every
# 0.1 s whether its process stood still. If it did, the next fetch first asks the server who owns the mailbox.
_STILL_S = 0.25
_CHECK_S = 0.1
_ANSWER_S = 1.0  # a running server answers within this many seconds
_WATCHED = 64  # a messager watches at most this many leases of other messagers
_LEAST_S = 0.01  # two checks of a lease are at least this many seconds apart


class _WatchedLease:
    """A lease of another messager, and for how long it was seen unchanged.

    The owner renews a lease three times within its duration. If more than a third of the duration passed between two
    checks, this process may have stood still, or may not have reached the server. The owner, too, may then have been
    unable to renew the lease. So of the time between two checks, at most a third of the duration counts.
    """

    def __init__(self, lease: str) -> None:
        self.lease = lease
        self.lasts_s = _lasts_s(lease)
        self._unchanged_s = 0.0
        self._seen_at = monotonic()

    def is_over(self) -> bool:
        """Record that the lease was seen unchanged again; return whether it has ended."""
        now = monotonic()
        self._unchanged_s += min(now - self._seen_at, self.lasts_s / 3)
        self._seen_at = now
        return self._unchanged_s >= self.lasts_s * 0.999


class LeaseWatch:
    """Watcher of other messagers' leases. Each messager watches some of them, and removes those that have ended."""

    def __init__(self, transport: "RedisTransport", name: str) -> None:
        self._transport = transport
        self._name = name
        self._watched: dict[str, _WatchedLease] = {}

    async def look(self) -> None:
        """End the watched leases that are over, and watch some further leases, which are chosen at random."""
        found = await self._transport.leases(list(self._watched))
        over = {}
        for name, lease in found.items():
            watched = self._watched.get(name)
            if watched is not None and watched.lease == lease and watched.is_over():
                over[name] = lease
        self._watched = {
            name: watched
            for name, watched in self._watched.items()
            if found.get(name) == watched.lease and name not in over
        }
        for name, lease in found.items():
            if name != self._name and name not in over and len(self._watched) < _WATCHED:
                self._watched.setdefault(name, _WatchedLease(lease))
        if over:
            await self._transport.end_leases(over)


async def outlast(transport: "RedisTransport", mailbox: str, held: HeldMailbox, is_dead: IsDead | None) -> str:
    """Make sure that another owner's lease of a mailbox has ended.

    Return the lease in the form in which the server has it, or "" if the lease was removed.

    If `is_dead` says that the owner is dead, return at once. If the lease has ended by the server's clock, wait until
    it has ended by our clock too, because the server's clock may have been changed.

    Raises: AlreadyExists if the lease has not ended by the server's clock, or if its owner renews it meanwhile.
    """
    if is_dead is not None and await is_dead(held.owner):
        return held.lease
    watched = _WatchedLease(held.lease)
    while held.overdue:
        await asyncio.sleep(max(_LEAST_S, watched.lasts_s / 30))
        lease = (await transport.leases([mailbox])).get(mailbox)
        if lease is None:
            return ""
        if lease != watched.lease:
            break
        if watched.is_over():
            return lease
    raise AlreadyExists(
        f"mailbox {mailbox!r} belongs to {held.owner!r}, which was alive less than {watched.lasts_s:g} s ago: choose "
        f"another name, close {held.owner!r}, or, if {held.owner!r} has died since, try again in {watched.lasts_s:g} s",
        kind="group",
        value=mailbox,
        owner=held.owner,
    )


def _lasts_s(lease: str) -> float:
    parts = lease.split(":")
    return int(parts[1]) / 1000 if len(parts) > 1 and parts[1].isdecimal() else 0.0


class MailboxLease:
    """Lease of this messager's mailbox.

    `run` renews the lease, and with it what the server keeps about the messager's sends. It also watches the leases of
    other mailboxes.

    Args:
        epoch: A function that returns the reader's epoch, or None before there is a reader.
        stop: A function to which an error is passed if the lease can no longer be renewed.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        name: str,
        lease_s: float,
        epoch: Callable[[], int | None],
        stop: Callable[[MessagingError], Awaitable[None]],
        *,
        named: bool,
    ) -> None:
        self.renewed_at = time.monotonic()
        self._transport = transport
        self._name = name
        self._lease_s = lease_s
        self._epoch = epoch
        self._stop = stop
        self._keep_s = 0 if named else KEEP_S
        self._others = LeaseWatch(transport, name)
        self._checked_at = time.monotonic()
        self._stood_still = False

    def loop(self, task: "asyncio.Task[None]") -> TaskHealth:
        """Return the health of the task that runs `run`."""
        return TaskHealth("lease", not task.done(), True, time.monotonic() - self.renewed_at, limit_s=self._lease_s)

    async def run(self) -> None:
        """Renew the lease, and look at other mailboxes' leases, until the mailbox is taken over or removed."""
        while True:
            await self._pause()
            try:
                await self._renew()
                await self._others.look()
            except ConnectionError as error:
                logger.warning("cannot renew the lease of mailbox %s: %s", self._name, error)
                continue
            except MessagingError as error:
                await self._stop(error)
                return
            except Exception as error:
                logger.exception("the lease of mailbox %s is not renewed any more", self._name)
                await self._stop(
                    MessagingError(
                        f"the task that renews the mailbox's lease failed ({type(error).__name__}: "
                        f"{error}): please report this"
                    )
                )
                return

    async def _pause(self) -> None:
        """Wait until it is time to renew the lease. During the wait, notice if this process stands still."""
        due = time.monotonic() + self._lease_s / 3
        while (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _CHECK_S))
            self.has_stood_still()

    def has_stood_still(self) -> bool:
        """Return whether this process stood still since the lease was renewed.

        If it stood still, the caller must await `confirm` before it uses messages of the inbox.
        """
        now = time.monotonic()
        if now - self._checked_at > _STILL_S:
            self._stood_still = True
        self._checked_at = now
        return self._stood_still

    async def confirm(self, timeout: float | None, check: Callable[[], object]) -> bool:
        """After this process stood still, ask the server whether the mailbox is still ours.

        While it stood still, another process may have taken the mailbox over, and may have committed messages that are
        still in our inbox. If the server does not answer, try again until the timeout, and for at least one second.

        Args:
            timeout: Seconds; None: no limit.
            check: A function that raises an error if the caller no longer waits for the answer.
        Returns: whether the server has confirmed that the mailbox is ours.
        Raises: Fenced if the mailbox has a newer reader; NotListening if the mailbox was removed; ServerRefused if the
        server refuses the connection.
        """
        backoff = Backoff(LEASE_RETRY)
        try:
            async with asyncio.timeout(None if timeout is None else max(timeout, _ANSWER_S)):
                while self._stood_still:  # `run` may renew the lease at the same time
                    try:
                        await self._renew()
                    except ServerRefused:
                        raise
                    except ConnectionError:
                        await backoff.sleep()
                        check()
        except (Fenced, NotListening) as error:
            await self._stop(error)
            raise
        except TimeoutError:
            return False
        return True

    async def _renew(self) -> None:
        epoch = self._epoch()
        mailbox = None if epoch is None else self._name
        there = await self._transport.renew(self._name, mailbox, epoch or 0, lease_s=self._lease_s, keep_s=self._keep_s)
        if not there:
            raise NotListening(
                f"mailbox {self._name!r} is gone. Either it was removed, or this process stood still for longer than "
                f"its lease of {self._lease_s:g} s (then unread messages are among the dead letters), or the server "
                "lost it (was the server flushed, restored or replaced?). Open a new messager"
            )
        self.renewed_at, self._stood_still = time.monotonic(), False
