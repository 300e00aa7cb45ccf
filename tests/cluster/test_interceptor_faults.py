"""The interceptor dies or is stopped: its state survives, and nothing passes unfiltered."""

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
from support.cluster import (
    PATIENCE_S,
    Careful,
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

from ray_messaging import rules
from ray_messaging.errors import Closed, InterceptorUnavailable

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]


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
        """A rule that turns texts to lower case, and counts them in a table; its class exists in this test only."""

        needs_payload = True

        def __init__(self):
            self.state = rules.Table()

        def check(self, message):
            self.state[message.from_id] = said = self.state.get(message.from_id, 0) + 1
            return rules.rewrite({"text": message.payload["text"].lower(), "said": said}, "whispered")

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
    said = sorted((message.from_id, message.payload["said"]) for message in found)
    assert said == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (3, 1), (4, 1), (9, 1)]  # the table, too


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


class Slow:
    """A rule that notes each message with `slow` in a file, and waits for another one; others pass at once."""

    def __init__(self, folder):
        self.asked, self.go = folder / "asked", folder / "go"

    async def __call__(self, message):
        if "slow" in message.payload:
            with self.asked.open("a") as file:
                file.write(f"{message.payload['n']}\n")
            while not self.go.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.02)
        return True


def test_deferred_messages_survive_the_interceptor(town, tmp_path):
    slow = Slow(tmp_path)
    slow.asked.touch()
    messaging, west, east = town(rules.Moderator(slow, concurrency=1000, cache=0, timeout_s=100))
    payloads = [payload | {"slow": 1} for payload in numbered(100)]
    asked = lambda: slow.asked.read_text().split()  # noqa: E731
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(west.send_columns, [1] * 100, [11] * 100, payloads)
        wait_for(lambda: len(asked()) >= 100, "the questions")
        other = new_handle(west)
        assert fates(other.send_columns([2] * 3, [11] * 3, numbered(3, 1000))) == ["delivered"] * 3
        kill_and_wait(messaging.interceptor)
        wait_for(lambda: len(asked()) >= 200, "the questions of the successor")
        assert fates(other.send_columns([2] * 3, [12] * 3, numbered(3, 2000))) == ["delivered"] * 3
        assert numbers(east.fetch_messages(timeout=60)) == [1000, 1001, 1002, 2000, 2001, 2002]
        assert messaging.stats()["deferred"] == 100
        assert not waiting.done()
        slow.go.touch()
        assert waiting.result().counts()["delivered"] == 100
    assert numbers(drain(east, 100)) == list(range(100))
    assert Counter(map(int, asked())) == dict.fromkeys(range(100), 2)


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
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(west.send, 1, 11, {"hang": "sleep", "n": 2})
        wait_for((tmp_path / "hung").exists, "the hang")
        assert east.send(12, 3, {"n": 0})
        assert hanging.result()
    assert pid_of(messaging.interceptor) != before
    assert control(messaging, "violation_counts") == {1: 1}
    assert numbers(drain(east, 2)) == [1, 2]
    assert numbers(drain(west, 1)) == [0]
