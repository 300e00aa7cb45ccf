"""The sweep by Mesa's `batch_run` with a pool: `python -m benchmarks.sweeps.mesa_side` prints a line of JSON."""

import json

import mesa

from benchmarks.contagion.mesa_side import Contagion, Person
from benchmarks.contagion.world import STEPS, thresholds
from benchmarks.sweeps.design import FIRSTS, PROCESSES


class Beginner(Person):
    def tell(self):
        first = self.model.steps == 1 and self.number % self.model.first == 0
        if not self.active and (self.heard >= self.threshold or first):
            self.active, self.since = True, self.model.steps - 1
            for friend in self.friends:
                friend.coming += 1


def since_at_the_end(model):
    return sum(each.since for each in model.agents) if model.steps == STEPS else 0


class Sweep(Contagion):
    person = Beginner

    def __init__(self, first):
        super().__init__(thresholds())
        self.first = first
        self.datacollector = mesa.DataCollector(model_reporters={"since": since_at_the_end})

    def step(self):
        super().step()
        self.running = self.steps < STEPS
        self.datacollector.collect(self)


def main():
    found = mesa.batch_run(
        Sweep, {"first": FIRSTS}, number_processes=PROCESSES, max_steps=STEPS, display_progress=False
    )
    print(json.dumps({row["first"]: row["since"] for row in found}))


if __name__ == "__main__":
    main()
