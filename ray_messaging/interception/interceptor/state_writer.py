"""Writes of the rules' state to the server, one after the other."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ray_messaging.common.backoff import RULE_STATE_RETRY
from ray_messaging.errors import Closed, Fenced, TransitError
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.transports.experiment_store import StateChanges, TableChanges

logger = logging.getLogger(__name__)

_CLOSE_S = 2.0  # how long to wait for the server's answer when the interceptor ends


class ServerBehindError(Exception):
    """An error: the server has lost writes that it had confirmed."""


class StateStore(Protocol):
    """A place where the state of rules is stored. Writes are atomic."""

    async def save(self, epoch: int, kept: StateChanges) -> None:
        """Write changes of the rules' state.

        Raises:
            Fenced: another interceptor has taken over.
            ConnectionFailed: the server does not answer.
            ServerBehindError: the server lacks an earlier write, so all state must be written again.
        """


class StateWriter:
    """Writer that saves the rules' state, and the interceptor's answers, on the server. It makes one write at a time.

    Changes that are made during a write go into the next write. If there is no `store`, nothing is written, and every
    write counts as done.
    """

    def __init__(self, store: StateStore | None, tables: dict[str, Table[Any]], epoch: int) -> None:
        self.epoch = epoch
        self.error: Fenced | None = None
        self.stores = store is not None
        self.all_answers: Callable[[], Mapping[str, bytes]] = dict[str, bytes]
        self.behind_count = 0  # how often the server has lost confirmed writes
        self._whole = False  # whether the next write must contain all state
        self._writing = StateChanges({}, {}, ())
        self._store = store
        self._tables = tables
        self._answers: dict[str, bytes] = {}
        self._forget: list[str] = []
        self._dropped: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def keep(self, answers: Mapping[str, bytes]) -> "asyncio.Future[None]":
        """Write answers to the server, together with the rules' state as it is now.

        The returned future is done when both are on the server.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._store is None:
            done.set_result(None)
            return done
        if self._closed:
            done.set_exception(_closed())
            return done
        self.attach(answers)
        self._waiting.append(done)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="ray_messaging rule state")
        return done

    def attach(self, answers: Mapping[str, bytes]) -> None:
        """Add answers to the next write of the rules' state, because both must reach the server together."""
        if self._store is not None:
            self._answers.update(answers)

    def drop(self, table: str) -> None:
        """Delete a table with the next write."""
        self._tables.pop(table, None)
        if self._store is not None:
            self._dropped.add(table)

    def forget(self, answers: Sequence[str]) -> None:
        """Delete these saved answers from the server with the next write."""
        if self._store is not None:
            self._forget += answers

    @property
    def behind(self) -> bool:
        """Return whether the server lacks some changes of the rules' state."""
        return self.changed or (self._task is not None and not self._task.done())

    @property
    def changed(self) -> bool:
        """Return whether the rules' state has changes that are in no write yet."""
        return self._store is not None and any(table.changed for table in self._tables.values())

    def renew(self) -> "asyncio.Future[None]":
        """Write all state of the rules again, because the server has lost some of it.

        The returned future is done when all of it is on the server.
        """
        if self._store is not None:
            self._note_loss()
        return self.keep({})

    def _note_loss(self) -> None:
        if not self._whole:
            self.behind_count += 1
            logger.error(
                "the server has lost rule changes or counts that it had confirmed (was it restored from older data, "
                "or is it a replica that lagged?). They are all written again"
            )
        self._whole = True

    async def close(self) -> None:
        """Wait up to `_CLOSE_S` seconds for the current write, then write no more. Waiting callers get Closed."""
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
                self._fail(_closed(), waiting)
                raise
            except Exception as error:  # callers get this error if the state that their batches changed is not saved
                if isinstance(error, Fenced):
                    self.error = error
                else:
                    logger.exception("the state of the rules could not be written, so batches that changed it fail")
                self._fail(error, waiting)
                return
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def _fail(self, error: Exception, waiting: "list[asyncio.Future[None]]") -> None:
        # The next write contains everything that this write should have saved. So the interceptor's answer to a batch,
        # and the changes of the rules' state by this batch, are still saved together.
        for table in self._tables.values():
            table.rewrite()
        self._take_back()
        waiting += self._waiting
        self._waiting = []
        for done in waiting:
            if not done.done():
                done.set_exception(error.with_traceback(None))

    def _collect(self) -> StateChanges:
        if self._whole:
            for table in self._tables.values():
                table.rewrite()
            self._answers = {**self.all_answers(), **self._answers}
        tables = {name: changes for name, table in self._tables.items() if (changes := table.changes()) is not None}
        tables |= {name: TableChanges({}, [], cleared=True) for name in self._dropped if name not in self._tables}
        self._dropped.clear()
        answers, self._answers = self._answers, {}
        forget, self._forget = self._forget, []
        return StateChanges(tables, answers, forget, self._whole)

    def _take_back(self) -> None:
        """Move the content of a failed write into the next write."""
        self._dropped |= self._writing.tables.keys() - self._tables.keys()
        self._answers = {**self._writing.answers, **self._answers}
        self._forget += self._writing.forget

    async def _write(self) -> None:
        """Write the changed state of the rules, and the waiting answers, to the server.

        While the server cannot be reached, retry, because the changes cannot be undone.
        """
        assert self._store is not None
        while True:
            try:
                await self._store.save(self.epoch, self._writing)
            except TransitError as error:
                logger.warning("the state of the rules cannot be written, trying again: %s", error)
                await asyncio.sleep(RULE_STATE_RETRY.first_s)
            except ServerBehindError:
                self._note_loss()
                self._take_back()
                self._writing = self._collect()
            else:
                self._whole &= not self._writing.whole
                return


def _closed() -> Closed:
    return Closed(
        "the interceptor, which runs the rules, was closed before the server had stored what a rule keeps: make the "
        "call again"
    )
