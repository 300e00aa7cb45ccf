"""Data that groups collect in steps: values recorded with `collect=`, and calls made with `me.remember`.

The data are in files beside the event log, and the newest data are only on the server. The files of a kind are
`_{kind}/{born}/{first step}-{last step}.parquet`; `folder.py` describes the names on object stores. Each file begins
with the step after the last step of the file before it, and is complete or absent. `born` is the time at which the
server began to count the steps. A server that has lost its data counts from 0 again, and its files go to a new folder.
Programs that read the log's folder as one table skip these files, because their names begin with an underscore.
The folder's `_collected.json` names all files that were written.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import Folder, steps_and_epoch
from ray_messaging.eventlog.folder_records import COLLECTED, collected_names
from ray_messaging.transports.step_values import Collected, CollectedKind


class Unwritten(NamedTuple):
    """Collected data that were read from the server. Some of them may have been written to files since then.

    `born` is the time at which the server began to count the steps.
    """

    born: str | None = None
    entries: Sequence[Collected] = ()

    def beside_files(self, folder: Folder, kind: CollectedKind) -> tuple[list[str], list[Collected]]:
        """Return the files of one kind of collected data, and the entries of this kind that are in no file yet.

        Raises: LogError if the folder cannot be read, or if a file is gone.
        """
        # The recorded names are read before the files are listed. A writer records a name only after the file is there,
        # so a recorded file that is not listed is gone.
        names = [name for name in collected_names(folder) if name.startswith(f"_{kind}/")]
        files = folder.collected_files(kind, self.born)
        born = self.born or max(file.split("/")[-2] for file in [*names, *files]) if names else None
        there = {file.rpartition("/")[2] for file in files}
        for name in names:
            if name.split("/")[1] != born or name.split("/")[2] in there:
                continue
            first, last, _ = steps_and_epoch(name)
            spans = [steps_and_epoch(file)[:2] for file in files]
            # The file may be absent if another writer has written the same steps again, into a file that is there.
            if all(last < low or first > high for low, high in spans):
                raise LogError(
                    f"{folder.where}/{name} is gone, which has the {kind} of the steps from {first} to {last}: put it "
                    f"back; or, to do without these steps, remove the file's name from {folder.where}/{COLLECTED}",
                    path=f"{folder.where}/{name}",
                )
        return files, self.beyond(kind, files)

    def beyond(self, kind: CollectedKind, files: Sequence[str]) -> list[Collected]:
        """Return the entries of one kind of collected data whose steps come after the steps of some files."""
        last = steps_and_epoch(files[-1])[1] if files else -1
        return [entry for entry in self.entries if entry.kind is kind and entry.step > last]


def check_collected(folder: Folder) -> None:
    """Raise LogError if a file of collected data is gone."""
    for kind in CollectedKind:
        NOTHING.beside_files(folder, kind)


NOTHING = Unwritten()
