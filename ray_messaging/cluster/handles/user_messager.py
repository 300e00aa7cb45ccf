"""The user's messager, for drivers and tasks."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from ray_messaging.audiences.book import EVERYBODY
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.handles.own_loop import SharedLoop
from ray_messaging.common.process_tuning import relax_collector
from ray_messaging.compat.msg import Payload
from ray_messaging.errors import Closed
from ray_messaging.messager import Messager
from ray_messaging.receipt import Receipts

T = TypeVar("T")


class UserMessager:
    """The user's messager in this process, for questions, broadcasts and surveys; a thread's event loop drives it."""

    def __init__(self, connection: ExperimentConnection) -> None:
        experiment = connection.with_password()
        self._closed = False
        self._loop = SharedLoop("user")
        self._loop.enter()
        self.messager = Messager(
            experiment.redis,
            experiment.exp_id,
            connection.interceptor,
            settings=experiment.settings,
            tracing=experiment.tracing,
        )
        try:
            self.run(self.messager.init())
        except BaseException:
            self._loop.leave()
            raise
        relax_collector()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for its result; raise Closed after `close`."""
        if self._closed:
            work.close()
            raise Closed(
                "this Messaging was shut down: while the experiment runs, Messaging.connect(exp_id) asks, and "
                "Messaging.connect(exp_id).survey(id) goes on with a survey"
            )
        return self._loop.run(work)

    def close(self) -> None:
        """Disconnect, and end the loop; answers that have not come are lost, but for those of surveys."""
        if not self._closed:
            self._closed = True
            self._loop.leave(self.messager.close())

    def broadcast(self, payload: Payload, subtopic: str) -> Receipts:
        """Send one message to all agents. Raises as `Messaging.broadcast`."""
        return self.run(self.messager.broadcast(EVERYBODY, payload, subtopic=subtopic))
