"""The queue that hands calls out by step and text."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.common.prefix_queue import PrefixQueue


def queue_of(*items):
    queue = PrefixQueue()
    for step, text in items:
        queue.push((step, text), step, text)
    return queue


def drained(queue):
    return [queue.pop() for _ in range(len(queue))]


def test_items_come_by_step_and_then_by_text():
    assert drained(queue_of((1, "b"), (0, "z"), (1, "a"), (0, "c"))) == [(0, "c"), (0, "z"), (1, "a"), (1, "b")]


def test_after_an_item_come_those_whose_texts_follow_and_then_the_lowest():
    queue = queue_of((0, "m"), (0, "p"))
    assert queue.pop() == (0, "m")
    for text in ("a", "n", "m"):
        queue.push((0, text), 0, text)
    assert drained(queue) == [(0, "m"), (0, "n"), (0, "p"), (0, "a")]


@given(st.lists(st.tuples(st.integers(0, 3), st.text("ab", max_size=2))))
def test_nothing_is_lost_and_equal_texts_keep_their_order(items):
    queue = PrefixQueue()
    for number, (step, text) in enumerate(items):
        queue.push((step, text, number), step, text)
    found = drained(queue)
    assert sorted(found) == sorted((*item, number) for number, item in enumerate(items))
    assert [step for step, *_ in found] == sorted(step for step, _ in items)
    for one, other in pairwise(found):
        assert one[0] < other[0] or one[1] != other[1] or one[2] < other[2]
    rises = [one[1] <= other[1] for one, other in pairwise(found) if one[0] == other[0]]
    assert rises.count(False) <= len({step for step, _ in items})  # in each step the texts begin again at most once
