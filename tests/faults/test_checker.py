"""The checker finds each kind of flaw: a blind harness would prove nothing."""

import pytest

from faults.checker import check
from faults.ledger import Growing, Inbox, Ledger, fates_after, read_ledger
from ray_messaging.errors import MailboxFull, OutcomeUnknown

pytestmark = pytest.mark.faults


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger")
    yield made
    made.close()


@pytest.fixture
def inboxes(tmp_path):
    """Give two incarnations of a receiver, which write to one file."""
    made = {name: Inbox(tmp_path / "inbox", name) for name in "ab"}
    yield made
    for inbox in made.values():
        inbox.close()


def send(ledger, *fates):
    """Enter a send of one message for each fate; None: its sender died with it."""
    keys = []
    for fate in fates:
        key = ledger.number(1, 2)
        call = ledger.begin([key])
        if fate is not None:
            ledger.settle(call, [fate])
        keys.append(key)
    return keys


def test_a_clean_run(ledger, inboxes):
    keys = send(ledger, "delivered", "delivered", "blocked", "refused", "unknown", None, "delivered")
    inbox = inboxes["a"]
    inbox.fetched([keys[0], keys[1]])
    inbox.committed()
    inbox.fetched([keys[5], keys[6]])
    account = check([ledger.path], [inbox.path])
    assert account.flaws == {}
    assert (account.sent, account.acknowledged, account.received) == (7, 3, 4)
    assert (account.unknown, account.came_of_unknown, account.refused, account.blocked) == (2, 1, 1, 1)


# By case: the fates of what was sent; what the receivers noted, fetched numbers for one; the flaws, and their numbers.
FOUR = ["delivered"] * 4
IN_HAND = [("a", [0, 1]), ("a", "committed"), ("a", [2, 3]), ("b", [2, 3])]
NOTED_LATE = [("b", [0, 1, 2, 3]), ("b", "committed"), ("a", [0])]
FLAWS = {
    "a message is lost": (FOUR, [("a", [1, 2, 3])], {"lost": [0]}),
    "what was not committed comes again": (FOUR, IN_HAND, {}),
    "what was committed comes again": (FOUR, [*IN_HAND, ("b", [0])], {"duplicates": [0]}),
    "what a successor committed comes": (FOUR, NOTED_LATE, {"duplicates": [0]}),
    "what was in hand when a successor came is noted late": (FOUR, [*NOTED_LATE, ("a", "fenced")], {}),
    "one incarnation fetches twice": (FOUR, [("a", [0, 1, 2, 3]), ("a", [0])], {"duplicates": [0]}),
    "out of order": (FOUR, [("a", [0, 2, 1, 3])], {"order_breaks": [1]}),
    "out of order as it comes again": (FOUR, [("a", [0, 1, 2, 3]), ("b", [0, 1, 3, 2])], {"order_breaks": [2]}),
    "refused or not sent, and there": (["refused"], [("a", [0, 7])], {"phantoms": [0, 7]}),
}
NAMES = {"lost": "lost", "duplicates": "twice", "order_breaks": "out of order", "phantoms": "phantoms"}


@pytest.mark.parametrize(("fates", "noted", "flaws"), FLAWS.values(), ids=FLAWS)
def test_each_flaw_is_counted_and_named(ledger, inboxes, fates, noted, flaws):
    send(ledger, *fates)
    for name, what in noted:
        if isinstance(what, str):
            getattr(inboxes[name], what)()
        else:
            inboxes[name].fetched([(1, 2, n) for n in what])
    account = check([ledger.path], [inboxes["a"].path])
    assert account.flaws == {flaw: len(found) for flaw, found in flaws.items()}
    assert account.examples == {NAMES[flaw]: [(1, 2, n) for n in found] for flaw, found in flaws.items()}


def test_gap_and_drain(ledger, inboxes, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.time", lambda: now)
    keys = send(ledger, "delivered", "delivered", "delivered")
    inbox = inboxes["a"]
    inbox.fetched(keys[:1])
    now = 103.0
    inbox.fetched(keys[1:2])
    now = 104.0
    inbox.fetched(keys[2:])
    account = check([ledger.path], [inbox.path], healed_at=102.5)
    assert (account.longest_gap_s, account.drain_s) == (3.0, 1.5)


def row(key, fate, rule=None, reason=None):
    return {"from_id": key[0], "to_id": key[1], "n": key[2], "fate": fate, "rule": rule, "reason": reason}


def test_the_log(ledger, inboxes):
    keys = send(ledger, "delivered", "blocked", "refused", "unknown", "unknown", "delivered")
    inbox = inboxes["a"]
    inbox.fetched([keys[0], keys[3], keys[5]])
    right = [row(keys[n], "delivered") for n in (0, 3, 5)] + [row(keys[1], "blocked", "rule", "reason")]
    paths = [ledger.path], [inbox.path]
    assert check(*paths, right).flaws == {}
    assert check(*paths, right[1:]).log_breaks == 1  # one is missing
    assert check(*paths, [*right, right[0]]).log_breaks == 1  # one twice
    assert check(*paths, [*right, row(keys[2], "delivered")]).log_breaks == 1  # one that was refused
    assert check(*paths, [*right, row((7, 7, 7), "delivered")]).log_breaks == 1  # one that nobody sent
    assert check(*paths, [*right[:3], row(keys[1], "blocked")]).log_breaks == 1  # blocked without a rule


def test_a_reopened_ledger_continues(ledger, inboxes):
    send(ledger, "delivered", None)
    again = Ledger(ledger.path)
    assert again.number(1, 2) == (1, 2, 2)
    again.settle(again.begin([(1, 2, 2)]), ["delivered"])
    again.close()
    assert [one.fate for one in read_ledger(ledger.path)] == ["delivered", "pending", "delivered"]


def test_growing_files_are_counted_once(ledger, inboxes):
    inbox = inboxes["a"]
    ledgered, fetched = Growing(ledger.path), Growing(inbox.path)
    assert (ledgered.read().delivered, fetched.read().fetched, ledgered.errors) == (0, 0, [])
    keys = send(ledger, "delivered", "blocked", None, "delivered")
    ledger.settle(ledger.begin([ledger.number(1, 2)]), ["refused"], "MailboxFull()")
    inbox.fetched(keys[:1])
    inbox.committed()
    with inbox.path.open("ab") as cut_off:
        line = b'["fetched","a",1.0,[[1,2,3]]]\n'
        cut_off.write(line[:9])
        cut_off.flush()
        assert fetched.read().fetched == 1
        cut_off.write(line[9:])
    assert (ledgered.read().delivered, fetched.read().fetched, ledgered.errors) == (2, 2, ["MailboxFull()"])
    assert (ledgered.read().delivered, fetched.read().fetched, ledgered.errors) == (2, 2, ["MailboxFull()"])
    assert Growing(ledger.path.parent / "none").read().fetched == 0


def test_the_fates_of_messages_after_an_error():
    assert fates_after(MailboxFull("full"), 2) == ["refused", "refused"]
    assert fates_after(OutcomeUnknown("away"), 2) == ["unknown", "unknown"]
