"""The model that all sides of a step run: 1,000 agents in 4 groups, each tells its mood to six others."""

import time
from collections.abc import Callable, Sequence

import numpy as np

AGENTS, GROUPS = 1000, 4
FRIENDS = (1, 7, 251, 333, 500, 777)
MESSAGES = AGENTS * len(FRIENDS)
MEMBERS = [range(low, low + AGENTS // GROUPS) for low in range(0, AGENTS, AGENTS // GROUPS)]
TO = [[(agent + k) % AGENTS for k in FRIENDS] for agent in range(AGENTS)]


def next_mood(mood: float, heard: Sequence[float], noise: float) -> float:
    """Return the mood of an agent after what it heard."""
    return 0.9 * mood + 0.1 * sum(heard) / (len(heard) or 1) + noise


def noise_of(agent: int) -> Callable[[], float]:
    """Return the random numbers of an agent, so that groups do not change them."""
    return np.random.Generator(np.random.PCG64DXSM((7, agent))).normal


def alone_ms(steps: int) -> float:
    """Return the time of one step of the model in one loop, with inboxes as lists."""
    moods, inboxes = [0.0] * AGENTS, [[] for _ in range(AGENTS)]
    noise = [noise_of(agent) for agent in range(AGENTS)]
    begun = time.perf_counter()
    for _ in range(steps):
        following: list[list[float]] = [[] for _ in range(AGENTS)]
        for agent, inbox in enumerate(inboxes):
            moods[agent] = mood = next_mood(moods[agent], inbox, noise[agent]())
            for friend in TO[agent]:
                following[friend].append(mood)
        inboxes = following
    return 1e3 * (time.perf_counter() - begun) / steps


def per_step_ms(stamps: Sequence[float]) -> float:
    """Return the milliseconds between two steps; the start of a turn does not count."""
    return 1e3 * (stamps[-1] - stamps[0]) / (len(stamps) - 1)
