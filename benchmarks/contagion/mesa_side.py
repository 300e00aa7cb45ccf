"""The contagion in Mesa 3: `python -m benchmarks.contagion.mesa_side` prints a line of JSON.

As in our steps, what an agent tells in one step is heard in the next, so each agent has two stages.
"""

import json

import mesa

from benchmarks.contagion.world import FIRST, STEPS, edges, thresholds


class Person(mesa.Agent):
    def __init__(self, model, number, threshold):
        super().__init__(model)
        self.number, self.threshold = number, threshold
        self.active, self.heard, self.coming, self.since = False, 0, 0, -1
        self.friends = []

    def listen(self):
        self.heard += self.coming
        self.coming = 0

    def tell(self):
        first = self.model.steps == 1 and self.number % FIRST == 0
        if not self.active and (self.heard >= self.threshold or first):
            self.active, self.since = True, self.model.steps - 1
            for friend in self.friends:
                friend.coming += 1


class Contagion(mesa.Model):
    person = Person

    def __init__(self, limits):
        super().__init__(seed=7)
        people = [self.person(self, number, threshold) for number, threshold in enumerate(limits)]
        for sender, hearer in edges(len(limits)).tolist():
            people[sender].friends.append(people[hearer])

    def step(self):
        self.agents.do("listen")
        self.agents.do("tell")


def main():
    model = Contagion(thresholds())
    for _ in range(STEPS):
        model.step()
    print(json.dumps([sum(each.active for each in model.agents), sum(each.since for each in model.agents)]))


if __name__ == "__main__":
    main()
