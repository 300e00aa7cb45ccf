"""Patterns are matched in every sender's process: none may take exponential time there."""

import re
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.addressing.patterns import compile_glob

MATCHING = """
from ray_messaging.addressing.patterns import compile_glob
for glob in ("*a" * 90 + "b", "*?" * 90 + "b", "*[a-c]" * 30 + "b", "a" + "*" * 150 + "b"):
    assert not compile_glob(glob)("a" * 200), glob
assert compile_glob("*a" * 90)("a" * 200)
"""


def test_a_pattern_with_many_stars_matches_in_time():
    # In a process of its own: the engine of re holds the interpreter for as long as it tries.
    subprocess.run([sys.executable, "-c", MATCHING], check=True, timeout=30)


def by_hand(glob, text):
    """Match by trying every split."""
    if not glob:
        return not text
    if glob[0] == "*":
        return any(by_hand(glob[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and glob[0] in {"?", text[0]} and by_hand(glob[1:], text[1:])


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_stars_match_as_the_reference_does(glob, text):
    assert compile_glob(glob)(text) == by_hand(glob, text)
    if not re.search(r"[*?]", glob):
        assert compile_glob(glob)(text) == (glob == text)
