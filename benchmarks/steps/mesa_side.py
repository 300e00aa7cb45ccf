"""A model in Mesa 3, in one process: `python -m benchmarks.steps.mesa_side AGENTS STEPS [MODEL]` prints a line of JSON.

Written as Mesa's guide does it: an Agent with two stages, an AgentSet's `do` for each stage of a step. Agents hold
references to their friends, so that telling is an assignment, and there are no messages. In the model `messages`,
agents have inboxes, and telling puts a message with sender, recipient, step and payload into one. The model `contagion`
is that of `benchmarks.contagion`. Without a third argument, the model is `rumour`.
"""

import json
import statistics
import sys
import time
from typing import NamedTuple

import mesa

from benchmarks.contagion.mesa_side import Contagion
from benchmarks.contagion.world import thresholds
from benchmarks.steps.rumour import KNOWS_AT_FIRST, OFFSETS, choice


class Student(mesa.Agent):
    """An agent; `heard` is what the step before told it."""

    def __init__(self, model, number):
        super().__init__(model)
        self.number = number
        self.knows = number % KNOWS_AT_FIRST == 0
        self.heard = False
        self.friends = ()

    def listen(self):
        if self.heard:
            self.knows = True

    def tell(self):
        if self.knows:
            self.friends[choice(self.number, self.model.steps - 1)].heard = True


class Message(NamedTuple):
    """What one student tells another."""

    from_id: int
    to_id: int
    step: int
    payload: dict


class Correspondent(Student):
    """An agent with an inbox."""

    def __init__(self, model, number):
        super().__init__(model, number)
        self.inbox = []

    def listen(self):
        inbox, self.inbox = self.inbox, []
        if inbox:
            self.knows = True

    def tell(self):
        if self.knows:
            friend = self.friends[choice(self.number, self.model.steps - 1)]
            friend.inbox.append(Message(self.number, friend.number, self.model.steps, {}))


class Rumour(mesa.Model):
    """All students; Mesa counts the steps from 1."""

    def __init__(self, count, kind):
        super().__init__(seed=7)
        students = [kind(self, number) for number in range(count)]
        for student in students:
            student.friends = tuple(students[(student.number + offset) % count] for offset in OFFSETS)

    def step(self):
        self.agents.do("listen")
        self.agents.do("tell")


def main():
    """Run the steps; print Mesa's version, the milliseconds of one step (median, and mean), and how many it reached."""
    count, steps = map(int, sys.argv[1:3])
    name = sys.argv[3] if sys.argv[3:] else "rumour"
    if name == "contagion":
        model = Contagion(thresholds(count))
    else:
        model = Rumour(count, Correspondent if name == "messages" else Student)
    times = []
    for _ in range(steps):
        begun = time.perf_counter()
        model.step()
        times.append(1e3 * (time.perf_counter() - begun))
    known = sum(agent.active if name == "contagion" else agent.knows for agent in model.agents)
    found = {"ms": statistics.median(times), "mean_ms": statistics.mean(times[1:]), "known": known}
    print(json.dumps({"version": mesa.__version__} | found))


if __name__ == "__main__":
    main()
