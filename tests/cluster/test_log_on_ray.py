"""The event log of a running experiment, from its start to its folder."""

import asyncio
import json
import os
import signal
import time
import warnings
from pathlib import Path

import pytest
import ray
from support.cluster import PATIENCE_S, control, fates, kill, numbered, numbers, serving, wait_for

from ray_messaging import Messaging, MessagingConfig, rules
from ray_messaging.errors import AlreadyExists, ConfigError, LogError, UnknownName
from ray_messaging.eventlog.event_log import EventLog

pytestmark = pytest.mark.long


def rows(log, **fields):
    return log.query(**fields).to_pylist()


# -- logged rows --------------------------------------------------------------------------------------------------


def test_every_fate_is_logged(ray_cluster, tmp_path, exp_id):
    """The log agrees with the receipts: at once, and in the folder afterwards."""

    class Soften(rules.Rule):
        needs_payload = True

        def check(self, message):
            return rules.rewrite({"text": message.payload["text"].lower()}, "softened")

    messaging = Messaging.start(exp_id, rules=[rules.BlackList([(1, 11)]), Soften()], log_dir=tmp_path / "a" / "log")
    with messaging:
        west, east = messaging.create_group("west", range(10)), messaging.create_group("east", [*range(10, 20), "ann"])
        west.step = 7
        receipts = [*west.send_columns([1, 2, 3], [11, 11, 12], [{"text": text} for text in ("a", "b", "LOUD")])]
        receipts += [west.send(5, "ann", {"text": "é"}), west.send(5, 99, {"text": "nobody"})]
        receipts += [east.send(None, 3, {"text": "user"}, subtopic="user-chat")]
        log = messaging.log
        live = rows(log)
        assert {row["message_id"]: row["fate"] for row in live} == {each.message_id: each.fate for each in receipts}
        fates = {"delivered": 4, "blocked": 1, "undeliverable": 1, "published": 0}
        assert (log.balance().sends, log.balance().fates) == (6, fates)
        assert log.count(by=["fate", "rule"], fate="blocked").to_pylist() == [
            {"fate": "blocked", "rule": "black_list", "count": 1}
        ]
        assert [row["to_id"] for row in log.edges(from_id=2).to_pylist()] == [11]
        assert messaging.stats()["log"]["rows"] == 6
    (loud,) = (row for row in live if row["from_id"] == "3")
    assert [json.loads(loud[name])["text"] for name in ("payload_before", "payload")] == ["LOUD", "loud"]
    assert (loud["labels"], loud["rule"], loud["step"], loud["mailbox"]) == (["softened"], "soften", 7, "east")
    assert all(row["delivered_at"] >= row["sent_at"] for row in live if row["mailbox"])
    done = EventLog.open(tmp_path / "a" / "log")
    assert done.query().to_pylist() == live
    assert done.balance().fates == fates
    with warnings.catch_warnings(action="ignore"):  # Ray 2.60 Data warns of settings that it makes itself
        table = ray.data.read_parquet(str(tmp_path / "a" / "log")).to_pandas()
    assert sorted(table["message_id"]) == sorted(row["message_id"] for row in live)


def test_a_task_can_query_the_log(logged):
    messaging, west, _ = logged
    west.send_columns([2] * 5, [12] * 5, {"text": "a task asks"})

    @ray.remote(num_cpus=0)
    def ask(exp_id, passed):
        found = Messaging.connect(exp_id).log.query(contains="a task asks")
        return found.num_rows, passed.log.count(by="fate", contains="a task asks").to_pylist()

    assert ray.get(ask.remote(messaging.exp_id, messaging), timeout=PATIENCE_S) == (
        5, [{"fate": "delivered", "count": 5}],
    )  # fmt: skip


async def test_the_log_says_which_message_a_handler_had_when_it_sent_others(logged, exp_id):
    messaging, west, east = logged
    friends = messaging.create_audience(exp_id, graph=[(13, 2), (13, 15)])
    receipts, done = {}, asyncio.Event()

    async def act(message):
        if message.to_id == 12:
            receipts["one"] = [await east.aio.send(12, 3, {"text": "one"})]
            receipts["many"] = await asyncio.gather(*(east.aio.send(12, 3, {"n": n}) for n in range(20)))
            receipts["columns"] = await east.aio.send_columns([12, 13], [3, 4], numbered(2))
            receipts["broadcast"] = await east.aio.broadcast(13, friends, {"text": "all"})
            await east.aio.ask(12, 11, {"text": "ask"}, timeout=PATIENCE_S)
            done.set()
        return {} if message.expects_answer else None

    async with serving(east, act), asyncio.timeout(PATIENCE_S):
        first = await west.aio.send(1, 12, {"text": "act"})
        await done.wait()
    ids = {each.message_id for found in receipts.values() for each in found}
    [asked] = messaging.log.query(contains='"ask"', from_id=12, to_id=11)["message_id"].to_pylist()
    assert len(ids) == 24
    for message_id in [*ids, asked]:
        found = messaging.log.why(message_id)
        assert [(cause.message.message_id, cause.answered) for cause in found.causes] == [(first.message_id, False)]
    [answer] = messaging.log.query(in_reply_to=asked)["message_id"].to_pylist()
    shown = messaging.log.why(answer)
    assert [row["message_id"] for row in shown.rows()] == [answer, asked, first.message_id]


def test_the_log_list_has_agentsocietys_form(logged):
    messaging, west, _ = logged
    control(messaging, "clear_log_list")
    assert control(messaging, "get_log_list") == []
    receipts = [west.send(3, 13, {"text": "said"}), west.send(3, 99, {"text": "unheard"})]
    listed = sorted(control(messaging, "get_log_list"), key=lambda row: row["start_time"])
    assert [(row["payload"]["text"], row["sent"], row["fate"], row["message_id"]) for row in listed] == [
        ("said", True, "delivered", receipts[0].message_id),
        ("unheard", False, "undeliverable", receipts[1].message_id),
    ]
    first = listed[0]
    assert (first["from_id"], first["to_id"]) == (3, 13)
    assert first["channel"] == f"exps:{messaging.exp_id}:agents:13:agent-chat"
    assert 0 <= first["consumption"] < PATIENCE_S
    assert abs(first["start_time"] - time.time()) < PATIENCE_S
    control(messaging, "clear_log_list")
    kill(messaging.log_actor)
    assert control(messaging, "get_log_list") == []
    assert len(messaging.log.query(from_id=3, contains='"unheard"')) == 1
    west.send(3, 13, {"text": "heard anew"})
    kill(messaging.log_actor)
    assert [row["payload"]["text"] for row in control(messaging, "get_log_list")] == ["heard anew"]


def test_the_tail_shows_each_message_at_once(logged):
    messaging, west, _ = logged
    tail = messaging.log.tail(timeout_s=PATIENCE_S, from_id=4)
    for n in range(20):
        receipt = west.send(4, 14, {"n": n})
        row = next(tail)
        assert (row.message_id, row.payload, row.fate) == (receipt.message_id, {"n": n}, "delivered")


# -- existing logs ------------------------------------------------------------------------------------------------


def run_once(exp_id, redis_config, log_dir, n, **options):
    with Messaging.start(exp_id, redis=redis_config, log_dir=log_dir, **options) as messaging:
        group = messaging.create_group("all", [1, 2])
        assert group.send(1, 2, {"n": n})
        return messaging.log.query().num_rows


def test_an_existing_log_needs_on_existing(ray_cluster, redis_config, client, tmp_path, exp_id):
    log_dir = tmp_path / "log"
    assert run_once(exp_id, redis_config, log_dir, 0) == 1
    with pytest.raises(AlreadyExists, match="has data on the server"):
        run_once(exp_id, redis_config, log_dir, 1)
    assert run_once(exp_id, redis_config, log_dir, 1, on_existing="resume") == 2
    found = EventLog.open(log_dir).query()["payload"].to_pylist()
    assert [json.loads(payload)["n"] for payload in found] == [0, 1]
    assert run_once(exp_id, redis_config, log_dir, 2, on_existing="reset") == 1
    assert EventLog.open(log_dir).query().num_rows == 1
    # The server has forgotten the experiment, the folder has not.
    client.delete(*client.scan_iter(f"*{exp_id}*"))
    with pytest.raises(AlreadyExists, match="contains the log of an earlier run") as caught:
        run_once(exp_id, redis_config, log_dir, 3)
    assert caught.value.kind == "log"
    assert str(log_dir) in str(caught.value)
    assert EventLog.open(log_dir).query().num_rows == 1
    assert list(client.scan_iter(f"*{exp_id}*")) == []  # so that another log_dir will do


@pytest.mark.parametrize("how", ["read-only", "no such scheme"])
def test_an_unwritable_folder_stops_the_start(ray_cluster, redis_config, client, tmp_path, how, exp_id):
    log_dir = {"read-only": "/proc/log", "no such scheme": "x3://log"}
    with pytest.raises(LogError, match=r"log_dir|write a path") as caught:
        Messaging.start(exp_id, redis=redis_config, log_dir=log_dir[how])
    assert caught.value.path == str(log_dir[how])
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)
    assert list(client.scan_iter(f"*{exp_id}*")) == []
    if how == "read-only":  # a second attempt can succeed
        assert run_once(exp_id, redis_config, tmp_path / "log", 0) == 1


def test_a_run_without_a_log_does_not_wait_for_a_dead_runs_log(ray_cluster, redis_config, tmp_path, exp_id):
    settings = MessagingConfig(mailbox_messages=50, send_timeout_s=PATIENCE_S)

    @ray.remote(num_cpus=0, max_retries=0)
    def die(redis_config, log_dir):
        messaging = Messaging.start(exp_id, redis=redis_config, log_dir=log_dir, settings=settings)
        group = messaging.create_group("all", [1, 2])
        group.send_columns([1] * 40, [2] * 40, {})
        (Path(log_dir) / "_ready").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(die.remote(redis_config, str(tmp_path)), timeout=PATIENCE_S)
    assert (tmp_path / "_ready").exists()
    wait_for(lambda: gone(exp_id), "the end of the first run's actors")
    with Messaging.start(exp_id, redis=redis_config, on_existing="resume", settings=settings) as messaging:
        with pytest.raises(ConfigError, match="log_dir"):
            messaging.log  # noqa: B018 - it raises
        group = messaging.create_group("other", [3, 4])
        for low in range(0, 200, 40):
            assert fates(group.send_columns([3] * 40, [4] * 40, numbered(40, low))) == ["delivered"] * 40
            with group.fetch_messages(timeout=60) as messages:
                assert numbers(messages) == list(range(low, low + 40))


def gone(exp_id):
    for name in ("interceptor", "log", "group/all"):
        try:
            ray.get_actor(f"{exp_id}/{name}", namespace="ray_messaging")
        except ValueError:
            continue
        return False
    return True
