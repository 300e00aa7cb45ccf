"""Every fault of the servers and of the links to them, with promises counted by real processes."""

import pytest

from faults import (
    failover_cases,
    hostile_cases,
    link_cases,
    loss_cases,
    moving_cases,
    overload_cases,
    process_cases,
    server_cases,
)

pytestmark = pytest.mark.faults

MODULES = (server_cases, process_cases, moving_cases, link_cases, loss_cases, overload_cases, hostile_cases)
CASES = [case for module in MODULES for case in module.CASES]
# Of those on a cluster and Sentinels one, and short ones of a lost primary and a slot that moves: `python tests/faults`
# has the long ones, and all with --replicas.
ELSEWHERE = [*process_cases.CASES[0].on_services(), *failover_cases.SHORT]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.quick else pytest.mark.long) for case in (*CASES, *ELSEWHERE)],
)
def test_the_promise_of_a_server_fault_holds(case, tmp_path):
    account = case.run(tmp_path)
    assert case.promise.broken(account) == {}, account
    assert account.acknowledged
