"""Health checks of mailboxes, the event log's backlog and dead letters, made from the server's data."""

from collections.abc import Callable, Collection, Iterator

from ray_messaging.observability.health.findings import (
    SHOWN,
    Finding,
    critical,
    first_of,
    in_bytes,
    ok,
    usage_of_limit,
    warning,
    worst_first,
)
from ray_messaging.transports.server_facts import Kept, Mailbox

OLD_S = 300.0  # seconds after which a waiting message is reported; a step of a simulation is shorter
MANY_NAMES = 500


def check_kept(kept: Kept, dead_owners: Collection[str] = ()) -> list[Finding]:
    """Return findings about an experiment's data on the server.

    Args: `dead_owners` names the dead owners of mailboxes.
    """
    return [*_mailboxes(kept, dead_owners), _names(kept), *_log(kept), _dead_letters(kept)]


def _mailboxes(kept: Kept, dead_owners: Collection[str]) -> list[Finding]:
    waiting = sum(mailbox.messages - mailbox.acked for mailbox in kept.mailboxes)
    ages = [mailbox.oldest_s for mailbox in kept.mailboxes if mailbox.oldest_s is not None]
    text = f"{kept.mailboxes_in_all:,}, in which {waiting:,} messages wait"
    if kept.mailboxes_in_all > len(kept.mailboxes):
        text = f"{text} (of the first {len(kept.mailboxes):,}, which alone were looked at)"
    if ages:
        text += f", the oldest for {max(ages):,.1f} s"
    problems = (found for each in kept.mailboxes for found in _mailbox(each, dead=each.owner in dead_owners))
    return [ok("mailboxes", text), *first_of(problems, "mailboxes")]


def _names(kept: Kept) -> Finding:
    """Check the number of names of closed messagers.

    Each such name has a mailbox and sender state on the server, and every sender has it in its directory.
    """
    closed = sum(mailbox.waits_for_its_name for mailbox in kept.mailboxes)
    text = f"{closed:,} for closed messagers, until they are removed"
    if kept.mailboxes_in_all > len(kept.mailboxes):
        text += f" (of the first {len(kept.mailboxes):,} mailboxes of {kept.mailboxes_in_all:,})"
    if closed < MANY_NAMES:
        return ok("kept names", text)
    return warning(
        "kept names",
        text,
        "for name in messaging.closed_messagers(): messaging.remove_messager(name); and give no name to messagers "
        "that have no successor: of messagers without a name nothing is kept",
    )


def _mailbox(mailbox: Mailbox, *, dead: bool) -> Iterator[Finding]:
    name = f"mailbox {mailbox.name!r}"
    remedy = "fetch more often, or in larger batches, or spread its agents over more groups: senders wait for room"
    if mailbox.keeps_answers:
        remedy = "messaging.remove_survey(id) for surveys of the past, or raise mailbox_bytes: agents wait with answers"
    if mailbox.max_messages:
        messages = (mailbox.messages, mailbox.max_messages, "{:,} messages".format)
        yield from _problems(name, remedy, messages, (mailbox.nbytes, mailbox.max_bytes, in_bytes))[:1]
    if mailbox.keeps_answers:
        return
    yield from _service(name, mailbox)
    if dead and mailbox.lease_s is not None:
        yield warning(
            name,
            f"its owner is dead, its lease lasts {mailbox.lease_s:,.0f} s more, and {mailbox.messages:,} messages wait",
            "open its group or messager again under this name: in this Ray cluster it need not wait for the lease",
        )
    elif mailbox.messages and mailbox.lease_s is None:
        yield warning(
            name,
            f"{mailbox.messages:,} messages wait, and nobody reads it",
            "open its group or messager again under this name, or remove it: what is unread becomes dead letters",
        )
    elif mailbox.hosts and mailbox.lease_s is None and not mailbox.in_steps:
        yield warning(
            name,
            "nobody reads it, and it is the mailbox of agents: what is sent to them will wait",
            "create its group again under this name, or remove it: messages to its agents are undeliverable then",
        )
    elif mailbox.messages and mailbox.oldest_s is not None and mailbox.oldest_s > OLD_S:
        yield warning(
            name,
            f"{mailbox.messages:,} messages wait, the oldest for {mailbox.oldest_s:,.0f} s",
            "fetch from it; what was fetched counts as read once it is committed: by the next fetch, or ack()",
        )


def _service(name: str, mailbox: Mailbox) -> Iterator[Finding]:
    if mailbox.ended:
        yield critical(
            name,
            f"its service has ended ({mailbox.ended}), {mailbox.messages:,} messages wait, and whoever asks its agents "
            "gets NoAnswer",
            "mend its handler, and serve again: what waits is handled then",
        )
    if mailbox.failures:
        yield warning(
            name,
            f"the handler of its service has failed on {mailbox.failures:,} messages",
            "ray-messaging deadletters list says why; mend the handler, then requeue them",
        )


def _problems(name: str, remedy: str, *used: tuple[int, int, Callable[[int], str]]) -> list[Finding]:
    """Return findings about amounts that are near their limits.

    Args: Each of `used` is an amount, its limit (0: there is none), and a function that formats both.
    """
    found = [usage_of_limit(name, number, limit, shown, remedy) for number, limit, shown in used if limit]
    return [finding for finding in found if finding.level != "ok"]


def _log(kept: Kept) -> Iterator[Finding]:
    if not kept.logged:
        return
    remedy = "look at the log's actor: disk space in log_dir, its error; senders wait while the log is that far behind"
    behind: list[Finding] = []
    for mailbox in kept.mailboxes:
        messages = (mailbox.unlogged, mailbox.max_messages, "{:,} messages".format)
        nbytes = (mailbox.unlogged_bytes, mailbox.max_bytes, in_bytes)
        behind += _problems(f"log's backlog of {mailbox.name!r}", remedy, messages, nbytes)
    yield from worst_first(behind)[:SHOWN]
    rows = sum(mailbox.unlogged for mailbox in kept.mailboxes)
    notes = (kept.noted, kept.max_noted, "{:,} notes".format)
    noted = _problems("log's backlog", remedy, notes, (kept.noted_bytes, kept.max_noted_bytes, in_bytes))
    yield from noted[:1]
    if noted:
        return
    yield ok("log's backlog", f"{rows:,} messages and {kept.noted:,} notes are not in a file yet")


def _dead_letters(kept: Kept) -> Finding:
    if kept.dead_letters_dropped:
        return critical(
            "dead letters",
            f"{kept.dead_letters:,}, and {kept.dead_letters_dropped:,} older ones were dropped at their limit",
            "ray-messaging deadletters list says why: mend that, or raise dead_bytes; drop --all counts anew",
        )
    if kept.dead_letters:
        return warning(
            "dead letters",
            f"{kept.dead_letters:,}",
            "ray-messaging deadletters list says what could not be delivered, and why; requeue sends it again",
        )
    return ok("dead letters", "none")
