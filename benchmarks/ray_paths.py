"""Count the files and functions of this package that a driver's calls pass through in all processes of a cluster.

`python -m benchmarks.message_path --on-ray` prints the counts. Each process of Ray begins with `record`, and notes each
function of the package once for each path, beginning with the driver's call, until the path has ended. Each path is
walked several times, and a function counts if each walk entered it: background tasks that happen to run during one
walk, such as a lease's renewal, are left out. So is the process of the event log, which follows behind.
"""

import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType

import ray

import ray_messaging
from ray_messaging import Agent, Messages, Messaging, Steps, rules

PACKAGE = str(Path(ray_messaging.__file__).parent) + "/"
NO_FUNCTIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
FOLDER = "RAY_PATHS_FOLDER"
LOG = "eventlog/writing/"  # only the process of the event log enters functions in this folder
ROUNDS = 7
Functions = set[tuple[str, str]]


def record() -> None:
    """Note the functions that this process enters, from now on, while a path is under way. Ray calls it in workers."""
    folder = Path(os.environ[FOLDER])
    with (folder / "path").open("rb") as file:
        path = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)  # the number of the path; 0 while there is none
    noted: set[tuple[int, object]] = set()
    notes = (folder / f"{os.getpid()}.notes").open("a", buffering=1)

    def entered(frame: FrameType, event: str, _arg: object) -> None:
        if path[0] == 0 or event != "call":
            return
        code = frame.f_code
        if (path[0], code) in noted or not code.co_filename.startswith(PACKAGE) or code.co_name in NO_FUNCTIONS:
            return
        noted.add((path[0], code))
        notes.write(f"{path[0]}\t{code.co_filename.removeprefix(PACKAGE)}\t{code.co_qualname}\n")

    threading.setprofile(entered)
    sys.setprofile(entered)


class Paths:
    """The functions that were noted, by path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = 0
        (folder / "path").write_bytes(b"\0")

    @contextmanager
    def follow(self) -> Iterator[Functions]:
        """Give the functions that all processes enter in the block. The set is filled when the block has ended."""
        self._last += 1
        found: Functions = set()
        self._say(self._last)
        try:
            yield found
        finally:
            self._say(0)
        for notes in self._folder.glob("*.notes"):
            entered = [line.split("\t") for line in notes.read_text().splitlines()]
            if not any(file.startswith(LOG) for _, file, _ in entered):
                found.update((file, function) for number, file, function in entered if int(number) == self._last)

    def common(self, walk: Callable[[], object]) -> Functions:
        """Return what each of some walks entered, after one that does what happens once for a connection."""
        walk()
        walks = []
        for _ in range(ROUNDS):
            with self.follow() as found:
                walk()
            walks.append(found)
        return set[tuple[str, str]].intersection(*walks)

    def _say(self, number: int) -> None:
        with (self._folder / "path").open("r+b") as file:
            file.write(bytes([number]))


def measure() -> dict[str, Functions]:
    """Walk the paths on a cluster of this machine, and return the functions of each."""
    with tempfile.TemporaryDirectory() as name:
        os.environ[FOLDER] = name
        paths = Paths(Path(name))
        env = {"worker_process_setup_hook": "benchmarks.ray_paths.record", "env_vars": {FOLDER: name}}
        ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=env)
        record()
        try:
            return _of_handles(paths, Path(name) / "log") | _of_steps(paths)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            ray.shutdown()


def _of_handles(paths: Paths, log: Path) -> dict[str, Functions]:
    with Messaging.start("paths", rules=[rules.BlackList([(8, 9)]), rules.MaxLength(999)], log_dir=log) as messaging:
        groups = messaging.create_groups({"west": [1], "east": [2, 3]})
        west, east, limits = groups["west"], groups["east"], count(1000)
        friends = messaging.create_audience("friends", graph=[(1, 2), (1, 3)])

        def read() -> None:
            for message in east.fetch_messages(timeout=10):
                message.payload  # noqa: B018 - it is decoded when it is looked at
            east.ack()

        def send() -> None:
            west.send(1, 2, {"text": "hello"})
            read()

        def broadcast() -> None:
            west.broadcast(1, friends, {"text": "hello"})
            read()

        def change() -> None:
            messaging.rules.replace("max_length", rules.MaxLength(next(limits)))

        walks = {"handle to handle": send, "broadcast, handle to handle": broadcast, "rule change": change}
        return {name: paths.common(walk) for name, walk in walks.items()}


def _of_steps(paths: Paths) -> dict[str, Functions]:
    with Messaging.start("steps", steps=Steps(seed=1)) as messaging:
        run = messaging.start_run(_pass_on, agents=4, groups=2)
        return {"step of run": paths.common(run.advance)}


def _pass_on(me: Agent, inbox: Messages) -> None:
    me.state["heard"] = len(inbox)
    me.send((me.id + 1) % 4, {"text": "hello"})
