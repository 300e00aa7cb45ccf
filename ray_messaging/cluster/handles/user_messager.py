"""The messager by which drivers and tasks send messages and ask questions as the user, who is not an agent."""

from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

from ray_messaging.cluster.audience_files import AudienceFiles
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.handles.own_loop import SharedLoop
from ray_messaging.common.process_tuning import relax_collector
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.answer_stream import Answers, AnswerTable, GroupAnswers
from ray_messaging.errors import Closed
from ray_messaging.messager import Messager
from ray_messaging.receipt import Receipts

T = TypeVar("T")


class UserMessager:
    """The messager of the user in this process, for questions, broadcasts and surveys. It runs in a separate thread."""

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
            audiences=AudienceFiles(experiment, connection.interceptor),
        )
        try:
            self.run(self.messager.init())
        except BaseException:
            self._loop.leave()
            raise
        relax_collector()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the messager's event loop, and wait for its result; raise Closed after `close`."""
        if self._closed:
            work.close()
            raise Closed(
                "this Messaging was shut down. While the experiment runs, call Messaging.connect(exp_id) to ask "
                "its agents again, and Messaging.connect(exp_id).survey(id) to go on with a survey"
            )
        return self._loop.run(work)

    def close(self) -> None:
        """Disconnect, and end the event loop. Answers that have not arrived are lost, except answers to surveys."""
        if not self._closed:
            self._closed = True
            self._loop.leave(self.messager.close())

    def broadcast(self, audience: object, payload: Payload, subtopic: str) -> Receipts:
        """Send one message to all hearers of an audience. Raises the same errors as `Messaging.broadcast`."""
        return self.run(self.messager.broadcast(None, audience, payload, subtopic=subtopic))

    def ask_columns(self, to_ids: object, payloads: object, subtopic: str, timeout: float | None) -> GroupAnswers:
        """Ask many agents; return an object that collects their answers.

        Raises the same errors as `Messaging.ask_columns`.
        """
        ask = self.messager.ask_columns
        found = self.run(ask(None, to_ids, payloads, subtopic=subtopic, timeout=timeout))
        answers = GroupAnswers(found.exp_id, len(found), found.seconds_left, partial(self._more, found))
        assert found.receipts is not None
        answers.sent(found.receipts)
        return answers

    async def _more(self, found: Answers, answers: AnswerTable) -> None:
        self.run(_news(found, len(answers.parts), len(answers.errors)))
        for part in found.parts[len(answers.parts) :]:
            answers.add(part)
        for place, error in [*found.errors.items()][len(answers.errors) :]:
            answers.fail(place, error)
        answers.late = found.late


async def _news(answers: Answers, parts: int, errors: int) -> None:
    """Wait until there are more than `parts` batches of answers, or more than `errors` errors, or no more can come."""
    if (len(answers.parts), len(answers.errors)) == (parts, errors) and not answers.done:
        await answers.change()
