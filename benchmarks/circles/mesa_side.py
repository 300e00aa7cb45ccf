"""Circles in Mesa 3, in one process: `python -m benchmarks.circles.mesa_side AGENTS STEPS FILE` prints a line of JSON.

The cells of Mesa's grid have sides of the radius, so that an agent looks at those of 27 cells; Mesa's continuous space
looks at all agents for each agent. The last places go into the file.
"""

import json
import math
import sys
import time
from itertools import chain

import mesa
import numpy as np
from mesa.discrete_space import CellAgent, OrthogonalMooreGrid

from benchmarks.circles.model import PULL, RADIUS, places_of, side_of


class Circle(CellAgent):
    """An agent in a cell of the grid."""

    def __init__(self, model, place):
        super().__init__(model)
        self.stand(place)

    def stand(self, place):
        self.place = place
        cell = self.model.cell_at(place)
        if self.cell is not cell:
            self.cell = cell

    def look(self):
        x, y, z = self.place
        fx = fy = fz = 0.0
        count = 0
        for other in chain(self.cell.neighborhood.agents, self.cell.agents):
            if other is not self:
                a, b, c = other.place
                a, b, c = a - x, b - y, c - z
                far = math.sqrt(a * a + b * b + c * c)
                if far <= RADIUS:
                    count += 1
                    if far:
                        scale = math.sin(far * (-2 * math.pi / RADIUS)) * PULL / far
                        fx, fy, fz = fx + a * scale, fy + b * scale, fz + c * scale
        side, count = self.model.side, count or 1
        self.next = tuple(min(max(at + by / count, 0.0), side) for at, by in ((x, fx), (y, fy), (z, fz)))

    def go(self):
        self.stand(self.next)


class Circles(mesa.Model):
    """All agents."""

    def __init__(self, count):
        super().__init__(seed=7)
        self.side = side_of(count)
        self.last = int(self.side / RADIUS)
        self.grid = OrthogonalMooreGrid((self.last + 1,) * 3, torus=False, capacity=None, random=self.random)
        for place in places_of(count).tolist():
            Circle(self, tuple(place))

    def cell_at(self, place):
        return self.grid[tuple(min(int(at / RADIUS), self.last) for at in place)]

    def step(self):
        self.agents.do("look")
        self.agents.do("go")


def main():
    """Run the steps; print Mesa's version, and the seconds of the set-up and of each step."""
    count, steps = map(int, sys.argv[1:3])
    begun = time.perf_counter()
    model = Circles(count)
    setup, times = time.perf_counter() - begun, []
    for _ in range(steps):
        begun = time.perf_counter()
        model.step()
        times.append(time.perf_counter() - begun)
    np.save(sys.argv[3], np.array([agent.place for agent in model.agents]))
    print(json.dumps({"version": mesa.__version__, "setup": setup, "steps": times}))


if __name__ == "__main__":
    main()
