"""Schemas and typed columns through handles, groups, tasks and the log's actor."""

import json

import numpy as np
import pydantic
import pytest
import ray

from ray_messaging import ConfigError, InvalidAddress, PayloadMismatch, columns

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
    with pytest.raises(PayloadMismatch, match="a column of string has another type than number"):
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
