"""The event log of one experiment, in a process of its own: it writes while it is asked."""

import asyncio
import secrets
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.cluster.handles.remote_log import Seen
from ray_messaging.cluster.spec import Experiment
from ray_messaging.errors import AlreadyExists
from ray_messaging.eventlog.account import claim, forget_missing, note_missing, read_account
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.reading.event_rows import rows_as_seed
from ray_messaging.eventlog.reading.filtering.filters import Filters
from ray_messaging.eventlog.reading.filtering.scan import View, scan
from ray_messaging.eventlog.reading.query import REACHED, answer
from ray_messaging.eventlog.reading.result_columns import INTERNAL
from ray_messaging.eventlog.writing.log_errors import died_before_loss
from ray_messaging.eventlog.writing.segment_size import SEGMENT_BYTES, SEGMENT_ROWS
from ray_messaging.eventlog.writing.segment_store import when_free
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.transports.backend import backend_of
from ray_messaging.transports.base import Limits
from ray_messaging.transports.experiment_store import other_run

PAGE = 4096  # rows that are handed out at a time
_CLEARED = "cleared"  # mark of the log: the server's time, in ms, when the list of `rows` was cleared


class LogHost:
    """Write the log, and answer from the folder and from what is not in it yet."""

    def __init__(self, experiment: Experiment, on_existing: str) -> None:
        assert experiment.log_dir is not None
        self._folder = Folder(experiment.log_dir)
        settings = experiment.settings
        self._experiment = experiment
        self._on_existing = on_existing
        self._process = secrets.token_hex(4)
        stores = backend_of(experiment.redis).stores(experiment.exp_id, settings, run=experiment.run)
        self._transport, self._server = stores.transport, stores.experiment
        limits = Limits(settings.mailbox_messages, settings.mailbox_bytes, 0.0, leased=False)
        self._writer = LogWriter(
            self._transport,
            self._folder,
            experiment.exp_id,
            run=experiment.run,
            known=self._known,
            limits=limits,
            # Senders wait for what is not in a file yet as if it were unread: a mailbox must not fill by that alone.
            segment_rows=min(SEGMENT_ROWS, max(1, settings.mailbox_messages // 2)),
            segment_bytes=min(SEGMENT_BYTES, max(1, settings.mailbox_bytes // 2)),
        )
        self._cleared = -1  # the position up to which the list of `rows` was cleared
        self._cleared_ms = -1  # and the server's time of that, for our successors: they may number rows anew
        self._taken_over = 0  # rows that were in the folder when this process began

    async def start(self) -> None:
        """Take the folder and begin. Raises AlreadyExists, Fenced, LogError, ConnectionFailed."""
        await self._transport.connect()
        await self._check_run()
        await self._take_folder()
        await self._writer.start()
        self._taken_over = self._writer.rows
        self._cleared_ms = int(await self._server.log_mark(_CLEARED) or -1)

    async def _known(self) -> bool:
        """Tell whether the server knows the log of this run: one that was flushed does not, or knows a newer run's."""
        return bool(await self._server.log_mark("run") == self._experiment.run.encode())

    async def _check_run(self) -> None:
        """Raise Fenced where another start has the experiment: it has a log of its own, perhaps in this folder."""
        if await self._server.holder() not in {None, self._experiment.run.encode()}:
            raise other_run(self._experiment.exp_id, 0)

    async def _take_folder(self) -> None:
        """Make way in the folder, once in a run; whatever process of this run comes later goes on in it."""
        if await self._known():
            return
        await asyncio.to_thread(self._folder.prepare, self._experiment.exp_id)
        await when_free(self._folder, self._make_way, asyncio.sleep)
        await self._server.set_log_mark("run", self._experiment.run)

    def _make_way(self) -> None:
        """Claim the folder for this run, under its lock: no writer of another one names a file in it from here on."""
        run = self._experiment.run
        segments, account = self._folder.segments(), read_account(self._folder)
        if account.writer.startswith(f"{run}/"):  # our predecessor has written here, and the server forgot it
            error = died_before_loss(self._experiment.exp_id, self._folder, segments)
            note_missing(self._folder, account.writer, str(error))
            raise error
        if segments and self._on_existing == "error":
            raise AlreadyExists(
                f"{self._folder.where} holds the log of an earlier run: go on with it by on_existing='resume', "
                "delete it by on_existing='reset', or choose another log_dir",
                kind="log",
                value=self._folder.where,
                owner=None,
            )
        claim(self._folder, run)
        if self._on_existing == "reset":
            self._folder.erase()
            forget_missing(self._folder)

    async def close(self) -> None:
        """Write all that was sent, and take the log out."""
        try:
            await self._writer.retire()
        finally:
            await self._transport.close()

    async def abandon(self) -> None:
        """Let go of the server, after a start that failed."""
        await self._transport.close()

    # -- questions ------------------------------------------------------------------------------------------------

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - each question has its own
        """Answer a question about all that was sent before it was asked."""
        return await asyncio.to_thread(answer, await self._view(), what, arguments)

    async def _view(self) -> View:
        await self._writer.caught_up()
        segments, live, _ = self._writer.snapshot()
        return View(self._folder, segments, live)

    async def since(self, seen: Seen, arguments: dict[str, Any]) -> tuple[pa.Table, Seen]:
        """Return the next rows that match after what was seen, and what is seen with them.

        What a writer that died had not written yet has other numbers now: that is told once more, and none is missed.
        """
        position = seen.position
        if seen.process not in {"", self._process}:
            position = min(position, self._taken_over - 1)
        page = await self.ask("since", arguments | {"position": position})
        return page, Seen(self._process, int(page.schema.metadata[REACHED]))

    async def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until there are rows after a position."""
        return await self._writer.wait_beyond(position + 1, timeout_s)

    async def blocked(self, cursor: int, seen: Seen | None, timeout_s: float) -> tuple[pa.Table, Seen]:
        """Return blocked messages after the first `cursor` of them; wait for one.

        They all come through one stream, so that their order, and with it a cursor, outlives the writer.
        """
        position = -1
        if seen is not None and seen.process == self._process:
            position = seen.position
        elif cursor:
            position = await asyncio.to_thread(_last_blocked, await self._view(), cursor)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            page, seen = await self.since(Seen("", position), {"limit": PAGE, "fate": "blocked"})
            position = seen.position
            left = deadline - asyncio.get_running_loop().time()
            if len(page) or left <= 0:
                return page, seen
            await self.wait(position, left)

    async def count_blocked(self) -> int:
        """Return how many messages were blocked by now: the cursor of whoever wants those that come."""
        counted = await self.ask("count", {"by": "fate", "fate": "blocked"})
        return int(counted["count"][0].as_py()) if len(counted) else 0

    async def rows(self) -> list[dict[str, Any]]:
        """Return the latest sends since `clear` in the form of AgentSociety's log list, the oldest first."""
        end = await self.ask("end", {})
        after = max(self._cleared, end - self._experiment.settings.log_list_messages)
        found = await self.ask("query", {"after": after, "internal": True})
        return rows_as_seed(_later(found, self._cleared_ms).drop_columns(list(INTERNAL)))

    async def clear(self) -> None:
        """Begin the list of `rows` anew; the log keeps everything."""
        self._cleared = await self.ask("end", {})
        now = await self._server.time_ms()
        await self._server.set_log_mark(_CLEARED, now)
        while await self._server.time_ms() <= now:
            pass  # what is sent once this has returned has a later millisecond

    def stats(self) -> dict[str, Any]:
        """Return rows, segments, lag and what is wrong."""
        return self._writer.stats()


def _last_blocked(view: View, count: int) -> int:
    """Return the position of the last one of the first `count` blocked messages; -1: there is none."""
    ends = scan(view, Filters(fate="blocked", limit=count), ["fate"], lambda part: int(part["position"][-1].as_py()))
    return max(ends, default=-1)


def _later(table: pa.Table, ms: int) -> pa.Table:
    """Return the rows that the server took after a time; `entry` begins with the one at which it did."""
    if ms < 0:
        return table
    later = [entry for entry in table["entry"].unique().to_pylist() if int(entry.partition("-")[0]) > ms]
    return table.filter(pc.is_in(table["entry"], value_set=pa.array(later, pa.string())))
