"""Random numbers of agents, which depend on the run's seed, the step and the agent alone."""

from collections.abc import Sequence
from hashlib import blake2b
from struct import pack

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.steps.digests import id_bytes

_KEY_BYTES = 16  # Philox takes a key of 128 bits


def agent_generator(seed: int, step: int, agent: AgentId) -> np.random.Generator:
    """Return the random numbers of one agent in one step: the same for every layout, and after every fault."""
    key = blake2b(id_bytes(agent), digest_size=_KEY_BYTES, key=_seed_key(seed), salt=pack("<q8x", step)).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key, np.uint64)))


def uniform_rows(seed: int, step: int, agents: Sequence[AgentId], k: int) -> NDArray[np.float64]:
    """Return k uniform numbers in [0, 1) for each agent, float64 (n, k).

    Each number is a hash of (seed, step, agent, its place): no generator per agent is built.
    """
    ids = np.fromiter((_id_hash(agent) for agent in agents), np.uint64, len(agents))
    key = np.frombuffer(blake2b(pack("<q", step), digest_size=8, key=_seed_key(seed)).digest(), np.uint64)
    with np.errstate(over="ignore"):
        places = np.arange(1, k + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = _mix(_mix(ids ^ key[0])[:, None] + places[None, :])
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _id_hash(agent: AgentId) -> int:
    if isinstance(agent, int):
        return agent & (2**64 - 1)
    return int.from_bytes(blake2b(agent.encode(), digest_size=8).digest(), "little")


def _seed_key(seed: int) -> bytes:
    return seed.to_bytes(32, "little", signed=True)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's finalizer of each value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
