"""The checker finds each kind of flaw: a blind harness would prove nothing."""

import pytest

from faults.checker import check
from faults.ledger import Growing, Inbox, Ledger, fates_after, read_ledger
from ray_messaging import MailboxFull, OutcomeUnknown

pytestmark = pytest.mark.faults


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger")
    yield made
    made.close()


@pytest.fixture
def inboxes(tmp_path):
    made = []

    def open_one(incarnation, name="inbox"):
        made.append(Inbox(tmp_path / name, incarnation))
        return made[-1]

    yield open_one
    for inbox in made:
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
    inbox = inboxes("a")
    inbox.fetched([keys[0], keys[1]])
    inbox.committed()
    inbox.fetched([keys[5], keys[6]])
    account = check([ledger.path], [inbox.path])
    assert account.flaws == {}
    assert (account.sent, account.acknowledged, account.received) == (7, 3, 4)
    assert (account.unknown, account.came_of_unknown, account.refused, account.blocked) == (2, 1, 1, 1)


def test_a_loss(ledger, inboxes):
    keys = send(ledger, "delivered", "delivered")
    inbox = inboxes("a")
    inbox.fetched(keys[1:])
    account = check([ledger.path], [inbox.path])
    assert account.flaws == {"lost": 1}
    assert account.examples["lost"] == [keys[0]]


def test_only_committed_messages_that_come_again_are_duplicates(ledger, inboxes):
    keys = send(ledger, *["delivered"] * 4)
    first = inboxes("a")
    first.fetched(keys[:2])
    first.committed()
    first.fetched(keys[2:])  # and dies
    again = inboxes("b")
    again.fetched(keys[2:])
    assert check([ledger.path], [first.path]).flaws == {}
    again.fetched(keys[:1])
    account = check([ledger.path], [first.path])
    assert account.duplicates == 1
    assert account.examples["twice"] == [keys[0]]


def test_messages_in_hand_when_a_successor_comes_are_no_duplicates(ledger, inboxes):
    keys = send(ledger, "delivered", "delivered")
    old, successor = inboxes("a"), inboxes("b")
    successor.fetched(keys)
    successor.committed()
    old.fetched(keys[:1])  # it was handed out before, and noted late
    assert check([ledger.path], [successor.path]).flaws == {"duplicates": 1}
    old.fenced()
    assert check([ledger.path], [successor.path]).flaws == {}


def test_a_repetition_within_one_incarnation_is_a_duplicate(ledger, inboxes):
    keys = send(ledger, "delivered")
    inbox = inboxes("a")
    inbox.fetched(keys)
    inbox.fetched(keys)
    assert check([ledger.path], [inbox.path]).flaws == {"duplicates": 1}


def test_order(ledger, inboxes):
    keys = send(ledger, "delivered", "delivered", "delivered")
    inbox = inboxes("a")
    inbox.fetched([keys[0], keys[2], keys[1]])
    assert check([ledger.path], [inbox.path]).flaws == {"order_breaks": 1}


def test_order_in_a_repetition(ledger, inboxes):
    keys = send(ledger, "delivered", "delivered")
    inboxes("a").fetched(keys)
    again = inboxes("b")
    again.fetched(keys[::-1])
    assert check([ledger.path], [again.path]).flaws == {"order_breaks": 1}


def test_a_refused_or_unsent_message_that_arrives_is_a_phantom(ledger, inboxes):
    keys = send(ledger, "refused")
    inbox = inboxes("a")
    inbox.fetched([keys[0], (7, 7, 7)])
    assert check([ledger.path], [inbox.path]).flaws == {"phantoms": 2}


def test_gap_and_drain(ledger, inboxes, monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.time", lambda: now)
    keys = send(ledger, "delivered", "delivered", "delivered")
    inbox = inboxes("a")
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
    inbox = inboxes("a")
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
    inbox = inboxes("a")
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
