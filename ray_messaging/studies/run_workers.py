"""Workers for the runs of a study that are processes of this machine.

A worker may die in the middle of a run, because of a signal or a lack of memory, or with its machine. Then the run is
lost, and `wait` reports that. All workers get the same bytes, which contain the code of the user's own modules. So a
worker that starts later does not use files that were edited meanwhile.
"""

import os
import pickle
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, Self

import cloudpickle

import ray_messaging
from ray_messaging.cluster.unpicklable import dumped, sent
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import MessagingError
from ray_messaging.studies.one_run import EndedRun, RunTemplate, Task, carry_out

_CHILD = "import sys; from ray_messaging.studies.run_workers import serve_runs; serve_runs(int(sys.argv[1]))"
_END_S = 5.0  # a process that has been told to end is killed after this many seconds
# A process uses one core, like Ray's workers. Otherwise the libraries in each process would start a thread for each
# core, and slow each other down.
_ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_INSTALLED = tuple(
    {*filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))}
    | {str(Path(ray_messaging.__file__).parent)}
)


class WorkerAnswer(NamedTuple):
    """The answer of a worker to a task. `ended` is None if the worker died."""

    planned: Task
    ended: EndedRun | None


def packed(template: RunTemplate) -> bytes:
    """Return a template as bytes. They include the code of the user's own modules, as it is now.

    Raises: ConfigError, which names the part, if something in it cannot be pickled.
    """
    # Modules may contain objects that cannot be pickled, such as locks, whose pickling may raise any error. Then
    # modules are sent by name, without their code.
    with suppress(Exception), _by_value(_own_modules()):
        return dumped(template)
    return bytes(sent("the study", template, dumped))


def _own_modules() -> list[ModuleType]:
    """Return the modules whose files are neither installed nor Python's own."""
    found = []
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        own = isinstance(file, str) and not file.startswith(_INSTALLED) and "-packages" not in file
        if (
            own
            and isinstance(module, ModuleType)
            and name not in ("__main__", "__mp_main__")
            and module.__name__ == name
        ):
            found.append(module)
    return found


@contextmanager
def _by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    before = cloudpickle.list_registry_pickle_by_value()
    new = [module for module in modules if module.__name__ not in before]
    for module in new:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in new:
            cloudpickle.unregister_pickle_by_value(module)


def run_packed(template: bytes, planned: Task, server: LocalServer | None = None) -> EndedRun:
    """Carry out a task with a fresh copy of the template, so that no run sees what an earlier one has changed.

    Args: `server` is used by this run alone. The run deletes what an earlier run left there. None: the run starts a
    server.
    """
    return carry_out(pickle.loads(template), planned, server)  # noqa: S301 - made by `packed`


class ProcessWorkers:
    """Workers that are Python processes of this machine. They end with this process, even if it is killed."""

    def __init__(self, template: bytes, count: int) -> None:
        self._template = template
        self._count = count
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Task]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            worker.end()

    @property
    def free(self) -> bool:
        """Return whether a run can be started."""
        return len(self._busy) < self._count

    def start(self, planned: Task) -> None:
        """Give a run to a worker."""
        while True:
            worker = self._idle.pop() if self._idle else _Worker(self._template)
            try:
                # `pickle` may be unable to handle a parameter whose class is in the user's program.
                worker.pipe.send_bytes(dumped(planned))
            except (BrokenPipeError, ConnectionResetError):  # the worker died while it had no run
                worker.end()
                continue
            self._busy[worker.pipe] = worker, planned
            return

    def wait(self, timeout: float) -> list[WorkerAnswer]:
        """Wait until some runs have ended, or until the timeout; raise MessagingError if workers cannot start."""
        found = []
        for pipe in wait([*self._busy], timeout):
            assert isinstance(pipe, Connection)
            worker, planned = self._busy.pop(pipe)
            try:
                ended = pipe.recv()
            except (EOFError, OSError):  # the worker died, perhaps in the middle of its answer
                ended = None
            if isinstance(ended, str):
                worker.end()
                raise MessagingError(f"a process of the study cannot begin: {ended}")
            if ended is None:
                worker.end()
            else:
                self._idle.append(worker)
            found.append(WorkerAnswer(planned, ended))
        return found


class _Worker:
    """A Python process that carries out runs.

    It ends when its standard input is closed, even in the middle of a run.
    """

    def __init__(self, template: bytes) -> None:
        self.pipe, theirs = Pipe()
        self._process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-c", _CHILD, str(theirs.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env={**_ONE_CORE, **os.environ},
            start_new_session=True,  # Ctrl-C is meant for the calling program, and must not reach the worker
        )
        theirs.close()
        with suppress(BrokenPipeError, ConnectionResetError):  # the worker has died, which `wait` notices
            self.pipe.send((sys.path, template))

    def end(self) -> None:
        """End the process, and wait for its end."""
        self.pipe.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve_runs(descriptor: int) -> None:
    """Carry out the runs that come over a pipe, until the pipe or the standard input ends.

    This runs in a worker's process.
    """
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    pipe = Connection(descriptor)
    server = LocalServer()  # one server for all runs, because starting a server takes as long as a short run
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        sys.path[:], template = pipe.recv()
        while True:
            planned = pipe.recv()
            try:
                ended = run_packed(template, planned, server)
            except Exception as error:  # noqa: BLE001 - of unpickling, which imports modules
                pipe.send(f"{type(error).__name__}: {error}")
                return
            pipe.send(ended)


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)
