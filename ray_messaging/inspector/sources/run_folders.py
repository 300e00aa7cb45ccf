"""The runs in given folders, each with a name. A client names a run, and not a path, so it cannot reach other files."""

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import count, islice
from pathlib import Path

from ray_messaging.errors import ConfigError, LogError, UnknownName
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import SEGMENT
from ray_messaging.eventlog.folder_records import RUN

MOST_RUNS = 1_000
_DEPTH = 4  # runs are found in folders at most this many levels below a given folder
_MOST_FOLDERS = 20_000  # one call looks for runs in at most this many folders


class RunFolders:
    """The runs in some folders, each with a name: `experiments/town` is the run in `town` of the folder `experiments`.

    A folder may also be a run itself, or the URI of a run. The folders are searched at each call, without following
    symbolic links, so that no run outside of the folders is found.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        """Set the folders in which runs are found; raise ConfigError if one of them does not exist."""
        self._roots: dict[str, str | Path] = {}
        for folder in folders:
            root = folder if "://" in folder else Path(folder).resolve()
            if isinstance(root, Path) and not root.is_dir():
                raise ConfigError(f"there is no folder {folder!r}: pass runs' folders, or a folder of runs")
            last = folder.rstrip("/").rpartition("/")[2] if isinstance(root, str) else root.name
            names = (last if number == 1 else f"{last}-{number}" for number in count(1))
            self._roots[next(name for name in names if name not in self._roots)] = root

    def found(self) -> dict[str, str]:
        """Return the folders of the runs, at most MOST_RUNS, by the names of the runs."""
        # Names with unprintable characters are left out: a client could not show them, or not send them back unchanged.
        shown = ((name, folder) for name, folder in self._walk() if name.isprintable())
        return dict(islice(shown, MOST_RUNS))

    def _walk(self) -> Iterator[tuple[str, str]]:
        for name, root in self._roots.items():
            if isinstance(root, str):
                yield name, root
                continue
            for folder in _runs_below(root):
                inner = folder.relative_to(root).as_posix()
                yield name if inner == "." else f"{name}/{inner}", str(folder)

    def folder_of(self, run: str) -> str:
        """Return the folder of a run.

        Raises: UnknownName if no run has the name; LogError if the folder has a symbolic link, which could lead to
        files outside of it.
        """
        folder = self.found().get(run)
        if folder is None:
            raise UnknownName(f"there is no run {run[:200]!r}: call list_runs for all names", kind="run", value=run)
        check_files(folder)
        return folder

    def log_of(self, run: str) -> EventLog:
        """Return the log of a run; raise the errors of `folder_of`, and LogError if the log cannot be read."""
        return EventLog.open(self.folder_of(run))

    def beside(self, run: str, name: str) -> str:
        """Return the path of a new folder beside a run.

        Raises: UnknownName if there is no such run; ConfigError if the run's folder is not below one of the given
        folders, or if there is already a file or folder with this name beside the run; LogError as in `folder_of`.
        """
        parent = Path(self.folder_of(run)).parent
        if not any(isinstance(root, Path) and parent.is_relative_to(root) for root in self._roots.values()):
            raise ConfigError(
                f"nothing can be written beside run {run!r}, because the program was not started with the folder that "
                f"contains this run, {str(parent)!r}: start the program again with that folder"
            )
        found = parent / name
        if os.path.lexists(found):
            raise ConfigError(f"{name!r} exists already beside {run!r}: choose another name")
        return str(found)


def _runs_below(root: Path) -> Iterator[Path]:
    for path, folders, files in islice(os.walk(root), _MOST_FOLDERS):
        folder = Path(path)
        if any(name == RUN or SEGMENT.fullmatch(name) for name in files):
            folders.clear()  # folders inside a run's folder belong to that run, and are not runs themselves
            yield folder
        elif len(folder.relative_to(root).parts) == _DEPTH:
            folders.clear()
        folders.sort()


def check_files(folder: str) -> None:
    """Raise LogError if a run's folder has a symbolic link, or anything else that is neither a file nor a folder."""
    if "://" in folder:
        return
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            found = os.path.join(path, name)  # noqa: PTH118 - a folder may hold 100,000 files
            if not stat.S_ISREG(mode := os.lstat(found).st_mode) and not stat.S_ISDIR(mode):
                raise LogError(
                    f"{found} is a link or a special file, which might lead out of {folder}: replace it by a copy of "
                    "the file or folder to which it leads",
                    path=found,
                )
