"""Helpers of the cluster tests: waiting, killing, and emptying groups."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import ray

from ray_messaging import Group, rules
from support.patience import WAIT_S, wait_for

PATIENCE_S = WAIT_S


def pid_of(actor):
    """Return the pid of an actor's process; one that starts again is waited for."""

    def ask():
        try:
            return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()), timeout=PATIENCE_S)
        except ray.exceptions.ActorUnavailableError:
            return None

    return wait_for(ask, "an answer of the actor")


def states(pid):
    """Return the kernel's state letters of a process's threads: Z is dead, T stopped; empty if the process is gone."""
    found, threads = set(), []
    with suppress(OSError):  # it may go while we look
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:
        with suppress(OSError):
            found.add((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return found


def alive(pid):
    """Tell whether any thread is left: the first one is dead before the others, which hold connections open."""
    return not states(pid) <= {"Z", "X"}


def kill(actor):
    """Kill an actor's process as a crash does; Ray starts it again."""
    pid = pid_of(actor)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not alive(pid), f"the death of process {pid}")
    return pid


def die_once(mark):
    """Kill this process as a crash does, unless an earlier one, which has left this file, has died here."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def kill_and_wait(actor):
    """Kill an actor's process, and wait until another one answers in its place."""
    pid = kill(actor)
    wait_for(lambda: pid_of(actor) != pid, "the restart")


def drain(group, count, *, limit=None):
    """Fetch until so many messages came and one more fetch found nothing; return them as Message objects."""
    found, deadline = [], time.monotonic() + PATIENCE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} messages came"
        found += group.fetch_messages(limit=limit, timeout=1.0)
    found += group.fetch_messages(timeout=0.2)
    group.ack()
    return found


@asynccontextmanager
async def serving(handle, handler, **options):
    """Serve by a handle of a group; give the task."""
    task = asyncio.create_task(handle.aio.serve(handler, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def numbers(messages):
    return [message.payload["n"] for message in messages]


def numbered(count, start=0):
    return [{"n": n} for n in range(start, start + count)]


def new_handle(group):
    """Return another handle of a group, as a task would have."""
    return Group(group._experiment, group.name, group.actor)


def emptied(messaging, name):
    """Return the handle of a group without messages: of a new group of this name and these agents, if some are held."""
    handle = messaging.group(name)
    # All tests of an experiment get this handle. If an earlier test fetched by `aio`, and did not commit for `loan_s`,
    # `handle` gets the messages again below, so the next fetch or `serve` by the same `aio` would raise CommitFailed.
    vars(handle).pop("aio", None)
    while handle.fetch_messages():
        pass
    handle.ack()
    if messaging.stats()["waiting"][name]:
        agents = handle.agents
        messaging.remove_group(name)
        handle = messaging.create_group(name, agents)
    return handle


class EmptyGroups:
    """Groups of four agents with empty mailboxes: one that its test leaves empty serves the next test, too.

    A new group takes more than a second of processor time.
    """

    def __init__(self, messaging):
        self.messaging, self.made, self.numbers = messaging, {}, itertools.count()

    def give(self, kind):
        """Return a new handle of the group of a kind, or of its successor."""
        group = self.made.get(kind)
        if group is None or self.messaging.stats()["waiting"][group.name]:
            number = next(self.numbers)
            low = 1_000_000 + 10 * number
            group = self.made[kind] = self.messaging.create_group(f"{kind}-{number}", range(low, low + 4))
        return new_handle(group)


@ray.remote(num_cpus=0, max_restarts=1)
class Society:
    """Host agents in an actor of the user's own."""

    def __init__(self, messaging, name, agents):
        self.messaging, self.name, self.hosted = messaging, name, agents
        self.messager = None

    async def open(self):
        self.messager = await self.messaging.open_messager(self.name, self.hosted)
        return self.messager.stats()["interceptor"]

    async def send(self, from_id, to_id, payload):
        return await self.messager.send_message(self.messager.get_agent_chat_channel(to_id), payload, from_id, to_id)

    async def receive(self, count):
        found = []
        while len(found) < count:
            found += await self.messager.fetch_messages(timeout=60)
        return found

    async def close(self):
        await self.messager.close()


def run_apart(*arguments):
    """Run Python in a process of its own; return what it printed."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-5000:], done.stderr[-5000:])
    return done.stdout


# -- rules and the log --------------------------------------------------------------------------------------------


class Shouting(rules.Rule):
    """Block texts in capitals; the class travels by value, as one from a notebook does."""

    needs_payload = True

    def check(self, message):
        text = str(message.payload.get("text", ""))
        return rules.block("no shouting") if text.isupper() else rules.ALLOW


class Careful(rules.Rule):
    """Let all pass; the first of its kind that is closed takes the interceptor's process with it."""

    def __init__(self, marker, name="careful"):
        self.marker, self.name = marker, name

    def check_batch(self, batch, exp_id):
        return {}

    async def close(self):
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


class LocksUp(rules.Rule):
    """An object that cannot be pickled again after it was unpickled."""

    def __init__(self, locked=False):
        self.lock = threading.Lock() if locked else None

    def __setstate__(self, state):
        self.lock = threading.Lock()

    def check_batch(self, batch, exp_id):
        return {}


class OnlyHere(rules.Rule):
    """Come to life in the process that made it only, as a rule of a module does that others do not have."""

    def __init__(self):
        self.pid = os.getpid()

    def __setstate__(self, state):
        if state["pid"] != os.getpid():
            raise ModuleNotFoundError("No module named 'mine'")
        self.__dict__.update(state)

    def check_batch(self, batch, exp_id):
        return {}


def control(messaging, method, *args):
    """Call the interceptor, and wait until its change is in force."""
    return ray.get(getattr(messaging.interceptor, method).remote(*args), timeout=PATIENCE_S)


def fates(receipts):
    return [receipt.fate for receipt in receipts]


@contextmanager
def stopped(pid):
    """Have a process stand still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: states(pid) == {"T"}, "the stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Hangs(rules.Rule):
    """A rule that hangs on marked messages: for ever in Python, or once in a call that nothing interrupts."""

    needs_payload = True

    def __init__(self, marker):
        self.marker = marker

    def check(self, message):
        how = message.payload.get("hang")
        if how == "python":
            while True:
                pass
        if how == "sleep" and not Path(self.marker).exists():
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            time.sleep(3600)
        return rules.ALLOW
