"""The log's process dies, its folder cannot be written, or its server loses its data: what is lost is told."""

import logging

import pytest
from faults.checker import check
from faults.ray_support import a_town
from faults.ray_traffic import rows_of, traffic_in
from support.cluster import PATIENCE_S, kill, numbered, wait_for

from ray_messaging import Messaging, MessagingConfig, rules
from ray_messaging.errors import LogError, MailboxFull, Unbalanced
from ray_messaging.eventlog.event_log import EventLog

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

ROWS = 5_000


@pytest.fixture
def start(tmp_path, exp_id):
    """Return a function that starts an experiment with a log and one group of ten; agent 0 may write to nobody."""
    started = []

    def start(redis=None, **options):
        made = Messaging.start(
            exp_id,
            redis=redis,
            rules=[rules.BlackList([(0, None)])],
            log_dir=tmp_path / "log",
            settings=MessagingConfig(**options),
        )
        started.append(made)
        return made, made.create_group("all", range(10))

    yield start
    for messaging in started:
        messaging.shutdown()


def logged_fates(log):
    table = log.query()
    found = dict(zip(table["message_id"].to_pylist(), table["fate"].to_pylist(), strict=True))
    assert len(found) == table.num_rows, "a row is there twice"
    return found


def test_the_log_has_each_message_once_over_deaths_of_its_process(tmp_path):
    # A file for each 500 rows, or senders would wait for room until it is old enough to be written.
    settings = {"mailbox_messages": 1_000, "send_timeout_s": PATIENCE_S}
    with a_town(rules.BlackList([(2, 12)]), log_dir=tmp_path / "log", **settings) as town:
        with traffic_in(town, tmp_path) as traffic:
            for _ in range(5):  # a life that ends before its first file leaves none, and a file may hold 1,300 rows
                traffic.goes_on(400)
                kill(town.messaging.log_actor)
        account = traffic.account()
        assert account.flaws == {}, str(account)
        assert account.sent == account.acknowledged + account.blocked > account.blocked > 0
        assert town.messaging.log.balance().sends == account.sent
        assert town.messaging.stats()["log"]["segments"] > 3
    log = EventLog.open(tmp_path / "log")
    assert check(*traffic.files, rows_of(log)).flaws == {}
    assert log.balance().rows == account.sent


def test_messages_wait_while_the_log_cannot_be_written(start, tmp_path):
    messaging, group = start(mailbox_messages=200, send_timeout_s=10)
    expected = {}

    def send(count):
        try:
            receipts = group.send_columns([0] + [1] * (count - 1), [2] * count, numbered(count))
        except MailboxFull as error:
            receipts = [receipt for receipt in error.receipts if receipt is not None]
            raise
        finally:
            expected.update({receipt.message_id: receipt.fate for receipt in receipts})
        assert len(group.fetch_messages(timeout=60)) == count - 1

    for _ in range(5):
        send(50)
    # Like a full or missing disk.
    (tmp_path / "log").rename(tmp_path / "away")
    (tmp_path / "log").write_text("in the way")

    def send_on():
        for _ in range(20):
            send(50)

    with pytest.raises(MailboxFull, match=r"event log does not keep up.*stats") as caught:
        send_on()
    refused = set(caught.value.message_ids)
    assert refused
    assert refused.isdisjoint(expected)
    assert "log" in messaging.stats()["log"]["error"]
    with pytest.raises(LogError, match=str(tmp_path / "log")):
        messaging.log.query()
    kill(messaging.log_actor)
    with pytest.raises(LogError, match="cannot be written"):
        messaging.log.query()
    assert messaging.stats()["log"]["error"]
    with pytest.raises(MailboxFull):
        send(50)
    # Somebody sets it right.
    (tmp_path / "log").unlink()
    (tmp_path / "away").rename(tmp_path / "log")
    wait_for(lambda: messaging.stats()["log"]["error"] is None, "the log's recovery")
    group.fetch_messages()
    for _ in range(5):
        send(50)
    assert logged_fates(messaging.log) == expected
    assert messaging.log.balance().sends == len(expected)


def test_queried_rows_are_in_a_file_and_those_that_the_server_lost_are_reported(start, own_server, tmp_path, caplog):
    messaging, group = start(own_server.config)
    group.send_columns([1] * ROWS, [2] * ROWS, numbered(ROWS))
    assert len(messaging.log.query()) == ROWS
    assert not list((tmp_path / "log").glob("events-*"))
    with own_server.client() as client:
        client.flushall()
    with pytest.raises(LogError, match="lost the data"):
        messaging.log.query()

    def findings():
        return [finding for finding in messaging.health().of("log") if finding.level == "critical"]

    [finding] = wait_for(findings, "the finding")
    assert f"all {ROWS:,} rows" in finding.value
    assert "resume" in finding.remedy
    with caplog.at_level(logging.ERROR):
        messaging.shutdown()
    told = f"the event log is not complete: the server has lost the data of experiment '{messaging.exp_id}'"
    assert told in caplog.text
    log = EventLog.open(tmp_path / "log")
    assert log.query()["payload"].to_pylist() == [f'{{"n":{n}}}' for n in range(ROWS)]
    with pytest.raises(Unbalanced, match=f"all {ROWS:,} rows"):
        log.balance()
