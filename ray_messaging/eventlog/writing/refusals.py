"""Why the log's writer cannot do what it is asked."""

from ray_messaging.errors import Closed, LogError
from ray_messaging.eventlog.folder import Folder


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
