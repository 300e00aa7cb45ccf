"""Rules of tests, batches for rules, and the ways in which a rule must come to the same verdicts."""

import msgspec
import numpy as np
from hypothesis import strategies as st

from ray_messaging.interception.rules import ALLOW, Rule
from ray_messaging.message import Message
from ray_messaging.model.columns import PayloadColumn
from support.batches import batch_to

AGENT = st.one_of(st.integers(0, 4), st.sampled_from(["ann", "bob", -(2**63), 2**63 - 1]))
SENDER = RECEIVER = st.one_of(AGENT, st.none())
PAIRS = st.lists(st.tuples(SENDER, RECEIVER), min_size=1, max_size=40)
TEXTS = st.sampled_from(["fine", "a bad one", "BAD", "badly", "be nice"])


def batch_of(pairs, texts=None, *, sender="s", first=0, epoch=0, payloads=None):
    """Build a batch of pairs; each says its text, if there are any."""
    if payloads is None and texts is not None:
        payloads = [{"content": text} for text in texts]
    lines = None if payloads is None else PayloadColumn.of([msgspec.json.encode(payload) for payload in payloads])
    from_ids, to_ids = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return batch_to(to_ids, from_ids, sender=sender, epoch=epoch, first=first, lines=lines)


def message_of(content="hello", from_id=1, to_id=2):
    """Build a message as a rule sees it."""
    return Message("e", batch_of([(from_id, to_id)], [content]), 0)


def judged(rule, batch):
    """Return a rule's verdict on each row: None where it passes."""
    found = rule.check_batch(batch, "e")
    assert set(found) <= set(range(len(batch)))
    return [found.get(row) for row in range(len(batch))]


def blocked(rule, batch):
    """Return the rows that a rule blocks."""
    return [row for row, verdict in enumerate(judged(rule, batch)) if verdict is not None and verdict.blocked]


def one_by_one(rule, batch):
    """Return a rule's verdict on each row, in batches of one row."""
    return [judged(rule, batch.take(np.array([row])))[0] for row in range(len(batch))]


def revived(rule, fresh):
    """Return a fresh rule with the state of one after its process died."""
    fresh.state.load(rule.state.dump())
    fresh.restored()
    return fresh


def follow(changes, kept):
    """Apply the changes to the state on the server."""
    if changes is not None:
        if changes.cleared:
            kept.clear()
        for field in changes.gone:
            kept.pop(field, None)
        kept.update(changes.put)
    return kept


class AskingBlock:
    """A block of AgentSociety's that asks a moderator's function."""

    def __init__(self, function):
        self.function = function

    async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
        return await self.function(msg)


class Only(Rule):
    """A rule that blocks by a function, which may raise or answer nonsense."""

    def __init__(self, judge, name="only", on_error="block", *, needs_payload=False):
        self.judge = judge
        self.name = name
        self.on_error = on_error
        self.needs_payload = needs_payload
        self.asked = []

    def check(self, message):
        self.asked.append((message.from_id, message.to_id))
        return self.judge(message)


class Whole(Rule):
    """Judge a batch by a function; it may raise or answer nonsense."""

    def __init__(self, judge, name="whole", on_error="block"):
        self.judge = judge
        self.name = name
        self.on_error = on_error

    def check_batch(self, batch, exp_id):
        return self.judge(batch)


def allow(_message):
    return ALLOW
