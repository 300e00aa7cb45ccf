"""The count of a survey's answers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import BLOCKED, FATES, UNDELIVERABLE
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.surveys.answer_model import AnswerModel, InvalidAnswer
from ray_messaging.surveys.record import Asking, BlockedQuestion

Rows = NDArray[np.intp]

OPEN, ANSWERED, INVALID, STOPPED, LOST = range(5)
STATES = np.array(["pending", "answered", "invalid", FATES[BLOCKED], FATES[UNDELIVERABLE]])


class Tally:
    """Counter of a survey's answers. For each agent, the first answer that fits the survey's schema is counted.

    All processes that count the answers in the survey's mailbox get the same result.
    """

    def __init__(self, agents: AgentSet, model: AnswerModel) -> None:
        self.agents = AgentPlaces(agents)
        self.answers: dict[AgentId, Any] = {}
        self.arrived: list[AgentId] = []  # the agents with an answer that fits, in the order of their answers
        self.invalid: dict[AgentId, InvalidAnswer] = {}
        self.blocked: dict[AgentId, BlockedQuestion] = {}
        # The number of answers that are not counted: answers of agents that have a counted answer already, or that the
        # survey does not ask, and answers after the end of the survey.
        self.late = 0
        self.questions = 0  # the number of questions that were sent
        self.states = np.zeros(len(self.agents), np.uint8)
        self._model = model
        self._owed = np.zeros(len(self.agents), np.int32)  # how many questions each agent has not answered
        self._asked = np.zeros(len(self.agents), np.bool_)

    # -- filling --------------------------------------------------------------------------------------------------

    def add_asking(self, asking: Asking) -> None:
        """Record questions that were sent."""
        places = np.frombuffer(asking.places, "<u4")
        self.questions += len(places)
        self._asked[places] = True
        self._owed[places] += 1
        for place, blocked in asking.blocked.items():
            if self._unsent(place, STOPPED):
                self.blocked[self.agents[place]] = blocked
        for place in asking.undeliverable:
            self._unsent(place, LOST)

    def _unsent(self, place: int, state: int) -> bool:
        """Record that one question to an agent did not arrive; return whether that changes the agent's state.

        An agent in the state OPEN gets the state `state`, unless it still has another question to answer.
        """
        self._owed[place] -= 1
        is_open = bool(self.states[place] == OPEN and not self._owed[place])
        if is_open:
            self.states[place] = state
        return is_open

    def add(self, batch: Batch) -> None:
        """Count the answers of a batch."""
        places = self.agents.find(batch.from_ids).astype(np.intp)
        left, counted = np.flatnonzero(places >= 0), 0
        while len(left := left[self.states[places[left]] != ANSWERED]):
            # An agent may have two answers in a batch. Its second answer is counted if the first one does not fit.
            _, first = np.unique(places[left], return_index=True)
            rows = left[np.sort(first)]
            self._take(batch, rows, places[rows])
            counted += len(rows)
            left = np.setdiff1d(left, rows)
        self.late += batch.rows - counted

    def _take(self, batch: Batch, rows: Rows, places: Rows) -> None:
        """Count the answers in the given rows. No two of these rows may be from the same agent.

        Args: `places` are the positions that the rows' senders have among the survey's agents.
        """
        assert batch.lines is not None
        by_row = batch.lines.by_row
        lines = by_row if len(rows) == batch.rows else [by_row[row] for row in rows.tolist()]
        agents: list[Any] = batch.from_ids.take(rows).tolist()
        values = self._model.check(lines)
        fits = np.fromiter((type(value) is not InvalidAnswer for value in values), np.bool_, len(values))
        for at in np.flatnonzero(~fits).tolist():
            self.invalid[agents[at]] = values[at]
        for agent in agents if self.blocked else ():
            self.blocked.pop(agent, None)  # the agent has answered, although a rule blocked one of its questions
        if not fits.all():
            agents = [agent for agent, fit in zip(agents, fits, strict=True) if fit]
            values = [value for value, fit in zip(values, fits, strict=True) if fit]
        self.answers.update(zip(agents, values, strict=True))
        self.arrived += agents
        for agent in agents if self.invalid else ():
            self.invalid.pop(agent, None)  # an earlier answer may have been invalid
        self._owed[places] -= 1
        self.states[places] = np.where(fits, ANSWERED, INVALID)

    # -- reading --------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Return whether no answer is outstanding. After a reminder, agents with invalid answers must answer again."""
        states = self.states
        return not ((states == OPEN) | ((states == INVALID) & (self._owed > 0))).any()

    def named(self, places: Rows) -> list[AgentId]:
        """Return the agents at these positions among the survey's agents."""
        return self.agents.column.take(places).tolist()  # type: ignore[return-value]  # none of them is the user

    @property
    def open_places(self) -> Rows:
        """Return the positions of agents that have no fitting answer, except those whose questions did not arrive."""
        return np.flatnonzero((self.states == OPEN) | (self.states == INVALID))

    def of_state(self, state: int) -> list[AgentId]:
        """Return the agents that are in the state `state`, such as ANSWERED."""
        return self.named(np.flatnonzero(self.states == state))

    @property
    def unasked(self) -> list[AgentId]:
        """Return the agents to which no question was sent, according to the survey's records."""
        return self.named(np.flatnonzero(~self._asked & (self.states == OPEN)))

    def counts(self) -> dict[str, int]:
        """Return how many agents are pending, answered, invalid, blocked and undeliverable, under these names."""
        found: list[int] = np.bincount(self.states, minlength=len(STATES)).tolist()
        return dict(zip(STATES.tolist(), found, strict=True))

    def __repr__(self) -> str:
        return ", ".join(f"{count:,} {state}" for state, count in self.counts().items() if count)
