"""State that lasts by design: names of closed messagers, entries of rules; it is shown, and can be removed."""

import pytest
import ray

from ray_messaging import Messager, Messaging, rules
from ray_messaging.errors import ConfigError
from ray_messaging.observability.health import mailbox_checks as mailboxes

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def messaging(exp_id):
    with Messaging.start(exp_id, rules=[rules.RoundQuota(contacts=10), rules.BlackList([(1, 2)])]) as messaging:
        yield messaging


def open_messager(messaging, name):
    return Messager(messaging.redis, messaging.exp_id, messaging.interceptor, name=name)


async def visit(messaging, name):
    async with open_messager(messaging, name) as messager:
        await messager.subscribe_and_start_listening([f"at-{name}"])
        await messager.send_message(f"at-{name}", {"n": 1}, from_id=1)
        await messager.fetch_messages(timeout=60)


@pytest.mark.long
async def test_closed_messagers_are_named_and_removed_one_by_one(messaging):
    messaging.create_group("town", [1, 2])
    await visit(messaging, "ann")
    await visit(messaging, "bob")
    await visit(messaging, None)
    async with open_messager(messaging, "eve") as eve:
        await eve.subscribe_and_start_listening(["at-eve"])
        assert sorted(messaging.closed_messagers()) == ["ann", "bob"]
        messaging.remove_messager("ann")
        assert messaging.closed_messagers() == ["bob"]
        assert set(messaging.stats()["waiting"]) == {"bob", "eve", "town"}
    assert sorted(messaging.closed_messagers()) == ["bob", "eve"]
    await visit(messaging, "ann")  # the name is free
    with pytest.raises(ConfigError, match="remove_group"):
        messaging.remove_messager("town")


@pytest.mark.long
async def test_many_closed_names_cause_a_finding_with_a_working_remedy(messaging, monkeypatch):
    monkeypatch.setattr(mailboxes, "MANY_NAMES", 20)
    async with open_messager(messaging, "clerk") as clerk:
        transport = clerk.engine.transport
        for number in range(20):
            messager = open_messager(messaging, f"guest-{number}")
            await messager.init()
            await messager.subscribe_and_start_listening([f"at-{number}"])
            await messager.close()
        [finding] = messaging.health().of("kept names")
        assert finding.level == "warning"
        assert "the mailboxes of 20 closed messagers" in finding.value
        exec(finding.remedy.split("`")[1], {"messaging": messaging})
        [finding] = messaging.health().of("kept names")
        assert finding.level == "ok"
        keys = await transport.link.command("KEYS", transport.keys.prefix + "*")
        assert [key for key in keys if b"guest-" in key] == []


@pytest.mark.long
def test_kept_rule_entries_are_shown_and_a_new_round_clears_them(messaging):
    group = messaging.create_group("town", range(20))
    group.send_columns([1] * 8, list(range(2, 10)), [{}] * 8)
    kept = messaging.stats()["kept"]
    assert kept["round_quota"] == 8  # it comes before the black list
    assert kept["black_list"] == 1
    assert kept[":violations"] == 1
    [finding] = messaging.health().of("interceptor: kept by rules")
    assert finding.level == "ok"
    assert "round_quota 8" in finding.value
    ray.get(messaging.interceptor.new_round.remote())
    assert messaging.stats()["kept"]["round_quota"] == 0
