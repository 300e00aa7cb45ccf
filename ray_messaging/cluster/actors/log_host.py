"""The plain object that does the work of the log's actor: it writes an experiment's event log, and answers queries."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.cluster.handles.remote_log import Seen
from ray_messaging.cluster.spec import Experiment
from ray_messaging.errors import AlreadyExists, ConfigError, LogError
from ray_messaging.eventlog import folder_records
from ray_messaging.eventlog.collected import check_collected
from ray_messaging.eventlog.folder import Folder, Segment
from ray_messaging.eventlog.reading.event_rows import rows_as_seed
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.query import REACHED
from ray_messaging.eventlog.reading.questions import COLLECTED, answer
from ray_messaging.eventlog.reading.results import INTERNAL
from ray_messaging.eventlog.reading.scan import View, scan
from ray_messaging.eventlog.writing.open_segment import SEGMENT_BYTES, SEGMENT_ROWS
from ray_messaging.eventlog.writing.segment_store import died_before_loss, with_folder_lock
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.model.fates import BLOCKED, FATES
from ray_messaging.transports.backend import backend_of
from ray_messaging.transports.experiment_store import other_run
from ray_messaging.transports.server_facts import kind_and_version
from ray_messaging.transports.step_values import CollectedKind
from ray_messaging.transports.transport_values import Limits

PAGE = 4096  # how many rows one answer has at most
# The name under which the server stores the time of the last call of `LogHost.clear`, in ms.
_CLEARED = "cleared"

T = TypeVar("T")

logger = logging.getLogger(__name__)


class LogHost:
    """The plain object that does the work of the log's actor: it writes the event log and answers queries.

    The answers include rows that are in no file yet.
    """

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
            checkpoint=None if experiment.steps is None else experiment.steps.checkpoint,
            # Rows fill the mailbox of the log until they are in a file, so a segment must be smaller than the mailbox.
            segment_rows=min(SEGMENT_ROWS, max(1, settings.mailbox_messages // 2)),
            segment_bytes=min(SEGMENT_BYTES, max(1, settings.mailbox_bytes // 2)),
        )
        self._cleared = -1  # the position of the last row that `clear` has removed from the list that `rows` returns
        # The time of the last call of `clear` in ms, by the server's clock. Unlike a position, the time is also valid
        # in a later process.
        self._cleared_ms = -1
        self._noting = asyncio.Lock()
        self._rule_changes: list[folder_records.RuleChange] = []  # the last rule changes that were written
        self._taken_over = 0  # the number of rows in the folder when this process began
        self._importing: asyncio.Task[Any] | None = None

    async def start(self) -> None:
        """Claim the folder and start the writer.

        Raises: AlreadyExists if the folder has another log; ConfigError if the log has steps that the server lacks;
        Fenced if there is a newer writer; LogError if the folder cannot be used; ConnectionFailed if the server cannot
        be reached.
        """
        # When the first array is built, pyarrow imports pandas, if it is installed. That takes up to a second, so it is
        # done in a thread.
        self._importing = asyncio.create_task(asyncio.to_thread(pa.array, [0]), name="ray_messaging log import")
        try:
            await self._transport.connect()
            await self._prepare_folder()
            await self._writer.start()
        except BaseException:
            await asyncio.wait([self._importing])  # a thread cannot be stopped
            raise
        self._taken_over = self._writer.rows
        self._cleared_ms = int(await self._server.log_mark(_CLEARED) or -1)

    async def _known(self) -> bool:
        """Return whether the server still has the log of this start.

        A FLUSHALL, or a newer start with a log, removes it.
        """
        return bool(await self._server.log_mark("run") == self._experiment.run.encode())

    async def _prepare_folder(self) -> None:
        """Claim the log's folder, unless an earlier process of this start of the experiment has claimed it."""
        # If another start has claimed the experiment, this folder may have the log of that start.
        if await self._server.holder() not in {None, self._experiment.run.encode()}:
            raise other_run(self._experiment.exp_id, 0)
        before = (await self._server.log_mark("run") or b"").decode()
        if before == self._experiment.run:
            return
        reset = self._on_existing == "reset"
        await asyncio.to_thread(self._folder.prepare, self._experiment.exp_id, any_schema=reset)
        lacks = (
            self._on_existing == "resume" and self._experiment.steps is not None and await self._server_lacks_steps()
        )
        claim = partial(self._claim_folder, before, lacks_steps=lacks)
        await with_folder_lock(self._folder, claim, asyncio.sleep)
        await self._server.set_log_mark("run", self._experiment.run)

    async def _server_lacks_steps(self) -> bool:
        """Return whether no step was ever opened on the server, or the server has lost the experiment's data."""
        steps = self._transport.steps
        return await steps.settings() is None or (await steps.progress()).latest < 0

    def _check_steps(self, segments: Sequence[Segment]) -> None:
        """Raise ConfigError if the log has steps. Call this if the server has no steps."""
        logged = max((each.steps.handled for each in segments if each.steps is not None), default=-1)
        if logged >= 0:
            where, exp_id = self._folder.where, self._experiment.exp_id
            raise ConfigError(
                f"the log in {where} has the steps of {exp_id!r} up to {logged}, but the server of this start has none "
                "of them, so the run would begin at step 0 again in the same log. Pass the data_dir= or redis= with "
                "which the run was started before; or go on after its last checkpoint in a new experiment with another "
                f"log_dir, by Messaging.fork({where!r}, ...); or delete the log by on_existing='reset'"
            )

    def _claim_folder(self, before: str, *, lacks_steps: bool) -> None:
        """Claim the log's folder, so that log writers of other starts of the experiment add no more files.

        The caller must have locked the folder.

        Args: `before` is the start that had a log on the server before this one, or "". `lacks_steps` is True
        if a run in steps is resumed, but the server has no steps of it.
        """
        run, reset = self._experiment.run, self._on_existing == "reset"
        segments, account = self._folder.segments(any_schema=reset), folder_records.read_account(self._folder)
        if account.writer.startswith(f"{run}/"):  # the server has lost this start's log, but the folder has it
            error = died_before_loss(self._experiment.exp_id, self._folder, segments)
            folder_records.note_missing(self._folder, account.writer, str(error))
            raise error
        if lacks_steps:
            self._check_steps(segments)
        lacking = folder_records.unended(self._folder)
        if self._on_existing == "resume":
            check_collected(self._folder)
        if self._on_existing == "error":
            check_no_log(self._folder)
        folder_records.claim(self._folder, run, self._experiment.exp_id)
        record = folder_records.read_run(self._folder)
        if lacking and self._on_existing == "resume" and record is not None and record.starts[-1].run != before:
            folder_records.note_missing(
                self._folder,
                run,
                f"the run that began at {record.starts[-1].began} was killed, and its server's data are gone, so "
                "the rows of its last messages are missing",
            )
        if reset:
            self._folder.erase()
            folder_records.forget_missing(self._folder)
            folder_records.write_rule_changes(self._folder, [])

    async def close(self, *, killed: bool = False) -> None:
        """Write the log's rows of all messages that were sent, and remove the log's stream from the server.

        The folder is not removed.

        Args: `killed` is True if the driver was killed.
        """
        try:
            delta = await self._transport.load_directory(-1)
            groups = {record.mailbox: len(record.agents()) for record in delta.changed if record.exclusive}
            await self._writer.retire()
            note = partial(folder_records.note_end, killed=killed, rows=self._writer.rows)
            await self._note(note, self._experiment.run, groups)
        finally:
            await self._transport.close()
            if self._importing is not None:
                await asyncio.wait([self._importing])

    # -- the record of the run ------------------------------------------------------------------------------------

    async def note_start(self, command: list[str], rules: list[dict[str, Any]], data: str | None = None) -> None:
        """Record this start of the experiment in the folder; raise LogError if the folder cannot be written.

        Args: `rules` has a description of each rule, `data` is the folder of the server's data.
        """
        probe = await asyncio.to_thread(backend_of(self._experiment.redis).probe)
        start = folder_records.RunStart(
            self._experiment.run,
            folder_records.utc_now(),
            self._on_existing,
            command,
            folder_records.versions(),
            f"{kind_and_version(probe.info)} at {probe.where}" if probe.info else probe.where,
            rules,
            data=data,
        )
        steps = self._experiment.steps
        await self._note(
            folder_records.note_start, self._experiment.exp_id, None if steps is None else steps.model_dump(), start
        )

    async def note_model(self, model: dict[str, Any], groups: dict[str, int]) -> dict[str, Any] | None:
        """Record the arguments of a call of `messaging.run` in the folder.

        Returns: the arguments that an earlier start of the run recorded, or None if there are none.
        Raises: LogError if the folder cannot be written.

        Args: `model` has the arguments, and `groups` the number of agents of each group.
        """
        return await self._note(folder_records.note_model, model, groups)

    async def _note(self, change: Callable[..., T], *facts: object) -> T:
        try:
            async with self._noting:
                return await asyncio.to_thread(change, self._folder, *facts)
        except OSError as error:
            raise LogError(
                f"the record of the run cannot be written to {self._folder.where} ({error}): free disk space, or "
                "give this process access",
                path=self._folder.where,
            ) from error

    async def abandon(self) -> None:
        """Disconnect, after a failed start."""
        await self._transport.close()

    async def write_rule_changes(self, changes: list[folder_records.RuleChange]) -> None:
        """Write the changes of the run's rules into the log's folder. If that fails, only log a warning."""
        try:
            async with self._noting:
                # Calls may overtake each other. If the last of these changes was written, all of them were.
                if changes[-1] not in self._rule_changes:
                    await asyncio.to_thread(folder_records.write_rule_changes, self._folder, changes)
                    self._rule_changes = changes
        except OSError as error:
            logger.warning("the changes of the rules are not recorded in %s: %s", self._folder.where, error)

    # -- queries --------------------------------------------------------------------------------------------------

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401 - each query returns another type
        """Answer the query called `what`, over everything that was sent before the query.

        Only the query "sample" may miss the newest rows.
        """
        view = self._view_now() if what == "sample" else await self._view()
        if what in COLLECTED:
            view = view._replace(collected=await self._writer.unwritten())
        return await asyncio.to_thread(answer, view, what, arguments)

    async def _view(self) -> View:
        await self._writer.caught_up()
        return self._view_now()

    def _view_now(self) -> View:
        segments, live, _ = self._writer.snapshot()
        return View(self._folder, segments, live)

    async def since(self, seen: Seen, arguments: dict[str, Any]) -> tuple[pa.Table, Seen]:
        """Return rows after the position in `seen` that match `arguments`, and a `Seen` for the next call.

        The returned `Seen` has the position of the last examined row. If an earlier process has read rows without
        writing them to a file, these rows have new positions, so some may be returned twice. No row is missed.
        """
        position = seen.position
        if seen.process not in {"", self._process}:
            position = min(position, self._taken_over - 1)
        page = await self.ask("since", arguments | {"position": position})
        return page, Seen(self._process, int(page.schema.metadata[REACHED]))

    async def wait(self, position: int, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until there are rows after a position; return whether there are any."""
        return await self._writer.wait_beyond(position + 1, timeout_s)

    async def blocked(self, cursor: int, seen: Seen | None, timeout_s: float) -> tuple[pa.Table, Seen]:
        """Return the blocked messages after the first `cursor` blocked messages; wait up to `timeout_s` for one.

        All blocked messages are in one stream. So their order does not change when the writer restarts, and a cursor
        stays valid.

        Args: `seen` is the second value that the last call returned (None: there was no call). It is the position in
        the log after which this call reads on, unless the log's actor was restarted in between.
        """
        position = -1
        if seen is not None and seen.process == self._process:
            position = seen.position
        elif cursor:
            position = await asyncio.to_thread(_last_blocked, await self._view(), cursor)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            page, seen = await self.since(Seen("", position), {"limit": PAGE, "fate": FATES[BLOCKED], "text": True})
            position = seen.position
            left = deadline - asyncio.get_running_loop().time()
            if len(page) or left <= 0:
                return page, seen
            await self.wait(position, left)

    async def count_blocked(self) -> int:
        """Return the number of blocked messages so far.

        With this number as the cursor, `blocked` returns only later messages.
        """
        counted = await self.ask("count", {"by": "fate", "fate": FATES[BLOCKED]})
        return int(counted["count"][0].as_py()) if len(counted) else 0

    async def rows(self) -> list[dict[str, Any]]:
        """Return the latest sends since `clear`, oldest first, in the form of AgentSociety's log list.

        The list has at most `MessagingConfig.log_list_messages` entries.
        """
        end = await self.ask("end", {})
        after = max(self._cleared, end - self._experiment.settings.log_list_messages)
        found = await self.ask("query", {"after": after, "internal": True, "text": True})
        return rows_as_seed(_later(found, self._cleared_ms).drop_columns(list(INTERNAL)))

    async def clear(self) -> None:
        """Let `rows` return only sends that begin after this call; the event log keeps all rows."""
        self._cleared = await self.ask("end", {})
        now = await self._server.time_ms()
        await self._server.set_log_mark(_CLEARED, now)
        while await self._server.time_ms() <= now:
            pass  # wait until the next millisecond, so that later sends have a later time

    def stats(self) -> dict[str, Any]:
        """Return the writer's counters, such as rows, segments and lag, and its error."""
        return self._writer.stats()


def check_no_log(folder: Folder) -> None:
    """Raise AlreadyExists if a folder has the log of a run."""
    lacking = folder_records.unended(folder)
    if folder.segments() or lacking or any(folder.collected_files(kind) for kind in CollectedKind):
        kind_of = "a run that has no end" if lacking else "an earlier run"
        raise AlreadyExists(
            f"{folder.where} contains the log of {kind_of}: continue that log by on_existing='resume', delete it by "
            "on_existing='reset', or choose another log_dir",
            kind="log",
            value=folder.where,
            owner=None,
        )


def _last_blocked(view: View, count: int) -> int:
    """Return the position in the log of the last of the first `count` blocked messages, or -1 if there is none."""
    ends = [int(part["position"][-1].as_py()) for part in scan(view, Filters(fate=FATES[BLOCKED], limit=count), [])]
    return max(ends, default=-1)


def _later(table: pa.Table, ms: int) -> pa.Table:
    """Return the rows that the server received after the time `ms`.

    Ids in the column `entry` begin with the time at which the server received the row.
    """
    if ms < 0:
        return table
    later = [entry for entry in table["entry"].unique().to_pylist() if int(entry.partition("-")[0]) > ms]
    return table.filter(pc.is_in(table["entry"], value_set=pa.array(later, pa.string())))
