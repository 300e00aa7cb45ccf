"""Workers that carry out the runs of a study. They are processes of this machine.

A worker may die in the middle of a run, because of a signal or a lack of memory, or with its machine. Then the run is
lost, and `wait` reports that. All workers get the same bytes, which contain the code of the user's own modules. So a
worker that starts later does not use files that were edited meanwhile.
"""

import gc
import os
import pickle
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, partial
from mmap import ACCESS_READ, mmap
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, Self

import cloudpickle

import ray_messaging
from ray_messaging.cluster.unpicklable import dumped, sent
from ray_messaging.common.operating_system import usable_cores
from ray_messaging.errors import LogError, MessagingError

if TYPE_CHECKING:
    from ray_messaging.cluster.run.run_plan import Neighbours
    from ray_messaging.embedded.local_server import LocalServer
    from ray_messaging.studies.ray_workers import RayWorkers, WholeCluster
    from ray_messaging.studies.run_tasks import EndedRun, RunTemplate, Task

# The garbage collector is off during the imports, which then take a tenth less time. It finds nothing in new modules.
_CHILD = (
    "import gc, sys; gc.disable(); from ray_messaging.studies.run_workers import serve_runs; "
    "serve_runs(*map(int, sys.argv[1:]))"
)
# A process uses one core, like Ray's workers. Otherwise the libraries in each process would start a thread for each
# core, and slow each other down.
_ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_INSTALLED = tuple(
    {*filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")))}
    | {str(Path(ray_messaging.__file__).parent)}
)


class WorkerAnswer(NamedTuple):
    """The answer of a worker to a task. `ended` is None if the worker died."""

    planned: "Task"
    ended: "EndedRun | None"


def packed(template: "RunTemplate") -> bytes:
    """Return a template as bytes, if possible with the code of the user's own modules, as it is now.

    Raises: ConfigError if a part of the template cannot be pickled. The error names the part.
    """
    # The user's modules may contain objects that cannot be pickled, such as locks, and pickling them may raise any
    # error. Then the modules are sent by name, without their code.
    with suppress(Exception), _by_value(_own_modules()):
        return dumped(template)
    return bytes(sent("the study", template, dumped))


def _own_modules() -> list[ModuleType]:
    """Return the user's imported modules, whose files are neither installed nor Python's own, except `__main__`."""
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


def run_packed(template: bytes, planned: "Task", server: "LocalServer | None" = None) -> "EndedRun":
    """Carry out a task with a fresh copy of the template, so that no run sees what an earlier one has changed.

    Args: `server` is a server that no other run uses meanwhile. The run first deletes what an earlier run left on it.
    If `server` is None, the run starts a server of its own.
    """
    from ray_messaging.studies.one_run import carry_out  # noqa: PLC0415 - imports what only workers need

    return carry_out(pickle.loads(template), planned, server, partial(_neighbours_in, template))  # noqa: S301 - made by `packed`


@lru_cache(maxsize=1)
def _neighbours_in(template: bytes) -> "Neighbours":
    """Return each agent's neighbours in the graph of a study, which are computed once for all runs of this process."""
    from ray_messaging.cluster.run.run_plan import neighbours_in  # noqa: PLC0415 - imports what only workers need

    return neighbours_in(pickle.loads(template).given["graph"])  # noqa: S301 - made by `packed`


def workers_for(
    template: bytes,
    count: int | None,
    *,
    here: bool = False,
    whole_cluster: bool = False,
    early: "ProcessWorkers | None" = None,
) -> "ProcessWorkers | RayWorkers | WholeCluster":
    """Return workers for runs: Ray tasks, or processes of this machine. With `whole_cluster`, there is only one worker.

    The workers are Ray tasks if this process uses Ray, or if RAY_ADDRESS names a cluster, but not with `here`.

    Args: `count` is the number of runs at a time; None: one for each core. `early` are the processes that
    `early_workers` has started already; None: it has started none.
    """
    if not whole_cluster and (here or not _uses_ray()):
        workers = ProcessWorkers(count) if early is None else early
        workers.load(template)
        return workers
    from ray_messaging.studies.ray_workers import RayWorkers, WholeCluster  # noqa: PLC0415 - imports Ray, half a second

    return WholeCluster(template) if whole_cluster else RayWorkers(template, count)


def early_workers(runs: int, count: int | None, *, here: bool) -> "AbstractContextManager[ProcessWorkers | None]":
    """Start processes for a study before its arguments are known.

    Meanwhile the processes import their modules, which takes as long as a short run.

    The value of the `with` block is None if the runs are not carried out in processes of this machine. `count` and
    `here` are as for `workers_for`.
    """
    if not here and _uses_ray():
        return nullcontext()
    workers = ProcessWorkers(count)
    try:
        workers.begin(runs)
    except BaseException:  # such as Ctrl-C: the `with` block has not begun, so its end cannot end the processes
        workers.__exit__()
        raise
    return workers


def _uses_ray() -> bool:
    ray = sys.modules.get("ray")  # None if this process has not imported Ray
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


class ProcessWorkers:
    """Workers that are Python processes of this machine. They end with this process, even if it is killed.

    Args: `count` is the number of runs at a time; None: one for each core.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count or usable_cores()
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, tuple[_Worker, Task]] = {}
        # All workers read the template from this file. A pipe has no room for a large template, so this process would
        # have to wait until one worker has read it, before it could start the next worker.
        with _written("the arguments of the study"):
            self._begin = TemporaryFile()  # noqa: SIM115 - `__exit__` closes it

    def begin(self, runs: int) -> None:
        """Start as many processes as `runs` runs need."""
        while len(self._idle) < min(runs, self._count):
            self._idle.append(_Worker(self._begin.fileno()))

    def load(self, template: bytes) -> None:
        """Write the template, which the processes read when they get their first runs."""
        with _written(f"the arguments of the study, {len(template):,} bytes,"):
            self._begin.write(pickle.dumps((sys.path, template)))
            self._begin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        for worker in [*self._idle, *(worker for worker, _ in self._busy.values())]:
            worker.end()
        self._idle, self._busy = [], {}
        self._begin.close()

    @property
    def free(self) -> bool:
        """Return whether a run can be started."""
        return len(self._busy) < self._count

    def start(self, planned: "Task") -> None:
        """Give a run to a worker."""
        while True:
            worker = self._idle.pop() if self._idle else _Worker(self._begin.fileno())
            try:
                # `dumped`, unlike `pickle`, can handle a parameter whose class is defined in the user's program.
                worker.pipe.send_bytes(dumped(planned))
            except (BrokenPipeError, ConnectionResetError):  # the worker died while it had no run
                worker.end()
                continue
            self._busy[worker.pipe] = worker, planned
            return

    def wait(self, timeout: float) -> list[WorkerAnswer]:
        """Wait until some runs have ended, or until the timeout; return the answers of their workers.

        Raises: MessagingError if workers cannot start.
        """
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
                raise MessagingError(
                    f"a process of the study cannot load the study's functions: {ended}. Check that the modules of "
                    "these functions can be imported"
                )
            if ended is None:
                worker.end()
            else:
                self._idle.append(worker)
            found.append(WorkerAnswer(planned, ended))
        return found


@contextmanager
def _written(what: str) -> Iterator[None]:
    """Raise LogError, which names `what`, if the file that the `with` block writes cannot be written."""
    try:
        yield
    except OSError as error:
        raise LogError(
            f"{what} cannot be written to a temporary file: {error}. Let the environment variable TMPDIR name a folder "
            "that exists and has free space",
            path=gettempdir(),
        ) from error


class _Worker:
    """A Python process that carries out runs.

    It ends when its standard input is closed, even in the middle of a run.
    """

    def __init__(self, begin: int) -> None:
        self.pipe, theirs = Pipe()
        self._process = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-c", _CHILD, str(theirs.fileno()), str(begin)],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno(), begin],
            env={**_ONE_CORE, **os.environ},
            start_new_session=True,  # Ctrl-C is meant for the calling program, and must not reach the worker
        )
        theirs.close()

    def end(self) -> None:
        """Kill the process, which has no data to save, and wait for its end."""
        self.pipe.close()
        self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve_runs(descriptor: int, begin: int) -> None:
    """Carry out the runs that come over a pipe, until the pipe or the standard input ends.

    This runs in a worker's process.

    Args: `begin` is the descriptor of a file that gets the path for imports, and the template, before the first run.
    """
    from ray_messaging.embedded.local_server import LocalServer  # noqa: PLC0415 - imports what only workers need

    threading.Thread(target=_end_with_stdin, daemon=True).start()
    pipe = Connection(descriptor)
    server = LocalServer()  # one server for all runs, because starting a server takes as long as a short run
    # The import is not made in a thread while the server starts, because libraries with circular imports fail if two
    # threads import them.
    import ray_messaging.studies.one_run  # noqa: F401, PLC0415 - imports what only workers need

    gc.enable()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        message = pipe.recv_bytes()  # the first run; by now the template is in the file `begin`
        with mmap(begin, 0, access=ACCESS_READ) as data:
            sys.path[:], template = pickle.loads(data)  # noqa: S301 - made by `ProcessWorkers`
        os.close(begin)
        while True:
            planned = pickle.loads(message)  # noqa: S301 - likewise
            try:
                ended = run_packed(template, planned, server)
            except Exception as error:  # noqa: BLE001 - of unpickling, which imports modules
                pipe.send(f"{type(error).__name__}: {error}")
                return
            _flush_prints()
            pipe.send(ended)
            message = pipe.recv_bytes()


def _flush_prints() -> None:
    """Flush what the model has printed. A worker that has no run left is killed, and would lose unflushed output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # the stream is closed or missing, or its disk is full
            stream.flush()


def _end_with_stdin() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)
