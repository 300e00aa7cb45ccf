"""Rules that fail: they show in `rules()`, stats(), health() and the doctor, and prevent no round and no end."""

import asyncio

import pytest
import ray
import redis
from support.cluster import control
from typer.testing import CliRunner

from ray_messaging import Messaging, rules
from ray_messaging.cli import app
from ray_messaging.errors import RuleError


def odd(name="odd", on_error="block"):
    """Make a rule that fails on marked messages; its class is pickled by value."""

    class Odd(rules.Rule):
        needs_payload = True

        def check(self, message):
            return rules.block("no") if message.payload["n"] else rules.ALLOW

    rule = Odd()
    rule.name, rule.on_error = name, on_error
    return rule


def late():
    class Late(rules.SlowRule):
        name = "late"
        time_limit_s = 0.01

        async def judge(self, message):
            await asyncio.Event().wait()

    return Late()


def findings(messaging, rule="odd"):
    return messaging.health().of(f"interceptor: rule {rule!r}")


def listed(messaging):
    return {rule["name"]: rule for rule in control(messaging, "rules")}


def test_the_first_failure_is_critical_everywhere(town):
    messaging, west, _ = town(rules.MaxLength(100), odd())
    assert west.send(1, 11, {"n": 0})
    assert (findings(messaging), messaging.stats()["rule_failures"]) == ([], {})
    assert "failures" not in listed(messaging)["odd"]

    assert west.send(1, 11, {"m": 0}).reason == "the rule failed: KeyError: 'n'"
    (finding,) = findings(messaging)
    assert finding.level == messaging.health().level == "critical"
    assert finding.value == "has failed 1 time; a message on which it fails is blocked; the last error: KeyError: 'n'"
    assert "messaging.rules.replace('odd', ...)" in finding.remedy
    told = messaging.stats()["rule_failures"]["odd"]
    assert (told["failures"], told["last_error"], told["on_error"]) == (1, "KeyError: 'n'", "block")
    assert listed(messaging)["odd"].items() >= told.items()
    assert told["errors"][0]["error"] == "KeyError: 'n'"
    assert "failures" not in listed(messaging)["max_length"]
    doctor = CliRunner().invoke(app, ["doctor", messaging.exp_id])
    assert doctor.exit_code == 1
    assert "interceptor: rule 'odd'" in doctor.output


def test_unchecked_messages_and_timeouts_are_reported(town):
    messaging, west, _ = town(odd(on_error="allow"), late())
    receipts = west.send_columns([1, 2, 3], [11, 12, 13], [{"m": 0}] * 3)
    assert {receipt.reason for receipt in receipts} == {"the rule failed: TimeoutError: no verdict within 0.01 s"}
    told = messaging.stats()["rule_failures"]
    assert {name: found["failures"] for name, found in told.items()} == {"odd": 3, "late": 3}
    assert "a message on which it fails passes unjudged" in findings(messaging)[0].value
    assert "TimeoutError: no verdict" in findings(messaging, "late")[0].value


def test_the_finding_ends_with_a_reset(town):
    messaging, west, _ = town(odd())
    assert west.send(1, 11, {"m": 0}).rule == "odd"
    assert findings(messaging)
    with pytest.raises(RuleError, match="there is no rule 'even'"):
        control(messaging, "reset_rule_failures", "even")
    control(messaging, "reset_rule_failures", "odd")
    assert (findings(messaging), messaging.stats()["rule_failures"]) == ([], {})
    assert west.send(1, 11, {"m": 0}).rule == "odd"
    assert findings(messaging)


# -- rules that raise or hang in their callbacks --------------------------------------------------------------------


def unruly(name, *, hangs=False):
    """Make a rule of a class that is pickled by value."""

    class Unruly(rules.Rule):
        def check_batch(self, batch, exp_id):
            return {}

        def new_round(self):
            raise KeyError("no round")

        async def close(self):
            if hangs:
                await asyncio.Event().wait()
            raise KeyError("no end")

    rule = Unruly()
    rule.name = name
    return rule


def test_a_new_round_begins_for_other_rules_and_raises(town):
    messaging, west, _ = town(unruly("odd"), rules.RateLimit(per_round=1))
    assert west.send(1, 11, {})
    assert west.send(1, 11, {}).rule == "rate_limit"
    with pytest.raises(RuleError, match="failed in the rules 'odd'"):
        control(messaging, "new_round")
    assert west.send(1, 11, {})


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.long
def test_unruly_rules_do_not_prevent_the_erasure_of_an_experiment(redis_config, exp_id):
    listed = [unruly("odd"), unruly("hangs", hangs=True), rules.RateLimit(per_round=5)]
    with Messaging.start(exp_id, redis=redis_config, rules=listed) as messaging:
        messaging.create_group("all", [1, 2]).send(1, 2, {"n": 1})
        ray.get(messaging.interceptor.pop_rule.remote("odd"))
        messaging.shutdown(erase=True)
    with redis.Redis(redis_config.server, redis_config.port, password=redis_config.password) as client:
        assert list(client.scan_iter(f"rm:{{{exp_id}}}*")) == []
