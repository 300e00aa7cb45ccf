"""Health checks of actors, made from their own reports and from Ray's facts about them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ray_messaging.common.task_health import TaskHealth
from ray_messaging.interception.interceptor.interceptor import ANSWERS, VIOLATIONS
from ray_messaging.interception.interceptor.lane_server import CONNECTIONS
from ray_messaging.observability.health.findings import (
    SERVER_ACTOR,
    SHOWN,
    ActorFacts,
    Disk,
    Finding,
    Report,
    critical,
    first_of,
    in_bytes,
    ok,
    usage_of_limit,
    warning,
)
from ray_messaging.observability.health.node_checks import CUT_OFF
from ray_messaging.observability.health.redis_checks import check_clock

MANY_RESTARTS = 5
LOG_BEHIND_S = 60.0  # seconds; a healthy log is less far behind, because it writes a file every half minute
MANY_ENTRIES = 1_000_000  # this many entries of a rule's tables take 300 MB
LITTLE_DISK, LOW_DISK = 2**30, 5 * 2**30  # free bytes below which a disk is critical, or gets a warning
_WITHOUT = {
    "interceptor": "without it no message can be sent: senders wait, then get InterceptorUnavailable",
    SERVER_ACTOR: "without it nobody restarts the server if the server dies",
    "log": (
        "without it sent messages wait on the server for the log; once the server's streams are full, senders wait"
    ),
}

# Counters that are 0 in a healthy actor. For each, the text of the finding, and the remedy.
_COUNTERS = {
    "unreadable": (
        "{:,} entries on the server were not valid frames, so they could not be read",
        "find the program that writes to this experiment's keys: `ray-messaging deadletters list` shows the entries",
    ),
    "ingress_dropped": (
        "{:,} messages that plain Redis clients published were dropped, because the inbox was full",
        "fetch more often, or raise MessagingConfig.inbox_messages",
    ),
    "server_behind": (
        "{:,} times the server had lost changes of rules that it had confirmed, and the interceptor wrote them again",
        "find out why the server lost data, such as by a torn append-only file, or by a failover to a replica that "
        "lagged behind. Messages may be lost, too. CONFIG SET appendfsync always prevents this after a crash",
    ),
    "lane_refused": (
        "{:,} connections to the verdict lane, the interceptor's socket, were refused",
        "somebody connects to the interceptor's port without its token, or sends invalid frames: let only machines "
        "of the cluster reach that port",
    ),
}


def check_actors(actors: Sequence[ActorFacts]) -> list[Finding]:
    """Return the findings about actors. The first finding says how many actors answer."""
    found = [finding for actor in actors for finding in check_actor(actor)]
    problems = first_of((finding for finding in found if finding.level != "ok"), "actors")
    answered = sum(actor.report is not None for actor in actors)
    loops = sum(len(actor.report.loops) for actor in actors if actor.report is not None)
    restarts = sum(actor.restarts for actor in actors)
    text = f"{answered} of {len(actors)} answer, with {loops} loops; restarts so far: {restarts}"
    details = [finding for finding in found if finding.level == "ok"]
    return [ok("actors", text), *problems, *details[:SHOWN]]


def check_actor(actor: ActorFacts) -> Iterator[Finding]:
    """Yield the findings about one actor."""
    report = actor.report
    if report is None:
        yield _silent(actor)
        return
    if report.error:
        yield critical(
            actor.name,
            report.error,
            report.remedy
            or _without(actor, ("remove the cause that the error names; the actor tries again every second")),
        )
    problems = [finding for loop in report.loops if (finding := _loop(actor.name, loop)) is not None]
    yield from problems
    yield from _counters(actor.name, report)
    yield from (warning("steps", late, remedy) for late, remedy in report.late)
    yield from first_of((warning(f"{actor.name}: commits", held, remedy) for held, remedy in report.held), actor.name)
    if report.disk is not None:
        yield check_disk(f"{actor.name.replace(SERVER_ACTOR, 'server')} disk", report.disk)
    restarts = max(actor.restarts, report.stats.get("restarts", 0))
    if restarts >= MANY_RESTARTS:
        yield warning(
            f"{actor.name}: restarts",
            f"{restarts:,} so far",
            "read why it died in its log in Ray's session folder. Common causes are too little memory, a rule, or a "
            "full disk",
        )
    clock = check_clock(f"clock of {actor.name}", actor.skew_s, actor.margin_s)
    if clock.level != "ok":
        yield clock
    if not problems and not report.error:
        restarted = f", restarts: {restarts}" if restarts else ""
        busy = f", its loops run ({', '.join(loop.name for loop in report.loops)})" if report.loops else ""
        yield ok(actor.name, f"answers{busy}{restarted}")


def _silent(actor: ActorFacts) -> Finding:
    if actor.state == "DEAD":
        remedy = "start the experiment again with on_existing='resume'; unread messages wait on the server"
        if actor.name.startswith("group"):
            remedy = "create the group again under its name; unread messages wait for it on the server"
        return critical(
            actor.name, f"its actor is dead ({actor.why or 'Ray gives no reason'})", _without(actor, remedy)
        )
    if actor.state in {"RESTARTING", "PENDING_CREATION", "DEPENDENCIES_UNREADY"}:
        remedy = (
            "wait some seconds, then check again. If it still does not answer, read its log in Ray's session folder, "
            "and check that its node is up"
        )
        return critical(
            actor.name, f"its actor starts again ({actor.state}), and does not answer yet", _without(actor, remedy)
        )
    if actor.cut_off_from:
        text = f"does not answer: the network does not reach its node, {actor.where}, from {actor.cut_off_from}"
        return critical(actor.name, text, _without(actor, CUT_OFF))
    remedy = (
        "a rule or a call blocks its event loop, or its process has stopped. `py-spy dump --pid PID` shows where; "
        "if you kill the process, Ray starts it again"
    )
    on = f" on node {actor.where}" if actor.where else ""
    return critical(actor.name, f"does not answer{on} ({actor.why or 'Ray gives no reason'})", _without(actor, remedy))


def _without(actor: ActorFacts, remedy: str) -> str:
    harm = _WITHOUT.get(SERVER_ACTOR if actor.name.startswith(SERVER_ACTOR) else actor.name)
    return remedy if harm is None else f"{harm}. Remedy: {remedy}"


def _loop(actor: str, loop: TaskHealth) -> Finding | None:
    what = f"{actor}: {loop.name}"
    if not loop.alive:
        return critical(
            what,
            f"has ended ({loop.error})" if loop.error else "has ended",
            "do what the error says. If that does not help, kill the actor's process: Ray starts it again, and no "
            "message is lost",
        )
    if loop.stuck:
        return warning(
            what,
            f"has work, but has made no progress for {loop.age_s:,.0f} s{f' ({loop.error})' if loop.error else ''}",
            "it waits for the server, the interceptor, or room in a mailbox: fix the findings about these first",
        )
    if loop.error:
        return critical(
            what, f"does not work at present ({loop.error})", "do what the error says; it tries again by itself"
        )
    return None


def _counters(actor: str, report: Report) -> Iterator[Finding]:
    stats = report.stats
    for name, (finding, remedy) in _COUNTERS.items():
        if stats.get(name):
            yield warning(f"{actor}: {name}", finding.format(stats[name]), remedy)
    if stats.get("lag_s", 0.0) > LOG_BEHIND_S:
        yield warning(
            f"{actor}: lag",
            f"the log is {stats['lag_s']:,.0f} s behind the messages that are sent",
            "give the log's process more CPU time, or log_dir a faster disk; if the log stays behind, senders wait "
            "for it",
        )
    for missing in stats.get("missing", ()):
        yield critical(
            f"{actor}: incomplete",
            missing,
            "remove the cause, or later messages will be missing, too. The other rows of the log are right, but "
            "log.balance() raises this error from now on",
        )
    for rule, found in stats.get("rule_failures", {}).items():
        yield _failing(actor, rule, found)
    if "kept" in stats:
        yield _kept(actor, dict(stats["kept"]))
    if "lane_connections" in stats:
        yield usage_of_limit(
            f"{actor}: connections of senders",
            stats["lane_connections"],
            CONNECTIONS,
            "{:,}".format,
            "use fewer messagers: those without a connection ask for verdicts by Ray calls, which are slower",
        )


def _failing(actor: str, rule: str, found: Mapping[str, Any]) -> Finding:
    then = "passes unjudged" if found["on_error"] == "allow" else "is blocked"
    times = f"{found['failures']:,} time{'s' * (found['failures'] != 1)}"
    return critical(
        f"{actor}: rule {rule!r}",
        f"has failed {times}; a message on which it fails {then}; the last error: {found['last_error']}",
        f"the log of the {actor} has the traceback. Replace the rule by messaging.rules.replace({rule!r}, ...), or "
        f"remove it by messaging.rules.pop({rule!r}). If the cause is gone, "
        f"messaging.interceptor.reset_rule_failures.remote({rule!r}) ends this finding",
    )


def _kept(actor: str, kept: dict[str, int]) -> Finding:
    answers, violations = kept.pop(ANSWERS, 0), kept.pop(VIOLATIONS, 0)
    entries = sum(kept.values()) + violations
    tables = [*sorted(kept.items(), key=lambda item: -item[1])[:3], ("agents with blocked messages", violations)]
    shown = ", ".join(f"{name} {count:,}" for name, count in tables if count)
    text = f"{entries:,} entries{shown and f' ({shown})'}, and {in_bytes(answers)} of answers"
    if entries < MANY_ENTRIES:
        return ok(f"{actor}: kept by rules", text)
    return warning(
        f"{actor}: kept by rules",
        text,
        "each entry takes up to 0.3 KB here and on the server. messaging.interceptor.new_round.remote() deletes the "
        "entries of quotas and of rates per round; messaging.rules.replace(name, rule) deletes those of a ban; "
        "messaging.interceptor.reset_violation_counts.remote() deletes the counts of blocked messages",
    )


def check_disk(what: str, disk: Disk) -> Finding:
    """Check the free disk space of a folder."""
    text = f"{in_bytes(disk.free)} of {in_bytes(disk.total)} are free at {disk.path}"
    remedy = "free disk space, or use a folder on another disk: on a full disk nothing can be stored, and senders wait"
    if disk.free < min(LITTLE_DISK, disk.total // 20):
        return critical(what, text, remedy)
    if disk.free < min(LOW_DISK, disk.total // 10):
        return warning(what, text, remedy)
    return ok(what, text)
