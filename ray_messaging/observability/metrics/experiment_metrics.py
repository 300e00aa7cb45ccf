"""The metrics of a whole experiment: of its server, interceptor, log and groups."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ray_messaging.observability.health.findings import LEVELS, ActorFacts, Finding
from ray_messaging.observability.metrics.families import Family, Kind, counter, gauge, labelled, single
from ray_messaging.transports.server_facts import Kept, ServerFacts


class ExperimentReport(NamedTuple):
    """What an experiment's actors and its server have reported, and what health checks found in these reports.

    `server` is None if the server was not asked.
    """

    actors: list[ActorFacts]
    server: ServerFacts | None
    findings: list[Finding]


_LOG: dict[str, tuple[str, Kind, str]] = {
    "rows": ("log_rows", "counter", "Rows of the event log"),
    "segments": ("log_segments", "gauge", "Complete files of the event log"),
    "open_rows": ("log_open_rows", "gauge", "Rows that are not in a complete file yet"),
    "lag_s": ("log_lag_seconds", "gauge", "Age of the oldest message that the log has not read"),
}


def families_of(exp_id: str, facts: ExperimentReport | None) -> list[Family]:
    """Return the metrics of an experiment. If `facts` is None, the experiment did not answer."""
    found: list[Family] = [single("up", "gauge", "Whether the experiment answered", float(facts is not None))]
    if facts is not None:
        levels = Counter(finding.level for finding in facts.findings)
        found.append(
            gauge("findings", "Findings of the health check", {name: levels[name] for name in LEVELS}, "level")
        )
        found += (family for actor in facts.actors for family in _of_actor(actor))
        if facts.server is not None:
            found.append(
                single(
                    "server_round_trip_seconds",
                    "gauge",
                    "Time of a ping of the server",
                    facts.server.round_trip_ms / 1000,
                )
            )
            found += [] if facts.server.kept is None else of_mailboxes(facts.server.kept)
    return labelled(found, experiment=exp_id)


def _of_actor(actor: ActorFacts) -> Iterator[Family]:
    yield gauge("actor_up", "Whether an actor answered", {actor.name: float(actor.report is not None)}, "actor")
    yield counter("actor_restarts", "Restarts of an actor by Ray", {actor.name: actor.restarts}, "actor")
    if actor.report is None:
        return
    stats = actor.report.stats
    if actor.name == "interceptor":
        yield from of_interceptor(stats)
    elif actor.name == "log":
        yield from of_log(stats)
    else:
        yield from labelled(actor.report.metrics, messager=str(stats.get("name", actor.name)))


def of_log(stats: dict[str, Any]) -> list[Family]:
    """Return the metrics of the event log, from the statistics of its writer."""
    return [single(*_LOG[key], stats[key]) for key in _LOG if stats.get(key) is not None]


def of_interceptor(stats: dict[str, Any]) -> Iterator[Family]:
    """Yield the metrics of the interceptor."""
    failures = {name: found["failures"] for name, found in stats.get("rule_failures", {}).items()}
    for key in ("judged", "blocked") if "judged" in stats else ():
        about = f"Messages that the interceptor has {key}, without those that senders judge by delegated rules"
        yield single(f"interceptor_{key}", "counter", about, stats[key])
    yield counter("rule_seconds", "Time in which a rule judged", stats.get("rule_seconds", {}), "rule")
    stragglers = stats.get("stragglers", {})
    yield gauge("straggler_seconds", "Time for which a group has held up a step", stragglers, "messager")
    yield counter("rule_failures", "Messages at which a rule failed", failures, "rule")


def of_mailboxes(kept: Kept) -> Iterator[Family]:
    """Yield the metrics of the mailboxes, from the server's data."""
    waiting = {mailbox.name: mailbox.messages - mailbox.acked for mailbox in kept.mailboxes}
    ages = {mailbox.name: mailbox.oldest_s or 0.0 for mailbox in kept.mailboxes}
    yield gauge("mailbox_messages", "Messages that wait in a mailbox", waiting, "mailbox")
    yield gauge("mailbox_oldest_seconds", "Age of the oldest message that waits in a mailbox", ages, "mailbox")
    yield gauge(
        "mailbox_bytes",
        "Bytes of the messages that wait in a mailbox",
        {mailbox.name: mailbox.nbytes for mailbox in kept.mailboxes},
        "mailbox",
    )
    yield single("dead_letters", "gauge", "Dead letters", kept.dead_letters)
    yield single(
        "dead_letters_dropped", "counter", "Dead letters that were dropped at their limit", kept.dead_letters_dropped
    )
