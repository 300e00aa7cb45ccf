"""A store of the answers of calls. A call's key is its content: its function and arguments.

Processes of one machine share the store's folder, so that each call is made once. The folder has a sqlite3 database,
`calls.sqlite`, with the answers as JSON. The database's table `flights` lists the calls that are being made now, each
with its holder, which is the process that makes the call. A holder keeps a file in the folder `holders` locked while it
lives, and the kernel releases the lock when the process dies. So if a holder is killed, the next process that wants the
answer makes the call.

The table `usages` has the tokens that the calls used when they were made. It is a table of its own, so that versions of
this package without it can use the same folder.
"""

import asyncio
import fcntl
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from uuid import uuid4

import msgspec

from ray_messaging.common.backoff import STORED_CALL_RETRY, Backoff
from ray_messaging.errors import BudgetSpent, ConfigError, LogError
from ray_messaging.model.call_usage import CallUsage
from ray_messaging.model.calls import KeptCall, exact_of, json_of

FILE, HOLDERS = "calls.sqlite", "holders"
_APPLICATION: Final = 0x7261796D  # "raym": the application id of the databases that are stores of ray_messaging
_VERSION: Final = 1
_BUSY_S: Final = 60.0  # a call fails if other processes keep the database locked for this many seconds
_TABLES = """
CREATE TABLE IF NOT EXISTS calls (
    content TEXT PRIMARY KEY, function TEXT NOT NULL, arguments TEXT, result TEXT NOT NULL, exact BLOB,
    seconds REAL NOT NULL, tries INTEGER NOT NULL, made_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS flights (content TEXT PRIMARY KEY, holder TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usages (
    content TEXT PRIMARY KEY, model TEXT, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL
) WITHOUT ROWID;
"""
_FIND = (
    "SELECT result, exact, model, input_tokens, cached_tokens, output_tokens FROM calls LEFT JOIN usages "
    "USING (content) WHERE content = ?"
)
T = TypeVar("T")


class StoredCall(NamedTuple):
    """A call through `me.remember` whose answer is wanted.

    `content` is its key in the store. `function` and `arguments` are stored only for people who read the database.
    """

    content: str
    function: str
    arguments: str | None


class CallStore:
    """A folder with the stored answers of calls through `me.remember`. It is created if it does not exist.

    One object serves all threads of a process.

    Raises: ConfigError if the folder cannot be a store; LogError if the store cannot be read or written.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        # The calls that this process is making now, by `StoredCall.content`.
        self._flights: dict[str, Future[KeptCall | BaseException]] = {}
        self._holder = ""  # the name of the file that this process has locked, or "" before it locks one
        with self._checked():
            if Path(folder).exists() and not Path(folder).is_dir():
                raise ConfigError(f"store={folder!r} is a file: name a folder, which may be new")
            Path(folder, HOLDERS).mkdir(parents=True, exist_ok=True)
            self._reader = self._open()
            self._writer = self._open()
            self._prepare(self._writer)
            self._forget_the_dead()
        self._thread = ThreadPoolExecutor(1, "ray_messaging call store")

    @classmethod
    def at(cls, folder: str) -> "CallStore":
        """Return the store for a folder. All callers in one process get the same store, unless its file was deleted."""
        # A forked process may not use the connections of the process that it was forked from.
        key = os.getpid(), os.path.realpath(folder)
        with _opening:
            if (found := _open_stores.get(key)) is None or not Path(folder, FILE).exists():
                found = _open_stores[key] = cls(folder)
        return found

    def known(self, content: str) -> KeptCall | None:
        """Return the stored answer of the call with the key `content`, or None if no answer is stored yet."""
        with self._checked(), self._lock:
            return _found(self._reader, content)

    async def answer(self, call: StoredCall, make: Callable[[], Awaitable[KeptCall]]) -> tuple[KeptCall, bool]:
        """Return the answer of a call, and whether `make` has just made the call.

        If an equal call is under way, wait for its answer instead of making the call.

        Raises: the error of `make`, or of the equal call that was under way, except that call's BudgetSpent; LogError
        if the answer cannot be stored.
        """
        while True:
            with self._lock:
                under_way = self._flights.get(call.content)
                if under_way is None:
                    mine = self._flights[call.content] = Future[KeptCall | BaseException]()
            if under_way is None:
                return await self._fly(call, make, mine)
            waited = asyncio.wrap_future(under_way)
            await asyncio.wait({waited})  # if this call is cancelled, the other call goes on
            outcome = waited.result()
            if isinstance(outcome, KeptCall):
                # The other call has the time and the tokens in its own record.
                return KeptCall(0.0, 0, outcome.result, saved=outcome.usage or outcome.saved), False
            if isinstance(outcome, Exception) and not isinstance(outcome, BudgetSpent):
                raise outcome
            # The equal call was cancelled, or had no budget left. So try again.

    async def _fly(
        self, call: StoredCall, make: Callable[[], Awaitable[KeptCall]], flight: "Future[KeptCall | BaseException]"
    ) -> tuple[KeptCall, bool]:
        outcome: KeptCall | BaseException = asyncio.CancelledError()
        try:
            outcome, made = await self._answer(call, make)
        except BaseException as error:
            outcome = error
            raise
        else:
            return outcome, made
        finally:
            with self._lock:
                del self._flights[call.content]
            flight.set_result(outcome)

    async def _answer(self, call: StoredCall, make: Callable[[], Awaitable[KeptCall]]) -> tuple[KeptCall, bool]:
        backoff = Backoff(STORED_CALL_RETRY)
        try:
            while (found := await self._do(lambda: self._claim(call.content))) is False:
                await backoff.sleep()  # another process is making the call
            if isinstance(found, KeptCall):
                return found, False
            made = await make()
            await self._do(lambda: self._put(call, made))
        except BaseException:
            self._thread.submit(self._give_up, call.content)
            raise
        return made, True

    async def _do(self, work: Callable[[], T]) -> T:
        """Do some work in the store's thread. The work is finished even if this call is cancelled."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))

    # -- work in the store's thread -------------------------------------------------------------------------------

    def _claim(self, content: str) -> KeptCall | bool:
        """Return a call's answer if it is stored.

        If not, return False if another process is making the call, and True if this process must make the call now.
        """
        # This part is no transaction: in transactions, processes that wait for an answer would block each other.
        with self._checked():
            if (known := _found(self._writer, content)) is not None:
                return known
            if self._holder_of(content, self._writer) is not None:
                return False
        with self._writing() as database:
            if (known := _found(database, content)) is not None:
                return known
            if self._holder_of(content, database) is not None:
                return False
            self._hold()
            database.execute("INSERT OR REPLACE INTO flights VALUES (?, ?)", (content, self._holder))
            return True

    def _holder_of(self, content: str, database: sqlite3.Connection) -> str | None:
        """Return the name of the file of another living process that is making the call now, or None if none is."""
        row = database.execute("SELECT holder FROM flights WHERE content = ?", (content,)).fetchone()
        return row[0] if row is not None and row[0] != self._holder and self._lives(row[0]) else None

    def _put(self, call: StoredCall, made: KeptCall) -> None:
        text, exact = json_of(bytes(made.result))
        row = call.content, call.function, call.arguments, text, exact, made.seconds, made.tries, time.time()
        with self._writing() as database:
            database.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if (used := made.usage) is not None:
                usage = call.content, used.model, used.input, used.cached, used.output
                database.execute("INSERT OR IGNORE INTO usages VALUES (?, ?, ?, ?, ?)", usage)
            database.execute("DELETE FROM flights WHERE content = ?", (call.content,))

    def _give_up(self, content: str) -> None:
        # If this fails, the call counts as under way until this process ends.
        with suppress(LogError), self._writing() as database:
            database.execute("DELETE FROM flights WHERE content = ? AND holder = ?", (content, self._holder))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._checked():
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # if the disk is full, sqlite may have ended the transaction already
                    self._writer.execute("ROLLBACK")
                raise

    # -- holders --------------------------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Lock a file in the folder `holders`. While it is locked, other processes know that this process lives."""
        while not self._holder:
            path = Path(self.folder, HOLDERS, f"{os.getpid()}-{uuid4().hex}")
            # The file stays open for as long as the process lives. A process that was forked from this one has no lock.
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            # If the lock fails, another process has locked the file for a moment, to see whether its holder lives.
            with suppress(OSError):
                fcntl.lockf(handle, _ALONE)
                if path.exists():
                    _ours.add(path.name)
                    self._holder = path.name
                    return
            os.close(handle)

    def _lives(self, holder: str) -> bool:
        """Return whether the process that made the file `holder` lives, which means that it still locks the file."""
        # This process must not open and close its own file, because that would release its lock.
        if holder.startswith(f"{os.getpid()}-"):
            return holder in _ours
        path = Path(self.folder, HOLDERS, holder)
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.lockf(handle, _ALONE)
        except (BlockingIOError, PermissionError):
            return True
        else:
            return False
        finally:
            os.close(handle)

    def _forget_the_dead(self) -> None:
        """Remove the files of processes that have died from the folder `holders`."""
        for path in Path(self.folder, HOLDERS).iterdir():
            if not self._lives(path.name):
                path.unlink(missing_ok=True)

    # -- the database ---------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        file = Path(self.folder, FILE)
        database = sqlite3.connect(file, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, _close, database, os.getpid())
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        ((application,), (version,)) = (
            database.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
        empty = database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
        if not empty and (application, version) != (_APPLICATION, _VERSION):
            why = "is a database of another program"
            if application == _APPLICATION:
                why = f"has the format {version}, but this ray_messaging needs the format {_VERSION}"
            raise ConfigError(
                f"the store of calls in {self.folder!r} cannot be used, because its file {FILE!r} {why}: pass another "
                "folder as store="
            )
        database.execute("PRAGMA journal_mode = WAL")
        # If a process is killed, no answer is lost. After a power cut the last answers may be missing.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {_APPLICATION}")
        database.execute(f"PRAGMA user_version = {_VERSION}")
        database.execute("COMMIT")

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "not a database" in str(error) or "malformed" in str(error):
                raise ConfigError(
                    f"the store of calls in {self.folder!r} cannot be used, because its file {FILE!r} is damaged, or "
                    f"is not a store ({error}): pass another folder as store="
                ) from error
            raise self._unusable(error) from error
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> LogError:
        return LogError(
            f"the store of calls in {self.folder!r} cannot be read or written: {error}. Mend this, then start the run "
            "again: no answer in the store is lost",
            path=self.folder,
        )


_ALONE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB
_opening = threading.Lock()
_ours: Final = set[str]()  # the names of files that this process, or a process from which it was forked, has locked
_open_stores: dict[tuple[int, str], CallStore] = {}  # the stores of this process, by process id and folder


def _close(database: sqlite3.Connection, process: int) -> None:
    if os.getpid() == process:  # a forked process must not close a connection that belongs to the original process
        database.close()


def _found(database: sqlite3.Connection, content: str) -> KeptCall | None:
    row = database.execute(_FIND, (content,)).fetchone()
    if row is None:
        return None
    result, exact, model, given, cached, output = row
    saved = None if given is None else CallUsage(model, given, cached, output, None)
    return KeptCall(0.0, 0, msgspec.Raw(exact_of(result, exact)), saved=saved)
