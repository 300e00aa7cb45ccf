"""Errors of the log's writer."""

from collections.abc import Sequence

from ray_messaging.errors import Closed, LogError
from ray_messaging.eventlog.folder import Folder, Segment


def gone(exp_id: str, folder: Folder) -> Closed:
    """Build the error for a writer that was closed."""
    return Closed(f"the event log's writer of {exp_id} was closed: read its folder {folder.where}")


def stuck(exp_id: str, folder: Folder, trouble: str | None) -> LogError:
    """Build the error for a writer that has stopped reading because its files cannot be written."""
    return LogError(
        f"the event log of {exp_id} stands still, the rows that it has read cannot be written: "
        f"{trouble}; new messages wait in the streams",
        path=folder.where,
    )


def lost(exp_id: str, folder: Folder, rows: int) -> LogError:
    """Build the error for a writer after the server lost its streams."""
    return LogError(
        f"the server has lost the data of experiment {exp_id!r} (was it flushed, restored or replaced?): the log in "
        f"{folder.where} has all {rows:,} rows that were read by then, and later messages are missing. Shut "
        "the experiment down; start it again by on_existing='resume' to go on in this folder, or in a new one",
        path=folder.where,
        lost=True,
    )


def died_before_loss(exp_id: str, folder: Folder, segments: Sequence[Segment]) -> LogError:
    """Build the error for a new process that finds segments in the folder, but no streams on the server."""
    rows = sum(segment.rows for segment in segments)
    return LogError(
        f"the log's process died, and the server has lost the data of experiment {exp_id!r} (was it flushed, restored "
        f"or replaced?): {folder.where} has {rows:,} rows, and any message in no file by then is missing. Shut the "
        "experiment down; start it again by on_existing='resume' to go on in this folder, or in a new one",
        path=folder.where,
        lost=True,
    )


def taken_over(exp_id: str, folder: Folder, segment: Segment) -> LogError:
    """Build the error for a writer after another one took its folder over."""
    return LogError(
        f"{segment.rows:,} rows that the event log of {exp_id} had read are in no file: another run of this "
        f"experiment, a newer one, writes {folder.where}. End this one",
        path=folder.where,
    )


def box_lost(exp_id: str, folder: Folder, box: str) -> LogError:
    """Build the error for a box of a step that lacks messages."""
    return LogError(
        f"messages in {box!r} of experiment {exp_id!r} are missing on the server, which had confirmed them: was it "
        f"restored from older data? The log in {folder.where} ends before that step. Shut the experiment down, and "
        "start it anew by on_existing='reset', or in a new folder",
        path=folder.where,
        lost=True,
    )
