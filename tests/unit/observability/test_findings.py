"""Health checks as functions of facts: each finding, its level and its remedy, without I/O."""

import json
import pickle

import pytest

from ray_messaging.cluster.actors.log_actor import log_report
from ray_messaging.common.task_health import STUCK_S, TaskHealth
from ray_messaging.observability.health.actor_checks import MANY_ENTRIES, check_actor, check_actors, check_disk
from ray_messaging.observability.health.findings import (
    SERVER_ACTOR,
    ActorFacts,
    Disk,
    Finding,
    Health,
    Report,
    critical,
    ok,
    warning,
)
from ray_messaging.observability.health.mailbox_checks import MANY_NAMES, SHOWN, check_kept
from ray_messaging.observability.health.redis_checks import check_clock, check_server
from ray_messaging.transports.server_facts import Kept, Mailbox, ServerFacts

GIB = 2**30
WELL = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "role": "master",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok",
    "maxmemory": str(GIB),
    "used_memory": str(GIB // 10),
    "maxmemory_policy": "noeviction",
    "connected_clients": "10",
    "maxclients": "10000",
    "evicted_keys": "0",
}


def server(settings=None, options=None, **info):
    facts = ServerFacts("host:1", info=WELL | info, settings=settings or {"appendfsync": "everysec"})
    return check_server(facts, **options or {})


NEARLY_FULL = {"maxmemory": "0", "used_memory": str(9 * GIB), "total_system_memory": str(10 * GIB)}


def problems(findings):
    return [(finding.level, finding.what) for finding in findings if finding.level != "ok"]


@pytest.mark.parametrize(
    ("states", "level"), [(["online"] * 2, "ok"), (["online", "send_bulk"], "critical"), ([], "critical")]
)
def test_replicas_that_are_waited_for_must_be_there(states, level):
    replicas = {f"slave{n}": f"ip=1.2.3.4,port=1,state={state},offset=7,lag=0" for n, state in enumerate(states)}
    facts = ServerFacts("host:1", info=WELL | replicas | {"slave_read_only": "1"})
    found = [finding for finding in check_server(facts, wait_replicas=2) if finding.what == "server replicas"]
    assert [finding.level for finding in found] == [level]
    assert level == "ok" or "start the missing replicas" in found[0].remedy
    assert not [finding for finding in check_server(facts) if finding.what == "server replicas"]


def test_a_healthy_server_has_no_findings():
    assert Finding("ok", "server", "Valkey 9.1.2 at host:1") in server()
    assert problems(server()) == problems(server(maxmemory="0", total_system_memory=str(10 * GIB))) == []
    assert problems(server({"appendfsync": "no"}, {"embedded": True})) == []  # it may leave the disk to the system


@pytest.mark.parametrize(
    ("info", "settings", "level", "what", "remedy"),
    [
        ({"redis_version": "6.2.1"}, None, "critical", "server", "install"),
        ({"role": "slave", "master_host": "h", "master_port": "7"}, None, "critical", "server role", "h:7"),
        ({"cluster_enabled": "1"}, None, "warning", "server role", "redis+cluster://"),
        ({"aof_enabled": "0"}, {"save": ""}, "warning", "server persistence", "appendonly yes"),
        ({"aof_enabled": "0"}, {"save": "60 1"}, "warning", "server persistence", "appendonly yes"),
        ({}, {"appendfsync": "no"}, "warning", "server persistence", "everysec"),
        ({"aof_last_write_status": "err"}, None, "critical", "server disk", "free disk space"),
        ({"aof_last_bgrewrite_status": "err"}, None, "critical", "server disk", "free disk space"),
        ({"maxmemory_policy": "allkeys-lru"}, None, "critical", "server eviction", "noeviction"),
        ({"maxmemory_policy": "volatile-ttl", "maxmemory": "0"}, None, "warning", "server eviction", "noeviction"),
        ({"evicted_keys": "3"}, None, "critical", "server eviction", "noeviction"),
        ({"used_memory": str(int(0.81 * GIB))}, None, "warning", "server memory", "raise the server's maxmemory"),
        ({"used_memory": str(int(0.96 * GIB))}, None, "critical", "server memory", "raise the server's maxmemory"),
        ({"connected_clients": "8100"}, None, "warning", "server connections", "maxclients"),
        ({"connected_clients": "9600"}, None, "critical", "server connections", "maxclients"),
        (NEARLY_FULL, None, "warning", "server memory", "maxmemory"),
    ],
)
def test_problems_of_a_server_are_found(info, settings, level, what, remedy):
    findings = server(settings, **info)
    assert problems(findings) == [(level, what)]
    assert remedy in next(finding for finding in findings if finding.level != "ok").remedy


def test_eviction_that_was_allowed_is_a_warning():
    assert problems(server(None, {"allow_eviction": True}, maxmemory_policy="allkeys-lru")) == [
        ("warning", "server eviction")
    ]


def test_a_slow_server_and_one_that_is_away():
    assert problems(check_server(ServerFacts("h", info=WELL, round_trip_ms=50.0))) == [("warning", "server round trip")]
    away = check_server(ServerFacts("h", error="cannot reach it"))
    assert problems(away) == [("critical", "server")]
    refused = check_server(ServerFacts("h", error="NOAUTH", refused=True))
    assert "rights" in refused[0].remedy
    assert away[0].remedy != refused[0].remedy != ""


@pytest.mark.parametrize(
    ("skew_s", "margin_s", "level", "words"),
    [(0.4, 0, "ok", ""), (3, 0, "warning", "3.0 s ahead of"), (-3, 0, "warning", "3.0 s behind"), (3, 2.5, "ok", "")],
)
def test_clocks(skew_s, margin_s, level, words):
    found = check_clock("clock", skew_s, margin_s)
    assert found.level == level
    assert words in found.value


# -- mailboxes ----------------------------------------------------------------------------------------------------


def mailbox(name="west", **changes):
    facts = {"messages": 5, "nbytes": 500, "max_messages": 100, "max_bytes": 10_000, "oldest_s": 1.0, "lease_s": 20.0}
    return Mailbox(name=name, **facts | {"leased": False, "unlogged": 0, "unlogged_bytes": 0, "hosts": False} | changes)


def kept(*mailboxes, **changes):
    facts = {"interceptor_epoch": 1, "logged": True, "dead_letters": 0, "dead_letters_dropped": 0, "noted": 0}
    facts |= {"noted_bytes": 0, "max_noted": 100, "max_noted_bytes": 1000, "mailboxes_in_all": len(mailboxes)}
    return check_kept(Kept(**facts | changes, mailboxes=list(mailboxes)))


def test_mailboxes_that_are_well():
    findings = kept(mailbox(), mailbox("east", messages=0, oldest_s=None, lease_s=None))
    assert problems(findings) == []
    ended = mailbox(messages=0, oldest_s=None, lease_s=None, hosts=True, in_steps=True)  # as after a run
    assert problems(kept(ended)) == []
    assert findings[0].value == "2, in which 5 messages wait, the oldest for 1.0 s"


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        ({"messages": 80}, "warning", "mailbox 'west'"),
        ({"messages": 95}, "critical", "mailbox 'west'"),
        ({"nbytes": 9_999}, "critical", "mailbox 'west'"),
        ({"lease_s": None}, "warning", "mailbox 'west'"),
        ({"lease_s": None, "messages": 0, "oldest_s": None, "hosts": True}, "warning", "mailbox 'west'"),
        ({"oldest_s": 1000.0}, "warning", "mailbox 'west'"),
        ({"unlogged": 90}, "warning", "log's backlog of 'west'"),
        ({"unlogged_bytes": 10_000}, "critical", "log's backlog of 'west'"),
    ],
)
def test_problems_of_a_mailbox_are_found(changes, level, what):
    findings = kept(mailbox(**changes))
    assert problems(findings) == [(level, what)]
    assert all(finding.remedy for finding in findings if finding.level != "ok")


def test_a_mailbox_that_waits_for_a_dead_owners_lease():
    held = Kept(1, True, 0, 0, 0, 0, 100, 1000, 1, [mailbox(owner="run/one", hosts=True)])
    assert problems(check_kept(held)) == []
    (found,) = [finding for finding in check_kept(held, ["run/one"]) if finding.level != "ok"]
    assert (found.level, found.what) == ("warning", "mailbox 'west'")
    assert found.value == "its owner is dead, and 5 messages wait; its lease expires in 20 s"


def test_the_log_that_is_behind_and_dead_letters():
    assert problems(kept(noted=85)) == [("warning", "log's backlog")]
    assert problems(kept(noted_bytes=990)) == [("critical", "log's backlog")]
    assert problems(kept(dead_letters=2)) == [("warning", "dead letters")]
    assert problems(kept(dead_letters=2, dead_letters_dropped=1)) == [("critical", "dead letters")]


def test_very_many_problems_are_cut_short_the_worst_first():
    boxes = [mailbox(f"m{n}", messages=85) for n in range(50)] + [mailbox("full", messages=100)]
    found = [finding for finding in kept(*boxes) if finding.level != "ok"]
    assert len(found) == SHOWN + 1
    assert found[0].what == "mailbox 'full'"
    assert found[-1].value == "31 more such findings"


# -- actors ---------------------------------------------------------------------------------------------------------


def actor(name="group 'west'", *, report=True, **changes):
    facts = ActorFacts(name, Report(now=0.0, loops=[TaskHealth("reader", True, True, 0.1)]) if report else None)
    for key, value in changes.items():
        setattr(facts.report if key in {"loops", "stats", "error", "disk"} else facts, key, value)
    return facts


@pytest.mark.parametrize(
    ("facts", "level", "what", "words"),
    [
        (actor(report=False, state="DEAD", why="killed"), "critical", "group 'west'", "create the group again"),
        (actor("interceptor", report=False, state="DEAD"), "critical", "interceptor", "on_existing='resume'"),
        (actor("interceptor", report=False, state="RESTARTING"), "critical", "interceptor", "no message can be sent"),
        (actor("log", report=False, state="ALIVE", why="no answer"), "critical", "log", "py-spy"),
        (actor(SERVER_ACTOR, error="Valkey died"), "critical", SERVER_ACTOR, "remove the cause"),
        (
            actor(loops=[TaskHealth("lease", False, True, 0.0, "Fenced")]),
            "critical",
            "group 'west': lease",
            "Ray starts it",
        ),
        (
            actor(loops=[TaskHealth("outbox", True, True, STUCK_S + 1)]),
            "warning",
            "group 'west': outbox",
            "it waits for the server",
        ),
        (actor(stats={"unreadable": 2}), "warning", "group 'west': unreadable", "deadletters list"),
        (actor(stats={"ingress_dropped": 2}), "warning", "group 'west': ingress_dropped", "fetch more"),
        (
            actor(stats={"lane_connections": 9_700}),
            "critical",
            "group 'west': connections of senders",
            "fewer messagers",
        ),
        (actor(stats={"lane_refused": 3}), "warning", "group 'west': lane_refused", "only machines of the cluster"),
        (actor("interceptor", stats={"server_behind": 1}), "warning", "interceptor: server_behind", "replica"),
        (actor("log", stats={"lag_s": 90.0}), "warning", "log: lag", "disk"),
        (actor("log", stats={"missing": ["no hearers"]}), "critical", "log: incomplete", "log.balance()"),
        (actor(restarts=7), "warning", "group 'west': restarts", "read why it died"),
        (actor(SERVER_ACTOR, stats={"restarts": 5}), "warning", f"{SERVER_ACTOR}: restarts", "read why it died"),
        (actor(skew_s=5.0, margin_s=0.1), "warning", "clock of group 'west'", "NTP"),
        (actor("log", disk=Disk("/log", GIB // 2, 100 * GIB)), "critical", "log disk", "free disk space"),
    ],
)
def test_problems_of_an_actor_are_found(facts, level, what, words):
    findings = list(check_actor(facts))
    assert problems(findings) == [(level, what)]
    assert words in next(finding.remedy for finding in findings if finding.level == level)
    assert problems(check_actors([facts])) == [(level, what)]


def test_an_idle_task_is_not_a_hanging_one():
    idle = actor(loops=[TaskHealth("outbox", True, False, 1e6), TaskHealth("reader", True, True, 4.9)], restarts=2)
    findings = check_actors([idle])
    assert problems(findings) == []
    assert findings[0].value == "1 of 1 answer, with 2 loops; restarts so far: 2"


def test_disks_of_all_sizes():
    assert check_disk("disk", Disk("/", 100 * GIB, 1000 * GIB)).level == "ok"
    assert check_disk("disk", Disk("/", 3 * GIB, 1000 * GIB)).level == "warning"
    assert check_disk("disk", Disk("/", GIB // 2, 1000 * GIB)).level == "critical"
    assert check_disk("disk", Disk("/", GIB // 2, 4 * GIB)).level == "ok"  # a small disk may be small


# -- the whole ------------------------------------------------------------------------------------------------------


def test_health_as_a_whole():
    health = Health("x", [ok("a", "1"), warning("b", "2", "do c"), critical("d", "3", "do e")])
    assert (health.level, health.ok) == ("critical", False)
    assert [finding.what for finding in health.problems] == ["d", "b"]
    assert health.of("b") == [Finding("warning", "b", "2", "do c")]
    assert repr(health) == "Health of x: critical\n  critical: d: 3 -> do e\n  warning: b: 2 -> do c"
    assert pickle.loads(pickle.dumps(health)) == health
    told = json.loads(json.dumps(health.to_dict()))
    assert told["findings"][1] == {"level": "warning", "what": "b", "value": "2", "remedy": "do c"}
    assert (told["level"], told["ok"], told["subject"]) == ("critical", False, "x")
    well = Health("y", [ok("a", "1")])
    assert (well.level, well.ok, repr(well)) == ("ok", True, "Health of y: ok, 1 checks")
    assert Health("z").ok


def test_names_that_last_are_counted_without_groups_and_without_those_that_are_open():
    def box(name, *, lease_s=None, leased=False, hosts=False):
        return mailbox(name, lease_s=lease_s, leased=leased, hosts=hosts)

    few = [box("closed"), box("open", lease_s=9.0), box("nameless", leased=True), box("group", hosts=True)]
    [finding] = [finding for finding in kept(*few) if finding.what == "kept names"]
    assert finding == ok("kept names", "the server keeps the mailboxes of 1 closed messagers, until they are removed")
    many = [box(f"closed-{number}") for number in range(MANY_NAMES)]
    [finding] = [finding for finding in kept(*many, mailboxes_in_all=9_000) if finding.what == "kept names"]
    assert finding.level == "warning"
    assert "only the first 500 of 9,000 mailboxes were examined" in finding.value
    assert "remove_messager" in finding.remedy


def test_kept_rule_entries_cause_a_warning_when_they_take_much_memory():
    def judged(**counts):
        stats = {"kept": {":answers": 2**20, ":violations": 3} | counts}
        found = check_actor(ActorFacts("interceptor", Report(0.0, stats=stats)))
        return next(finding for finding in found if finding.what == "interceptor: kept by rules")

    well = judged(quota=5, ban=0)
    assert well == ok(
        "interceptor: kept by rules", "8 entries (quota 5, agents with blocked messages 3), and 1 MiB of answers"
    )
    much = judged(quota=MANY_ENTRIES)
    assert much.level == "warning"
    assert "new_round" in much.remedy
    assert judged().value == "3 entries (agents with blocked messages 3), and 1 MiB of answers"


def test_a_log_with_lost_data_names_the_remedy():
    report = log_report({"error": "the server has lost", "lost": True}, "s3://bucket/log")
    [finding] = [finding for finding in check_actor(ActorFacts("log", report)) if finding.level == "critical"]
    assert finding.value == "the server has lost"
    assert "resume" in finding.remedy
    report = log_report({"error": "the disk is full", "lost": False}, "s3://bucket/log")
    [finding] = [finding for finding in check_actor(ActorFacts("log", report)) if finding.level == "critical"]
    assert "tries again every second" in finding.remedy
