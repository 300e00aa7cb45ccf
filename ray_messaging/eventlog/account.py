"""The account of a log's folder: which writer has it, and what is known to be missing in it.

The server's epochs say who may trim the streams; this says who may name files. A server that was flushed has forgotten
its epochs, and those of a new run may be the same again.
"""

from collections.abc import Callable

import msgspec

from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import Folder

_NAME = "_account.json"


class Account(msgspec.Struct, frozen=True):
    """Say who may name files in a folder (`run/writer`; only the run while it makes way), and what is missing there."""

    writer: str = ""
    missing: tuple[str, ...] = ()

    def belongs_to(self, writer: str) -> bool:
        """Tell whether a writer may name files; a folder without an account is anybody's."""
        return self.writer in {"", writer}


def read_account(folder: Folder) -> Account:
    """Return a folder's account; raise LogError where it cannot be read."""
    data = folder.read_small(_NAME)
    try:
        return msgspec.json.decode(data, type=Account) if data else Account()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        path = f"{folder.where}/{_NAME}"
        raise LogError(
            f"the account of the event log's folder {folder.where} is damaged ({error}): remove {path}, what it "
            "said is missing is then not known",
            path=path,
        ) from error


def claim(folder: Folder, writer: str) -> None:
    """Take a folder over, under its lock: no writer before this one names a file from here on. Raises OSError."""
    _change(folder, lambda account: msgspec.structs.replace(account, writer=writer))


def note_missing(folder: Folder, writer: str, text: str) -> None:
    """Note what is missing, once, under the lock, unless another writer has the folder. Raises OSError."""

    def noted(account: Account) -> Account:
        known = text in account.missing or not account.belongs_to(writer)
        return account if known else msgspec.structs.replace(account, missing=(*account.missing, text))

    _change(folder, noted)


def forget_missing(folder: Folder) -> None:
    """Forget what was missing, under the lock, as the segments go. Raises OSError."""
    _change(folder, lambda account: msgspec.structs.replace(account, missing=()))


def _change(folder: Folder, change: Callable[[Account], Account]) -> None:
    before = read_account(folder)
    after = change(before)
    if after != before:
        folder.write_small(_NAME, msgspec.json.encode(after))
