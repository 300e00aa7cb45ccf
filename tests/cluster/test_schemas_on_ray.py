"""Schemas and typed columns through handles, groups, tasks and the log's actor."""

import json

import numpy as np
import pandas as pd
import pydantic
import pytest
import ray

from ray_messaging import columns, rules
from ray_messaging.errors import ConfigError, InvalidAddress, InvalidColumns, PayloadMismatch
from ray_messaging.model.typed.typed_table import TypedColumns

SUBTOPIC = "user-survey"  # of groups that other tests share


class Offer(pydantic.BaseModel):
    price: float


@pytest.fixture
def offers(logged):
    messaging, west, _ = logged
    messaging.schema(SUBTOPIC, Offer)
    yield messaging, west
    messaging.schema(SUBTOPIC, None)


@ray.remote(num_cpus=0)
def send(group, payload):
    return group.send(3, 13, payload, subtopic=SUBTOPIC).fate


def test_handles_and_tasks_refuse_what_does_not_fit(offers):
    messaging, west = offers
    with pytest.raises(PayloadMismatch) as caught:
        west.send_columns([1, 2], [11, 12], [{"price": 1}, {"price": "dear"}], subtopic=SUBTOPIC)
    error = caught.value
    assert (error.agent, error.row, error.field, error.subtopic) == (2, 1, "price", SUBTOPIC)
    with pytest.raises(PayloadMismatch, match="the values are of type string, but the schema allows only number"):
        west.send_columns([1, 2], [11, 12], columns(price=["a", "b"]), subtopic=SUBTOPIC)
    with pytest.raises(PayloadMismatch):
        ray.get(send.remote(west, {"price": "dear"}))
    assert ray.get(send.remote(west, {"price": 3})) == "delivered"
    assert west.send(3, 13, Offer(price=3), subtopic=SUBTOPIC).fate == "delivered"
    with pytest.raises(ConfigError, match="JSON objects"):
        messaging.schema(SUBTOPIC, int)
    with pytest.raises(InvalidAddress):
        messaging.schema("", Offer)


def test_the_log_has_columns_of_their_types_while_it_runs(offers):
    messaging, west = offers
    end = messaging.log.end
    west.send_columns([1, 2], [11, 12], columns(price=[1.5, 2.5], n=np.array([1, 2], np.int16)), subtopic=SUBTOPIC)
    west.send(4, 14, Offer(price=4), subtopic=SUBTOPIC)
    found = messaging.log.query(after=end, subtopic=SUBTOPIC)
    assert found["payload.price"].to_pylist() == [1.5, 2.5, None]
    assert str(found["payload.n"].type) == "int16"
    assert found["payload"].to_pylist() == [None, None, '{"price":4.0}']
    texts = messaging.log.query(after=end, subtopic=SUBTOPIC, text=True)["payload"].to_pylist()
    assert [json.loads(text)["price"] for text in texts] == [1.5, 2.5, 4.0]
    assert [row.payload["price"] for row in messaging.log.tail(after=end, subtopic=SUBTOPIC, timeout_s=0)] == [
        1.5,
        2.5,
        4.0,
    ]


def test_handles_send_and_fetch_columns(town):
    _, west, east = town(rules.MaxLength(24))
    prices = np.array([1.5, 9.0, 2.5])
    frame = pd.DataFrame({"price": prices, "text": ["a", "bb", "c"]})
    assert [*west.send_columns([1, 2, 3], [11, 12, 13], frame).fates] == ["delivered", "blocked", "delivered"]
    messages = east.fetch_messages(timeout=60)
    assert messages.column("price").tolist() == [1.5, 2.5]
    assert messages.to_pandas()["payload.text"].tolist() == ["a", "c"]
    assert isinstance(messages.slices[0].batch.lines, TypedColumns)
    with pytest.raises(InvalidColumns, match="row 1"):
        west.send_columns(1, [11, 12], columns(text=["a", None]))


def test_an_answer_of_columns_to_a_handle(town):
    _, west, east = town()
    answers = west.ask_columns([1, 2], [11, 12], columns(n=[3, 4]), timeout=20)
    questions = east.fetch_messages(timeout=60)
    while len(questions) < 2:
        questions = questions + list(east.fetch_messages(timeout=60))
    east.reply_columns(questions, columns(twice=[2 * question.payload["n"] for question in questions]))
    answers.wait()
    assert sorted(answer["twice"] for answer in answers.to_pandas()["answer"]) == [6, 8]
