"""A town whose agents answer surveys by columns, and a researcher in a process of its own."""

import os

import ray
from pydantic import BaseModel

from ray_messaging import Group, Messaging

GROUPS = 2


class Mood(BaseModel):
    """The answer of an agent."""

    mood: int
    why: str


@ray.remote(num_cpus=0)
class Household:
    """The agents of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def answer(self, count: int) -> int:
        """Answer so many questions."""
        left = count
        while left:
            questions = self._group.fetch_messages(limit=left, timeout=60.0)
            payloads = [{"mood": agent % 5, "why": "the weather"} for agent in questions.to_ids.tolist()]
            self._group.reply_columns(questions, payloads)
            self._group.ack()
            left -= len(questions)
        return count


@ray.remote(num_cpus=0)
class Researcher:
    """A researcher in a process of its own."""

    def ask(self, messaging: Messaging, name: str) -> int:
        """Create a survey; return the pid."""
        self._survey = messaging.create_survey(Mood, question={"text": "How are you?"}, survey_id=name)
        return os.getpid()

    def seen(self) -> int:
        """Return how many answers have come."""
        return len(self._survey.answers)


class Town:
    """Groups that answer."""

    def __init__(self, messaging: Messaging, agents: int) -> None:
        self.agents = agents
        self._each = agents // GROUPS
        hosted = {f"group{n}": range(n * self._each, (n + 1) * self._each) for n in range(GROUPS)}
        self._homes = [Household.remote(group) for group in messaging.create_groups(hosted).values()]

    def answer(self, part: float = 1.0) -> list:
        """Let a part of the agents answer, each group by itself; return the calls."""
        return [home.answer.remote(round(self._each * part)) for home in self._homes]

    def end(self) -> None:
        """End the actors."""
        for home in self._homes:
            ray.kill(home)
