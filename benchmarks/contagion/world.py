"""The contagion that both programs run: a network, thresholds, and the agents that begin."""

import numpy as np

AGENTS, FRIENDS, STEPS = 20_000, 8, 40
FIRST = 200  # every so-many-th agent is active at first


def edges(agents: int = AGENTS) -> np.ndarray:
    """Return pairs of sender and hearer, each once: half of an agent's friends are near it, and half anywhere."""
    rng = np.random.default_rng(7)
    near = [(np.arange(agents) + step) % agents for step in range(1, FRIENDS // 2 + 1)]
    far = [(np.arange(agents) + 1 + rng.integers(agents - 1, size=agents)) % agents for _ in near]
    return np.unique(np.stack([np.tile(np.arange(agents), FRIENDS), np.concatenate(near + far)], axis=1), axis=0)


def thresholds(agents: int = AGENTS) -> list[int]:
    """Return after how many active friends each agent becomes active."""
    return np.random.default_rng(11).integers(1, 4, size=agents).tolist()
