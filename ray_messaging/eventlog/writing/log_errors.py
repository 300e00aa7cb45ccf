"""Why the log's writer cannot do what it is asked."""

from collections.abc import Sequence

from ray_messaging.errors import Closed, LogError
from ray_messaging.eventlog.folder import Folder, Segment


def gone(exp_id: str, folder: Folder) -> Closed:
    """Build the error for a writer that was closed."""
    return Closed(f"the event log's writer of {exp_id} was closed: read its folder {folder.where}")


def stuck(exp_id: str, folder: Folder, trouble: str | None) -> LogError:
    """Build the error for a writer that reads no further, as its files cannot be written."""
    return LogError(
        f"the event log of {exp_id} stands still, what it has read is not written yet: "
        f"{trouble}; what comes meanwhile waits in the streams",
        path=folder.where,
    )


def lost(exp_id: str, folder: Folder, rows: int) -> LogError:
    """Build the error for a writer whose streams the server has lost."""
    return LogError(
        f"the server has lost the data of experiment {exp_id!r} (was it flushed, restored or replaced?): the log in "
        f"{folder.where} has all {rows:,} rows that were read by then, and what was sent and not read is missing. Shut "
        "the experiment down; start it again by on_existing='resume' to go on in this folder, or in a new one",
        path=folder.where,
        lost=True,
    )


def died_before_loss(exp_id: str, folder: Folder, segments: Sequence[Segment]) -> LogError:
    """Build the error for a successor that finds its predecessor's files, and a server without the streams."""
    rows = sum(segment.rows for segment in segments)
    return LogError(
        f"the log's process died, and the server has lost the data of experiment {exp_id!r} (was it flushed, restored "
        f"or replaced?): {folder.where} has {rows:,} rows, and what was in no file by then is missing. Shut the "
        "experiment down; start it again by on_existing='resume' to go on in this folder, or in a new one",
        path=folder.where,
        lost=True,
    )


def taken_over(exp_id: str, folder: Folder, segment: Segment) -> LogError:
    """Build the error for a writer whose folder another one has."""
    return LogError(
        f"{segment.rows:,} rows that the event log of {exp_id} had read are in no file: somebody newer writes "
        f"{folder.where}, another run of this experiment. End this one",
        path=folder.where,
    )
