"""Metrics of a running experiment."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families
from ray.util import metrics as of_ray
from support.patience import WAIT_S

from ray_messaging import Messaging, rules
from ray_messaging.cluster import ray_metrics
from ray_messaging.cluster.ray_metrics import RayMetrics
from ray_messaging.observability.metrics.families import Distribution, Family, MetricSample, named_values


def read(messaging):
    """Return the values of an experiment's metrics, by name and labels."""
    return {
        (
            sample.name,
            *sorted((key, value) for key, value in sample.labels.items() if key != "experiment"),
        ): sample.value
        for family in text_string_to_metric_families(messaging.metrics_text())
        for sample in family.samples
        if sample.labels["experiment"] == messaging.exp_id
    }


async def counted_by_an_own_messager(messaging):
    """Return what a messager in this process tells Ray of a message that it has sent: how many were delivered."""
    messager = await messaging.open_messager("own", [50])
    await messager.send_message(messager.get_agent_chat_channel(10), {"n": 1}, 50, 10)
    told = [value for family in messager.engine.observer.families({}) for value in named_values(family)]
    await messager.close()
    return next(each.value for each in told if each.labels == (("fate", "delivered"),))


@pytest.mark.long
def test_what_happened_is_in_the_text(ray_cluster, tmp_path, exp_id):
    with Messaging.start(exp_id, rules=[rules.BlackList([(0, None)])], log_dir=tmp_path, metrics=True) as messaging:
        west, east = (messaging.create_group(group, agents) for group, agents in (("west", [0, 1]), ("east", [10])))
        west.send_columns([0, 1, 1], [10, 10, 99], {"n": 1})
        messaging.log.balance()
        before = read(messaging)
        with east.fetch_messages(timeout=60):
            pass
        after = read(messaging)
        assert asyncio.run(counted_by_an_own_messager(messaging)) == 1
    of_west = ("messager", "west")
    assert before["ray_messaging_messages_total", ("fate", "delivered"), of_west] == 1
    assert before["ray_messaging_messages_total", ("fate", "blocked"), of_west] == 1
    assert before["ray_messaging_messages_total", ("fate", "undeliverable"), of_west] == 1
    assert before["ray_messaging_blocked_total", of_west, ("rule", "black_list")] == 1
    assert before["ray_messaging_send_seconds_count", of_west] == 1
    assert before["ray_messaging_mailbox_messages", ("mailbox", "east")] == 1
    assert before["ray_messaging_rule_seconds_total", ("rule", "black_list")] > 0
    assert before["ray_messaging_log_rows_total",] == 3
    assert before["ray_messaging_actor_up", ("actor", "group 'east'")] == 1
    assert before["ray_messaging_findings", ("level", "critical")] == 0
    assert after["ray_messaging_fetched_total", ("messager", "east")] == 1
    assert after["ray_messaging_mailbox_messages", ("mailbox", "east")] == 0


def test_without_metrics_the_text_has_depths_and_no_counts(messaging, pair):
    found = read(messaging)
    assert not [key for key in found if key[0] == "ray_messaging_messages_total"]
    assert found["ray_messaging_up",] == 1
    assert [key for key in found if key[0] == "ray_messaging_mailbox_messages"]


async def test_a_failure_to_tell_is_logged_and_the_next_time_comes(monkeypatch, caplog):
    monkeypatch.setattr(ray_metrics, "EVERY_S", 0)
    told = asyncio.Event()
    answers = iter([RuntimeError("Ray is away"), [], []])

    def families():
        answer = next(answers)
        if answer:
            raise answer
        told.set()
        return answer

    RayMetrics(families, (("messager", "west"),)).start(told.is_set)
    async with asyncio.timeout(WAIT_S):
        await told.wait()
    assert "metrics of {'messager': 'west'} could not be reported to Ray" in caplog.text
    assert "Ray is away" in caplog.text


class Instrument:
    """An instrument of Ray's that keeps the values it is told."""

    def __init__(self, name, description, tag_keys):
        self.name, self.tag_keys, self.told = name, tag_keys, []
        MADE[name] = self

    def tell(self, value, tags):
        assert set(tags) == set(self.tag_keys)
        self.told.append(value)


class GrowingInstrument(Instrument):
    def inc(self, value, tags):
        assert value > 0
        self.tell(value, tags)


class SetInstrument(Instrument):
    def set(self, value, tags):
        self.tell(value, tags)


MADE = {}


def test_ray_is_told_what_counters_grew_by(monkeypatch):
    monkeypatch.setattr(of_ray, "Counter", GrowingInstrument)
    monkeypatch.setattr(of_ray, "Gauge", SetInstrument)
    values = iter([(1, 0.5, 5), (1, 0.5, 4), (4, 2.0, 4)])

    def families():
        sent, seconds, depth = next(values)
        distribution = Distribution((1.0,), (sent, 0), seconds)
        return [
            Family("messages", "counter", "", [MetricSample((("fate", "delivered"),), sent)]),
            Family("send_seconds", "histogram", "", [MetricSample((), distribution)]),
            Family("outbox", "gauge", "", [MetricSample((), depth)]),
        ]

    told = RayMetrics(families, (("messager", "west"),))
    for _ in range(3):
        told.tell(families())
    assert {name: instrument.told for name, instrument in MADE.items()} == {
        "messaging_messages_total": [1, 3],
        "messaging_send_seconds_bucket": [1, 1, 1, 1, 4, 4],
        "messaging_send_seconds_count": [1, 1, 4],
        "messaging_send_seconds_sum": [0.5, 0.5, 2.0],
        "messaging_outbox": [5, 4, 4],
    }
