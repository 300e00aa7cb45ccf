"""Moves of agents between the groups of an experiment with steps."""

import asyncio
from typing import TYPE_CHECKING, NoReturn

import msgspec

from ray_messaging.addressing.directory import NO_DATES, Directory, HostDates, MailboxRecord, claims_of
from ray_messaging.common.backoff import STALE_DIRECTORY_RETRY, Backoff
from ray_messaging.errors import AlreadyExists, ConfigError, MoveFailed, UnknownName
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.transports.departures import Rehosted, Released

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport


def moved_records(
    source: MailboxRecord, target: MailboxRecord | None, agents: AgentSet, version: int = 0, dates: HostDates = NO_DATES
) -> tuple[MailboxRecord, MailboxRecord | None]:
    """Return the new records of mailboxes after agents move from `source` to `target` (None: they are removed).

    With steps, `version` is the directory's version with the move.
    """
    claimed = source.by_subtopic()
    left = {subtopic: hosted - agents for subtopic, hosted in claimed.items()}
    here = msgspec.structs.replace(source, claims=claims_of(left), moved=True).succeeds(source, version, dates)
    if target is None:
        return here, None
    joined = target.by_subtopic()
    for subtopic, hosted in claimed.items():
        came = hosted & agents
        if came:
            joined[subtopic] = joined[subtopic] | came if subtopic in joined else came
    there = msgspec.structs.replace(target, claims=claims_of(joined), moved=True)
    came_from = source if version else None
    return here, there.succeeds(target, version, dates, came_from)


def check_leaving(agents: AgentSet, record: MailboxRecord, target: str | None) -> None:
    """Raise an error if, by the records of the mailboxes, agents cannot move from one to the other (None: to none).

    Raises: AlreadyExists if both are the same mailbox; UnknownName if an agent is not hosted there.
    """
    if target == record.mailbox and agents:
        agent = next(iter(agents))
        raise AlreadyExists(
            f"agent {agent!r} is in group {target!r} already: leave it out", kind="agent", value=agent, owner=target
        )
    missing = agents - record.agents()
    if missing:
        agent = next(iter(missing))
        raise UnknownName(f"group {record.mailbox!r} hosts no agent {agent!r}", kind="agent", value=agent)


_NEWS_S = 1.0  # the longest wait for news in one call


class Rehoster:
    """Mover of agents between groups, by one call to the server for each move. Any process may do this.

    Args: `directory` must have all mailboxes, with their newest records.
    """

    def __init__(self, transport: "RedisTransport", directory: Directory) -> None:
        self._transport = transport
        self._directory = directory

    async def move(self, agents: AgentSet, source: str, target: str | None, timeout: float) -> int:
        """Move agents to group `target`, or remove them if it is None; return the first step in which the move counts.

        If the target becomes a member only after the next step, this waits until then, for up to `timeout` seconds.

        Raises: UnknownName if an agent or the target does not exist; AlreadyExists if an agent is there already;
        MoveFailed after the timeout, or if the directory changed too often.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        tried: list[int] = []  # the directory's versions for which an attempt may have succeeded
        backoff = Backoff(STALE_DIRECTORY_RETRY, deadline=deadline)
        while True:
            self._directory.update(*await self._transport.load_directory(self._directory.version))
            version = next((each for each in tried if self._is_done(agents, source, each)), None)
            if version is not None:
                return self._directory.dates.since(version)
            if tried and backoff.exhausted:
                raise MoveFailed(
                    f"agents could not leave group {source!r} within {timeout:g} s, and nothing has changed: mailboxes "
                    "come and go all the time. Wait for that to end, then try again",
                    group=source,
                    messages=0,
                )
            version = self._directory.version
            found = await self._transport.departures.rehost(*self._moved(agents, source, target), version)
            if found.outcome is Released.DONE:
                self._directory.update(*await self._transport.load_directory(self._directory.version))
                return found.since
            if found.outcome is Released.STALE_DIRECTORY:
                tried.append(version + 1)
                await backoff.sleep()
            elif found.outcome is Released.NOT_YET:
                await self._await_target(found, source, target, deadline)
            else:
                self._refuse(source, target)

    def _is_done(self, agents: AgentSet, source: str, version: int) -> bool:
        """Return whether an attempt has succeeded although its answer was lost."""
        record = self._directory.records.get(source)
        return record is not None and any(
            change.version == version and change.agents_gone() == agents for change in record.changes
        )

    def _moved(self, agents: AgentSet, source: str, target: str | None) -> tuple[MailboxRecord, MailboxRecord | None]:
        """Return the records with which the next attempt is made; raises as `move`."""
        records = self._directory.records
        here, there = records.get(source), None if target is None else records.get(target)
        if here is None or not here.exclusive:
            raise UnknownName(f"there is no group {source!r} with agents", kind="group", value=source)
        if target is not None and (there is None or not there.exclusive):
            self._refuse(source, target)
        check_leaving(agents, here, target)
        if here.globs:
            raise ConfigError(
                f"group {source!r} listens to patterns ({here.globs[0]!r}), so its agents cannot leave it in steps: a "
                "pattern may be for some of them"
            )
        return moved_records(here, there, agents, self._directory.version + 1, self._directory.dates)

    async def _await_target(self, found: Rehosted, source: str, target: str | None, deadline: float) -> None:
        """Wait until the next step is the first one in which the target is a member; raise MoveFailed if it is late."""
        store = self._transport.steps
        while (progress := await store.progress()).latest + 1 < found.since:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise MoveFailed(
                    f"agents cannot go from group {source!r} to {target!r} yet, which counts from step {found.since} "
                    f"on, and step {progress.latest} is the last that was opened: drive the groups on, then try again",
                    group=source,
                    messages=0,
                )
            await store.wait(progress.news, min(_NEWS_S, left))

    def _refuse(self, source: str, target: str | None) -> NoReturn:
        record = None if target is None else self._directory.records.get(target)
        if record is not None and record.exclusive:
            raise MoveFailed(
                f"agents cannot go from group {source!r} to {target!r}, which leaves the steps, or has left them: "
                "drive it on, or choose another group",
                group=source,
                messages=0,
            )
        raise UnknownName(f"there is no group {target!r} to move to", kind="group", value=target)
