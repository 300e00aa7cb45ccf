"""Surveys of a process, without Ray: what `messaging.survey` asks, reads and counts by a messager."""

from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.surveys.surveys import Surveys
from ray_messaging.surveys.tally import LOST, OPEN


def surveys_of(messager):
    """Return the surveys of a messager's experiment, as its process has them."""
    return Surveys(messager.engine)


async def ask_survey(surveys, model, agents, question, *, timeout=20, **options):
    """Ask agents a question; return the survey."""
    return await surveys.create(model, AgentSet.of(agents), question, timeout=timeout, **options)


def unanswered(survey):
    """Return the agents from which no answer has come, and of whom none was refused."""
    return survey.tally.of_state(OPEN)


def not_there(survey):
    """Return the agents that no group hosts."""
    return survey.tally.of_state(LOST)
