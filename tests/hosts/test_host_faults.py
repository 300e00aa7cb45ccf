"""Runs on three hosts whose network fails: nothing is lost, comes twice or out of order, and errors say all one needs.

`python tests/hosts` prints how long each run stood still.
"""

import shutil

import pytest

pytest.importorskip("ray")

from hosts.fault_cases import CASES, digest_of_one_process

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def undisturbed():
    return digest_of_one_process()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_ends_with_all_messages_or_with_an_error_that_says_enough(case, undisturbed):
    if case.own_server and shutil.which("redis-server") is None:
        pytest.skip("a Redis of one's own needs redis-server: apt-get install redis-server")
    outcome = case.run()
    assert outcome.broken(undisturbed, fails=case.fails) == []
    assert all(told["health"] != "ok" and case.told in " ".join(told["problems"]) for told in outcome.health)
