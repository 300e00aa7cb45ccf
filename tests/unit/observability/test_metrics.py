"""Metrics: what a messager counts, and the text of it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ray_messaging.observability.metrics.families import (
    Histogram,
    counter,
    gauge,
    joined,
    labelled,
    prometheus_text,
    single,
)
from ray_messaging.observability.metrics.messager_metrics import MessagerMetrics


def read(text):
    """Return the values in a text, by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_messager_counts_by_fate_and_rule():
    metrics = MessagerMetrics()
    metrics.batch_judged(3, 0.002)
    metrics.batch_sent(np.array([0, 0, 3], np.uint8), 0.004)
    metrics.messages_blocked("black_list", 1)
    metrics.frame_written("east", 2, 100)
    metrics.messages_fetched(5)
    metrics.connected("server")
    metrics.retried("server", OSError())
    found = read(prometheus_text(labelled(metrics.families({"outbox": 7, "name": "west"}), messager="west")))
    west = ("messager", "west")
    assert found["ray_messaging_messages_total", ("fate", "delivered"), west] == 2
    assert found["ray_messaging_messages_total", ("fate", "blocked"), west] == 1
    assert found["ray_messaging_blocked_total", west, ("rule", "black_list")] == 1
    assert found["ray_messaging_frame_bytes_total", west] == 100
    assert found["ray_messaging_fetched_total", west] == 5
    assert found["ray_messaging_retries_total", west] == 1
    assert found["ray_messaging_connections_total", west] == 1
    assert found["ray_messaging_outbox", west] == 7
    assert found["ray_messaging_judge_seconds_bucket", ("le", "0.0025"), west] == 1
    assert found["ray_messaging_judge_seconds_bucket", ("le", "0.001"), west] == 0
    assert found["ray_messaging_send_seconds_sum", west] == 0.004
    assert found["ray_messaging_batch_messages_count", west] == 1


@given(values=st.lists(st.floats(0, 100)), bounds=st.lists(st.floats(0, 100), min_size=1, unique=True).map(sorted))
def test_a_histogram_counts_each_value_in_its_bucket(values, bounds):
    histogram = Histogram(tuple(bounds))
    for value in values:
        histogram.observe(value)
    found = read(prometheus_text([single("x", "histogram", "", histogram.distribution())]))
    for bound in bounds:
        assert found["ray_messaging_x_bucket", ("le", str(bound))] == sum(value <= bound for value in values)
    assert found["ray_messaging_x_bucket", ("le", "+Inf")] == found["ray_messaging_x_count",] == len(values)
    assert found["ray_messaging_x_sum",] == pytest.approx(math.fsum(values))


@given(label=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_label_can_be_read_back(label):
    text = prometheus_text([gauge("depth", "", {label: 1.0}, "mailbox")])
    assert [*read(text)] == [("ray_messaging_depth", ("mailbox", label))]


def test_families_of_one_name_are_one():
    found = joined([counter("a", "", {"x": 1}, "k"), single("b", "gauge", "", 2), counter("a", "", {"y": 3}, "k")])
    assert [(family.name, len(family.samples)) for family in found] == [("a", 2), ("b", 1)]
