"""Groups that talk by handles, without steps, while a host is cut off: what was acknowledged comes once, in order."""

from itertools import pairwise

import pytest

pytest.importorskip("ray")

from hosts.fault_cases import START_S, RunningSociety, cut, one_way
from support.hosts import Hosts
from support.patience import wait_for

pytestmark = pytest.mark.long

GROUPS = 3
END_S = 240  # after a cut without end Ray finds the dead machine within 66 s, and starts the group elsewhere
CUTS = {
    "B cut for 20 s": cut("b", 20, health_after_s=10),
    "B cut for 60 s": cut("b", 60, health_after_s=30),
    "B cut for ever": cut("b", None, health_after_s=20),
    "nothing from B to the others for ever": one_way("b", "ac", None, health_after_s=20),
    "nothing from A to B for ever": one_way("a", "b", None, health_after_s=20),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CUTS)
def test_handles_lose_nothing_that_was_acknowledged_and_errors_say_enough(name):
    with Hosts() as hosts:
        hosts.start_ray()
        talk = RunningSociety(hosts, "a", {"ray": "a:6380", "groups": GROUPS}, "talk.py")
        try:
            [begun] = wait_for(lambda: talk.said("begun"), "the begin of the talk", START_S)
            assert sorted(begun["begun"].values()) == ["a", "b", "c"]
            [there] = [group for group, host in begun["begun"].items() if host == "b"]
            CUTS[name](hosts, talk)
            talk.tell("end")
            [found] = wait_for(lambda: talk.said("ended"), "the end of the talk", END_S)
        finally:
            talk.end()
    for number in range(GROUPS):
        sender, hearer = f"group{number}", f"group{(number + 1) % GROUPS}"
        heard, acknowledged = found["heard"][hearer], found["acknowledged"][sender]
        assert [n for n, after in pairwise(heard) if n >= after] == []  # nothing twice, nothing out of order
        assert {*acknowledged} <= {*heard}  # nothing lost
        for told in found["errors"][sender]:
            assert told["error"].startswith("OutcomeUnknown: ")
            assert f"group {sender!r} of experiment 'talk' (at 10.77.0.2)" in told["error"]
            assert "send again" in told["error"]
            assert told["took_s"] < 120
    assert {group for group, errors in found["errors"].items() if errors} <= {there}
    assert found["after"][0] != "critical", found["after"]
    for told in (line for line in talk.lines if "health" in line):
        assert told["health"] == "critical"
        assert "10.77.0.2" in " ".join(told["problems"])
