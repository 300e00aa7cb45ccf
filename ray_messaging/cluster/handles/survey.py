"""The handle of a survey, whose calls block, for drivers and tasks."""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.handles.group.group import Group
from ray_messaging.cluster.handles.user_messager import UserMessager
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.progress_line import ProgressLine
from ray_messaging.common.tables import data_frame
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.surveys.answer_model import InvalidAnswer
from ray_messaging.surveys.record import BlockedQuestion
from ray_messaging.surveys.surveys import AsyncSurvey, Surveys
from ray_messaging.surveys.tally import LOST, OPEN, STATES, Tally

T = TypeVar("T")

_LOOK_S = 0.25  # seconds between two checks of the progress


class Survey(Generic[T]):
    """A question to many agents, and their answers, which are stored on the experiment's server.

    For each agent, the first answer that fits `schema` is counted. All properties are up to date when they are read.
    `for agent, answer in survey` yields the answers as they arrive.
    """

    def __init__(self, survey: AsyncSurvey, user: UserMessager) -> None:
        self.id = survey.id
        self._survey = survey
        self._user = user

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            f"a survey cannot be sent to another process: send the Messaging, and call messaging.survey({self.id!r}) "
            "in that process"
        )

    def __repr__(self) -> str:
        return f"Survey({self.id!r}, {self._survey.tally})"

    def _repr_html_(self) -> str:
        tally = self._now()
        agents = tally.arrived[:SHOWN]
        answers = self._survey.model.dump([tally.answers[agent] for agent in agents])
        return html_table(repr(self), {"agent": agents, "answer": answers}, len(tally.arrived))

    def __len__(self) -> int:
        return len(self._survey.tally.agents)

    @property
    def created_at(self) -> float:
        """Return the time when the survey was created, in unix seconds."""
        return self._survey.record.created_at

    @property
    def question(self) -> dict[str, Any]:
        """Return the question, the payload that each agent gets."""
        found: dict[str, Any] = msgspec.json.decode(self._survey.record.question)
        return found

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema that answers must fit."""
        found: dict[str, Any] = msgspec.json.decode(self._survey.record.schema)
        return found

    # -- the answers ----------------------------------------------------------------------------------------------

    def _now(self) -> Tally:
        self._user.run(self._survey.update())
        return self._survey.tally

    @property
    def answers(self) -> dict[AgentId, T]:
        """Return the answers by agent, as objects of the survey's type, in the order in which they arrived."""
        return dict(self._now().answers)

    def counts(self) -> dict[str, int]:
        """Return the number of agents in each state: pending, answered, invalid, blocked, undeliverable."""
        return self._now().counts()

    @property
    def pending(self) -> list[AgentId]:
        """Return the agents that have not answered yet, including agents that have not been asked yet.

        Agents whose question was blocked or undeliverable are left out.
        """
        return self._now().of_state(OPEN)

    @property
    def invalid(self) -> dict[AgentId, InvalidAnswer]:
        """Return the agents that have answered, but not yet with an answer that fits the survey's schema.

        The value of each agent has the `payload` of its last answer, and the `reason` why this answer does not fit.
        """
        return dict(self._now().invalid)

    @property
    def blocked(self) -> dict[AgentId, BlockedQuestion]:
        """Return the agents whose question was blocked by a rule, each with `rule` and `reason`."""
        return dict(self._now().blocked)

    @property
    def undeliverable(self) -> list[AgentId]:
        """Return the agents that no group hosted when they were asked."""
        return self._now().of_state(LOST)

    @property
    def unasked(self) -> list[AgentId]:
        """Return the agents for which no question is recorded.

        The process that asks has not asked these agents yet, or it died before it recorded the question.
        """
        return self._now().unasked

    @property
    def late(self) -> int:
        """Return the number of late answers, which are not counted.

        An answer is late if an earlier answer of the same agent was counted, or if the survey had ended.
        """
        return self._now().late

    @property
    def ended(self) -> bool:
        """Return whether the survey was ended."""
        self._now()
        return self._survey.ended

    def __iter__(self) -> Iterator[tuple[AgentId, T]]:
        at, more = 0, True
        while more or at < len(self._survey.tally.arrived):
            tally = self._survey.tally
            for agent in tally.arrived[at:]:
                at += 1
                yield agent, tally.answers[agent]
            more = more and self._user.run(self._survey.more(_LOOK_S))

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame with a row for each agent, whose id is the index.

        The columns are `fate` ("answered", "pending", ...), `reason`, and `answer.<field>` for each field of the
        answers.
        """
        tally = self._now()
        agents = [*tally.agents]
        fields = dict(zip(tally.answers, self._survey.model.dump([*tally.answers.values()]), strict=True))
        names = dict.fromkeys(name for row in fields.values() for name in row)
        troubles: dict[AgentId, InvalidAnswer | BlockedQuestion] = {**tally.invalid, **tally.blocked}
        rows = [fields.get(agent, {}) for agent in agents]
        columns: dict[str, Any] = {"agent": agents, "fate": STATES[tally.states]}
        columns["reason"] = [troubles[agent].reason if agent in troubles else None for agent in agents]
        columns |= {f"answer.{name}": [row.get(name) for row in rows] for name in names}
        return data_frame(columns).set_index("agent")

    # -- waiting, asking again ------------------------------------------------------------------------------------

    def wait(self, *, progress: bool = True) -> "Survey[T]":
        """Wait until no answer is outstanding, the survey's timeout has passed, or the survey has ended; return self.

        Args: with `progress`, stderr shows a bar if it is a terminal, or else gets a line every 10 s.
        """
        tally = self._survey.tally
        with ProgressLine(len(self), shown=progress) as line:
            while self._user.run(self._survey.more(_LOOK_S)):
                tally = self._survey.tally
                if line.is_due():
                    line.show(int(np.count_nonzero(tally.states != OPEN)), f"survey {self.id}: {tally}")
        return self

    def remind(self, *, timeout: float | None = None) -> int:
        """Ask the agents without a valid answer again; return the number of these agents.

        Agents whose question was blocked or undeliverable are not asked again. The asked agents have `timeout` seconds
        for an answer. With None, they have the survey's own timeout once more.

        Raises: Closed if the survey has ended; UnknownName if it was removed; also the same errors as
        `Messager.send_columns`, such as MailboxFull and OutcomeUnknown.
        """
        return self._user.run(self._survey.remind(timeout))

    def end(self) -> None:
        """End the survey, so that later answers are not counted.

        The survey's answers are stored until it is removed.
        """
        self._user.run(self._survey.end())


async def asked_agents(surveys: Surveys, to: object) -> AgentSet:
    """Return the agents that a survey asks: the agents of a group or groups, all agents (None), or the given ids."""
    groups = [to] if isinstance(to, Group) else to
    if groups is None:
        return await surveys.agents_of(None)
    if isinstance(groups, list | tuple) and groups and all(isinstance(each, Group) for each in groups):
        return await surveys.agents_of([group.name for group in groups])
    return AgentSet.of(cast("Iterable[AgentId]", to))
