"""The event log of a running experiment, asked through its actor."""

from typing import Any

from ray_messaging.cluster.calls import result


class RemoteSource:
    """Ask the actor that keeps the log: see `eventlog.reading.tail.Source`."""

    live = True

    def __init__(self, log: Any, exp_id: str) -> None:  # noqa: ANN401 - a Ray actor handle
        self._log = log
        self._what = f"the event log of experiment {exp_id!r}"

    def ask(self, what: str, **arguments: Any) -> Any:  # noqa: ANN401 - each question has its own
        """Answer a question."""
        return result(self._log.ask.remote(what, arguments), what=self._what)

    def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until there are rows after a position; False: none came in time."""
        return bool(result(self._log.wait.remote(position, timeout_s), what=self._what))
