"""Keep on the server what the interceptor must not forget: a batch that changed something is answered after that."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ray_messaging.errors import Closed, Fenced, TransitError
from ray_messaging.interception.server.state.table import Changes, Table

logger = logging.getLogger(__name__)

_PAUSE_S = 0.2
_CLOSE_S = 2.0  # so long is waited at the end for a server that is away


class Kept(NamedTuple):
    """What is written at once: what changed in each table, the answers that rest on it, and answers to forget.

    `whole`: this is all that there is, in place of whatever the server has.
    """

    tables: Mapping[str, Changes]
    answers: Mapping[str, bytes]
    forget: Sequence[str]
    whole: bool = False


class ServerBehindError(Exception):
    """The server has lost writes that it had confirmed."""


class StateStore(Protocol):
    """Write what is kept, atomically."""

    async def save(self, epoch: int, kept: Kept) -> None:
        """Write; raises Fenced where another interceptor has taken over, ConnectionFailed where nobody answers.

        Raises: ServerBehindError where the server lacks an earlier write: then all is to be written anew.
        """


class Saver:
    """Write one set of changes after the other; what gathers meanwhile goes as one."""

    def __init__(self, store: StateStore, tables: dict[str, Table[Any]], epoch: int) -> None:
        self.epoch = epoch
        self.error: Fenced | None = None
        self.recall: Callable[[], Mapping[str, bytes]] = dict[str, bytes]  # all answers that count
        self.behind_count = 0  # how often the server had lost what it had confirmed
        self._whole = False  # the next write holds all that there is
        self._writing = Kept({}, {}, ())
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

    def renew(self) -> "asyncio.Future[None]":
        """Write all anew, as the server has lost some of it; done once it is there."""
        self._lost()
        return self.keep({})

    def _lost(self) -> None:
        if not self._whole:
            self.behind_count += 1
            logger.error(
                "the server has lost changes of the rules, or of what they count, that it had confirmed: was it "
                "restored from older data, or is it a replica that lagged? All is written to it anew"
            )
        self._whole = True

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
            self._writing = self._collect()
            try:
                await self._write()
            except asyncio.CancelledError:
                self._failed(_closed(), waiting)
                raise
            except Exception as error:  # nobody is answered on a state that is not safe
                if isinstance(error, Fenced):
                    self.error = error
                else:
                    logger.exception("the state of the rules could not be written: nobody is answered who changed it")
                self._failed(error, waiting)
                return
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def _failed(self, error: Exception, waiting: "list[asyncio.Future[None]]") -> None:
        # Whatever was not written goes with the next write, and counts not without their answers.
        for table in self._tables.values():
            table.rewrite()
        self._take_back()
        waiting += self._waiting
        self._waiting = []
        for done in waiting:
            if not done.done():
                done.set_exception(error.with_traceback(None))

    def _collect(self) -> Kept:
        if self._whole:
            for table in self._tables.values():
                table.rewrite()
            self._answers = {**self.recall(), **self._answers}
        tables = {name: changes for name, table in self._tables.items() if (changes := table.changes()) is not None}
        tables |= {name: Changes({}, [], cleared=True) for name in self._dropped if name not in self._tables}
        self._dropped.clear()
        answers, self._answers = self._answers, {}
        forget, self._forget = self._forget, []
        return Kept(tables, answers, forget, self._whole)

    def _take_back(self) -> None:
        """Have what was to be written go with the next write."""
        self._dropped |= self._writing.tables.keys() - self._tables.keys()
        self._answers = {**self._writing.answers, **self._answers}
        self._forget += self._writing.forget

    async def _write(self) -> None:
        """Write, however long the server is away: the tables have gone on, so this cannot be left out."""
        while True:
            try:
                await self._store.save(self.epoch, self._writing)
            except TransitError as error:
                logger.warning("the state of the rules cannot be written, trying on: %s", error)
                await asyncio.sleep(_PAUSE_S)
            except ServerBehindError:
                self._lost()
                self._take_back()
                self._writing = self._collect()
            else:
                self._whole &= not self._writing.whole
                return


def _closed() -> Closed:
    return Closed("the interceptor was closed before this was written: ask its successor")
