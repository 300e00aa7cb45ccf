"""Event log of a running experiment, read through its actor."""

from copy import copy
from typing import Any, NamedTuple

from ray_messaging.cluster.handles.actor_calls import result


class Seen(NamedTuple):
    """Last position that was read, and the writer's process, as a new process may renumber rows."""

    process: str
    position: int


class RemoteSource:
    """Source of log rows that asks the log's actor; see `eventlog.reading.paging.Source`."""

    live = True

    def __init__(self, log: Any, exp_id: str) -> None:  # noqa: ANN401 - a Ray actor handle
        self._log = log
        self._actor_name = f"the event log of experiment {exp_id!r}"
        self._process = ""  # the writer's process at the last call of `since`

    def follower(self) -> "RemoteSource":
        """Return a source with its own memory of the writer's process."""
        return copy(self)

    def ask(self, question: str, **arguments: Any) -> Any:  # noqa: ANN401 - each question has its own
        """Answer a query."""
        if question == "since":
            seen = Seen(self._process, arguments.pop("position"))
            page, (self._process, _) = self._result(self._log.since.remote(seen, arguments))
            return page
        if question == "end" and not self._process:  # a follower needs the process that numbered the end
            self._process, end = self._result(self._log.since.remote(Seen("", -1), {"limit": 0}))[1]
            return end
        return self._result(self._log.ask.remote(question, arguments))

    def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until there are rows after a position; return False where none came in time."""
        return bool(self._result(self._log.wait.remote(position, timeout_s)))

    def _result(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        return result(ref, actor_name=self._actor_name)
