"""The event log of a running experiment, from its start to its folder."""

import asyncio
import json
import os
import signal
import time
import uuid
import warnings
from collections import Counter
from pathlib import Path

import pytest
import ray
import redis
from support.cluster import PATIENCE_S, control, fates, numbered, numbers, wait_for

from ray_messaging import Messager, Messaging, MessagingConfig, rules
from ray_messaging.errors import AlreadyExists, ConfigError, LogError, UnknownName
from ray_messaging.eventlog.event_log import EventLog

pytestmark = pytest.mark.long


def new_id():
    return f"log-{uuid.uuid4().hex[:8]}"


def rows(log, **fields):
    return log.query(**fields).to_pylist()


# -- logged rows --------------------------------------------------------------------------------------------------


async def test_every_fate_is_logged(ray_cluster, tmp_path):
    """The log agrees with the receipts: at once, and in the folder afterwards."""

    class Soften(rules.Rule):
        needs_payload = True

        def check(self, message):
            text = message.payload.get("text", "")
            if text == "odd":
                return rules.label("odd", "strange")
            return rules.rewrite({"text": text.lower()}, "softened") if text.isupper() else rules.ALLOW

    messaging = Messaging.start(new_id(), rules=[rules.BlackList([(1, 11)]), Soften()], log_dir=tmp_path / "a" / "log")
    with messaging:
        west, east = messaging.create_group("west", range(10)), messaging.create_group("east", [*range(10, 20), "ann"])
        west.step = 7
        receipts = [
            *west.send_columns([1, 2, 3, 4], [11, 11, 12, 13], [{"text": t} for t in ("a", "b", "LOUD", "odd")])
        ]
        receipts += [west.send(5, "ann", {"text": "é"}), west.send(5, 99, {"text": "nobody"})]
        receipts += [east.send(None, 3, {"text": "user"}, subtopic="user-chat")]
        receipts += await with_messagers(messaging)
        expected = {receipt.message_id: receipt.fate for receipt in receipts}
        log = messaging.log
        found = rows(log)
        check_fates(found, expected)
        live = log.query().to_pylist()
        assert log.balance().sends == len(expected)
        assert {row["count"] for row in log.count(by=["fate", "rule"], fate="blocked").to_pylist()} == {1}
        assert [row["to_id"] for row in log.edges(from_id=2).to_pylist()] == [11]
        assert len(found) == messaging.stats()["log"]["rows"]
    done = EventLog.open(tmp_path / "a" / "log")
    assert done.query().to_pylist() == live
    assert done.balance().fates == dict(Counter(expected.values()))
    with warnings.catch_warnings(action="ignore"):  # Ray 2.60 Data warns of settings that it makes itself
        table = ray.data.read_parquet(str(tmp_path / "a" / "log")).to_pandas()
    assert sorted(table["message_id"]) == sorted(row["message_id"] for row in live)
    assert {"from_id", "to_id", "payload", "fate", "rule", "sent_at", "mailbox", "labels"} <= set(table.columns)


async def with_messagers(messaging):
    """Send to two listeners of one channel, to a foreign one, and to a closed one without a name."""
    config, exp_id = messaging.redis, messaging.exp_id
    async with (
        Messager(config, exp_id, messaging.interceptor, name="desk") as desk,
        Messager(config, exp_id, messaging.interceptor, name="archive") as archive,
    ):
        payback = desk.get_user_payback_channel()
        await desk.subscribe_and_start_listening([payback])
        await archive.subscribe_and_start_listening([payback])
        receipts = [await desk.send_message(payback, {"text": "twice"}, from_id=6)]
        async with Messager(config, exp_id, messaging.interceptor) as fleeting:
            await fleeting.subscribe_and_start_listening([f"exps:{exp_id}:news"])
            receipts.append(await archive.send_message(f"exps:{exp_id}:news", {"text": "fleeting"}))
        with redis.Redis(config.server, config.port, password=config.password) as foreign:
            listener = foreign.pubsub()
            await asyncio.to_thread(listener.subscribe, "the wide world")
            await asyncio.to_thread(wait_for, lambda: listener.get_message(timeout=1))
            receipts.append(await desk.send_message("the wide world", {"text": "hear"}, from_id=6))
            await asyncio.to_thread(listener.close)
    return receipts


def check_fates(found, expected):
    assert {row["message_id"]: row["fate"] for row in found} == expected
    assert Counter(expected.values()) == {"delivered": 7, "blocked": 1, "undeliverable": 1, "published": 1}
    by_text = {}
    for row in found:
        by_text.setdefault(json.loads(row["payload"])["text"], []).append(row)
    assert {text: len(rows) for text, rows in by_text.items() if len(rows) != 1} == {"twice": 2}
    assert {row["mailbox"] for row in by_text["twice"]} == {"desk", "archive"}
    blocked, loud, odd, ann = by_text["a"][0], by_text["loud"][0], by_text["odd"][0], by_text["é"][0]
    assert (blocked["rule"], blocked["reason"]) == ("black_list", "agent 1 may not write to agent 11")
    assert (blocked["mailbox"], blocked["delivered_at"]) == (None, None)
    assert (json.loads(loud["payload_before"]), loud["labels"], loud["rule"]) == (
        {"text": "LOUD"}, ["softened"], "soften",
    )  # fmt: skip
    assert (set(odd["labels"]), odd["payload_before"]) == ({"odd", "strange"}, None)
    assert (ann["from_id"], ann["to_id"], ann["step"], ann["sender"], ann["mailbox"]) == ("5", "ann", 7, "west", "east")
    user = by_text["user"][0]
    assert (user["from_id"], user["to_id"], user["subtopic"], user["step"]) == (None, "3", "user-chat", None)
    assert by_text["hear"][0]["channel"] == "the wide world"
    assert all(row["delivered_at"] >= row["sent_at"] for row in found if row["mailbox"])


def test_a_recreated_group_is_logged_under_its_name(logged):
    messaging, west, _ = logged
    for run in range(2):
        group = messaging.create_group("again", [50])
        west.send_columns([1] * 3, [50] * 3, numbered(3, 10 * run))
        assert numbers(group.fetch_messages(limit=2, timeout=60)) == [10 * run, 10 * run + 1]
        messaging.remove_group("again")
    found = messaging.log.query(to_id=50)
    assert sorted(json.loads(payload)["n"] for payload in found["payload"].to_pylist()) == [0, 1, 2, 10, 11, 12]
    assert set(found["mailbox"].to_pylist()) == {"again"}
    assert messaging.log.balance()


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


async def test_the_log_says_which_message_a_handler_had_when_it_sent_others(logged):
    messaging, west, east = logged
    friends = messaging.create_audience(f"friends-{uuid.uuid4().hex[:8]}", graph=[(13, 2), (13, 15)])
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

    serving = asyncio.create_task(east.aio.serve(act))
    first = await west.aio.send(1, 12, {"text": "act"})
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
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
    assert control(messaging, "get_log_list") == []


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


def test_an_existing_log_needs_on_existing(ray_cluster, redis_config, client, tmp_path):
    exp_id, log_dir = new_id(), tmp_path / "log"
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
    with pytest.raises(AlreadyExists, match="holds the log of an earlier run") as caught:
        run_once(exp_id, redis_config, log_dir, 3)
    assert caught.value.kind == "log"
    assert str(log_dir) in str(caught.value)
    assert EventLog.open(log_dir).query().num_rows == 1
    assert list(client.scan_iter(f"*{exp_id}*")) == []  # so that another log_dir will do


@pytest.mark.parametrize("how", ["read-only", "no such scheme"])
def test_an_unwritable_folder_stops_the_start(ray_cluster, redis_config, client, tmp_path, how):
    exp_id = new_id()
    log_dir = {"read-only": "/proc/log", "no such scheme": "x3://log"}
    with pytest.raises(LogError, match=r"log_dir|write a path") as caught:
        Messaging.start(exp_id, redis=redis_config, log_dir=log_dir[how])
    assert caught.value.path == str(log_dir[how])
    with pytest.raises(UnknownName):
        Messaging.connect(exp_id)
    assert list(client.scan_iter(f"*{exp_id}*")) == []
    if how == "read-only":  # a second attempt can succeed
        assert run_once(exp_id, redis_config, tmp_path / "log", 0) == 1


def test_a_run_without_a_log_does_not_wait_for_a_dead_runs_log(ray_cluster, redis_config, tmp_path):
    exp_id, settings = new_id(), MessagingConfig(mailbox_messages=50, send_timeout_s=PATIENCE_S)

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
