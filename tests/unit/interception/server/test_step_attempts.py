"""Counts of rules by attempt at a step."""

import numpy as np
import pytest

from ray_messaging.interception.server.state.table import Table
from ray_messaging.interception.server.steps.attempts import StepAttempts
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension


def asked(group, step, attempt):
    """Return a batch of one message, as a group asks about it in a step."""
    return Batch(
        sender=group,
        epoch=0,
        first=0,
        from_ids=IdColumn.of([1]),
        to_ids=IdColumn.of([2]),
        topics=("agent-chat",),
        step=step,
        lines=PayloadColumn.of([b"{}"]),
        rows=1,
        extension=Extension(attempt=attempt, ordinal=np.zeros(1, np.uint32)),
    )


class World:
    """A rule's table, and the attempts that change it."""

    def __init__(self, entries=None, undo=None):
        self.table, self.restored = Table(entries), []
        self.attempts = StepAttempts(lambda: {"rule": self.table}, self.restored.append)
        self.attempts.undo.load(undo or {})
        self.attempts.load()

    def count(self, group, step, attempt, **entries):
        return self.attempts.run(asked(group, step, attempt), lambda: self.table.update(entries))

    def successor(self):
        """Return the world of an interceptor that loads what this one has saved."""
        return World(dict(self.table), self.attempts.undo.dump())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_later_attempt_begins_where_the_first_one_did(restarted):
    world = World({"kept": 1, "list": [1]})
    assert world.count("east", 3, 5, kept=2, new=7)
    world.attempts.run(asked("east", 3, 5), lambda: world.table["list"].append(2))
    assert world.count("west", 3, 1, other=9)
    world = world.successor() if restarted else world
    assert world.count("east", 3, 6, more=1)
    assert dict(world.table) == {"kept": 1, "list": [1], "other": 9, "more": 1}
    assert world.restored == [{"rule"}]


def test_a_later_step_keeps_what_an_earlier_one_counted():
    world = World()
    world.count("east", 3, 5, first=1)
    world.count("east", 4, 5, second=2)
    world.count("east", 4, 6, third=3)
    assert dict(world.table) == {"first": 1, "third": 3}


def test_an_attempt_that_is_over_counts_nothing():
    world = World()
    world.count("east", 3, 6, first=1)
    assert not world.count("east", 3, 5, late=1)
    assert not world.count("east", 2, 9, later=1)
    assert dict(world.table) == {"first": 1}


def test_the_end_of_a_step_settles_it():
    world = World()
    world.count("east", 3, 5, first=1)
    world.attempts.end_step()
    world.count("east", 4, 6)
    assert dict(world.table) == {"first": 1}
    assert not world.attempts.undo


def test_messages_outside_of_steps_are_not_followed():
    world = World()
    batch = asked("east", 3, 0)
    assert world.attempts.run(batch, lambda: world.table.update(first=1))
    assert not world.attempts.undo
