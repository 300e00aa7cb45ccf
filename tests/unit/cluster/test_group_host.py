"""Admission of calls from other processes: in order, and once."""

import asyncio

import pytest
from support.groups_without_ray import groups_without_ray
from support.patience import WAIT_S

from ray_messaging.cluster.actors import group_host as module
from ray_messaging.cluster.actors.group_host import CallerAdmission
from ray_messaging.errors import OutcomeUnknown


class Calls:
    """Count the runs of numbered calls; their answers are their numbers."""

    def __init__(self):
        self.admission = CallerAdmission()
        self.ran = []

    async def admit(self, number, *, caller="handle", oldest=0, gate=None):
        async def run():
            self.ran.append((caller, number))
            if gate is not None:
                await gate.wait()
            return f"{caller} {number}"

        return await asyncio.wait_for(self.admission.admit(caller, number, oldest, run), WAIT_S)

    def begin(self, number, **options):
        return asyncio.create_task(self.admit(number, **options))


@pytest.fixture
def calls():
    return Calls()


async def turns():
    for _ in range(4):
        await asyncio.sleep(0)


async def test_the_answer_of_a_call_is_kept_until_its_caller_has_seen_it(calls):
    for number in range(5):
        await calls.admit(number, oldest=number)
        assert await calls.admit(number, oldest=number) == f"handle {number}"
    with pytest.raises(OutcomeUnknown):  # not run again: its outcome is unknown
        await calls.admit(3, oldest=3)
    assert [number for _, number in calls.ran] == [0, 1, 2, 3, 4]


async def test_a_call_that_waits_begins_once_its_caller_has_given_up_the_one_before(calls):
    waiting = calls.begin(1, oldest=0)  # call 0 never comes
    await turns()
    assert await calls.admit(2, oldest=1) == "handle 2"
    assert await waiting == "handle 1"
    assert [number for _, number in calls.ran] == [1, 2]


async def test_a_running_call_of_a_forgotten_caller_ends_and_its_next_calls_go_on(monkeypatch):
    monkeypatch.setattr(module, "CALLERS", 3)
    calls, gate = Calls(), asyncio.Event()
    first = calls.begin(0, caller="busy", gate=gate)
    await turns()
    for n in range(10):
        await calls.admit(0, caller=f"task-{n}")
    again = calls.begin(0, caller="busy", gate=gate)
    assert await calls.admit(1, caller="busy") == "busy 1"
    gate.set()
    assert [await first, await again] == ["busy 0", "busy 0"]
    assert [each for each in calls.ran if each[0] == "busy"] == [("busy", 0), ("busy", 1)]


async def test_calls_beside_one_that_takes_long_do_not_look_at_all_calls_that_are_remembered(calls):
    looked = []

    class Oldest(int):
        def __gt__(self, number):
            looked.append(number)  # `number < self` calls this, because this is a subclass of int
            return number < int(self)

    gate = asyncio.Event()
    slow = calls.begin(0, gate=gate)
    await turns()
    for number in range(1, 100):
        await calls.admit(number, oldest=Oldest(0))
    gate.set()
    assert await slow == "handle 0"
    assert len(looked) <= 2 * 99  # the first remembered call, and the call that may begin next
    assert await calls.admit(100, oldest=Oldest(100)) == "handle 100"
    with pytest.raises(OutcomeUnknown):
        await calls.admit(99, oldest=99)


async def test_a_groups_process_keeps_no_list_of_its_sends_because_nobody_can_read_it(monkeypatch, server, exp_id):
    async with groups_without_ray(monkeypatch, server, exp_id, {"west": [1], "east": [2]}) as groups:
        receipt = await groups["west"].handle().send(1, 2, {"n": 1})
        assert receipt.sent
        assert groups["west"].messager.get_log_list() == []
