"""Random numbers of agents, which depend only on the run's seed, the step and the agent."""

from hashlib import blake2b
from struct import pack
from typing import Any

import numpy as np
from numpy.random import PCG64DXSM, Generator
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.steps.agent_places import AgentPlaces

# Seeds are computed for this many agents at once, because one at a time would take a hundred times as long.
_BLOCK = 1024
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64 adds this to its state for each number


def agent_generator(seed: int, step: int, agent: AgentId) -> Generator:
    """Return the random number generator of one agent in one step.

    It gives the same numbers in any group, and after any fault.
    """
    return StepGenerators(seed, step, AgentPlaces(AgentSet.of([agent]))).at(0)


def step_generator(seed: int, step: int) -> Generator:
    """Return the random number generator of a step. It gives the same numbers to all agents and groups."""
    return Generator(PCG64DXSM(_Seed(np.frombuffer(_hash_of(seed, step, 32), np.uint64))))  # type: ignore[arg-type]


class StepGenerators:
    """The random numbers of some agents in one step.

    An agent's generator is a PCG64DXSM with a seed of 256 bits. SplitMix64 draws this seed from two numbers. The first
    number is mixed from the agent's id and 64 bits of a hash of (seed, step), the second number from the id and 64
    other bits of this hash.
    """

    def __init__(self, seed: int, step: int, agents: AgentPlaces) -> None:
        self.agents = agents
        self._seed, self._step = seed, step
        # The block whose seeds were computed last: the index of its first agent, and the seeds of its agents.
        self._block: tuple[int, list[NDArray[np.uint64]]] = (0, [])

    def at(self, place: int) -> Generator:
        """Return the generator of the agent at index `place`. It is new, so it begins with the first random number."""
        low, seeds = self._block  # `_block` is read only once, because another thread may replace it between two reads
        if not low <= place < low + len(seeds):
            low, seeds = self._block = self._block_of(place)
        return Generator(PCG64DXSM(_Seed(seeds[place - low])))  # type: ignore[arg-type]  # any ISeedSequence

    def _block_of(self, place: int) -> tuple[int, list[NDArray[np.uint64]]]:
        """Compute the seeds of the block of agents that contains index `place`.

        Return the index of the block's first agent, and the seeds.
        """
        low = place - place % _BLOCK
        keys = np.frombuffer(_hash_of(self._seed, self._step, 16), np.uint64)
        ids = self.agents.hashes[low : low + _BLOCK]
        with np.errstate(over="ignore"):
            starts = _mix(np.stack([ids ^ keys[0], ids + keys[1]], axis=1)) + _GOLDEN
            seeds = _mix(np.concatenate([starts, starts + _GOLDEN], axis=1))
        return low, list(seeds)


class _Seed(ISeedSequence):
    """A seed that consists of four given numbers. numpy's own class hashes its seed, which takes ten times as long."""

    __slots__ = ("words",)

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self.words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:  # noqa: ANN401, ARG002 - for numpy
        """Return the seed as four numbers. numpy's PCG64DXSM, which calls this, never asks for more or fewer."""
        return self.words


def uniform_rows(seed: int, step: int, agents: AgentPlaces, k: int) -> NDArray[np.float64]:
    """Return k uniform numbers in [0, 1) for each agent, float64 (n, k).

    Each number is a hash of the seed, the step, the agent and the number's position, so agents need no generators.

    Raises: ConfigError unless k is a whole number of at least 0.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
        raise ConfigError(f"uniform({k!r}) is invalid: pass how many numbers each agent gets, such as uniform(3)")
    key = np.frombuffer(_hash_of(seed, step, 8), np.uint64)
    with np.errstate(over="ignore"):
        places = np.arange(1, k + 1, dtype=np.uint64) * _GOLDEN
        mixed = _mix(_mix(agents.hashes ^ key[0])[:, None] + places[None, :])
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _hash_of(seed: int, step: int, size: int) -> bytes:
    return blake2b(pack("<q", step), digest_size=size, key=seed.to_bytes(32, "little", signed=True)).digest()


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values, each with its bits mixed by the last stage of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
