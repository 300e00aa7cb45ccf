"""Keep on the server what the interceptor must not forget: a batch that changed something is answered after that."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ray_messaging.errors import Closed, Fenced, TransitError
from ray_messaging.interception.state import Changes, Table

logger = logging.getLogger(__name__)

_PAUSE_S = 0.2
_CLOSE_S = 2.0  # so long is waited at the end for a server that is away


class Kept(NamedTuple):
    """What is written at once: what changed in each table, the answers that rest on it, and answers to forget."""

    tables: Mapping[str, Changes]
    answers: Mapping[str, bytes]
    forget: Sequence[str]


class StateStore(Protocol):
    """Write what is kept, atomically."""

    async def save(self, epoch: int, kept: Kept) -> None:
        """Write; raises Fenced where a newer interceptor has taken over, ConnectionFailed where nobody answers."""


class Saver:
    """Write one set of changes after the other; what gathers meanwhile goes as one."""

    def __init__(self, store: StateStore, tables: dict[str, Table[Any]], epoch: int) -> None:
        self.epoch = epoch
        self.error: Fenced | None = None
        self._store = store
        self._tables = tables
        self._answers: dict[str, bytes] = {}
        self._forget: list[str] = []
        self._dropped: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def keep(self, answers: Mapping[str, bytes]) -> "asyncio.Future[None]":
        """Keep answers with all that the tables hold now; done once both are on the server."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closed:
            done.set_exception(_closed())
            return done
        self.attach(answers)
        self._waiting.append(done)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="ray_messaging rule state")
        return done

    def attach(self, answers: Mapping[str, bytes]) -> None:
        """Have answers go with the next write of what the tables hold: neither is on the server without the other."""
        self._answers.update(answers)

    @property
    def behind(self) -> bool:
        """Tell whether the server does not have all that the tables hold."""
        return self.changed or (self._task is not None and not self._task.done())

    @property
    def changed(self) -> bool:
        """Tell whether the tables hold what no write has taken along yet."""
        return any(table.changed for table in self._tables.values())

    def drop(self, table: str) -> None:
        """Delete a table, with the next write."""
        self._tables.pop(table, None)
        self._dropped.add(table)

    def forget(self, answers: Sequence[str]) -> None:
        """Forget answers, with the next write."""
        self._forget += answers

    async def close(self) -> None:
        """Wait for what is under way, though not for ever, and write no more; who waits on is told."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=_CLOSE_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            kept = self._collect()
            try:
                await self._write(kept)
            except asyncio.CancelledError:
                self._failed(_closed(), kept, waiting)
                raise
            except Exception as error:  # nobody is answered on a state that is not safe
                if isinstance(error, Fenced):
                    self.error = error
                else:
                    logger.exception("the state of the rules could not be written: nobody is answered who changed it")
                self._failed(error, kept, waiting)
                return
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def _failed(self, error: Exception, kept: Kept, waiting: "list[asyncio.Future[None]]") -> None:
        # Whatever was not written goes with the next write, and counts not without their answers.
        for table in self._tables.values():
            table.rewrite()
        self._dropped |= kept.tables.keys() - self._tables.keys()
        self._answers = {**kept.answers, **self._answers}
        self._forget += kept.forget
        waiting += self._waiting
        self._waiting = []
        for done in waiting:
            if not done.done():
                done.set_exception(error.with_traceback(None))

    def _collect(self) -> Kept:
        tables = {name: changes for name, table in self._tables.items() if (changes := table.changes()) is not None}
        tables |= {name: Changes({}, [], cleared=True) for name in self._dropped if name not in self._tables}
        self._dropped.clear()
        answers, self._answers = self._answers, {}
        forget, self._forget = self._forget, []
        return Kept(tables, answers, forget)

    async def _write(self, kept: Kept) -> None:
        """Write, however long the server is away: the tables have gone on, so this cannot be left out."""
        while True:
            try:
                await self._store.save(self.epoch, kept)
            except TransitError as error:
                logger.warning("the state of the rules cannot be written, trying on: %s", error)
                await asyncio.sleep(_PAUSE_S)
            else:
                return


def _closed() -> Closed:
    return Closed("the interceptor was closed before this was written: ask its successor")
