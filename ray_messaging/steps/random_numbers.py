"""Random numbers of agents, which depend on the run's seed, the step and the agent alone."""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import pack
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.digests import id_bytes

_KEY_BYTES = 16  # Philox takes a key of 128 bits


def agent_generator(seed: int, step: int, agent: AgentId) -> np.random.Generator:
    """Return the random numbers of one agent in one step: the same for every layout, and after every fault."""
    hashed = _step_hash(seed, step).copy()
    hashed.update(id_bytes(agent))
    return np.random.Generator(np.random.Philox(_Key(hashed.digest())))  # type: ignore[arg-type]  # any ISeedSequence


class _Key(ISeedSequence):
    """A key in the place of a seed: `Philox(key=)` draws a seed from the system first, which takes 40 us."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:  # noqa: ANN401, ARG002 - numpy's
        """Return the key, as the two words for which Philox asks."""
        return np.frombuffer(self._key, np.uint64)


@lru_cache(maxsize=4)
def _step_hash(seed: int, step: int) -> blake2b:
    """Return the start of the hashes of a step; callers copy it."""
    return blake2b(digest_size=_KEY_BYTES, key=_seed_key(seed), salt=pack("<q8x", step))


def uniform_rows(seed: int, step: int, agents: Sequence[AgentId], k: int) -> NDArray[np.float64]:
    """Return k uniform numbers in [0, 1) for each agent, float64 (n, k).

    Each number is a hash of (seed, step, agent, its place): no generator per agent is built.
    """
    ids = _id_hashes(agents)
    key = np.frombuffer(blake2b(pack("<q", step), digest_size=8, key=_seed_key(seed)).digest(), np.uint64)
    with np.errstate(over="ignore"):
        places = np.arange(1, k + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = _mix(_mix(ids ^ key[0])[:, None] + places[None, :])
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _id_hashes(agents: Sequence[AgentId]) -> NDArray[np.uint64]:
    if isinstance(agents, AgentPlaces):
        named = np.array([_id_hash(name) for name in agents.strings], np.uint64)
        return np.concatenate([agents.ints.astype(np.uint64), named])
    return np.fromiter(map(_id_hash, agents), np.uint64, len(agents))


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
