"""The event log of a running experiment, as its facade offers it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ray

from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from ray_messaging.cluster.handles.remote_log import RemoteSource
from ray_messaging.cluster.spec import Experiment, no_log
from ray_messaging.errors import Closed, ConfigError

if TYPE_CHECKING:
    from ray_messaging.cluster.handles.blocked import BlockedListener, BlockedMessage, BlockedMessages
    from ray_messaging.eventlog.event_log import EventLog


class LogAccess:
    """Be asked what was said, and tell what is stopped. Raises ConfigError where no log is kept."""

    _experiment: Experiment

    @property
    def log_dir(self) -> str | None:
        """Return where the event log is kept: an absolute path, on the node where the experiment was started, or a URI.

        None: no log is kept.
        """
        return self._experiment.log_dir

    @property
    def log_actor(self) -> Any:  # noqa: ANN401 - a handle
        """Return the handle of the actor that keeps the event log; raise ConfigError where there is none, Closed."""
        if self._experiment.log_dir is None:
            raise ConfigError(no_log(self._experiment.exp_id))
        try:
            return ray.get_actor(self._experiment.log_name, namespace=NAMESPACE)
        except ValueError as error:
            raise Closed(
                f"experiment {self._experiment.exp_id!r} was shut down: EventLog.open({self._experiment.log_dir!r}) "
                "reads its log"
            ) from error

    @property
    def log(self) -> "EventLog":
        """Return the event log: who said what to whom, and what was stopped and why, up to this moment."""
        from ray_messaging.eventlog.event_log import EventLog  # noqa: PLC0415 - brings pyarrow, 80 MB

        return EventLog(RemoteSource(self.log_actor, self._experiment.exp_id))

    def blocked(self, *, after: int | None = None) -> "BlockedMessages":
        """Iterate (`async for`) over the messages that rules block, from now on, or after a `cursor` seen before."""
        from ray_messaging.cluster.handles.blocked import BlockedMessages  # noqa: PLC0415 - brings pyarrow, 80 MB

        return BlockedMessages(self.log_actor, after)

    def on_blocked(
        self, callback: "Callable[[BlockedMessage], object]", *, after: int | None = None
    ) -> "BlockedListener":
        """Call a function with each blocked message, in a thread, until the listener is closed."""
        from ray_messaging.cluster.handles.blocked import BlockedListener  # noqa: PLC0415 - brings pyarrow, 80 MB

        return BlockedListener(self.log_actor, callback, after)
