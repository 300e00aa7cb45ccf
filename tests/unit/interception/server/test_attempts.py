"""Changes of rules' tables by attempts at steps."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.interception.server.attempts import Attempt, StepAttempts
from ray_messaging.interception.server.rule_tables import Table


class World:
    """A rule's table, and the attempts that change it."""

    def __init__(self, entries=None, undo=None):
        self.table, self.restored, self.dropped = Table(entries), [], []
        self.attempts = StepAttempts(
            lambda: {"rule": self.table}, self.restored.append, lambda _, keys: self.dropped.extend(keys)
        )
        self.attempts.undo.load(undo or {})
        self.attempts.load([])

    def count(self, group, step, attempt, *, done=True, **entries):
        def judge():
            self.table.update(entries)
            return done

        return self.judge(group, step, attempt, judge)

    def judge(self, group, step, attempt, judge):
        found = self.attempts.enter(Attempt(group, step, attempt))
        if found:
            self.attempts.note(Attempt(group, step, attempt), judge)
        return found

    def successor(self):
        """Return the world of an interceptor that loads what this one has saved."""
        return World(dict(self.table), self.attempts.undo.dump())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_later_attempt_begins_where_the_first_one_did(restarted):
    world = World({"kept": 1, "list": [1]})
    assert world.count("east", 3, 5, kept=2, new=7)
    world.judge("east", 3, 5, lambda: world.table["list"].append(2) is None)
    assert world.count("west", 3, 1, other=9)
    world = world.successor() if restarted else world
    assert world.count("east", 3, 6, more=1)
    assert world.restored == [{"rule"}]
    world = world.successor() if restarted else world
    assert not world.count("east", 3, 5, late=1)  # the attempt before is over, and so are earlier steps
    assert not world.count("east", 2, 9, late=1)
    assert dict(world.table) == {"kept": 1, "list": [1], "other": 9, "more": 1}


def test_a_batch_takes_no_longer_after_many_others_of_its_attempt():
    world = World()
    world.count("east", 3, 5, **{f"a{number}": 1 for number in range(50_000)})
    began = time.process_time()
    for _ in range(100):
        world.count("east", 3, 5, again=1)
    assert time.process_time() - began < 0.25


def test_a_table_that_was_replaced_keeps_its_entries():
    world = World()
    world.count("east", 3, 5, first=1)
    world.attempts.forget("rule")
    world.count("east", 3, 6)
    assert dict(world.table) == {"first": 1}


batches = st.lists(
    st.tuples(
        st.sampled_from(["east", "west"]),
        st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
        st.sampled_from(["counts", "waits", "dies", "restarts"]),
    ),
    max_size=12,
)


@given(batches)
def test_counts_are_those_of_the_living_attempts(batches):
    """Two groups count under the same keys in one step; attempts die, and the interceptor has successors."""
    world, attempts, living = World({"a": 5}), {"east": 1, "west": 1}, {"east": [], "west": []}
    for group, keys, what in batches:
        if what == "restarts":
            world = world.successor()
            continue
        if what == "dies":
            attempts[group] += 1
            living[group].clear()

        def judge(table=world.table, keys=keys, what=what):
            for key in keys:
                table[key] = table.get(key, 0) + 1
            return what != "waits"

        world.judge(group, 3, attempts[group], judge)
        if what == "waits":  # its successor is asked about it again, or a later attempt begins
            world = world.successor()
        else:
            living[group] += keys
    wanted = {key: 5 * (key == "a") + sum(found.count(key) for found in living.values()) for key in "abc"}
    assert {key: world.table.get(key, 0) for key in "abc"} == wanted
