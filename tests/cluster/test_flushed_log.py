"""FLUSHALL while an experiment with a log runs: rows in query results are in a file, and the loss is reported."""

import logging
import uuid

import pytest
from support.cluster import numbered, wait_for

from ray_messaging import Messaging
from ray_messaging.errors import LogError, Unbalanced
from ray_messaging.eventlog.event_log import EventLog

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

ROWS = 5_000


@pytest.fixture
def messaging(own_server, tmp_path):
    """Run an experiment with logged rows that a query has returned, and no file."""
    exp_id = f"flushed-{uuid.uuid4().hex[:8]}"
    with Messaging.start(exp_id, redis=own_server.config, log_dir=tmp_path / "log") as messaging:
        group = messaging.create_group("all", range(10))
        group.send_columns([1] * ROWS, [2] * ROWS, numbered(ROWS))
        assert len(messaging.log.query()) == ROWS
        assert not list((tmp_path / "log").glob("events-*"))
        yield messaging


def flush(server):
    with server.client() as client:
        client.flushall()


def findings(messaging):
    return [finding for finding in messaging.health().of("log") if finding.level == "critical"]


def test_queried_rows_are_in_a_file_and_missing_rows_are_reported(messaging, own_server, tmp_path, caplog):
    flush(own_server)
    with pytest.raises(LogError, match="lost the data"):
        messaging.log.query()
    [finding] = wait_for(lambda: findings(messaging), "the finding")
    assert f"all {ROWS:,} rows" in finding.value
    assert "resume" in finding.remedy
    with caplog.at_level(logging.ERROR):
        messaging.shutdown()
    assert (
        f"the event log is not complete: the server has lost the data of experiment '{messaging.exp_id}'" in caplog.text
    )
    log = EventLog.open(tmp_path / "log")
    assert log.query()["payload"].to_pylist() == [f'{{"n":{n}}}' for n in range(ROWS)]
    with pytest.raises(Unbalanced, match=f"all {ROWS:,} rows"):
        log.balance()
