"""What groups collect in steps (series, and remembered calls), in files beside the event log and on the server.

The files of a kind are `_{kind}/{born}/{first step}-{last step}.parquet`, one behind the other. Each is complete or
absent. `born` is when the server began to count the steps: one that has lost its data counts anew. Programs that read
the log's folder as one table skip them, because of the underscore.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ray_messaging.eventlog.folder import Folder
from ray_messaging.transports.step_values import Collected, CollectedKind


class Unwritten(NamedTuple):
    """What groups have collected as the server had it, some of it in files by now; `born`: see `collected_files`."""

    born: str | None = None
    entries: Sequence[Collected] = ()

    def beside_files(self, folder: Folder, kind: CollectedKind) -> tuple[list[str], list[Collected]]:
        """Return the files of a kind, and the entries that are in none; raise LogError if the folder cannot be read."""
        files = folder.collected_files(kind, self.born)
        last = steps_in(files[-1])[1] if files else -1
        return files, [entry for entry in self.entries if entry.kind is kind and entry.step > last]


NOTHING = Unwritten()


def steps_in(file: str) -> tuple[int, int]:
    """Return the first and the last step in a file."""
    first, last = file.rpartition("/")[2].removesuffix(".parquet").split("-")
    return int(first), int(last)
