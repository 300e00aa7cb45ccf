"""The store of calls: one answer for a content, also of other threads and processes, and whatever dies meanwhile."""

import asyncio
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from support.patience import WAIT_S

from ray_messaging.errors import ConfigError, LogError
from ray_messaging.model.call_usage import CallUsage
from ray_messaging.model.calls import KeptCall
from ray_messaging.model.exact import encode_exactly
from ray_messaging.steps import call_store
from ray_messaging.steps.call_store import FILE, HOLDERS, CallStore, StoredCall

CALL = StoredCall("c0", "ask", '{"args":["x"],"kwargs":{}}')

# A process that makes a call of the content sys.argv[2], which takes until a line comes.
OTHER = """
import asyncio, sys, msgspec
from ray_messaging.model.calls import KeptCall
from ray_messaging.steps.call_store import CallStore, StoredCall
async def make():
    print("making", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return KeptCall(1.0, 1, msgspec.Raw(msgspec.msgpack.encode("theirs")))
async def main():
    made, here = await CallStore.at(sys.argv[1]).answer(StoredCall(sys.argv[2], "ask", None), make)
    print(msgspec.msgpack.decode(made.result), here, flush=True)
asyncio.run(main())
"""


@pytest.fixture
def store(tmp_path):
    return CallStore.at(str(tmp_path / "store"))


@pytest.fixture
def other(store):
    """Return a function that starts a process which makes a call."""
    started = []

    def start(content="c0"):
        process = subprocess.Popen(
            [sys.executable, "-c", OTHER, store.folder, content],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def kept(value):
    return KeptCall(0.5, 1, msgspec.Raw(encode_exactly(value, "a result")))


def value_of(call):
    return msgspec.msgpack.decode(call.result)


class Maker:
    """A call that counts how often it is made, and can be held up."""

    def __init__(self, value="mine"):
        self.made, self.value, self.begun, self.may_end = 0, value, asyncio.Event(), asyncio.Event()
        self.may_end.set()

    async def __call__(self):
        self.made += 1
        self.begun.set()
        await self.may_end.wait()
        if isinstance(self.value, Exception):
            raise self.value
        return kept(self.value)


async def test_an_answer_is_made_once_and_read_by_others(store):
    make = Maker()
    assert store.known("c0") is None
    answers = [await store.answer(CALL, make) for _ in range(3)]
    assert [made for _, made in answers] == [True, False, False]
    assert {value_of(call) for call, _ in answers} == {"mine"} == {value_of(store.known("c0"))}
    assert value_of(CallStore(store.folder).known("c0")) == "mine"
    assert (await store.answer(CALL._replace(content="c1"), make))[1]
    assert make.made == 2


async def test_what_an_answer_used_is_what_it_saves_others(store):
    used = CallUsage("small", 100, 40, 10, 7)

    async def make():
        await asyncio.sleep(0)
        return KeptCall(1.5, 1, msgspec.Raw(encode_exactly("mine", "")), used)

    (first, _), (second, _) = await asyncio.gather(store.answer(CALL, make), store.answer(CALL, make))
    assert (first.usage, first.saved) == (used, None)
    assert (second.usage, second.saved) == (None, used)
    stored = store.known("c0")
    assert (stored.usage, stored.saved) == (None, CallUsage("small", 100, 40, 10, None))  # each run has its own prices


async def test_a_store_of_a_version_that_knew_no_usages_is_used(store):
    await store.answer(CALL, Maker())
    with closing(sqlite3.connect(Path(store.folder, FILE))) as database:
        database.execute("DROP TABLE usages")
        database.commit()
    again = CallStore(store.folder)
    assert (value_of(again.known("c0")), again.known("c0").saved) == ("mine", None)


async def test_who_asks_at_the_same_moment_shares_one_flight(store):
    make = Maker()
    make.may_end.clear()
    asking = [asyncio.create_task(store.answer(CALL, make)) for _ in range(20)]
    await asyncio.wait_for(make.begun.wait(), WAIT_S)
    make.may_end.set()
    answers = await asyncio.gather(*asking)
    assert make.made == 1
    assert sum(made for _, made in answers) == 1


async def test_an_error_is_shared_by_the_flight_and_not_kept(store):
    make = Maker(ValueError("no answer"))
    make.may_end.clear()
    asking = [asyncio.create_task(store.answer(CALL, make)) for _ in range(5)]
    await asyncio.wait_for(make.begun.wait(), WAIT_S)
    make.may_end.set()
    assert {*map(str, await asyncio.gather(*asking, return_exceptions=True))} == {"no answer"}
    assert make.made == 1
    make.value = "now"
    assert value_of((await store.answer(CALL, make))[0]) == "now"


async def test_if_who_makes_a_call_is_cancelled_another_one_makes_it(store):
    first, second = Maker(), Maker("second")
    first.may_end.clear()
    making = asyncio.create_task(store.answer(CALL, first))
    await asyncio.wait_for(first.begun.wait(), WAIT_S)
    waiting = asyncio.create_task(store.answer(CALL, second))
    given_up = asyncio.create_task(store.answer(CALL, second))
    await asyncio.sleep(0)
    given_up.cancel()
    making.cancel()
    assert value_of((await asyncio.wait_for(waiting, WAIT_S))[0]) == "second"
    assert (first.made, second.made) == (1, 1)


@pytest.mark.parametrize(
    "value", [(1, 2), {"a": (1,)}, {1: 2}, {"x", "y"}, b"\x00", 1.5, None, "text", [1, {"b": "c"}], float("inf")]
)
async def test_any_result_is_read_again_exactly(store, value):
    await store.answer(CALL, Maker(value))
    assert bytes(store.known("c0").result) == encode_exactly(value, "a result")


async def test_two_processes_share_one_flight(store, other):
    process, make = other(), Maker()
    assert process.stdout.readline() == "making\n"
    asking = asyncio.create_task(store.answer(CALL, make))
    assert await store._do(lambda: store._claim("c0")) is False
    process.stdin.write("\n")
    process.stdin.flush()
    answer, made = await asyncio.wait_for(asking, WAIT_S)
    assert (value_of(answer), made, make.made) == ("theirs", False, 0)
    assert process.stdout.readline() == "theirs True\n"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
async def test_the_call_of_a_process_that_is_killed_is_made_by_who_waits(store, other, sent):
    process, make = other(), Maker()
    assert process.stdout.readline() == "making\n"
    asking = asyncio.create_task(store.answer(CALL, make))
    assert await store._do(lambda: store._claim("c0")) is False
    process.send_signal(sent)
    answer, made = await asyncio.wait_for(asking, WAIT_S)
    assert (value_of(answer), made) == ("mine", True)
    CallStore(store.folder)
    holders = await asyncio.to_thread(lambda: [*Path(store.folder, HOLDERS).iterdir()])
    assert [path.name for path in holders] == [store._holder]  # that of the dead one is gone


KILLED = """
import asyncio, itertools, sys, msgspec
from ray_messaging.model.calls import KeptCall
from ray_messaging.steps.call_store import CallStore, StoredCall
async def main():
    store = CallStore.at(sys.argv[1])
    for n in itertools.count():
        async def make():
            return KeptCall(0.0, 1, msgspec.Raw(msgspec.msgpack.encode("x" * 5000 + str(n))))
        await store.answer(StoredCall(f"k{n}", "ask", None), make)
        print(n, flush=True)
asyncio.run(main())
"""


def test_a_store_whose_process_is_killed_while_it_writes_is_whole(store):
    for last in (3, 17, 40):
        process = subprocess.Popen([sys.executable, "-c", KILLED, store.folder], stdout=subprocess.PIPE, text=True)
        done = -1
        while done < last:
            done = int(process.stdout.readline())
        process.kill()
        process.communicate()
        for n in range(done + 1):
            assert value_of(store.known(f"k{n}")).endswith(f"x{n}")
        again = CallStore(store.folder)
        assert again._writer.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert again._claim("c0") is True  # and it takes further calls


# -- bad input ------------------------------------------------------------------------------------------------------


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match=r"store='.*file' is a file: name a folder"):
        CallStore(str(tmp_path / "file"))
    with pytest.raises(LogError, match="cannot be read or written"):
        CallStore(str(tmp_path / "file" / "below"))


def test_a_database_of_something_else_is_refused_and_stays(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("CREATE TABLE notes (text)")
    with pytest.raises(ConfigError, match=r"a database of another program: pass another folder"):
        CallStore(str(tmp_path))
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("notes",)]


def test_another_version_and_a_damaged_file_are_refused(store, tmp_path):
    with closing(sqlite3.connect(Path(store.folder, FILE))) as database, database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(ConfigError, match=r"the format 9, but this ray_messaging needs the format 1"):
        CallStore(store.folder)
    (tmp_path / FILE).write_bytes(b"no database at all, but long enough to be looked at " * 100)
    with pytest.raises(ConfigError, match="is damaged, or is not a store"):
        CallStore(str(tmp_path))


async def test_a_disk_that_is_full_is_an_error_and_loses_nothing(store):
    await store.answer(CALL, Maker())
    (pages,) = store._writer.execute("PRAGMA page_count").fetchone()
    store._writer.execute(f"PRAGMA max_page_count = {pages}")  # then SQLite says that the disk is full
    make = Maker("x" * 100_000)
    with pytest.raises(LogError, match=r"full.*no answer in the store is lost") as caught:
        await store.answer(CALL._replace(content="c1"), make)
    assert caught.value.path == store.folder
    assert value_of(store.known("c0")) == "mine"
    store._writer.execute(f"PRAGMA max_page_count = {pages + 1000}")
    assert (await store.answer(CALL._replace(content="c1"), make))[1]


async def test_a_store_that_was_removed_is_made_again_by_the_next_run(store):
    await store.answer(CALL, Maker())
    await asyncio.to_thread(shutil.rmtree, store.folder)
    again = CallStore.at(store.folder)
    assert again.known("c0") is None
    assert (await again.answer(CALL, Maker()))[1]
    assert CallStore.at(store.folder) is again


def test_a_fork_of_the_process_gets_a_store_of_its_own(store, monkeypatch):
    assert CallStore.at(store.folder) is store
    monkeypatch.setattr(call_store.os, "getpid", lambda: -1)
    assert CallStore.at(store.folder) is not store
