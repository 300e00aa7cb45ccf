"""The audiences in a log's folder.

The files of audiences are memory-mapped, so they must be on a local disk. If the folder is on an object store, the
store has copies of the files.

The files of a version of an audience never change. They are made in a folder of the experiment's node, and are copied
to the store before the directory, the server's list of mailboxes and audiences, names the version. A process that reads
a version on another machine, or after the run, copies it from the store to its machine.
"""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4
from weakref import finalize

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.files import FACTS, version_folder
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import AUDIENCES, Folder


class StoredAudiences(LocalFolder):
    """The audiences of a folder on an object store. When one is read, it is copied to a folder of this machine.

    Args: `here` is the folder of the copies; None: a temporary one.
    """

    def __init__(self, folder: Folder, here: Path | None = None) -> None:
        if here is None:
            here = Path(mkdtemp(prefix="ray_messaging-audiences-"))
            finalize(self, shutil.rmtree, here, ignore_errors=True)
        super().__init__(here)
        self._store = folder

    def read(self, name: str, version: int) -> Edges:
        """Return the pairs of a version of an audience.

        Raises: OSError if the store cannot be read; otherwise the same errors as `LocalFolder.read`.
        """
        local = version_folder(self.folder, name, version)
        if not local.exists():
            try:
                self._fetch(local)
            except LogError as error:  # the log's writer repeats calls that raise OSError
                raise OSError(str(error)) from error
        return super().read(name, version)

    def keep(self, name: str, version: int) -> None:
        """Copy the files of a version of an audience to the store. Raises OSError if that fails."""
        paths = version_folder(self.folder, name, version).iterdir()
        # The file of facts is copied last, because its presence means that the version is complete.
        for path in sorted(paths, key=lambda path: path.name == FACTS):
            self._store.write_file(f"{AUDIENCES}/{path.parent.name}/{path.name}", path.read_bytes())

    def _fetch(self, local: Path) -> None:
        """Copy the files of a version of an audience from the store to the folder `local`, if the store has them.

        The local folder appears when the copy is complete.
        """
        names = self._store.names(f"{AUDIENCES}/{local.name}")
        if FACTS not in names:
            return
        made = local.with_name(f".{local.name}.{uuid4().hex}")
        made.mkdir(parents=True)
        try:
            for name in names:
                (made / name).write_bytes(self._store.read_file(f"{AUDIENCES}/{local.name}/{name}"))
            made.rename(local)
        except OSError:
            if not local.exists():  # if `local` exists, another process has fetched it
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)


def audiences_of(folder: Folder) -> LocalFolder:
    """Return the audiences in the folder of a log."""
    return LocalFolder(Path(folder.path, AUDIENCES)) if folder.local else StoredAudiences(folder)
