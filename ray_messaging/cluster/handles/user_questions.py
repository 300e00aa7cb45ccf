"""Questions that the user asks from drivers and tasks."""

from functools import partial

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.handles.user_messager import UserMessager
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.answers import Answers, AnswerTable, GroupAnswers
from ray_messaging.message import Message


class UserQuestions:
    """The user's questions in this process."""

    def __init__(self, user: UserMessager) -> None:
        self._user = user

    def ask(self, to_id: AgentId, payload: Payload, subtopic: str, timeout: float | None) -> Message:
        """Ask an agent; return its answer. Raises as `Messaging.ask`."""
        return self._user.run(self._user.messager.ask(None, to_id, payload, subtopic=subtopic, timeout=timeout))

    def ask_columns(self, to_ids: object, payloads: object, subtopic: str, timeout: float | None) -> GroupAnswers:
        """Ask many agents; return their answers, which fill up as they come. Raises as `Messaging.ask_columns`."""
        ask = self._user.messager.ask_columns
        found = self._user.run(ask(None, to_ids, payloads, subtopic=subtopic, timeout=timeout))
        answers = GroupAnswers(found.exp_id, len(found), found.seconds_left, partial(self._more, found))
        assert found.receipts is not None
        answers.sent(found.receipts)
        return answers

    async def _more(self, found: Answers, answers: AnswerTable) -> None:
        self._user.run(_news(found, len(answers.parts), len(answers.errors)))
        for part in found.parts[len(answers.parts) :]:
            answers.add(part)
        for place, error in [*found.errors.items()][len(answers.errors) :]:
            answers.fail(place, error)
        answers.late = found.late


async def _news(answers: Answers, parts: int, errors: int) -> None:
    """Wait for answers behind some parts and errors, or the end."""
    if (len(answers.parts), len(answers.errors)) == (parts, errors) and not answers.done:
        await answers.change()
