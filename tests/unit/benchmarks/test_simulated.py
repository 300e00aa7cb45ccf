"""The simulation of machines that are not at hand."""

import pytest

from benchmarks.scale.events import Machine, Network, Simulation, Thread, together
from benchmarks.scale.simulated import CHECKS, Society, step_of


def ended(*processes):
    """Return when each process ends."""
    simulation, found = processes[0], {}

    def noted(number, process):
        yield from process
        found[number] = simulation.now

    for number, process in enumerate(processes[1:]):
        simulation.start(noted(number, process))
    simulation.run()
    return [pytest.approx(found[number]) for number in range(len(found))]


def test_processes_share_the_cores_and_a_thread_does_one_thing_at_a_time():
    simulation = Simulation()
    two = Machine(simulation, 2, Network())
    assert ended(simulation, *(two.work(1.0) for _ in range(2))) == [1.0, 1.0]
    simulation = Simulation()
    one = Machine(simulation, 1, Network(), slowness=2.0)
    assert 3.0 in ended(simulation, *(one.work(0.5) for _ in range(3)))
    simulation = Simulation()
    thread = Thread(Machine(simulation, 4, Network()))
    assert ended(simulation, thread.work(1.0), thread.work(2.0)) == [1.0, 3.0]


def test_a_link_takes_its_rate_and_half_a_round_trip():
    simulation = Simulation()
    a, b, c = (Machine(simulation, 1, Network(0.1, 8e6)) for _ in range(3))
    assert ended(simulation, a.send(b, 1e6)) == [1.05]
    simulation = Simulation()
    a, b, c = (Machine(simulation, 1, Network(0.0, 8e6)) for _ in range(3))
    both = together(simulation, [a.send(c, 2e6), b.send(c, 2e6)])
    assert ended(simulation, both) == [4.0]
    assert ended(Simulation(), a.send(a, 1e9)) == [0.0]


def test_a_step_takes_what_its_busiest_part_takes():
    far = step_of(Society(10, 2, 2, network=Network(1.0), server_apart=True))
    assert far.seconds == pytest.approx(1.0, rel=0.02)  # a round trip
    many = step_of(Society(1e6, 100, 10, cores=32, server_apart=True))
    assert many.primary > 0.9
    logged = step_of(Society(1e6, 10, 10, cores=32, server_apart=True, logged=True), 20)
    assert logged.seconds == pytest.approx(0.4, rel=0.1)  # what the log takes for a million messages


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.what)
def test_what_was_measured_is_simulated_within_a_factor(check):
    assert 0.5 < check.simulate() / check.measured < 2.5
