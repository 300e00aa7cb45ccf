"""The account file of a log's folder: the writer that owns the folder, and the rows known to be missing.

The server's epochs decide which writer may trim the streams. The account decides which may publish files: a server that
was flushed has lost its epochs, and a new run may repeat them.
"""

from collections.abc import Callable

import msgspec

from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import Folder

ACCOUNT = "_account.json"


class Account(msgspec.Struct, frozen=True):
    """Owner of a folder (`run/writer`; only the run during a takeover), and descriptions of missing rows.

    `experiment` is the owner's.
    """

    writer: str = ""
    missing: tuple[str, ...] = ()
    experiment: str = ""

    def belongs_to(self, writer: str) -> bool:
        """Return whether a writer may publish files. A folder without an account has no owner."""
        return self.writer in {"", writer}


def read_account(folder: Folder) -> Account:
    """Return a folder's account; raise LogError if it cannot be read."""
    data = folder.read_small(ACCOUNT)
    try:
        return msgspec.json.decode(data, type=Account) if data else Account()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        path = f"{folder.where}/{ACCOUNT}"
        raise LogError(
            f"the account of the event log's folder {folder.where} is damaged ({error}): remove {path}, and "
            "with it the notes on missing rows",
            path=path,
        ) from error


def claim(folder: Folder, writer: str, experiment: str) -> None:
    """Take a folder over, under its lock: earlier writers publish no more files. Raises OSError, LogError.

    Another experiment's folder is refused: its run may have written no file yet.
    """

    def claimed(account: Account) -> Account:
        if account.experiment not in {"", experiment}:
            raise LogError(
                f"the event log's folder {folder.where} is that of experiment {account.experiment!r}, and this is "
                f"{experiment!r}: pass a log_dir of its own, or remove that folder",
                path=folder.where,
            )
        return msgspec.structs.replace(account, writer=writer, experiment=experiment)

    _change(folder, claimed)


def note_missing(folder: Folder, writer: str, text: str) -> None:
    """Note missing rows, once, under the lock, unless another writer owns the folder. Raises OSError."""

    def noted(account: Account) -> Account:
        known = text in account.missing or not account.belongs_to(writer)
        return account if known else msgspec.structs.replace(account, missing=(*account.missing, text))

    _change(folder, noted)


def forget_missing(folder: Folder) -> None:
    """Remove the notes on missing rows, under the lock, when the segments are removed. Raises OSError."""
    _change(folder, lambda account: msgspec.structs.replace(account, missing=()))


def _change(folder: Folder, change: Callable[[Account], Account]) -> None:
    before = read_account(folder)
    after = change(before)
    if after != before:
        folder.write_small(ACCOUNT, msgspec.json.encode(after))
