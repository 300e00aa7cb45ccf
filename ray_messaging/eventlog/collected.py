"""Data that groups collect in steps: values recorded with `collect=`, and calls made with `me.remember`.

The data are in files beside the event log, and the newest data are only on the server. The files of a kind are
`_{kind}/{born}/{first step}-{last step}.parquet`; `folder.py` describes the names on object stores. Each file begins
with the step after the last step of the file before it, and is complete or absent. `born` is the time at which the
server began to count the steps. A server that has lost its data counts from 0 again, and its files go to a new folder.
Programs that read the log's folder as one table skip these files, because their names begin with an underscore.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ray_messaging.eventlog.folder import Folder, steps_and_epoch
from ray_messaging.transports.step_values import Collected, CollectedKind


class Unwritten(NamedTuple):
    """Collected data that were read from the server. Some of them may have been written to files since then.

    `born` is the time at which the server began to count the steps.
    """

    born: str | None = None
    entries: Sequence[Collected] = ()

    def beside_files(self, folder: Folder, kind: CollectedKind) -> tuple[list[str], list[Collected]]:
        """Return the files of one kind of collected data, and the entries of this kind that are in no file yet.

        Raises: LogError if the folder cannot be read.
        """
        files = folder.collected_files(kind, self.born)
        last = steps_and_epoch(files[-1])[1] if files else -1
        return files, [entry for entry in self.entries if entry.kind is kind and entry.step > last]


NOTHING = Unwritten()
