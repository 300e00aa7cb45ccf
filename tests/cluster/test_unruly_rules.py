"""Rules that raise or hang in their callbacks: at removal, at a new round, at the end."""

import asyncio
import uuid

import pytest
import ray
import redis
from support.cluster import control

from ray_messaging import Messaging, rules
from ray_messaging.errors import RuleError


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
    with pytest.raises(RuleError, match="not for 'odd'"):
        control(messaging, "new_round")
    assert west.send(1, 11, {})


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.long
def test_unruly_rules_do_not_prevent_the_erasure_of_an_experiment(redis_config):
    exp_id = f"unruly-{uuid.uuid4().hex[:8]}"
    listed = [unruly("odd"), unruly("hangs", hangs=True), rules.RateLimit(per_round=5)]
    with Messaging.start(exp_id, redis=redis_config, rules=listed) as messaging:
        messaging.create_group("all", [1, 2]).send(1, 2, {"n": 1})
        ray.get(messaging.interceptor.pop_rule.remote("odd"))
        messaging.shutdown(erase=True)
    with redis.Redis(redis_config.server, redis_config.port, password=redis_config.password) as client:
        assert list(client.scan_iter(f"rm:{{{exp_id}}}*")) == []
