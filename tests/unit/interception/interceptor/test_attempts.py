"""Changes of rules' tables by attempts at steps."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.interception.interceptor.attempts import StepAttempts
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.model.batch import Attempt


class World:
    """A rule's table, the attempts that change it, and what is saved of both."""

    def __init__(self, entries=None, saved=None):
        self.table, self.restored, self.dropped = Table(entries), [], []
        self.attempts = StepAttempts(
            lambda: {"rule": self.table}, self.restored.append, lambda _, keys: self.dropped.extend(keys)
        )
        if saved is None:
            self.table.rewrite()
        self.saved = saved or ({}, {})
        for table, fields in zip((self.table, self.attempts.kept), self.saved, strict=True):
            table.load(fields) if saved else None
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

    def save(self):
        for table, fields in zip((self.table, self.attempts.kept), self.saved, strict=True):
            changes = table.changes()
            if changes is not None:
                fields.clear() if changes.cleared else None
                fields.update(changes.put)
                for field in changes.gone:
                    fields.pop(field, None)

    def successor(self):
        """Return the world of an interceptor that loads what this one has saved."""
        self.save()
        return World(saved=self.saved)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_later_attempt_begins_where_the_first_one_did(restarted):
    world = World({"kept": 1, "list": [1]})
    assert world.count("east", 3, 5, kept=2, new=7)
    world.judge("east", 3, 5, lambda: world.table["list"].append(2) is None)
    assert world.count("west", 3, 1, other=9)
    world = world.successor() if restarted else world
    assert world.count("east", 3, 6, more=1)
    assert world.restored == [["rule"]]
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


def test_what_no_attempt_has_changed_outlasts_each():
    world = World({"count": 5, "word": "a"})
    world.count("east", 3, 5, count=7, word="b", new=[1])
    world.table["count"] += 10
    world.table["word"] = "mine"
    world.table.rewrite()
    world = world.successor()
    assert dict(world.table) == {"count": 17, "word": "mine", "new": [1]}
    world.count("east", 3, 6)
    assert dict(world.table) == {"count": 15, "word": "mine"}


@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_reset_or_has_passed_stays_so_whatever_ends(restarted):
    world = World()
    world.count("east", 3, 5, a=3)
    world.table.clear()
    world.count("east", 3, 5, a=2)
    world.count("west", 2, 1, b=4)
    world.count("west", 3, 1, b=5)
    world = world.successor() if restarted else world
    world.count("east", 3, 6)
    world.count("west", 3, 2)
    world = world.successor() if restarted else world
    assert dict(world.table) == {"b": 4}
    assert world.count("west", 4, 2)
    world.attempts.end_step()
    assert world.count("west", 4, 3)
    assert dict(world.table) == {"b": 4}


def appended(world, letter):
    return lambda: world.table.update(list=[*world.table.get("list", []), letter]) is None


def test_what_is_no_count_has_the_changes_of_all_living_attempts_in_their_order():
    world = World()
    for group, letter in (("east", "a"), ("west", "b"), ("east", "c"), ("north", "d")):
        world.judge(group, 3, 5, appended(world, letter))
    world.count("north", 3, 6)
    assert world.table["list"] == ["a", "b", "c"]


def test_a_group_that_has_been_silent_since_does_not_bring_an_old_value_back():
    world = World()
    world.judge("east", 3, 5, lambda: world.table.update(spent=1.0) is None)
    for step in range(3, 6):
        world.judge("west", step, 5, lambda: world.table.update(spent=world.table["spent"] + 1.0) is None)
    world.count("west", 6, 5)
    assert world.successor().table["spent"] == 4.0
    world.judge("north", 6, 5, lambda: world.table.update(spent=9.0) is None)
    world.count("north", 6, 6)
    assert world.table["spent"] == 4.0


def test_a_count_that_begins_anew_after_it_was_deleted_outlasts_a_restart():
    world = World({"sent": 5})
    world.judge("east", 3, 5, lambda: world.table.pop("sent") == 5)
    world.count("west", 3, 5, sent=1)
    world.count("west", 4, 5)
    assert world.table["sent"] == world.successor().table["sent"] == 1


def test_an_entry_set_to_what_it_is_by_no_attempt_is_not_changed():
    world = World({"sent": 3})
    world.count("east", 3, 5, sent=5)
    world.table["sent"] = 5
    world.count("east", 3, 6)
    assert world.table["sent"] == 3


def test_a_step_that_all_have_closed_cannot_be_dropped():
    world = World()
    world.count("east", 3, 5, a=3)
    world.count("west", 3, 1, a=4)
    world.attempts.end_step()
    world = world.successor()
    assert world.saved[0] == {b'"a"': b"4"}
    world.count("east", 3, 6)
    assert dict(world.table) == {"a": 4}


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
        world.save()
    wanted = {key: 5 * (key == "a") + sum(found.count(key) for found in living.values()) for key in "abc"}
    assert {key: world.table.get(key, 0) for key in "abc"} == wanted
