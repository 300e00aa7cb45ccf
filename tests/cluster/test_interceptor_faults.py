"""The interceptor dies, is stopped, or has a successor: its state survives, and nothing passes unfiltered."""

import asyncio
import time
import uuid

import pytest
import ray
from support.cluster import (
    PATIENCE_S,
    Busy,
    Careful,
    FalseServer,
    Hangs,
    Shouting,
    alive,
    control,
    drain,
    fates,
    kill,
    kill_and_wait,
    new_handle,
    numbered,
    numbers,
    pid_of,
    stopped,
    wait_for,
)

from ray_messaging import Messaging, rules
from ray_messaging.cluster.actors.interceptor_host import InterceptorHost
from ray_messaging.cluster.spec import InterceptorSpec
from ray_messaging.errors import Closed, Fenced, InterceptorUnavailable, MessagingError

pytestmark = pytest.mark.long


# -- what is there after kill -9 ----------------------------------------------------------------------------------


def test_counts_and_changes_survive_the_interceptor(town):
    bad = rules.Pattern(words=["bad"], name="words")
    messaging, west, east = town(
        rules.BlackList([(9, 19)]),
        rules.SenderBan(bad, after=2),
        rules.EdgeBan(rules.MaxLength(60, name="long"), after=2),
        rules.RateLimit(per_round=5),
        rules.RoundQuota(contacts=2),
    )

    class Whisper(rules.Rule):
        """A rule that turns texts to lower case; its class exists in this test only."""

        needs_payload = True

        def check(self, message):
            return rules.rewrite({"text": message.payload["text"].lower()}, "whispered")

    control(messaging, "insert_rule", Shouting(), 1)
    control(messaging, "insert_rule", Whisper())
    control(messaging, "add_to_black_set", [(8, None)])
    control(messaging, "remove_from_black_set", [(9, 19)])
    fine, rude, long = {"text": "Hello"}, {"text": "bad"}, {"text": "x" * 70}
    assert fates(west.send_columns([1] * 4, [11, 12, 11, 13], fine)) == ["delivered"] * 3 + ["blocked"]
    assert [r.rule for r in west.send_columns([2] * 3, [11] * 3, [rude, rude, fine])] == ["sender_ban"] * 3
    assert [r.rule for r in west.send_columns([3] * 3, [11] * 3, [long, long, fine])] == ["edge_ban"] * 3
    counts = {1: 1, 2: 3, 3: 3}
    assert control(messaging, "violation_counts") == counts
    listed = control(messaging, "rules")
    assert [rule["name"] for rule in listed] == [
        "black_list", "shouting", "sender_ban", "edge_ban", "rate_limit", "round_quota", "whisper",
    ]  # fmt: skip
    epoch = messaging.stats()["epoch"]
    for _ in range(2):
        kill(messaging.interceptor)
        assert control(messaging, "rules") == listed
        before, epoch = epoch, messaging.stats()["epoch"]
        assert epoch > before
        assert control(messaging, "violation_counts") == counts
        assert control(messaging, "black_set") == {(8, None)}
    receipts = west.send_columns([8, 9, 4, 2, 3, 3, 1, 1], [12, 19, 11, 12, 11, 12, 12, 12], {"text": "Hello"})
    assert [r.rule for r in receipts] == [
        "black_list", None, None, "sender_ban", "edge_ban", None, None, "rate_limit",
    ]  # fmt: skip
    assert west.send(4, 12, {"text": "HEY"}).rule == "shouting"
    control(messaging, "new_round")
    kill(messaging.interceptor)
    assert fates(west.send_columns([1] * 3, [13, 14, 15], fine)) == ["delivered", "delivered", "blocked"]
    assert west.send(2, 11, fine).rule == "sender_ban"  # bans outlive rounds
    found = drain(east, 9)
    assert {message.payload["text"] for message in found} == {"hello"}
    assert {message.labels for message in found} == {("whispered",)}


def test_a_change_repeated_by_ray_happens_once(town, tmp_path):
    messaging, _, _ = town(rules.MaxLength(50), Careful(tmp_path / "popped"), Careful(tmp_path / "replaced", "second"))
    before = pid_of(messaging.interceptor)
    # When it is removed, the rule ends the process before the answer.
    assert control(messaging, "pop_rule", 1)["name"] == "careful"
    assert [rule["name"] for rule in control(messaging, "rules")] == ["max_length", "second"]
    control(messaging, "replace_rule", -1, rules.MaxLength(70, name="last"))
    assert [rule["name"] for rule in control(messaging, "rules")] == ["max_length", "last"]
    assert control(messaging, "pop_rule")["name"] == "last"
    assert pid_of(messaging.interceptor) != before
    assert (tmp_path / "popped").exists()
    assert (tmp_path / "replaced").exists()


def test_rules_outlast_a_server_that_is_away_when_the_interceptor_comes_back(ray_cluster, redis_process):
    exp_id = f"faults-{uuid.uuid4().hex[:8]}"
    with Messaging.start(exp_id, redis=redis_process.config) as messaging:
        control(messaging, "insert_rule", Shouting())
        control(messaging, "add_to_black_set", (1, 2))
        listed = control(messaging, "rules")
        redis_process.kill()
        false_server = FalseServer(redis_process.config.port)
        kill(messaging.interceptor)
        # A second attempt: the first one has failed.
        attempt = wait_for(lambda: false_server.accepted, "the first attempt")
        wait_for(lambda: false_server.accepted > attempt + 1, "another attempt")
        false_server.close()
        redis_process.start()
        assert control(messaging, "rules") == listed
        assert control(messaging, "black_set") == {(1, 2)}


# -- under load ---------------------------------------------------------------------------------------------------


class Chatter(Busy):
    """Send batches with some texts in capitals; record each message's fate."""

    def __init__(self, group, pair):
        super().__init__()
        self.group, self.pair, self.fates = group, pair, []

    def work(self):
        handle, (from_id, to_id) = new_handle(self.group), self.pair
        while not self.enough.is_set():
            n = len(self.fates)
            batch = [{"n": n + k, "text": "HEY" if k % 3 == 0 else "hey"} for k in range(10)]
            self.fates += fates(handle.send_columns([from_id] * 10, [to_id] * 10, batch))


def test_each_batch_counts_once_over_interceptor_deaths(town):
    messaging, west, east = town(rules.RateLimit(per_round=10**9), Shouting())
    chatters = [Chatter(west, (n, 10 + n)) for n in range(3)]
    for chatter in chatters:
        chatter.start()
    try:
        for _ in range(3):
            seen = [len(chatter.fates) for chatter in chatters]
            wait_for(
                lambda seen=seen: all(len(c.fates) > n + 100 for c, n in zip(chatters, seen, strict=True)), "receipts"
            )
            kill(messaging.interceptor)
    finally:
        for chatter in chatters:
            chatter.enough.set()
    for chatter in chatters:
        chatter.stop()
    assert west.stats()["interceptor"] == "lane"  # again, and not by Ray calls
    blocked = {chatter.pair[0]: chatter.fates.count("blocked") for chatter in chatters}
    assert control(messaging, "violation_counts") == blocked
    found = drain(east, sum(chatter.fates.count("delivered") for chatter in chatters))
    for chatter in chatters:
        mine = numbers(message for message in found if message.from_id == chatter.pair[0])
        assert mine == [n for n, fate in enumerate(chatter.fates) if fate == "delivered"]
        assert all((fate == "blocked") == (n % 10 % 3 == 0) for n, fate in enumerate(chatter.fates))
    # The round's counts hold every message that was judged, once.
    control(messaging, "replace_rule", "rate_limit", rules.RateLimit(per_round=1))
    assert [r.rule for r in west.send_columns([0] * 2, [10] * 2, {})] == [None, "rate_limit"]


# -- an old interceptor beside its successor ----------------------------------------------------------------------


async def test_an_interceptor_with_a_successor_passes_nothing(start):
    messaging, west, east = start(rules.BlackList([(1, 11)]), interceptor_timeout_s=2)
    await asyncio.to_thread(west.send, 2, 11, {"n": 0})
    experiment = messaging._connection.experiment
    spec = InterceptorSpec(experiment.exp_id, experiment.run, experiment.settings, rules=(), on_existing="error")
    successor = InterceptorHost(spec, experiment.redis)
    with stopped(await asyncio.to_thread(pid_of, messaging.interceptor)):
        waiting = asyncio.create_task(asyncio.to_thread(west.send, 2, 11, {"n": 1}))
        await successor.start("127.0.0.1")
        assert [rule.name for rule in successor.interceptor.rules] == ["black_list"]
    try:
        with pytest.raises(InterceptorUnavailable):
            await waiting
        with pytest.raises(InterceptorUnavailable) as caught:
            await asyncio.to_thread(west.send_columns, [2, 1], [11, 11], numbered(2, 2))
        receipts = caught.value.receipts
        assert [receipt and receipt.fate for receipt in receipts] in ([None, None], [None, "blocked"])
        with pytest.raises(Fenced):
            await asyncio.to_thread(control, messaging, "add_to_black_set", (3, 13))
        with pytest.raises(MessagingError):
            await asyncio.to_thread(control, messaging, "insert_rule", Shouting())
        assert await successor.transport.link.command("HLEN", successor.transport.keys.table("black_list")) == 1
    finally:
        await successor.abandon()
    await asyncio.to_thread(kill_and_wait, messaging.interceptor)
    assert control(messaging, "black_set") == {(1, 11)}
    assert [rule["name"] for rule in control(messaging, "rules")] == ["black_list"]
    receipts = await asyncio.to_thread(west.send_columns, [2, 1], [11, 11], numbered(2, 4))
    assert fates(receipts) == ["delivered", "blocked"]
    assert numbers(await asyncio.to_thread(drain, east, 2)) == [0, 4]


# -- no working interceptor ---------------------------------------------------------------------------------------


def test_nothing_passes_while_the_interceptor_is_stopped(start):
    messaging, west, east = start(rules.BlackList([(1, 11)]), interceptor_timeout_s=1.5)
    assert west.send(2, 11, {"n": 0})
    with stopped(pid_of(messaging.interceptor)):
        began = time.monotonic()
        with pytest.raises(InterceptorUnavailable, match=r"within 1\.5 s") as caught:
            west.send_columns([2, 1], [11, 11], numbered(2, 1))
        assert 1.5 <= time.monotonic() - began < 1.5 + PATIENCE_S / 2
        assert len(caught.value.message_ids) == 2
        assert len(east.fetch_messages(limit=1, timeout=60)) == 1
        assert len(east.fetch_messages()) == 0
    assert fates(west.send_columns([2, 1], [11, 11], numbered(2, 3))) == ["delivered", "blocked"]
    assert numbers(drain(east, 1)) == [3]
    pid = pid_of(messaging.interceptor)
    ray.kill(messaging.interceptor)  # for good
    wait_for(lambda: not alive(pid), "its end")
    with pytest.raises(Closed, match="has ended"):
        west.send(2, 11, {"n": 5})
    assert len(east.fetch_messages()) == 0


def test_a_hanging_rule_delays_others_only_for_its_timeout(start, tmp_path):
    messaging, west, east = start(Hangs(tmp_path / "hung"), rule_timeout_s=0.6)
    before = pid_of(messaging.interceptor)
    receipt = west.send(1, 11, {"hang": "python"})
    assert (receipt.fate, receipt.rule) == ("blocked", "hangs")
    assert "interrupted" in receipt.reason
    assert west.send(2, 11, {"n": 1})
    assert pid_of(messaging.interceptor) == before
    # An uninterruptible rule ends the process; the next one judges the message.
    others = Chatter(east, (12, 3))
    others.start()
    try:
        assert west.send(1, 11, {"hang": "sleep", "n": 2})
        assert (tmp_path / "hung").exists()
        seen = len(others.fates)
        wait_for(lambda: len(others.fates) > seen, "a message of somebody else")
    finally:
        others.enough.set()
    others.stop()
    assert set(others.fates) == {"delivered"}
    assert pid_of(messaging.interceptor) != before
    assert control(messaging, "violation_counts") == {1: 1}
    assert numbers(drain(east, 2)) == [1, 2]
    assert numbers(drain(west, len(others.fates))) == list(range(len(others.fates)))
