"""Folders in which the embedded servers of an experiment keep their data for a later start."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from ray_messaging.cluster.servers.shards import PER_NODE, Shards
from ray_messaging.embedded.data_directory import APPEND_ONLY_NAME
from ray_messaging.errors import ConfigError

_SHARD = re.compile(r"shard-(\d+)-of-(\d+)")


class KeptData(NamedTuple):
    """A folder on this machine, and in it the folder of each server; one server has the folder itself."""

    folder: Path
    of_servers: tuple[Path, ...]

    @classmethod
    def of(cls, given: str | Path | None, *, log_dir: str | None, shards: Shards) -> Self | None:
        """Return where the data are; without a folder given, beside the log. None: they are not kept.

        Raises: ConfigError for a folder that cannot be, or has data of another number of servers.
        """
        if shards == PER_NODE:  # check_shards refuses a folder that is given
            return None
        if given is None:
            if log_dir is None or "://" in log_dir:
                return None
            given = beside(log_dir)
        if "://" in str(given):
            raise ConfigError(f"data_dir={str(given)!r} must be a folder on this machine, not a URI")
        folder = Path(given).expanduser().absolute()
        count = int(shards or 1)
        servers = tuple(folder / f"shard-{shard}-of-{count}" for shard in range(count)) if count > 1 else (folder,)
        _check(folder, servers)
        return cls(folder, servers)

    def clean(self) -> None:
        """Remove the folder, once those of all servers have been."""
        if len(self.of_servers) > 1:
            with suppress(OSError):  # it has other files, or an erased server left some
                self.folder.rmdir()


def beside(log_dir: str) -> str:
    """Return the folder in which an embedded server keeps its data, where a log has a folder."""
    return f"{log_dir.rstrip('/')}-server"


def _check(folder: Path, servers: Sequence[Path]) -> None:
    """Refuse a folder with data that these servers would not load, or only in part."""
    with_data = {path.parent for path in folder.glob(f"*/{APPEND_ONLY_NAME}") if _SHARD.fullmatch(path.parent.name)}
    if (folder / APPEND_ONLY_NAME).exists():
        with_data.add(folder)
    if strangers := sorted(with_data - set(servers)):
        match = _SHARD.fullmatch(strangers[0].name)
        before = f"{match[2]} shards" if match else "one server"
        remedy = f"shards={match[2]}" if match else "no shards="
        raise ConfigError(
            f"data_dir={str(folder)!r} has the data of {before}, and this start has {len(servers)}: start with "
            f"{remedy}, or give another folder"
        )
    if with_data and (missing := [path.name for path in servers if path not in with_data]):
        raise ConfigError(
            f"data_dir={str(folder)!r} has the data of some shards only, and lacks {', '.join(missing)}: bring them "
            "back, or give another folder"
        )
