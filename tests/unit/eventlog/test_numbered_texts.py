"""Texts composed of digits are those of Python's formatting, for numbers of any length in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.eventlog.writing.addresses import numbered_texts


@given(
    st.lists(st.integers(0, 10**18), min_size=0, max_size=40),
    st.integers(1, 8),
    st.sampled_from(["", "exps:town:agents:", "Köln-1-"]),
    st.sampled_from(["", ":agent-chat", ":räte"]),
)
def test_texts_are_those_of_formatting(numbers, times, head, tail):
    numbers = numbers * times  # few of them take another way than many
    found = numbered_texts(head, np.array(numbers, np.int64), tail)
    found.validate(full=True)
    assert found.to_pylist() == [f"{head}{number}{tail}" for number in numbers]


@pytest.mark.parametrize("first", [1_000, 4_990, 10_000, 123_456, 99_999_990_000])
def test_numbers_that_follow_each_other_have_the_texts_of_others(first):
    numbers = np.arange(first, first + 5_000)
    if first == 1_000:
        numbers = numbers[:4_000]
    found = numbered_texts("Köln-1-", numbers, ":a")
    found.validate(full=True)
    assert found.to_pylist() == [f"Köln-1-{number}:a" for number in numbers.tolist()]
    assert found[::-1].equals(numbered_texts("Köln-1-", numbers[::-1], ":a"))


def test_negative_numbers_have_their_sign():
    numbers = np.arange(-100, 100)
    assert numbered_texts("a", numbers, "b").to_pylist() == [f"a{number}b" for number in range(-100, 100)]
