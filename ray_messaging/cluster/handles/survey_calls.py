"""Calls of an experiment's surveys, for drivers and tasks."""

from collections.abc import Iterable
from typing import Any, cast

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.handles.group.group import Group
from ray_messaging.cluster.handles.survey import Survey
from ray_messaging.cluster.handles.user_messager import UserMessager
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.surveys.async_survey import AsyncSurvey
from ray_messaging.surveys.surveys import Surveys


class SurveyCalls:
    """The surveys of one experiment in this process, which the user's messager asks."""

    def __init__(self, user: UserMessager) -> None:
        self.run = user.run
        self._surveys = Surveys(user.messager.engine)

    def create(
        self,
        model: object,
        to: object,
        question: object,
        *,
        survey_id: str | None,
        subtopic: str,
        timeout: float | None,
    ) -> Survey[Any]:
        """Create a survey, and ask; arguments and errors are those of `Messaging.create_survey`."""

        async def create() -> AsyncSurvey:
            groups = _groups(to)
            if to is None or groups:
                agents = await self._surveys.agents_of(groups)
            else:
                agents = AgentSet.of(cast("Iterable[AgentId]", to))
            return await self._surveys.create(
                model, agents, question, survey_id=survey_id, subtopic=subtopic, timeout=timeout
            )

        return Survey(self.run(create()), self)

    def find(self, survey_id: str, model: object) -> Survey[Any]:
        """Return a survey; arguments and errors are those of `Messaging.survey`."""
        return Survey(self.run(self._surveys.open(survey_id, model)), self)

    def ids(self) -> list[str]:
        """Return the ids of all surveys."""
        return self.run(self._surveys.ids())

    def remove(self, survey_id: str) -> None:
        """Delete a survey with its answers; raise UnknownName."""
        self.run(self._surveys.remove(survey_id))


def _groups(to: object) -> list[str] | None:
    """Return the names of the groups that are asked; None: these are no groups."""
    if isinstance(to, Group):
        return [to.name]
    if isinstance(to, list | tuple) and to and all(isinstance(each, Group) for each in to):
        return [group.name for group in to]
    return None
