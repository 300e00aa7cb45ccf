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
        text = f"{text} (only the first {len(kept.mailboxes):,} mailboxes were examined)"
    if ages:
        text += f", the oldest for {max(ages):,.1f} s"
    problems = (found for each in kept.mailboxes for found in _mailbox(each, dead=each.owner in dead_owners))
    return [ok("mailboxes", text), *first_of(problems, "mailboxes")]


def _names(kept: Kept) -> Finding:
    """Check the number of names of closed messagers.

    For each such name, the server keeps a mailbox and a sender's state, and every sender has that mailbox in its copy
    of the list of all mailboxes.
    """
    closed = sum(mailbox.waits_for_its_name for mailbox in kept.mailboxes)
    text = f"the server keeps the mailboxes of {closed:,} closed messagers, until they are removed"
    if kept.mailboxes_in_all > len(kept.mailboxes):
        text += f" (only the first {len(kept.mailboxes):,} of {kept.mailboxes_in_all:,} mailboxes were examined)"
    if closed < MANY_NAMES:
        return ok("kept names", text)
    return warning(
        "kept names",
        text,
        "remove them by `for name in messaging.closed_messagers(): messaging.remove_messager(name)`. Give a name only "
        "to a messager that will be opened again: of a messager without a name nothing is kept",
    )


def _mailbox(mailbox: Mailbox, *, dead: bool) -> Iterator[Finding]:
    name = f"mailbox {mailbox.name!r}"
    remedy = (
        "fetch more often, or more messages at a time, or spread its agents over more groups; senders wait until "
        "there is room"
    )
    if mailbox.keeps_answers:
        remedy = (
            "remove old surveys by messaging.remove_survey(id), or raise MessagingConfig.mailbox_bytes; agents "
            "cannot answer until there is room"
        )
    if mailbox.max_messages:
        messages = (mailbox.messages, mailbox.max_messages, "{:,} messages".format)
        yield from _problems(name, remedy, messages, (mailbox.nbytes, mailbox.max_bytes, in_bytes))[:1]
    if mailbox.keeps_answers:
        return
    yield from _service(name, mailbox)
    if dead and mailbox.lease_s is not None:
        yield warning(
            name,
            f"its owner is dead, and {mailbox.messages:,} messages wait; its lease expires in {mailbox.lease_s:,.0f} s",
            "open its group or messager again under this name; in this Ray cluster that is possible before the lease "
            "expires",
        )
    elif mailbox.messages and mailbox.lease_s is None:
        yield warning(
            name,
            f"{mailbox.messages:,} messages wait, and nobody reads this mailbox",
            "open its group or messager again under this name, or remove that group or messager: then its unread "
            "messages become dead letters",
        )
    elif mailbox.hosts and mailbox.lease_s is None and not mailbox.in_steps:
        yield warning(
            name,
            "nobody reads this mailbox, so messages to its agents will wait",
            "create its group again under this name, or remove the group: then messages to its agents are "
            "undeliverable",
        )
    elif mailbox.messages and mailbox.oldest_s is not None and mailbox.oldest_s > OLD_S:
        yield warning(
            name,
            f"{mailbox.messages:,} messages wait, the oldest for {mailbox.oldest_s:,.0f} s",
            "fetch these messages. If they are fetched already, commit them by the next fetch or by ack(): until "
            "then they count as waiting",
        )


def _service(name: str, mailbox: Mailbox) -> Iterator[Finding]:
    if mailbox.ended:
        yield critical(
            name,
            f"`serve` has ended ({mailbox.ended}), so {mailbox.messages:,} messages wait, and questions to its "
            "agents raise NoAnswer",
            "fix the handler of `serve`, and call `serve` again: it handles the messages that wait",
        )
    if mailbox.failures:
        yield warning(
            name,
            f"the handler of `serve` has failed on {mailbox.failures:,} messages",
            "`ray-messaging deadletters list` says why. Fix the handler, then send the messages again by "
            "`ray-messaging deadletters requeue`",
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
    remedy = (
        "see the findings about the log's actor and its disk; at the limit, senders wait until the log has caught up"
    )
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
            f"{kept.dead_letters:,} are kept, and {kept.dead_letters_dropped:,} older ones were dropped when the "
            "limit was reached",
            "`ray-messaging deadletters list` says why messages become dead letters: fix the cause, or raise "
            "MessagingConfig.dead_bytes. After `ray-messaging deadletters drop --all` the count begins anew",
        )
    if kept.dead_letters:
        return warning(
            "dead letters",
            f"{kept.dead_letters:,}",
            "`ray-messaging deadletters list` says which messages could not be handled, and why. `ray-messaging "
            "deadletters requeue` sends them again",
        )
    return ok("dead letters", "none")
