"""Surveys from the driver: groups answer in tasks, and the researcher's process dies."""

import json
import pickle

import pytest
import ray
from pydantic import BaseModel
from support.patience import WAIT_S
from typer.testing import CliRunner

from ray_messaging import Messaging
from ray_messaging.cli import app
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, InvalidAddress, UnknownName


class Mood(BaseModel):
    mood: int


@pytest.fixture
def messaging(asked):
    return asked[0]


@ray.remote(num_cpus=0)
def answer(group, count, wrong=()):
    """Answer so many questions."""
    left = count
    while left:
        with group.fetch_messages(limit=left, timeout=WAIT_S) as messages:
            payloads = [{"mood": "bad" if agent in wrong else agent} for agent in messages.to_ids.tolist()]
            group.reply_columns(messages, payloads)
            left -= len(messages)


def answer_all(messaging, count=10, **options):
    return [answer.remote(messaging.group(name), count, **options) for name in ("west", "east")]


def test_a_survey_of_all_agents(messaging):
    survey = messaging.create_survey(Mood, question={"text": "How are you?"}, survey_id="all", timeout=WAIT_S)
    tasks = answer_all(messaging, wrong=[3])
    assert dict(survey) == {agent: Mood(mood=agent) for agent in range(20) if agent != 3}
    assert survey.wait() is survey
    assert (len(survey), survey.pending, survey.unasked, survey.late, survey.undeliverable) == (20, [], [], 0, [])
    assert survey.invalid[3].payload == {"mood": "bad"}
    assert survey.question == {"text": "How are you?"}
    assert survey.schema["properties"]["mood"]["type"] == "integer"
    assert repr(survey) == "Survey('all', 19 answered, 1 invalid)"
    assert "{&quot;mood&quot;:" in survey._repr_html_()  # as a notebook shows it
    table = survey.to_pandas()
    assert table.fate.value_counts().to_dict() == {"answered": 19, "invalid": 1}
    assert table["answer.mood"].sum() == sum(range(20)) - 3
    assert "integer" in table.reason[3]
    ray.get(tasks)
    rows = [line.split() for line in CliRunner().invoke(app, ["surveys", messaging.exp_id]).stdout.splitlines()]
    assert [row[-5:] for row in rows if row[:1] == ["all"]] == [["19", "0", "1", "0", "0"]]
    shown = CliRunner().invoke(app, ["surveys", messaging.exp_id, "--json"]).stdout.splitlines()
    assert survey.counts() | {"id": "all", "created_at": survey.created_at} in [json.loads(line) for line in shown]
    health = messaging.health()
    assert not [finding for finding in health.problems if "survey" in finding.what]
    assert not [name for name in messaging.closed_messagers() if "survey" in name]
    assert survey.remind() == 1
    ray.get(answer.remote(messaging.group("west"), 1))
    assert survey.wait(progress=False).answers[3] == Mood(mood=3)


def test_a_survey_of_some(messaging):
    of_group = messaging.create_survey(Mood, to=messaging.group("east"), question={}, timeout=WAIT_S)
    of_ids = messaging.create_survey(Mood, to=[1, 99], question={}, timeout=WAIT_S)
    assert of_group.pending == list(range(10, 20))
    assert (of_ids.pending, of_ids.undeliverable) == ([1], [99])
    assert {of_group.id, of_ids.id} <= set(messaging.surveys())
    ray.get([answer.remote(messaging.group("east"), 10), answer.remote(messaging.group("west"), 1)])
    assert of_group.wait().answers.keys() == set(range(10, 20))
    assert of_ids.wait().answers == {1: Mood(mood=1)}
    messaging.remove_survey(of_ids.id)
    with pytest.raises(UnknownName):
        messaging.survey(of_ids.id)


def test_surveys_that_cannot_be(messaging):
    for to, error in (([], ConfigError), ("west", InvalidAddress), (5, InvalidAddress), ([1.5], InvalidAddress)):
        with pytest.raises(error):
            messaging.create_survey(Mood, to=to, question={})
    survey = messaging.create_survey(Mood, to=[99], question={}, survey_id="once")
    with pytest.raises(AlreadyExists):
        messaging.create_survey(Mood, to=[99], question={}, survey_id="once")
    with pytest.raises(TypeError, match=r"messaging\.survey\('once'\)"):
        pickle.dumps(survey)
    survey.end()
    assert survey.ended
    with pytest.raises(Closed, match="has ended"):
        survey.remind()
    other = Messaging.connect(messaging.exp_id)
    same = other.survey("once")
    other.shutdown()
    with pytest.raises(Closed, match="was shut down"):
        same.wait()


@pytest.mark.long
def test_a_survey_outlives_its_experiment_on_a_server_of_yours(ray_cluster, valkey_config, exp_id):
    with Messaging.start(exp_id, redis=valkey_config) as first:
        first.create_groups({"west": range(10), "east": range(10, 20)})
        first.create_survey(Mood, question={}, survey_id="long", timeout=WAIT_S)
        ray.get(answer_all(first, 5))
    with Messaging.start(exp_id, redis=valkey_config, on_existing="resume") as second:
        survey = second.survey("long", Mood)
        assert len(survey.answers) == 10
        second.create_groups({"west": range(10), "east": range(10, 20)})
        tasks = answer_all(second, 5)
        assert survey.wait().answers == {agent: Mood(mood=agent) for agent in range(20)}
        ray.get(tasks)
        second.shutdown(erase=True)
